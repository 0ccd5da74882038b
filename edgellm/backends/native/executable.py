"""Plan + file -> native engine, and one call per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgellm._native import BufferSpec, CacheLayerSpec, Engine, EngineConfig, Matrix, NativeModel, usable_level
from edgellm.backends.base import BackendConfig, BackendInfo, page_bytes
from edgellm.backends.lower import Program, lower
from edgellm.backends.native.cached import find, obtain
from edgellm.backends.native.tilefile import Tiles
from edgellm.backends.native.tuning import decode_threads, far_types
from edgellm.backends.tensors import bytes_by_type, matrix_bytes, vector
from edgellm.core import env
from edgellm.core.errors import UnsupportedModel
from edgellm.core.types import Batch, Pick, RunOutput, StepOutput
from edgellm.gguf.reader import GGUFFile
from edgellm.gguf.values import Bytes
from edgellm.models.plan import Plan
from edgellm.models.rope import RopeCache
from edgellm.models.tables import Weight


class NativeBackend:
    """Compiles plans for the C core. Raises NativeError where the library cannot be loaded."""

    name = "native"

    def compile(
        self,
        plan: Plan,
        file: GGUFFile,
        config: BackendConfig,
        progress: Callable[[float], None] | None = None,
    ) -> NativeExecutable:
        """Lower the plan, hand the file's weights to the core, start its threads."""
        program = lower(plan, lambda tensor: file.tensors[tensor].qtype)
        tiles = None
        if config.weights.startswith("cache"):
            tiles = obtain(file, plan, program, config.weights, progress, config.n_threads or 0)
        elif config.cached:
            tiles = find(file, plan, program)
        executable = NativeExecutable(plan, file, config, program, tiles)
        if progress is not None:
            progress(1.0)
        return executable


class NativeExecutable:
    """A native engine with its rope tables. Used by one thread at a time."""

    def __init__(
        self, plan: Plan, file: GGUFFile, config: BackendConfig, program: Program, cache: Tiles | None = None
    ) -> None:
        repack = program.packed if config.weights == "tiles" and cache is None else set()
        ready = {} if cache is None else cache.arrays
        vectors = [vector(file, plan.weights[w]) for w in program.vectors]
        self._ropes = [
            RopeCache(t, config.n_ctx, None if t.factors is None else vector(file, plan.weights[t.factors]))
            for t in plan.ropes
        ]
        model = NativeModel(
            ops=program.ops,
            buffers=[BufferSpec(b.width, "TR".index(b.axis), ("f32", "i32").index(b.dtype)) for b in program.buffers],
            matrices=[
                _matrix(file, plan.weights[w], pack=w in repack, tiles=ready.get(i))
                for i, w in enumerate(program.matrices)
            ],
            vectors=vectors,
            ropes=[(r.cos, r.sin) for r in self._ropes],
            cache_layers=_cache_layers(plan),
            n_classes=len(plan.caches),
            n_act_slots=program.n_act_slots,
            n_vocab=plan.n_vocab,
            logits=plan.logits,
        )
        level = usable_level(config.isa or env.ISA.get())
        n_threads = config.n_threads or env.THREADS.get() or 0
        by_type = bytes_by_type(file, plan, program)
        self._engine = Engine(
            model,
            EngineConfig(
                max_tokens=config.max_tokens,
                max_rows=config.max_rows,
                max_seqs=config.max_seqs,
                n_ctx=config.n_ctx,
                n_pages=config.n_pages,
                n_threads=n_threads,
                n_decode_threads=0 if n_threads else decode_threads(by_type, level),
                k_type=config.k_type,
                v_type=config.v_type,
                isa=level,
                far_types=far_types(by_type, level),
            ),
        )
        chosen = self._engine.info
        self.info = BackendInfo(
            "native",
            chosen.isa,
            chosen.n_threads,
            config.weights if cache is None else "cache",
            sum(by_type.values()),
            chosen.scratch_bytes,
        )
        self._page_bytes = [page_bytes(plan, c, config.k_type, config.v_type) for c in range(len(plan.caches))]
        self._filled = 0

    def run(self, batch: Batch) -> StepOutput:
        """Compute one step."""
        self._fill_ropes(batch, 1)
        return self._engine.step(batch)

    def begin(self, batch: Batch) -> None:
        """Begin a step that is computed in parts."""
        self._fill_ropes(batch, 1)
        self._engine.begin(batch)

    def advance(self, seconds: float) -> StepOutput | None:
        """Compute it for about so long; its output, once it is complete."""
        return self._engine.advance(seconds)

    def run_steps(self, batch: Batch, picks: Sequence[Pick], n_steps: int, ends: tuple[int, ...]) -> RunOutput:
        """Compute up to n_steps decode steps in one call."""
        self._fill_ropes(batch, n_steps)
        return self._engine.run(batch, picks, n_steps, ends)

    def halt(self, halted: bool = True) -> None:
        """End `run_steps` after the step it is in; halt(False) allows runs again. From any thread."""
        self._engine.halt(halted)

    def _fill_ropes(self, batch: Batch, n_steps: int) -> None:
        """Have rows for the batch's positions and those of n_steps - 1 steps after it."""
        if self._ropes and len(batch.positions):
            last = int(batch.positions.max()) if len(batch.positions) > 1 else int(batch.positions[0])
            if last + n_steps > self._filled:
                for rope in self._ropes:
                    rope.ensure(last + n_steps)
                self._filled = min(rope.n_filled for rope in self._ropes)

    def copy_page(self, cls: int, src: int, dst: int) -> None:
        """Copy page `src` to `dst` in every layer of cache class `cls`."""
        self._engine.copy_page(cls, src, dst)

    def release_pages(self, cls: int, pages: list[int]) -> None:
        """Give the memory of pages of class `cls`, ascending, back to the system: their contents become undefined."""
        self._engine.release_pages(cls, np.array(pages, np.int32))

    def time_phases(self, on: bool = True) -> NDArray[np.void]:
        """Let steps add what their phases take to the array that this returns (`Engine.time_phases`)."""
        return self._engine.time_phases(on)

    def read_page(self, cls: int, page: int) -> bytes:
        """The contents of a page of class `cls`: what `write_page` takes, in a model of the same fingerprint."""
        return self._engine.read_page(cls, page, self._page_bytes[cls])

    def write_page(self, cls: int, page: int, data: bytes | memoryview) -> None:
        """Set the contents of a page."""
        self._engine.write_page(cls, page, data)

    def close(self) -> None:
        """Stop the threads, free the memory. Idempotent."""
        self._engine.close()


def _matrix(file: GGUFFile, weight: Weight, *, pack: bool, tiles: Bytes | None) -> Matrix:
    """Rows row0 .. of a tensor (of every matrix of a stack), in the file's bytes; tiles: those of the same rows."""
    data, start, n_stack = matrix_bytes(file, weight, "native")
    fd, offset = file.source(weight.tensor)
    qtype = file.tensors[weight.tensor].qtype
    return Matrix(data, int(qtype), weight.shape[-2], weight.shape[-1], n_stack, pack, (fd, offset + start), tiles)


HEAD_STEP = 4
"""Numbers in a head's key and in its value are multiples of this (`el_cache_layer` in edgellm.h)."""


def _cache_layers(plan: Plan) -> list[CacheLayerSpec]:
    layers = []
    for c, cache in enumerate(plan.caches):
        if cache.kind not in ("full", "window"):
            raise UnsupportedModel(
                f'{plan.arch}: the native backend has no "{cache.kind}" cache in this release: use backend="reference"'
            )
        for i, x in enumerate(cache.layers):
            if x.k_dim % HEAD_STEP or x.v_dim % HEAD_STEP:
                raise UnsupportedModel(
                    f"{plan.arch}: the native backend has attention for heads of multiples of {HEAD_STEP} numbers, "
                    f'found {x.k_dim} and {x.v_dim}: use backend="reference"'
                )
            layers.append(CacheLayerSpec(c, i, x.heads, x.k_dim, x.v_dim))
    return layers
