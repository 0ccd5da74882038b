"""Builder: collects a plan while a family describes its layers, and keeps the books on the file's tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from edgellm.core.errors import UnsupportedModel
from edgellm.core.types import F32
from edgellm.gguf.quantize import dequantize
from edgellm.gguf.reader import GGUFFile
from edgellm.models import ops as o
from edgellm.models.check import check_op
from edgellm.models.plan import Plan
from edgellm.models.tables import Buffer, CacheClass, CacheLayer, PlanError, RopeTable, Weight


class Builder:
    """A plan in the making. Ops are checked as they are added; every tensor may be taken once.

    Buffers are shared by name: asking again for the same name and width gives the same buffer, so that layers reuse
    scratch. A tensor is taken by `matrix`, `vector`, `embedding`, `part`, `experts` or `scalar`, or dropped by
    `ignore`; `leftovers` lists the rest.
    """

    def __init__(self, file: GGUFFile, arch: str) -> None:
        self.file, self.arch = file, arch
        self.buffers: list[Buffer] = []
        self.weights: list[Weight] = []
        self.ropes: list[RopeTable] = []
        self.ops: list[o.Op] = []
        self.ignored: dict[str, str] = {}
        self._views: dict[tuple[str, int, str, str], o.View] = {}
        self._taken: dict[str, list[tuple[int, int]]] = {}
        self._vectors: dict[str, int] = {}
        self._classes: dict[tuple[str, int], int] = {}
        self._layers: list[list[CacheLayer]] = []
        self._kinds: list[tuple[str, int]] = []

    # -- tables ------------------------------------------------------------------------------------------------

    @property
    def caches(self) -> list[CacheClass]:
        return [CacheClass(k, tuple(ls), w) for (k, w), ls in zip(self._kinds, self._layers, strict=True)]

    def buffer(self, name: str, width: int, axis: str = "T", dtype: str = "f32") -> o.View:
        """All columns of the buffer with this name and width, made when first asked for."""
        key = (name, width, axis, dtype)
        if key not in self._views:
            self._views[key] = o.View(len(self.buffers), 0, width)
            self.buffers.append(Buffer(name, width, axis, dtype))
        return self._views[key]

    def cache(self, kind: str, layer: CacheLayer, window: int = 0) -> o.Slot:
        """A new layer in the cache class of this kind and window."""
        key = (kind, window)
        if key not in self._classes:
            self._classes[key] = len(self._kinds)
            self._kinds.append(key)
            self._layers.append([])
        cls = self._classes[key]
        self._layers[cls].append(layer)
        return o.Slot(cls, len(self._layers[cls]) - 1)

    def state(self, *shape: int) -> o.Slot:
        """A new entry of recurrent state with one array of this shape."""
        return self.cache("state", CacheLayer(0, 0, 0, (shape,)))

    def rope(self, table: RopeTable) -> int:
        """Index of the table; equal tables are one."""
        if table not in self.ropes:
            self.ropes.append(table)
        return self.ropes.index(table)

    # -- tensors -----------------------------------------------------------------------------------------------

    def has(self, tensor: str) -> bool:
        """Is the tensor in the file?"""
        return tensor in self.file.tensors

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The tensor's shape in the file, outermost first. UnsupportedModel where it is missing."""
        info = self.file.tensors.get(tensor)
        if info is None:
            raise UnsupportedModel(
                f"tensor '{tensor}' is missing; a {self.arch} model needs it (the file may hold a variant of this "
                f"architecture that edgellm does not know)"
            )
        return info.shape

    def matrix(self, tensor: str, shape: tuple[int, ...] | None = None) -> int:
        """A whole weight matrix or stack. shape: where the file leaves out sizes of 1."""
        return self._whole(tensor, shape, "matrix")

    def rows(self, tensor: str, row0: int, n: int) -> int:
        """Rows row0 .. row0+n-1 of a matrix, or of every matrix of a stack."""
        shape = self.shape(tensor)
        if len(shape) < 2 or row0 + n > shape[-2]:
            raise PlanError(f"{tensor} has shape {list(shape)}, but rows {row0}..{row0 + n - 1} are needed")
        self._take(tensor, row0, row0 + n)
        return self._weight(Weight(tensor, (*shape[:-2], n, shape[-1]), "matrix", row0))

    def embedding(self, tensor: str) -> int:
        """A matrix whose rows are looked up."""
        return self._whole(tensor, None, "embedding")

    def tied(self, tensor: str) -> int:
        """A second use of a tensor, as a matrix."""
        return self._weight(Weight(tensor, self.shape(tensor), "matrix"))

    def vector(self, tensor: str, shape: tuple[int, ...] | None = None) -> int:
        """A tensor that is converted to float32 when loaded. shape: another arrangement of its elements."""
        return self._whole(tensor, shape, "vector")

    def optional_vector(self, tensor: str, shape: tuple[int, ...] | None = None) -> int | None:
        """As `vector`; None where the file does not have it."""
        return self.vector(tensor, shape) if self.has(tensor) else None

    def shared_vector(self, tensor: str) -> int:
        """As `vector`, but several layers may ask for it."""
        if tensor not in self._vectors:
            self._vectors[tensor] = self.vector(tensor)
        return self._vectors[tensor]

    def scalar(self, tensor: str) -> float:
        """The value of a tensor with one element, as a number in the plan."""
        values = self._values(tensor)
        if values.size != 1 or not np.isfinite(values).all():
            raise PlanError(f"{tensor} has shape {list(self.shape(tensor))}, expected one finite number")
        self._take(tensor, 0, self._rows(tensor))
        return float(values.reshape(-1)[0])

    def numbers(self, tensor: str, n: int) -> tuple[float, ...]:
        """The values of a tensor with n elements, as numbers in the plan."""
        values = self._values(tensor)
        if values.size != n:
            raise PlanError(f"{tensor} has shape {list(self.shape(tensor))}, expected {n} numbers")
        self._take(tensor, 0, self._rows(tensor))
        return tuple(float(v) for v in values.reshape(-1))

    def scale(self, stem: str) -> float:
        """The factor `<stem>.scale` on the result of a matrix; 1 where the file has none."""
        return self.scalar(f"{stem}.scale") if self.has(f"{stem}.scale") else 1.0

    def part(self, stem: str, n: int, scale: bool = True) -> o.Part:
        """`<stem>.weight`, with `<stem>.bias` and (if wanted) `<stem>.scale` where the file has them.

        n: rows that it must have.
        """
        w = self.matrix(f"{stem}.weight")
        rows = self.weights[w].shape[0]
        if rows != n:
            raise PlanError(f"{stem}.weight has {rows} rows, expected {n}")
        return o.Part(w, self.optional_vector(f"{stem}.bias"), self.scale(stem) if scale else 1.0)

    def experts(self, stem: str, scale: bool = True) -> o.Experts:
        """`<stem>.weight` [X, N, K] with `<stem>.bias` [X, N] and, if wanted, `<stem>.scale` [X]."""
        return o.Experts(
            self.matrix(f"{stem}.weight"),
            self.optional_vector(f"{stem}.bias"),
            self.optional_vector(f"{stem}.scale") if scale else None,
        )

    def ignore(self, tensor: str, why: str) -> None:
        """Leave the tensor out, if it is there, for a reason that holds for every file."""
        if self.has(tensor):
            self._take(tensor, 0, self._rows(tensor))
            self.ignored[tensor] = why

    def ignore_layers(self, first: int, n: int, why: str) -> None:
        """Leave out all tensors of layers first .. first+n-1, and the file's right to have them."""
        for i in range(first, first + n):
            for tensor in self.file.tensors:
                if tensor.startswith(f"blk.{i}."):
                    self.ignore(tensor, why)

    def leftovers(self, patterns: Mapping[str, str]) -> Iterator[str]:
        """Tensors (or rows of them) that nothing took and whose name ends with none of `patterns`."""
        for name in self.file.tensors:
            spans = sorted(self._taken.get(name, []))
            if not spans:
                if not any(name.endswith(p) for p in patterns):
                    yield f"tensor '{name}'"
                continue
            end = 0
            for a, b in spans:
                if a > end:
                    yield f"rows {end}..{a - 1} of tensor '{name}'"
                end = b
            if end < self._rows(name):
                yield f"rows {end}..{self._rows(name) - 1} of tensor '{name}'"

    # -- ops ---------------------------------------------------------------------------------------------------

    def add(self, op: o.Op) -> None:
        """Append an op. PlanError where its sizes clash."""
        check_op(op, self)
        self.ops.append(op)

    def finish(self, n_vocab: int, n_ctx_train: int, logits: o.View) -> Plan:
        """The plan, checked as a whole: `add` has checked the ops one by one."""
        plan = Plan(
            arch=self.arch,
            n_vocab=n_vocab,
            n_ctx_train=n_ctx_train,
            buffers=tuple(self.buffers),
            weights=tuple(self.weights),
            ropes=tuple(self.ropes),
            caches=tuple(self.caches),
            ops=tuple(self.ops),
            logits=logits.buf,
        )
        plan.check(checked=True)
        return plan

    def _whole(self, tensor: str, shape: tuple[int, ...] | None, role: str) -> int:
        found = self.shape(tensor)
        if shape is not None and math.prod(shape) != math.prod(found):
            raise PlanError(f"{tensor} has shape {list(found)}, expected {list(shape)}")
        self._take(tensor, 0, self._rows(tensor))
        return self._weight(Weight(tensor, found if shape is None else shape, role))

    def _values(self, tensor: str) -> F32:
        shape = self.shape(tensor)
        if math.prod(shape) > 4096:
            raise PlanError(f"{tensor} has shape {list(shape)}, expected a few numbers")
        return dequantize(self.file.read(tensor), self.file.tensors[tensor].qtype, shape)

    def _weight(self, weight: Weight) -> int:
        self.weights.append(weight)
        return len(self.weights) - 1

    def _rows(self, tensor: str) -> int:
        shape = self.shape(tensor)
        return shape[-2] if len(shape) >= 2 else 1

    def _take(self, tensor: str, first: int, last: int) -> None:
        spans = self._taken.setdefault(tensor, [])
        if any(first < b and a < last for a, b in spans):
            raise PlanError(f"tensor '{tensor}' is used twice by the {self.arch} family")
        spans.append((first, last))
