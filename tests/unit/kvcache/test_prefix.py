"""The tree of pages: what is found, whose pages they become, what goes first."""

from __future__ import annotations

from edgellm.core.types import NO_PAGE
from edgellm.kvcache.prefix import Hit, Node
from edgellm.kvcache.spec import ClassSpec
from edgellm.kvcache.table import Ledger, Tables

FULL, WINDOW = ClassSpec("full"), ClassSpec("window", 40)


def keep(
    ledger: Ledger, tokens: list[int], salt: str = "", release: bool = True, beside: Tables | None = None
) -> Tables:
    """What a sequence of these tokens leaves behind. beside: what another one holds meanwhile."""
    others = [] if beside is None else [beside]
    tables = ledger.new_table()
    assert tables.grow(len(tokens))
    node: Node | None = None
    for at in range(-(-len(tokens) // 32)):
        node = ledger.cache.add(salt, node, tuple(tokens[32 * at : 32 * at + 32]), tables.arrays, at)
    tables.forget(len(tokens))
    ledger.check([tables, *others])
    if release:
        tables.release()
        ledger.check(others)
    return tables


def found(ledger: Ledger, tokens: list[int], salt: str = "") -> Hit:
    return ledger.cache.match(salt, None, tokens, 0, len(tokens) - 1, [0] * len(ledger.classes))


def test_whole_pages_and_the_beginning_of_one_more() -> None:
    ledger = Ledger((FULL,), (8,), 256)
    keep(ledger, list(range(80)))
    assert found(ledger, list(range(80))).n_tokens == 79
    assert found(ledger, [*range(80), 7, 8]).n_tokens == 80
    assert found(ledger, [*range(50), 99, 51]).n_tokens == 50
    assert found(ledger, [*range(20), 99]).n_tokens == 20
    assert found(ledger, [1, *range(1, 80)]).n_tokens == 0
    assert found(ledger, list(range(80)), "other").n_tokens == 0


def test_tokens_of_one_hash_are_told_apart() -> None:
    """-1 and -2 hash alike in Python, and so do tuples of them."""
    ledger = Ledger((FULL,), (8,), 256)
    a, b = [-1] * 32, [-2] * 32
    assert hash(tuple(a)) == hash(tuple(b))
    keep(ledger, [*a, 5])
    assert found(ledger, [*b, 5]).n_tokens == 0


def test_a_page_that_is_shared_and_one_that_is_copied() -> None:
    ledger = Ledger((FULL,), (8,), 256)
    first = keep(ledger, list(range(40)), release=False)
    second = ledger.new_table()
    copies = second.adopt(found(ledger, [*range(40), 50]), 0)
    assert second.arrays[0][0] == first.arrays[0][0]
    assert copies == [(0, first.arrays[0][1], second.arrays[0][1])]
    assert second.arrays[0][1] != first.arrays[0][1]
    ledger.check([first, second])
    first.release()
    second.release()
    ledger.check([])


def test_equal_pages_become_one() -> None:
    ledger = Ledger((FULL,), (8,), 256)
    first = keep(ledger, list(range(64)), release=False)
    second = keep(ledger, list(range(64)), release=False, beside=first)
    assert first.arrays[0][:2].tolist() == second.arrays[0][:2].tolist()
    assert ledger.n_in_use(0) == 2
    ledger.check([first, second])


def test_a_tail_grows_into_its_page() -> None:
    ledger = Ledger((FULL,), (8,), 256)
    tables = ledger.new_table()
    assert tables.grow(32)
    ledger.cache.add("", None, tuple(range(10)), tables.arrays, 0)
    assert found(ledger, list(range(30))).n_tokens == 10
    ledger.cache.add("", None, tuple(range(32)), tables.arrays, 0)
    assert found(ledger, list(range(30))).n_tokens == 29
    assert ledger.cache.n_owned(0) == 1
    ledger.check([tables])


def test_the_least_recently_used_page_goes_first_and_the_last_of_a_prompt_before_its_first() -> None:
    ledger = Ledger((FULL,), (6,), 256)
    a, b = list(range(96)), list(range(100, 196))
    keep(ledger, a)
    keep(ledger, b)
    user = ledger.new_table()
    user.adopt(Hit(found(ledger, a).path[:1]), 0)
    user.release()
    ledger.take(0)
    assert (found(ledger, [*a, 1]).n_tokens, found(ledger, [*b, 1]).n_tokens) == (64, 96)
    ledger.take(0)
    assert (found(ledger, [*a, 1]).n_tokens, found(ledger, [*b, 1]).n_tokens) == (32, 96)
    ledger.take(0)  # the first page of a was used last
    assert (found(ledger, [*a, 1]).n_tokens, found(ledger, [*b, 1]).n_tokens) == (32, 64)


def test_a_window_that_is_gone_shortens_what_is_found() -> None:
    ledger = Ledger((FULL, WINDOW), (8, 4), 256)
    tokens = list(range(160))
    keep(ledger, tokens[:96])
    assert found(ledger, [*tokens[:96], 1]).n_tokens == 96
    ledger.take(1)
    ledger.take(1)  # the oldest of the three, which nobody at 96 sees
    assert found(ledger, [*tokens[:96], 1]).n_tokens == 96
    ledger.take(1)
    assert found(ledger, [*tokens[:96], 1]).n_tokens == 0
    assert ledger.cache.n_owned(0) == 3


def test_a_sequence_behind_a_hit_holds_its_window_only() -> None:
    ledger = Ledger((FULL, WINDOW), (8, 8), 256)
    tokens = list(range(130))
    keep(ledger, tokens[:128])
    tables = ledger.new_table()
    hit = found(ledger, tokens)
    assert hit.n_tokens == 128
    assert tables.adopt(hit, 0) == []
    assert (tables.arrays[0][:4] != NO_PAGE).all()
    assert [p != NO_PAGE for p in tables.arrays[1][:4]] == [False, False, True, True]
    assert tables.grow(131)
    ledger.check([tables])
    tables.release()
    ledger.check([])


def test_clear_evicts_everything_idle() -> None:
    ledger = Ledger((FULL, WINDOW, ClassSpec("state")), (8, 8, 2), 256)
    held = keep(ledger, list(range(64)), release=False)
    keep(ledger, list(range(200, 300)), beside=held)
    ledger.cache.clear()
    ledger.check([held])
    assert ledger.cache.n_owned(0) == 2
    held.release()
    ledger.cache.clear()
    ledger.check([])
    assert all(pool.n_held == 0 for pool in ledger.pools)
