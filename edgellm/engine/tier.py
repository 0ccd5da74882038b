"""The disk tier of the prefix cache, for the engine thread: evicted pages go to files, and come back for who waits.

Before it is scheduled for the first time (and again after a preemption), a sequence is asked for: how many of its whole
pages are in the tree or in files? Those in files are read back into pages of the tree, a few milliseconds' worth beside
each step, while the sequence waits; then the scheduler finds them there like any others. What cannot be read is
computed. So the scheduler knows nothing of files, and answers cannot depend on them: the bits of a page are the same
wherever it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from edgellm.core.errors import ConfigError
from edgellm.core.record import dataclass
from edgellm.core.types import NO_PAGE, PAGE_TOKENS
from edgellm.engine.request import Sequence
from edgellm.engine.runner import PageReturn, PageStore, Runner
from edgellm.engine.scheduler import State
from edgellm.kvcache.disk import Address, DiskStore, child_key, root_key
from edgellm.kvcache.prefix import Evicted, Node
from edgellm.kvcache.table import Tables

GROUP = 4
"""Pages that are brought back side by side."""

SLICE, SLICE_ALONE = 0.005, 0.05
"""Seconds of reading before the next step, where other sequences compute, and where none does."""


@dataclass(slots=True, eq=False)
class Return:
    """Pages on their way back: the first n_pages of a sequence. n_done: so many are there, held by `tables`."""

    seq: Sequence
    n_pages: int
    keys: list[bytes]
    tables: Tables
    node: Node | None = None
    n_done: int = 0

    def tokens(self, p: int) -> tuple[int, ...]:
        """Those of page p."""
        return tuple(self.seq.tokens[p * PAGE_TOKENS : (p + 1) * PAGE_TOKENS])

    def address(self, p: int) -> Address:
        """Of page p."""
        return Address(self.keys[p], self.keys[p - 1] if p else root_key(self.seq.request.salt), self.tokens(p))


class Load(NamedTuple):
    """A page to be read into `page` of cache class `cls`: the sequence's page number `entry`."""

    cls: int
    entry: int
    page: int
    is_state: bool
    write: Callable[[bytes | memoryview], None]


class Tier:
    """Does the ledger's work on pages; with a store, saves evicted pages there and reads them back.

    Raises ConfigError where there is a store and the runner's pages cannot be read.
    """

    def __init__(self, store: DiskStore | None, state: State, runner: Runner) -> None:
        self.store, self._state, self._runner = store, state, runner
        self._pages: PageStore | None = None
        self._now: Return | None = None
        if store is not None:
            if not isinstance(runner, PageStore):
                raise ConfigError(
                    "prefix_cache_dir: this backend cannot read the pages of its KV cache: leave it out, or use "
                    'backend="native"'
                )
            self._pages = runner
            state.ledger.save_evicted()

    @property
    def busy(self) -> bool:
        """Whether a sequence waits for its pages: steps should be single ones."""
        return self._now is not None

    @property
    def due(self) -> bool:
        """Whether a sequence waits for this, and not for room."""
        return self._now is not None or any(seq.unasked for seq in self._state.waiting.in_turn(self._state.now))

    def work(self, wait: bool = False) -> None:
        """Copy and save pages, in order: before anything is computed, and before a page is written.

        wait: for room in the queue of those to be saved, instead of losing what finds none.
        """
        work = self._state.work
        for item in work:
            if isinstance(item, Evicted):
                self._save(item, wait)
            else:
                self._runner.copy_page(*item)
        work.clear()

    def ask(self, most: int) -> None:
        """Before a step of at most so many sequences: find out what is on disk for those who are next; read some."""
        if self.store is None:
            return
        if self._now is None and len(self._state.running) < most:
            self._find(self.store)
        if self._now is not None:
            self._advance(self.store, self._now)

    def give_back(self, everything: bool, hurry: Callable[[], bool]) -> None:
        """Give the memory of free pages back to the system; everything: that of cached ones, too, which are saved."""
        ledger = self._state.ledger
        if everything:
            for item in self._latest(self.store.limit) if self.store is not None else ():
                if hurry():
                    return
                self._save(item, wait=True)
            ledger.cache.clear()
        self.work()
        if isinstance(self._runner, PageReturn):
            for c, pool in enumerate(ledger.pools):
                pages = pool.idle_memory()
                if pages:
                    self._runner.release_pages(c, pages)

    def close(self, save: bool) -> None:
        """save: write what the tree holds, so that a later process finds it. Ends the store."""
        if self.store is None:
            return
        if save:
            self._end()
            self.work()
            for item in self._latest(self.store.limit):
                self._save(item, wait=True)
        self.store.close()

    # -- to the files ------------------------------------------------------------------------------------------------

    def _save(self, item: Evicted, wait: bool = False) -> None:
        if self.store is None or self._pages is None:
            return
        if not self.store.touch(item.address.key, item.cls):
            self.store.write(item.address, item.cls, self._pages.read_page(item.cls, item.page), wait)

    def _latest(self, limit: int) -> list[Evicted]:
        """Whole pages in the tree, those that were used last, in the order in which they would be evicted."""
        items, sizes, first = list(self._state.ledger.cache.whole_pages()), dict[int, int](), 0
        for i in range(len(items) - 1, -1, -1):
            cls, page, _ = items[i]
            if cls not in sizes and self._pages is not None:
                sizes[cls] = len(self._pages.read_page(cls, page))
            limit -= sizes[cls]
            if limit < 0:
                first = i + 1
                break
        return items[first:]

    # -- and back ----------------------------------------------------------------------------------------------------

    def _find(self, store: DiskStore) -> None:
        """The first of those who wait that has pages in files; those before it need not wait any more."""
        state = self._state
        for seq in list(state.waiting.in_turn(state.now)):
            if not seq.unasked:
                continue
            found = self._end_of(store, seq) if seq.reads_cache else None
            if found is None:
                seq.unasked = False
                continue
            n_pages, keys = found
            if not self._fits(seq, n_pages):
                if state.running:
                    return  # it could not run either
                seq.unasked = False
                continue
            self._now = Return(seq, n_pages, keys, state.ledger.new_table())
            state.pinned.add(self._now.tables)
            return

    def _end_of(self, store: DiskStore, seq: Sequence) -> tuple[int, list[bytes]] | None:
        """How many whole pages could be had, if that is more than the tree has, and the keys of those pages."""
        ledger, salt = self._state.ledger, seq.request.salt
        cache, most = ledger.cache, (len(seq.tokens) - 1) // PAGE_TOKENS
        if not cache.enabled or not most:
            return None
        path = cache.path(salt, seq.tokens, most)
        there = cache.match(salt, None, seq.tokens, 0, len(seq.tokens) - 1, seq.tables.resident()).n_tokens
        keys, key = list[bytes](), path[-1].key if path else root_key(salt)
        keeping = [c for c, spec in enumerate(ledger.classes) if spec.kind in ("full", "latent")]
        for p in range(len(path), most):
            key = child_key(key, seq.tokens[p * PAGE_TOKENS : (p + 1) * PAGE_TOKENS])
            if not all(store.has(key, c) for c in keeping):
                break
            keys.append(key)
        keys = [*(node.key for node in path), *keys]

        def had(c: int, p: int) -> bool:
            return (p < len(path) and path[p].pages[c] != NO_PAGE) or store.has(keys[p], c)

        for end in range(len(keys), there // PAGE_TOKENS, -1):
            if all(
                had(c, p)
                for c, spec in enumerate(ledger.classes)
                if c not in keeping
                for p in range(end - 1 if spec.kind == "state" else spec.first_page(end * PAGE_TOKENS), end)
            ):
                return end, keys[:end]
        return None

    def _fits(self, seq: Sequence, n_pages: int) -> bool:
        ledger = self._state.ledger
        return all(
            (1 if spec.kind == "state" else n_pages - spec.first_page(n_pages * PAGE_TOKENS)) <= ledger.n_available(c)
            for c, spec in enumerate(ledger.classes)
        )

    def _advance(self, store: DiskStore, now: Return) -> None:
        """Bring back some more pages; at the end, let the sequence go on."""
        begin = time.perf_counter()
        until = begin + (SLICE if self._state.running else SLICE_ALONE)
        while now.n_done < now.n_pages and now.seq in self._state.waiting:
            if store.is_behind:  # what is evicted to make room would be lost
                if not self._state.running:
                    store.wait(SLICE_ALONE)
                break
            came = self._bring(store, now)
            late = time.perf_counter()
            store.stats.seconds_reading += late - begin
            begin = late
            if not came:
                self._end()
                return
            if late > until:
                break
        if now.n_done == now.n_pages or now.seq not in self._state.waiting:
            self._end()

    def _bring(self, store: DiskStore, now: Return) -> bool:
        """Bring back the next few pages, of every class that needs them; False where that cannot be done."""
        cache = self._state.ledger.cache
        if now.node is not None and now.node.parent is None:
            return False
        loads, node, whole = list[Load](), now.node, True
        end = min(now.n_done + GROUP, now.n_pages)
        for p in range(now.n_done, end):
            node = cache.child(now.seq.request.salt, node, now.tokens(p)) if node or not p else None
            if not self._place(store, now, p, node, loads):
                end, whole = p, False
                break
        self.work()  # what was there may have to be saved first
        sound = store.read_all([(now.address(x.entry), x.cls, x.write) for x in loads])
        for p in range(now.n_done, end):
            if not all(ok for x, ok in zip(loads, sound, strict=True) if x.entry == p):
                return False
            now.node = cache.add(now.seq.request.salt, now.node, now.tokens(p), now.tables.arrays, p)
            for x in loads:
                if x.entry == p:
                    store.touch(now.keys[p], x.cls)
                    if x.is_state and now.node.pages[x.cls] == NO_PAGE:
                        cache.keep(now.node, x.cls, x.page)
            now.n_done += 1
        return whole

    def _place(self, store: DiskStore, now: Return, p: int, old: Node | None, loads: list[Load]) -> bool:
        """Hold what the tree has of page p, find room for the rest, to be loaded; False where there is none."""
        ledger, pages = self._state.ledger, self._pages
        for c, spec in enumerate(ledger.classes):
            is_state = spec.kind == "state"
            if p < (now.n_pages - 1 if is_state else spec.first_page(now.n_pages * PAGE_TOKENS)):
                continue
            if old is not None and old.pages[c] != NO_PAGE:
                if not is_state:
                    now.tables.hold(c, p, old.pages[c])
                continue
            if pages is None or not ledger.n_available(c) or not store.has(now.keys[p], c):
                return False
            page = now.tables.place(c, 0 if is_state else p)
            loads.append(Load(c, p, page, is_state, partial(pages.write_page, c, page)))
        return True

    def _end(self) -> None:
        """Let the sequence go on with what has come back: idle pages of the tree."""
        if self._now is not None:
            self._now.seq.unasked = False
            self._state.pinned.discard(self._now.tables)
            self._now.tables.release()
            self._now = None
