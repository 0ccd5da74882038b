"""Weights, KV pages and recurrent state of a model, as NumPy arrays."""

from __future__ import annotations

import numpy as np

from edgellm.backends.base import BackendConfig
from edgellm.backends.reference.kvformats import kept
from edgellm.core.errors import UnsupportedModel
from edgellm.core.types import F32, I32, PAGE_TOKENS
from edgellm.gguf.dequantize import can_dequantize, dequantize
from edgellm.gguf.reader import GGUFFile
from edgellm.models.plan import CacheClass, Plan, Weight


class Weights:
    """A plan's weights, dequantised to float32 when first used and kept. Tensors used twice are kept once."""

    def __init__(self, plan: Plan, file: GGUFFile) -> None:
        """UnsupportedModel where the file lacks a tensor, has it in another shape, or in an unknown type."""
        self._plan, self._file = plan, file
        self._tensors: dict[str, F32] = {}
        for w in plan.weights:
            info = file.tensors.get(w.tensor)
            if info is None:
                raise UnsupportedModel(f"{file.path}: the plan needs tensor '{w.tensor}', which the file does not have")
            if not _fits(w, info.shape):
                raise UnsupportedModel(
                    f"{file.path}: tensor '{w.tensor}' has shape {list(info.shape)}, but the plan uses it as "
                    f"{list(w.shape)} from row {w.row0}: the plan was made for another file"
                )
            if not can_dequantize(info.qtype):
                raise UnsupportedModel(
                    f"{file.path}: tensor '{w.tensor}' has type {info.qtype}, which the reference backend cannot read"
                )

    def __getitem__(self, index: int) -> F32:
        """The weight's values, in its own shape."""
        w = self._plan.weights[index]
        x = self._tensor(w.tensor)
        if w.role != "matrix" or x.size == np.prod(w.shape):
            return x.reshape(w.shape)
        return x.reshape(-1, *x.shape[-2:])[:, w.row0 : w.row0 + w.shape[-2]].reshape(w.shape)

    def rows(self, index: int, ids: I32) -> F32:
        """Some rows of an embedding, [len(ids), D], dequantised one by one."""
        w = self._plan.weights[index]
        info = self._file.tensors[w.tensor]
        data = self._file.data(w.tensor).reshape(w.shape[0], -1)[ids]
        return dequantize(data.reshape(-1), info.qtype, (len(ids), w.shape[1]))

    def _tensor(self, name: str) -> F32:
        if name not in self._tensors:
            info = self._file.tensors[name]
            self._tensors[name] = dequantize(self._file.data(name), info.qtype, info.shape)
        return self._tensors[name]


def _fits(w: Weight, shape: tuple[int, ...]) -> bool:
    if np.prod(w.shape) == np.prod(shape):
        return w.row0 == 0
    same = len(shape) >= 2 and (*w.shape[:-2], w.shape[-1]) == (*shape[:-2], shape[-1])
    return w.role == "matrix" and same and w.row0 + w.shape[-2] <= shape[-2]


class PagedLayer:
    """K and V of one layer: K [pages, G, Ek, 32], V [pages, G, 32, Ev]; a latent layer has K only.

    Kept as float32, rounded to what the formats of the configuration hold."""

    def __init__(self, cls: CacheClass, layer: int, n_pages: int, config: BackendConfig) -> None:
        self.spec, self.latent = cls.layers[layer], cls.kind == "latent"
        s = self.spec
        self._k_type, self._v_type = config.k_type, config.v_type
        self.k = np.zeros((n_pages, s.heads, s.k_dim, PAGE_TOKENS), np.float32)
        n_v = 0 if self.latent else n_pages
        self.v = np.zeros((n_v, s.heads, PAGE_TOKENS, s.v_dim), np.float32)

    def write(self, table: I32, positions: I32, k: F32, v: F32 | None) -> None:
        """Store k [T, G * Ek] and v [T, G * Ev] of one sequence, rounded to the stored formats."""
        page, slot = table[positions // PAGE_TOKENS], positions % PAGE_TOKENS
        self.k[page, :, :, slot] = kept(k.reshape(len(k), self.spec.heads, self.spec.k_dim), self._k_type)
        if v is not None:
            self.v[page, :, slot] = kept(v.reshape(len(v), self.spec.heads, self.spec.v_dim), self._v_type)

    def read(self, table: I32, first: int, last: int) -> tuple[F32, F32]:
        """k [N, G, Ek] and v [N, G, Ev] of positions first .. last of one sequence."""
        positions = np.arange(first, last + 1)
        page, slot = table[positions // PAGE_TOKENS], positions % PAGE_TOKENS
        k = self.k[page, :, :, slot]
        if self.latent:
            return k, k[:, :, : self.spec.v_dim]
        return k, self.v[page, :, slot]

    def copy(self, src: int, dst: int) -> None:
        """Page dst becomes a copy of page src."""
        self.k[dst] = self.k[src]
        if not self.latent:
            self.v[dst] = self.v[src]


class StateEntry:
    """Recurrent state of one op, one array per slot: [slots, *shape], float32."""

    def __init__(self, shape: tuple[int, ...], n_slots: int) -> None:
        self._values = np.zeros((n_slots, *shape), np.float32)

    def load(self, slot: int, position: int) -> F32:
        """A copy of the state before `position`: zeros at the start of a sequence."""
        x = self._values[slot]
        return x.copy() if position else np.zeros_like(x)

    def store(self, slot: int, value: F32) -> None:
        """The state after a step."""
        self._values[slot] = value

    def values(self, slot: int) -> F32:
        """A view of a slot."""
        x: F32 = self._values[slot]
        return x

    def copy(self, src: int, dst: int) -> None:
        """Slot dst becomes a copy of slot src."""
        self._values[dst] = self._values[src]


class Caches:
    """All cache classes of a plan."""

    def __init__(self, plan: Plan, config: BackendConfig) -> None:
        self.paged: dict[tuple[int, int], PagedLayer] = {}
        self.states: dict[tuple[int, int], StateEntry] = {}
        self.n_pages = config.n_pages
        for c, cls in enumerate(plan.caches):
            for i, layer in enumerate(cls.layers):
                if cls.kind == "state":
                    self.states[c, i] = StateEntry(layer.state[0], config.n_pages[c])
                else:
                    self.paged[c, i] = PagedLayer(cls, i, config.n_pages[c], config)

    def arrays(self, cls: int, page: int) -> list[F32]:
        """Views of what a page (or state slot) holds in all layers of a class."""
        views: list[F32] = []
        for (c, _), paged in self.paged.items():
            if c == cls:
                views += [paged.k[page]] if paged.latent else [paged.k[page], paged.v[page]]
        for (c, _), state in self.states.items():
            if c == cls:
                views.append(state.values(page))
        return views

    def copy_page(self, cls: int, src: int, dst: int) -> None:
        """Copy a page (or state slot) in all layers of a class. ValueError where there is no such class or page."""
        if not 0 <= cls < len(self.n_pages):
            raise ValueError(f"cache class {cls} does not exist (there are {len(self.n_pages)})")
        if not (0 <= src < self.n_pages[cls] and 0 <= dst < self.n_pages[cls]):
            raise ValueError(f"pages {src} and {dst} of class {cls}: expected 0..{self.n_pages[cls] - 1}")
        for entries in (self.paged, self.states):
            for (c, _), entry in entries.items():
                if c == cls:
                    entry.copy(src, dst)
