"""What a pin keeps, out of the page pools and back into them. For the engine thread alone."""

from __future__ import annotations

from collections.abc import Callable

from edgellm.core.errors import CapacityError, EngineError
from edgellm.core.record import dataclass
from edgellm.core.types import NO_PAGE, PAGE_TOKENS
from edgellm.engine.request import Pin
from edgellm.engine.runner import PageStore, Runner
from edgellm.engine.scheduler import State


@dataclass(frozen=True, slots=True)
class Kept:
    """The first n_tokens tokens of a sequence as computed. pages: per cache class, its block table's entries in
    ascending order, with what each page holds."""

    n_tokens: int
    pages: list[list[tuple[int, bytes]]]


def read(runner: Runner, pin: Pin) -> Kept:
    """Everything that a pin keeps. Raises EngineError where the backend cannot read pages."""
    if not isinstance(runner, PageStore):
        raise EngineError("this backend cannot read the pages of its KV cache: sessions cannot be saved")
    if pin.tables is None:
        return Kept(0, [])
    pages = []
    for c, array in enumerate(pin.tables.arrays):
        entries = [(i, page) for i, page in enumerate(array.tolist()) if page != NO_PAGE]
        pages.append([(i, runner.read_page(c, page)) for i, page in entries])
    return Kept(pin.n_tokens, pages)


def restore(state: State, runner: Runner, tokens: list[int], kept: Kept, work: Callable[[], None]) -> Pin:
    """Write pages back, for the first kept.n_tokens of these tokens, and hand them to the prefix cache.

    work: does what is to be done with pages before they are written (`Ledger.work`).
    Raises CapacityError where the pools are short, EngineError where the backend cannot write pages.
    """
    pin = Pin()
    if not kept.n_tokens or not state.ledger.cache.enabled:
        return pin
    if not isinstance(runner, PageStore):
        raise EngineError("this backend cannot write the pages of its KV cache: sessions cannot be loaded")
    ledger = state.ledger
    tables = ledger.new_table()
    short = [c for c, pages in enumerate(kept.pages) if len(pages) > ledger.n_available(c)]
    if short:
        need, there = len(kept.pages[short[0]]), ledger.n_available(short[0])
        raise CapacityError(
            f"the session needs {need} pages of {PAGE_TOKENS} tokens of the KV cache, {there} can be had: close other "
            f"sessions, or open the model with a larger kv_memory"
        )
    try:
        places = [[tables.place(c, i) for i, _ in pages] for c, pages in enumerate(kept.pages)]
        work()
        for c, pages in enumerate(kept.pages):
            for page, (_, data) in zip(places[c], pages, strict=True):
                runner.write_page(c, page, data)
    except BaseException:
        tables.release()
        raise
    node, cache = None, ledger.cache
    for at in range(-(-kept.n_tokens // PAGE_TOKENS)):
        piece = tuple(tokens[at * PAGE_TOKENS : min((at + 1) * PAGE_TOKENS, kept.n_tokens)])
        node = cache.add("", node, piece, tables.arrays, at)
    for c, spec in enumerate(ledger.classes):
        if spec.kind == "state" and node is not None and node.pages[c] == NO_PAGE and kept.pages[c]:
            cache.keep(node, c, int(tables.arrays[c][0]))
    pin.tables, pin.n_tokens = tables, kept.n_tokens
    state.pinned.add(tables)
    return pin
