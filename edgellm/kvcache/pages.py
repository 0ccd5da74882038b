"""The page ledger: who holds which page of a cache class. Pure accounting, no tensors.

Every page is free or held; a held page has a reference count >= 1. `check()` proves that free + held = total.
"""

from __future__ import annotations

from edgellm.core.errors import CapacityError


class PagePool:
    """Pages 0 .. n_pages-1 of one cache class. Lowest free page first, so that few pages are ever touched."""

    def __init__(self, n_pages: int) -> None:
        if n_pages < 0:
            raise ValueError(f"n_pages must not be negative, found {n_pages}")
        self.n_pages = n_pages
        self._free = list(range(n_pages - 1, -1, -1))
        self._refs = [0] * n_pages
        self._written: set[int] = set()

    @property
    def n_free(self) -> int:
        """Pages nobody holds."""
        return len(self._free)

    @property
    def n_held(self) -> int:
        """Pages with at least one reference."""
        return self.n_pages - len(self._free)

    def refs(self, page: int) -> int:
        """References to `page`."""
        return self._refs[page]

    def take(self) -> int:
        """Hand out a free page with one reference. Raises CapacityError when there is none."""
        if not self._free:
            raise CapacityError(f"all {self.n_pages} pages of the KV cache are in use")
        page = self._free.pop()
        self._written.discard(page)
        self._refs[page] = 1
        return page

    def share(self, page: int) -> None:
        """Add a reference to a held page."""
        if self._refs[page] < 1:
            raise ValueError(f"page {page} is free and cannot be shared")
        self._refs[page] += 1

    def drop(self, page: int) -> bool:
        """Remove a reference; True when that freed the page."""
        if self._refs[page] < 1:
            raise ValueError(f"page {page} is already free")
        self._refs[page] -= 1
        if self._refs[page]:
            return False
        self._free.append(page)
        self._written.add(page)
        return True

    def idle_memory(self) -> list[int]:
        """Free pages, ascending, that were handed out since this was last called: their memory is in use in vain."""
        pages = sorted(self._written)
        self._written.clear()
        return pages

    def check(self) -> None:
        """Raise AssertionError where the books do not balance."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise AssertionError("a page is in the free list twice")
        for page, refs in enumerate(self._refs):
            if refs < 0 or (refs == 0) != (page in free):
                raise AssertionError(f"page {page}: {refs} references, free: {page in free}")
