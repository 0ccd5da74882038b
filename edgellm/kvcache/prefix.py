"""The prefix cache: a radix tree over pages, one root per salt. What a sequence has computed serves others later.

    root -- node (32 tokens) -- node (32 tokens) -- node (32 tokens)
                           \\-- tail (1 to 31 tokens)

A node holds one reference to a page of every cache class. A page that only the tree refers to is *idle*: it is evicted
when a pool runs out, the least recently used first. Sequences share the pages of whole nodes and hold all pages before
them, so in a class that keeps every token an idle node has only idle nodes below it, which became idle before it: the
first in line is always a leaf. Pages of a sliding window go one by one; their nodes stay while they have others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from edgellm.core.types import I32, NO_PAGE, PAGE_TOKENS
from edgellm.kvcache.disk import Address, child_key, root_key
from edgellm.kvcache.pages import PagePool
from edgellm.kvcache.spec import ClassSpec

MOST_TAILS = 64
"""Children of a node that are looked at, latest first, for one that begins as a prompt goes on."""


class Node:
    """`tokens`, 1 to 32 of them, after those of its ancestors. pages[c] holds them in cache class c, or is NO_PAGE.

    A state class has a slot there: the state after the last of the tokens. A node that was evicted has no parent.
    """

    __slots__ = ("_key", "children", "pages", "parent", "salt", "tokens")

    def __init__(self, parent: Node | None, tokens: tuple[int, ...], n_classes: int, salt: str) -> None:
        self.parent, self.tokens, self.salt = parent, tokens, salt
        self.pages = [NO_PAGE] * n_classes
        self.children: dict[tuple[int, ...], Node] = {}
        self._key = b""

    @property
    def key(self) -> bytes:
        """The hash of the salt and of all tokens from the first to the last of these 32."""
        if not self._key:
            self._key = root_key(self.salt) if self.parent is None else child_key(self.parent.key, self.tokens)
        return self._key

    @property
    def address(self) -> Address:
        """Of a whole page that is in the tree: what it is called outside of this process."""
        if self.parent is None or len(self.tokens) != PAGE_TOKENS:
            raise ValueError("only a whole page in the tree has an address")
        return Address(self.key, self.parent.key, self.tokens)


class Evicted(NamedTuple):
    """A page that the tree has given up, to be saved before anything is written to it."""

    cls: int
    page: int
    address: Address


class Hit(NamedTuple):
    """Whole pages that continue a sequence, and the first `tail_tokens` tokens of one more, to be copied."""

    path: list[Node]
    tail: Node | None = None
    tail_tokens: int = 0

    @property
    def n_tokens(self) -> int:
        """Tokens that need not be computed."""
        return len(self.path) * PAGE_TOKENS + self.tail_tokens


NO_HIT = Hit([])


class PrefixCache:
    """The tree over the pools of all classes. enabled=False: nothing is kept, nothing is found.

    on_evict: told of whole pages that are evicted, where they are saved elsewhere.
    """

    def __init__(self, classes: tuple[ClassSpec, ...], pools: tuple[PagePool, ...], enabled: bool = True) -> None:
        self.enabled = enabled
        self.on_evict: Callable[[Evicted], None] | None = None
        self.has_state = any(c.kind == "state" for c in classes)
        self._classes, self._pools = classes, pools
        self._roots: dict[str, Node] = {}
        self._owners: tuple[dict[int, Node], ...] = tuple({} for _ in classes)
        self._idle: tuple[OrderedDict[int, None], ...] = tuple(OrderedDict() for _ in classes)

    # -- what is where ---------------------------------------------------------------------------------------------

    def n_idle(self, cls: int) -> int:
        """Pages of a class that only the cache holds."""
        return len(self._idle[cls])

    def n_owned(self, cls: int) -> int:
        """Pages of a class in the tree, idle or in use."""
        return len(self._owners[cls])

    def is_idle(self, cls: int, page: int) -> bool:
        """Whether only the cache holds a page."""
        return page in self._idle[cls]

    def used(self, cls: int, page: int) -> None:
        """A sequence has taken a reference to the page."""
        self._idle[cls].pop(page, None)

    def unused(self, cls: int, page: int) -> None:
        """One reference is left of the page: the last in line to be evicted, if it is the cache's."""
        if page in self._owners[cls]:
            self._idle[cls][page] = None

    # -- finding ---------------------------------------------------------------------------------------------------

    def match(
        self, salt: str, node: Node | None, tokens: Sequence[int], start: int, limit: int, resident: Sequence[int]
    ) -> Hit:
        """What continues a sequence, of `tokens`, behind position `start`, and is wanted up to position `limit`.

        node: where tokens[:start], whole pages, end in the tree (None: at the root of `salt`). resident: per class,
        how many of the sequence's own last pages before `start` are there. Tokens are compared one by one.
        """
        if node is None:
            node = self._roots.get(salt)
            if node is None:
                return NO_HIT
        path: list[Node] = []
        runs, best, whole = list(resident), 0, True
        at = start
        while at + PAGE_TOKENS <= limit:
            child = node.children.get(tuple(tokens[at : at + PAGE_TOKENS]))
            if child is None:
                break
            at += PAGE_TOKENS
            path.append(child)
            node = child
            whole = self._windows(child, at, runs)
            if whole and (not self.has_state or self._has_state(child)):
                best = len(path)
        if whole:  # the tail has a state of its own
            tail, n = self._tail(node, tokens, at, limit)
            if tail is not None:
                return Hit(path, tail, n)
        del path[best:]
        return Hit(path)

    def path(self, salt: str, tokens: Sequence[int], n_pages: int) -> list[Node]:
        """The nodes of the first whole pages of `tokens`, n_pages at most, whatever they hold."""
        node, path = self._roots.get(salt), list[Node]()
        while node is not None and len(path) < n_pages:
            at = len(path) * PAGE_TOKENS
            node = node.children.get(tuple(tokens[at : at + PAGE_TOKENS]))
            if node is not None:
                path.append(node)
        return path

    def child(self, salt: str, node: Node | None, tokens: tuple[int, ...]) -> Node | None:
        """The node of these tokens behind `node` (None: at the root of `salt`)."""
        parent = self._roots.get(salt) if node is None else node
        return None if parent is None else parent.children.get(tokens)

    def _windows(self, node: Node, end: int, runs: list[int]) -> bool:
        """Whether what a sequence sees at `end`, behind the node, is there. runs: pages without a gap, per class."""
        fine = True
        for c, spec in enumerate(self._classes):
            if spec.kind != "state":
                runs[c] = runs[c] + 1 if node.pages[c] != NO_PAGE else 0
                fine = fine and end // PAGE_TOKENS - spec.first_page(end) <= runs[c]
        return fine

    def _has_state(self, node: Node) -> bool:
        return all(p != NO_PAGE for p, spec in zip(node.pages, self._classes, strict=True) if spec.kind == "state")

    def _tail(self, node: Node, tokens: Sequence[int], at: int, limit: int) -> tuple[Node | None, int]:
        """The child that has most tokens in common with those from position `at` on, before `limit`."""
        best, most = None, 0
        wanted = tokens[at : min(at + PAGE_TOKENS, limit)]
        if not wanted:
            return None, 0
        first = wanted[0]
        for child in islice(reversed(node.children.values()), MOST_TAILS):
            if child.tokens[0] != first or NO_PAGE in child.pages:
                continue
            n = 1
            for a, b in zip(islice(wanted, 1, None), islice(child.tokens, 1, None), strict=False):
                if a != b:
                    break
                n += 1
            if self.has_state and n < len(child.tokens):
                continue  # the state is that behind its last token
            if n > most:
                best, most = child, n
        return best, most

    # -- keeping ---------------------------------------------------------------------------------------------------

    def add(self, salt: str, parent: Node | None, tokens: tuple[int, ...], pages: list[I32], at: int) -> Node:
        """Keep a page of a sequence: `tokens` behind `parent`, in entry `at` of its block tables `pages`.

        Where the tree has these 32 tokens already, its page takes the place of the sequence's own: the bits are the
        same. Fewer than 32 make a tail, whose page the sequence still writes to, behind them.
        """
        if parent is None:
            parent = self._roots.get(salt)
            if parent is None:
                parent = self._roots[salt] = Node(None, (), len(self._classes), salt)
        node = parent.children.get(tokens)
        if node is None:
            node = self._extended(parent, tokens, pages, at)
            parent.children[tokens] = node
        elif len(tokens) < PAGE_TOKENS:
            return node
        for c, spec in enumerate(self._classes):
            if spec.kind == "state":
                continue
            page, ours = int(pages[c][at]), node.pages[c]
            if page in (NO_PAGE, ours):
                continue
            if ours == NO_PAGE:
                if page not in self._owners[c]:
                    self.keep(node, c, page)
            else:
                self._pools[c].share(ours)
                self.used(c, ours)
                pages[c][at] = ours
                if not self._pools[c].drop(page) and self._pools[c].refs(page) == 1:
                    self.unused(c, page)
        self._forget_shorter(parent, tokens)
        return node

    def keep(self, node: Node, cls: int, page: int) -> None:
        """Hold a reference to `page` as the node's page of a class that has none there."""
        self._pools[cls].share(page)
        self._owners[cls][page] = node
        node.pages[cls] = page

    def _extended(self, parent: Node, tokens: tuple[int, ...], pages: list[I32], at: int) -> Node:
        """The tail that this page was kept as while it had fewer tokens, or a new node."""
        for c, spec in enumerate(self._classes):
            if spec.kind == "state":
                continue
            node = self._owners[c].get(int(pages[c][at]))
            if node is not None and node.parent is parent and node.tokens == tokens[: len(node.tokens)]:
                del parent.children[node.tokens]
                node.tokens = tokens
                for s, kind in enumerate(self._classes):
                    if kind.kind == "state":  # the state of fewer tokens
                        self._discard(node, s)
                return node
        return Node(parent, tokens, len(self._classes), parent.salt)

    def _forget_shorter(self, parent: Node, tokens: tuple[int, ...]) -> None:
        """Drop idle tails that say nothing which the node of these tokens does not say."""
        if self.has_state:
            return
        for child in list(islice(reversed(parent.children.values()), MOST_TAILS)):
            n = len(child.tokens)
            if (
                n < len(tokens)
                and child.tokens == tokens[:n]
                and all(p == NO_PAGE or p in self._idle[c] for c, p in enumerate(child.pages))
            ):
                self._remove(child)

    # -- evicting --------------------------------------------------------------------------------------------------

    def evict(self, cls: int) -> None:
        """Free the least recently used idle page of a class, of which there is at least one."""
        node = self._owners[cls][next(iter(self._idle[cls]))]
        if self._classes[cls].kind in ("full", "latent"):
            self._save(node, range(len(node.pages)))
            self._remove(node)
        else:
            self._save(node, (cls,))
            self._discard(node, cls)
            while node.parent is not None and not node.children and all(p == NO_PAGE for p in node.pages):
                parent = node.parent
                self._remove(node)
                node = parent

    def _save(self, node: Node, classes: Iterable[int]) -> None:
        if self.on_evict is not None and len(node.tokens) == PAGE_TOKENS and node.parent is not None:
            for c in classes:
                if node.pages[c] != NO_PAGE:
                    self.on_evict(Evicted(c, node.pages[c], node.address))

    def whole_pages(self) -> Iterator[Evicted]:
        """Every whole page in the tree, as if it were evicted now: idle ones first, the least recently used first."""
        for c, owners in enumerate(self._owners):
            for page in [*self._idle[c], *(p for p in owners if p not in self._idle[c])]:
                node = owners[page]
                if len(node.tokens) == PAGE_TOKENS:
                    yield Evicted(c, page, node.address)

    def clear(self) -> None:
        """Evict every idle page."""
        for cls, idle in enumerate(self._idle):
            while idle:
                self.evict(cls)

    def _remove(self, node: Node) -> None:
        """Take a leaf from the tree."""
        parent = node.parent
        if parent is None:
            return
        for c in range(len(self._classes)):
            self._discard(node, c)
        del parent.children[node.tokens]
        node.parent = None
        if not parent.tokens and not parent.children:
            del self._roots[parent.salt]

    def _discard(self, node: Node, cls: int) -> None:
        page = node.pages[cls]
        if page != NO_PAGE:
            node.pages[cls] = NO_PAGE
            del self._owners[cls][page]
            self._idle[cls].pop(page, None)
            self._pools[cls].drop(page)

    # -- proving ---------------------------------------------------------------------------------------------------

    def check(self, counts: Sequence[dict[int, int]]) -> None:
        """Raise AssertionError unless every reference is a table's (`counts`: per class, page -> how often) or the
        tree's."""
        seen: list[set[int]] = [set() for _ in self._classes]
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            for tokens, child in node.children.items():
                if child.parent is not node or child.tokens != tokens or not 1 <= len(tokens) <= PAGE_TOKENS:
                    raise AssertionError("a node of the prefix cache is out of place")
                if child.children and len(tokens) < PAGE_TOKENS:
                    raise AssertionError("a page that is not full is followed by others")
                for c, page in enumerate(child.pages):
                    if page == NO_PAGE:
                        if self._classes[c].kind in ("full", "latent"):
                            raise AssertionError(f"class {c}: a node without its page")
                    elif page in seen[c] or self._owners[c].get(page) is not child:
                        raise AssertionError(f"class {c} page {page}: in two nodes")
                    seen[c].add(page)
                stack.append(child)
        for c, pool in enumerate(self._pools):
            seen[c].discard(NO_PAGE)
            if self._owners[c].keys() != seen[c]:
                raise AssertionError(f"class {c}: pages of nodes that are not in the tree")
            for page in range(pool.n_pages):
                held, cached = counts[c].get(page, 0), int(page in self._owners[c])
                if pool.refs(page) != held + cached:
                    raise AssertionError(
                        f"class {c} page {page}: {pool.refs(page)} references, {held} in tables, {cached} in the cache"
                    )
                if (page in self._idle[c]) != (cached == 1 and held == 0):
                    raise AssertionError(f"class {c} page {page}: idle does not mean that only the cache holds it")
            in_use = len(set(counts[c]))
            if pool.n_free + len(self._idle[c]) + in_use != pool.n_pages:
                raise AssertionError(f"class {c}: free + cached + in use is not {pool.n_pages}")
