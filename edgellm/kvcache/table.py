"""Block tables: which page holds which 32 positions of a sequence, one table per cache class of the plan.

positions   0..31   32..63   64..95   96..127
entry          0        1        2        3         window class: entries left of the window are NO_PAGE
"""

from __future__ import annotations

import numpy as np

from edgellm.core.record import dataclass
from edgellm.core.types import I32, NO_PAGE, PAGE_TOKENS
from edgellm.kvcache.pages import PagePool


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """One cache class as the ledger sees it: kind "full" | "window" | "latent" | "state"; window in tokens."""

    kind: str
    window: int = 0


class Ledger:
    """The pools of all cache classes; tables are made here and hold its pages. n_ctx bounds a table's width."""

    def __init__(self, classes: tuple[ClassSpec, ...], n_pages: tuple[int, ...], n_ctx: int) -> None:
        if len(classes) != len(n_pages):
            raise ValueError(f"{len(classes)} cache classes but {len(n_pages)} page counts")
        self.classes = classes
        self.pools = tuple(PagePool(n) for n in n_pages)
        pages = -(-n_ctx // PAGE_TOKENS)
        self.widths = tuple(1 if c.kind == "state" else pages for c in classes)

    def new_table(self) -> Tables:
        """An empty set of tables for one sequence."""
        return Tables(self)

    def check(self, tables: list[Tables]) -> None:
        """Raise AssertionError unless references and tables agree: free + held = total in every pool."""
        for cls, pool in enumerate(self.pools):
            pool.check()
            counts: dict[int, int] = {}
            for t in tables:
                for page in t.arrays[cls].tolist():
                    if page != NO_PAGE:
                        counts[page] = counts.get(page, 0) + 1
            for page in range(pool.n_pages):
                if pool.refs(page) != counts.get(page, 0):
                    raise AssertionError(
                        f"class {cls} page {page}: {pool.refs(page)} references, {counts.get(page, 0)} in tables"
                    )


class Tables:
    """One sequence's block tables: arrays[c] is int32 [widths[c]]. Entries grow right; a window forgets on the left."""

    __slots__ = ("_first", "_n", "arrays", "ledger")

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.arrays: tuple[I32, ...] = tuple(np.full(w, NO_PAGE, np.int32) for w in ledger.widths)
        self._n = [0] * len(ledger.widths)
        self._first = [0] * len(ledger.widths)

    def missing(self, n_tokens: int) -> list[int]:
        """Pages still needed per class so that positions 0 .. n_tokens-1 have a place."""
        pages = -(-n_tokens // PAGE_TOKENS)
        return [
            max(0, (1 if spec.kind == "state" else pages) - n)
            for n, spec in zip(self._n, self.ledger.classes, strict=True)
        ]

    def grow(self, n_tokens: int) -> bool:
        """Take the missing pages of every class, or none at all; False when a pool is short."""
        missing = self.missing(n_tokens)
        if not any(missing):
            return True
        pools = self.ledger.pools
        if any(n > pool.n_free for n, pool in zip(missing, pools, strict=True)):
            return False
        for cls, (n, pool) in enumerate(zip(missing, pools, strict=True)):
            for _ in range(n):
                self.arrays[cls][self._n[cls]] = pool.take()
                self._n[cls] += 1
        return True

    def forget(self, next_position: int) -> None:
        """Free the pages of window classes that no token at or after next_position can see."""
        for cls, spec in enumerate(self.ledger.classes):
            if spec.kind != "window" or not spec.window:
                continue
            gone = min(max(0, next_position - spec.window + 1) // PAGE_TOKENS, self._n[cls])
            for j in range(self._first[cls], gone):
                self.ledger.pools[cls].drop(int(self.arrays[cls][j]))
                self.arrays[cls][j] = NO_PAGE
            self._first[cls] = max(self._first[cls], gone)

    def release(self) -> None:
        """Free everything; the tables are empty again."""
        for cls, pool in enumerate(self.ledger.pools):
            for j in range(self._first[cls], self._n[cls]):
                pool.drop(int(self.arrays[cls][j]))
            self.arrays[cls][: self._n[cls]] = NO_PAGE
            self._n[cls] = self._first[cls] = 0
