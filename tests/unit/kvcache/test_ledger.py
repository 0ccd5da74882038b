"""The page ledger: free + held = total whatever happens; windows forget exactly what nobody can see."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.core.errors import CapacityError
from edgellm.core.types import NO_PAGE
from edgellm.kvcache.pages import PagePool
from edgellm.kvcache.spec import ClassSpec
from edgellm.kvcache.table import Ledger, Tables


@given(st.lists(st.tuples(st.sampled_from(["take", "share", "drop"]), st.integers(0, 7)), max_size=60))
def test_pool_books_balance(actions: list[tuple[str, int]]) -> None:
    pool = PagePool(8)
    refs: dict[int, int] = {}
    for action, page in actions:
        if action == "take":
            if pool.n_free == 0:
                with pytest.raises(CapacityError):
                    pool.take()
            else:
                taken = pool.take()
                assert refs.get(taken, 0) == 0
                refs[taken] = 1
        elif refs.get(page, 0) == 0:
            with pytest.raises(ValueError, match="free"):
                pool.share(page) if action == "share" else pool.drop(page)
        elif action == "share":
            pool.share(page)
            refs[page] += 1
        else:
            refs[page] -= 1
            assert pool.drop(page) == (refs[page] == 0)
        pool.check()
        assert pool.n_held == sum(r > 0 for r in refs.values())


def ledger(n: int = 16, n_ctx: int = 512) -> Ledger:
    return Ledger((ClassSpec("full"), ClassSpec("window", 64), ClassSpec("state")), (n, n, 4), n_ctx)


def test_grow_takes_all_classes_or_nothing() -> None:
    led = ledger(4)
    a, b = led.new_table(), led.new_table()
    assert a.grow(96)
    assert (a.arrays[0][:3] != NO_PAGE).all()
    assert a.arrays[0][3] == NO_PAGE
    assert a.arrays[2].tolist() != [NO_PAGE]
    assert not b.grow(33)
    assert all((x == NO_PAGE).all() for x in b.arrays)
    assert b.grow(32)
    led.check([a, b])
    a.release()
    led.check([b])
    assert b.grow(128)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=8))
def test_window_keeps_exactly_the_visible_pages(steps: list[int]) -> None:
    led = ledger(64)
    t = led.new_table()
    n = 0
    for step in steps:
        n += step
        assert t.grow(n)
        t.forget(n)
        led.check([t])
        resident = np.flatnonzero(t.arrays[1] != NO_PAGE)
        first_visible = max(0, n - 64 + 1)  # what the token at position n still sees
        assert set(range(first_visible // 32, -(-n // 32))) <= set(resident.tolist())
        assert all(j >= first_visible // 32 for j in resident.tolist())
        assert (t.arrays[0] != NO_PAGE).sum() == -(-n // 32)
    t.release()
    led.check([t])
    assert all(p.n_held == 0 for p in led.pools)


def test_check_finds_a_lost_page() -> None:
    led = ledger()
    t = led.new_table()
    t.grow(64)
    t.arrays[0][0] = NO_PAGE
    with pytest.raises(AssertionError, match="references"):
        led.check([t])
    assert isinstance(t, Tables)
