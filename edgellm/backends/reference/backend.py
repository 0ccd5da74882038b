"""ReferenceBackend and its executable: buffers, the loop over the ops, the output."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgellm.backends.base import BackendConfig, BackendInfo
from edgellm.backends.checks import check_batch, check_config
from edgellm.backends.reference.interpret import Step, interpret
from edgellm.backends.reference.memory import Caches, Weights
from edgellm.backends.reference.output import step_output
from edgellm.core.errors import ConfigError, NativeError
from edgellm.core.types import F32, I32, Batch, StepOutput
from edgellm.gguf.reader import GGUFFile
from edgellm.models.plan import Plan
from edgellm.models.rope import RopeCache


class ReferenceBackend:
    """Interprets every op of every plan with NumPy in float32. Slow, and meant to be read."""

    name = "reference"

    def compile(
        self,
        plan: Plan,
        file: GGUFFile,
        config: BackendConfig,
        progress: Callable[[float], None] | None = None,
    ) -> ReferenceExecutable:
        """See Backend. Weights are dequantised when first used. ConfigError for an `isa`: there are no levels here."""
        if config.isa not in (None, ""):
            raise ConfigError(f"isa is {config.isa!r}, but the reference backend has no ISA levels; leave it unset")
        executable = ReferenceExecutable(plan, file, config)
        if progress is not None:
            progress(1.0)
        return executable


class ReferenceExecutable:
    """A plan with its weights and caches in NumPy arrays. Used by one thread at a time."""

    def __init__(self, plan: Plan, file: GGUFFile, config: BackendConfig) -> None:
        check_config(plan, config)
        self._plan, self._config = plan, config
        self._weights = Weights(plan, file)
        self._caches = Caches(plan, config)
        factors = [None if r.factors is None else self._weights[r.factors] for r in plan.ropes]
        self._ropes = [RopeCache(r, config.n_ctx, f) for r, f in zip(plan.ropes, factors, strict=True)]
        self._open = True
        elements = {(w.tensor, w.row0): int(np.prod(w.shape)) for w in plan.weights}
        self.info = BackendInfo(
            name="reference",
            isa="numpy",
            n_threads=1,
            weights="float32",
            weight_bytes=4 * sum(elements.values()),
            scratch_bytes=4 * sum(b.width * self._n_rows(b.axis, config) for b in plan.buffers),
        )

    def run(self, batch: Batch) -> StepOutput:
        """Compute one step. ValueError on a malformed batch."""
        self._require_open()
        plan = self._plan
        check_batch(plan, self._config, batch)
        for rope in self._ropes:
            rope.ensure(int(batch.positions.max()) + 1)
        step = Step(
            plan=plan,
            batch=batch,
            weights=self._weights,
            caches=self._caches,
            ropes=self._ropes,
            buffers=self._buffers(batch),
            failed=np.zeros(len(batch.seq_start) - 1, np.int32),
        )
        with np.errstate(all="ignore"):  # what is not finite ends in `failed`
            for op in plan.ops:
                interpret(op, step)
            hidden = step.read(plan.hidden).copy() if batch.want_hidden else None
            return step_output(batch, step.buffers[plan.logits], step.failed, hidden)  # type: ignore[arg-type]

    def copy_page(self, cls: int, src: int, dst: int) -> None:
        """Copy page `src` to `dst` in every layer of cache class `cls`."""
        self._require_open()
        self._caches.copy_page(cls, src, dst)

    def read_page(self, cls: int, page: int) -> bytes:
        """The contents of a page (or state slot) of class `cls`, float32."""
        self._require_open()
        return b"".join(x.tobytes() for x in self._caches.arrays(cls, page))

    def write_page(self, cls: int, page: int, data: bytes | memoryview) -> None:
        """Set the contents of a page. ValueError where they are not as long as it is."""
        self._require_open()
        views = self._caches.arrays(cls, page)
        if len(data) != sum(x.nbytes for x in views):
            raise ValueError(f"{len(data)} bytes for a page of {sum(x.nbytes for x in views)}")
        at = 0
        for x in views:
            x[...] = np.frombuffer(data, np.float32, x.size, at).reshape(x.shape)
            at += x.nbytes

    def close(self) -> None:
        """Drop weights and caches. Idempotent."""
        if self._open:
            self._open = False
            del self._weights, self._caches, self._ropes

    def _buffers(self, batch: Batch) -> list[F32 | I32]:
        rows = {"T": len(batch.tokens), "R": len(batch.rows)}
        buffers: list[F32 | I32] = []
        for b in self._plan.buffers:
            if b.dtype == "i32":
                buffers.append(np.full((rows[b.axis], b.width), -1, np.int32))
            else:
                # Reading what nothing has written shows as a failed sequence.
                buffers.append(np.full((rows[b.axis], b.width), np.nan, np.float32))
        return buffers

    def _require_open(self) -> None:
        if not self._open:
            raise NativeError("the executable is closed")

    @staticmethod
    def _n_rows(axis: str, config: BackendConfig) -> int:
        return config.max_tokens if axis == "T" else config.max_rows
