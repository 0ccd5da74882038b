"""Block tables: which page holds which 32 positions of a sequence, one table per cache class of the plan.

positions   0..31   32..63   64..95   96..127
entry          0        1        2        3         window class: entries left of the window are NO_PAGE
"""

from __future__ import annotations

import numpy as np

from edgellm.core.types import I32, NO_PAGE, PAGE_TOKENS
from edgellm.kvcache.pages import PagePool
from edgellm.kvcache.prefix import Evicted, Hit, PrefixCache
from edgellm.kvcache.spec import ClassSpec

Copy = tuple[int, int, int]
"""Cache class, source and destination page of a copy to be made before the next step."""

Work = Copy | Evicted
"""What is to be done with pages, in order, before the next step: copied, or saved."""


class Ledger:
    """The pools of all cache classes and the prefix cache over them; tables are made here and hold pages.

    n_ctx bounds a table's width. In every pool free + cached + in use = total; cached pages are there to be taken.
    work: copies to be made, and where `save_evicted` was called pages to be saved, in this order, before anything is
    computed or written; whoever does it empties the list.
    """

    def __init__(
        self, classes: tuple[ClassSpec, ...], n_pages: tuple[int, ...], n_ctx: int, prefix_cache: bool = True
    ) -> None:
        if len(classes) != len(n_pages):
            raise ValueError(f"{len(classes)} cache classes but {len(n_pages)} page counts")
        self.classes = classes
        self.pools = tuple(PagePool(n) for n in n_pages)
        self.cache = PrefixCache(classes, self.pools, prefix_cache)
        self.work: list[Work] = []
        pages = -(-n_ctx // PAGE_TOKENS)
        self.widths = tuple(1 if c.kind == "state" else pages for c in classes)

    def new_table(self) -> Tables:
        """An empty set of tables for one sequence."""
        return Tables(self)

    def save_evicted(self) -> None:
        """From now on whole pages that are evicted from the prefix cache are in `work`."""
        self.cache.on_evict = self.work.append

    def n_available(self, cls: int) -> int:
        """Pages that can be taken: free ones, and those that only the prefix cache holds."""
        return self.pools[cls].n_free + self.cache.n_idle(cls)

    def n_in_use(self, cls: int) -> int:
        """Pages that sequences hold."""
        return self.pools[cls].n_pages - self.n_available(cls)

    def take(self, cls: int) -> int:
        """A page with one reference, evicted from the prefix cache where none is free. Raises CapacityError."""
        pool = self.pools[cls]
        if not pool.n_free and self.cache.n_idle(cls):
            self.cache.evict(cls)
        return pool.take()

    def share(self, cls: int, page: int) -> None:
        """Add a reference of a sequence to a page."""
        self.pools[cls].share(page)
        self.cache.used(cls, page)

    def drop(self, cls: int, page: int) -> None:
        """Remove a reference of a sequence."""
        pool = self.pools[cls]
        if not pool.drop(page) and pool.refs(page) == 1:
            self.cache.unused(cls, page)

    def check(self, tables: list[Tables]) -> None:
        """Raise AssertionError unless references, tables and the prefix cache agree in every pool."""
        counts: list[dict[int, int]] = []
        for cls, pool in enumerate(self.pools):
            pool.check()
            count: dict[int, int] = {}
            for t in tables:
                for page in t.arrays[cls].tolist():
                    if page != NO_PAGE:
                        count[page] = count.get(page, 0) + 1
            counts.append(count)
        self.cache.check(counts)


class Tables:
    """One sequence's block tables: arrays[c] is int32 [widths[c]]. Entries grow right; a window forgets on the left.

    room: positions that have a place.
    """

    __slots__ = ("_first", "_n", "arrays", "ledger", "room")

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.arrays: list[I32] = [np.full(w, NO_PAGE, np.int32) for w in ledger.widths]
        self._n = [0] * len(ledger.widths)
        self._first = [0] * len(ledger.widths)
        self.room = 0

    def missing(self, n_tokens: int) -> list[int]:
        """Pages still needed per class so that positions 0 .. n_tokens-1 have a place."""
        pages = -(-n_tokens // PAGE_TOKENS)
        return [
            max(0, (1 if spec.kind == "state" else pages) - n)
            for n, spec in zip(self._n, self.ledger.classes, strict=True)
        ]

    def resident(self) -> list[int]:
        """Per class, how many pages there are without a gap up to the last one."""
        return [n - first for n, first in zip(self._n, self._first, strict=True)]

    def grow(self, n_tokens: int) -> bool:
        """Take the missing pages of every class, or none at all; False when a pool is short."""
        if n_tokens <= self.room:
            return True
        missing = self.missing(n_tokens)
        ledger = self.ledger
        if any(n > ledger.n_available(cls) for cls, n in enumerate(missing)):
            return False
        for cls, n in enumerate(missing):
            for _ in range(n):
                self.arrays[cls][self._n[cls]] = ledger.take(cls)
                self._n[cls] += 1
        self.room = -(-n_tokens // PAGE_TOKENS) * PAGE_TOKENS
        return True

    def adopt(self, hit: Hit, start: int) -> list[Copy]:
        """Share what a hit found behind position `start`, a multiple of 32 up to which these tables reach.

        The tail's page, and a recurrent state, are copied into pages of this sequence: the copies are returned, to be
        made in this order before anything is computed. Raises CapacityError where there is no page for them.
        """
        ledger, copies = self.ledger, []
        at, end = start // PAGE_TOKENS, start + hit.n_tokens
        last = hit.tail or hit.path[-1]
        sources = list(last.pages)
        for c, spec in enumerate(ledger.classes):
            if spec.kind == "state":
                continue
            first = spec.first_page(end)
            for i, node in enumerate(hit.path, at):
                if i >= first:
                    ledger.share(c, node.pages[c])
                    self.arrays[c][i] = node.pages[c]
            self._drop_before(c, min(first, at))
            self._n[c] = at + len(hit.path)
            self._first[c] = max(self._first[c], min(first, self._n[c]))
        for c, spec in enumerate(ledger.classes):
            if spec.kind == "state":
                if not self._n[c]:
                    self.arrays[c][0] = ledger.take(c)
                    self._n[c] = 1
                copies.append((c, sources[c], int(self.arrays[c][0])))
            elif hit.tail is not None:
                page = ledger.take(c)
                self.arrays[c][self._n[c]] = page
                self._n[c] += 1
                copies.append((c, sources[c], page))
        self.room = -(-end // PAGE_TOKENS) * PAGE_TOKENS
        return [copy for copy in copies if copy[1] != copy[2]]

    def place(self, cls: int, entry: int) -> int:
        """Take a page for an entry behind all others. Those left out are as if a window had left them."""
        page = self.ledger.take(cls)
        if self._n[cls] == self._first[cls]:
            self._first[cls] = entry
        self.arrays[cls][entry] = page
        self._n[cls] = entry + 1
        return page

    def hold(self, cls: int, entry: int, page: int) -> None:
        """Share a page of the prefix cache, for an entry behind all others."""
        self.ledger.share(cls, page)
        if self._n[cls] == self._first[cls]:
            self._first[cls] = entry
        self.arrays[cls][entry] = page
        self._n[cls] = entry + 1

    def copy(self) -> Tables:
        """Other tables that hold the same pages."""
        other = Tables(self.ledger)
        for cls, array in enumerate(self.arrays):
            other.arrays[cls][:] = array
            for page in array[self._first[cls] : self._n[cls]].tolist():
                self.ledger.share(cls, page)
        other._n, other._first, other.room = list(self._n), list(self._first), self.room
        return other

    def trim(self, n_tokens: int, keep_state: bool = False) -> None:
        """Let go of the pages behind the first n_tokens positions, and of a recurrent state, unless that is theirs."""
        pages = -(-n_tokens // PAGE_TOKENS)
        for cls, spec in enumerate(self.ledger.classes):
            end = max(self._first[cls], int(keep_state) if spec.kind == "state" else pages)
            for j in range(self._n[cls] - 1, end - 1, -1):
                self.ledger.drop(cls, int(self.arrays[cls][j]))
                self.arrays[cls][j] = NO_PAGE
            self._n[cls] = min(self._n[cls], end)
        self.room = min(self.room, pages * PAGE_TOKENS)

    def forget(self, next_position: int) -> None:
        """Let go of the pages of window classes that no token at or after next_position can see."""
        for cls, spec in enumerate(self.ledger.classes):
            first = spec.first_page(next_position)
            if first:
                self._drop_before(cls, min(first, self._n[cls]))

    def release(self) -> None:
        """Let go of everything, the last pages first; the tables are empty again."""
        for cls in range(len(self.arrays)):
            for page in self.arrays[cls][self._first[cls] : self._n[cls]][::-1].tolist():
                self.ledger.drop(cls, page)
            self.arrays[cls][: self._n[cls]] = NO_PAGE
            self._n[cls] = self._first[cls] = 0
        self.room = 0

    def _drop_before(self, cls: int, first: int) -> None:
        for j in range(self._first[cls], first):
            self.ledger.drop(cls, int(self.arrays[cls][j]))
            self.arrays[cls][j] = NO_PAGE
        self._first[cls] = max(self._first[cls], first)
