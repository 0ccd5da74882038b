"""Which model suits a machine."""

from __future__ import annotations

import pytest

from edgellm.engine.advice import BESIDE, PACE, advise, largest

GB = 10**9


@pytest.mark.parametrize(
    ("memory", "bandwidth", "size", "quant"),
    [
        (23, 30, "4B", "Q6_K"),  # two cores of a server
        (6, 15, "1.7B", "Q6_K"),  # an old laptop
        (4, 8, "1B", "Q5_K_M"),  # a board
        (28, 80, "8B", "Q8_0"),  # a desktop
        (120, 400, "70B", "Q4_K_M"),
        (2, 400, "1B", "Q8_0"),  # little memory, fast
    ],
)
def test_advice(memory: int, bandwidth: int, size: str, quant: str) -> None:
    found = advise(memory * GB, bandwidth * 1e9)
    assert found is not None
    assert (found.size, found.quant) == (size, quant)
    assert found.tokens_per_second is not None
    assert found.tokens_per_second >= PACE
    assert found.n_bytes + BESIDE < memory * GB
    assert 4096 <= found.n_ctx <= 32768


def test_a_slow_machine_gets_the_smallest() -> None:
    found = advise(8 * GB, 1e9)
    assert found is not None
    assert (found.size, found.quant) == ("0.6B", "Q4_K_M")
    assert found.tokens_per_second is not None
    assert found.tokens_per_second < PACE


def test_the_largest_that_fits() -> None:
    for memory, size in ((2, "1B"), (8, "8B"), (24, "32B"), (64, "70B")):
        found = largest(memory * GB, None)
        assert found is not None
        assert (found.size, found.tokens_per_second) == (size, None)


def test_nothing_fits() -> None:
    assert advise(10**8, 1e9) is None
    assert largest(10**8, 1e9) is None
