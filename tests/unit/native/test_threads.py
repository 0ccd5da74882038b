"""Threads of decode steps: fewer take part, the results are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgellm import _native
from edgellm._native import Engine, EngineConfig
from edgellm.core.errors import NativeError
from edgellm.core.types import Batch


def logits(engine: Engine, make_batch: Callable[..., Batch]) -> list[Any]:
    """Steps of many and of few tokens in turn."""
    out, at = [], 0
    for n in (6, 1, 1, 9, 4, 5, 1, 1, 1, 12):
        batch = make_batch(([(7 * (at + i)) % 50 for i in range(n)], at, [0, 1, 2]))
        out.append(engine.step(batch).logits)
        at += n
    return out


def test_same_bits(tiny: Any, config: EngineConfig, make_batch: Callable[..., Batch]) -> None:
    want = None
    for n_threads, n_decode, used in ((2, 0, 2), (1, 1, 1), (4, 1, 1), (4, 2, 2), (4, 3, 3), (4, 4, 4), (3, 9, 3)):
        engine = Engine(tiny.model(), replace(config, n_threads=n_threads, n_decode_threads=n_decode))
        assert (engine.info.n_threads, engine.info.n_decode_threads) == (n_threads, used)
        for _ in range(20):
            got = logits(engine, make_batch)
            want = want or got
            assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))
        engine.close()


def test_same_bits_however_far_ahead_kernels_prefetch(
    tiny: Any, config: EngineConfig, make_batch: Callable[..., Batch]
) -> None:
    for level in [name for name, usable, _ in _native.isa_levels() if usable]:
        near, far = (Engine(tiny.model(), replace(config, isa=level, far_types=t)) for t in ((), range(63)))
        pairs = zip(logits(near, make_batch), logits(far, make_batch), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)
        near.close()
        far.close()


def test_out_of_range(tiny: Any, config: EngineConfig) -> None:
    with pytest.raises(NativeError, match="n_decode_threads is -1, expected 0"):
        Engine(tiny.model(), replace(config, n_decode_threads=-1))


def test_cores() -> None:
    if not _native.available():
        pytest.skip(_native.why_not())
    c = _native.cores()
    assert 1 <= c.cores <= c.fast <= c.allowed
    assert 1 <= c.threads <= c.cores
    assert c.threads == _native.default_threads()
    assert c.quota >= 0
    assert c.quota == 0 or c.threads == max(1, min(c.cores, int(c.quota)))
