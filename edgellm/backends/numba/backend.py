"""NumbaBackend and its executable: the native core's programs and bits, with kernels that Numba compiles."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil

from edgellm.backends.base import BackendConfig, BackendInfo
from edgellm.backends.checks import check_batch, check_config
from edgellm.backends.lower import lower
from edgellm.backends.numba import rows
from edgellm.backends.numba.machine import ROWS, TOKENS, Machine, Table
from edgellm.backends.numba.pack import Panels, pack
from edgellm.backends.numba.program import assemble
from edgellm.backends.numba.team import Team
from edgellm.backends.tensors import bytes_per_step, matrix_bytes, vector
from edgellm.core import env
from edgellm.core.errors import ConfigError, EngineError, NativeError, UnsupportedModel
from edgellm.core.types import Adjust, Batch, StepOutput
from edgellm.gguf.reader import GGUFFile
from edgellm.models.plan import Plan
from edgellm.models.rope import RopeCache

IEEE = -1
"""Of rows.control: rounding to nearest, subnormals kept, whatever other libraries have set."""


class NumbaBackend:
    """Runs the programs of the native backend with the same bits, where there is no native library."""

    name = "numba"

    def compile(
        self,
        plan: Plan,
        file: GGUFFile,
        config: BackendConfig,
        progress: Callable[[float], None] | None = None,
    ) -> NumbaExecutable:
        """See Backend. Weights are repacked. ConfigError for an `isa`: Numba compiles for the processor it runs on."""
        if config.isa not in (None, ""):
            raise ConfigError(f"isa is {config.isa!r}, but the numba backend has no ISA levels; leave it unset")
        check_config(plan, config)
        return NumbaExecutable(plan, file, config, progress or (lambda _: None))


class NumbaExecutable:
    """A program with its weights and caches in arrays. Used by one thread at a time."""

    def __init__(self, plan: Plan, file: GGUFFile, config: BackendConfig, progress: Callable[[float], None]) -> None:
        self._plan, self._config, self._pid = plan, config, os.getpid()
        program = lower(plan, lambda tensor: file.tensors[tensor].qtype, "numba")
        for cache in plan.caches:
            if cache.kind not in ("full", "window"):
                raise UnsupportedModel(
                    f'{plan.arch}: the numba backend has no "{cache.kind}" cache in this release: '
                    f'use backend="reference"'
                )
        vectors = [vector(file, plan.weights[w]) for w in program.vectors]
        n_threads = config.n_threads or env.THREADS.get() or _n_cores()
        panels: dict[int, Panels] = {}
        tables: dict[int, Table] = {}

        def load(i: int) -> None:
            weight = plan.weights[program.matrices[i]]
            qtype, n_cols = file.tensors[weight.tensor].qtype, weight.shape[-1]
            data, _, n_stack = matrix_bytes(file, weight, "numba")
            tables[i] = Table(data.reshape(-1, qtype.n_bytes(n_cols)), qtype, n_cols)
            if program.matrices[i] in program.packed:
                panels[i] = pack(data, qtype, n_stack, weight.shape[-2], n_cols)

        n = len(program.matrices)
        with ThreadPoolExecutor(n_threads, "edgellm-numba-pack") as pool:
            for i, _ in enumerate(pool.map(load, range(n)), start=1):
                progress(i / (n + 1))
        self._ropes = [
            RopeCache(t, config.n_ctx, None if t.factors is None else vector(file, plan.weights[t.factors]))
            for t in plan.ropes
        ]
        team = Team(n_threads, lambda: rows.control(IEEE))
        try:
            machine = Machine(plan, program, config, panels, tables, vectors, self._ropes, team)
            self.info = BackendInfo(
                name="numba",
                isa="llvm",
                n_threads=team.n,
                weights="tiles",
                weight_bytes=bytes_per_step(file, plan, program),
                scratch_bytes=sum(b.nbytes for b in machine.buffers),
            )
            self._machine: Machine | None = machine
            self._steps = assemble(machine, program)
            self._compile()
        except BaseException:
            team.close()
            raise
        progress(1.0)

    def _compile(self) -> None:
        """Compile the kernels, or find them compiled: one step over page 0, whose content nobody relies on."""
        zero, one = np.zeros(1, np.int32), np.ones(1, np.float32)
        pages = tuple(np.zeros((1, 1), np.int32) for _ in self._plan.caches)
        start = np.array([0, 1], np.int32)
        self.run(Batch(zero, zero, start, pages, zero, 1, False, True, Adjust(zero, zero, one, one)))

    def run(self, batch: Batch) -> StepOutput:
        """Compute one step. ValueError on a malformed batch, EngineError in a forked child, which has no threads."""
        machine = self._opened()
        check_batch(self._plan, self._config, batch)
        last = int(batch.positions.max()) + 1
        for rope in self._ropes:
            rope.ensure(last)
        before = rows.control(IEEE)
        try:
            with np.errstate(all="ignore"):
                now = machine.values.set(batch)
                for step in self._steps:
                    step(batch, now)
                return self._output(batch, machine)
        finally:
            rows.control(before)

    def _output(self, batch: Batch, machine: Machine) -> StepOutput:
        n_tokens, n_rows = len(batch.tokens), len(batch.rows)
        n_vocab, k = self._plan.n_vocab, batch.top_k
        logits = machine.buffers[self._plan.logits][: n_rows * n_vocab]
        broken = np.zeros(n_rows, np.int8)
        rows.note_nonfinite(0, n_rows, n_vocab, logits, 0, n_vocab, broken)
        if batch.adjust is not None:
            a = batch.adjust
            rows.adjust(logits, n_vocab, broken, a.row, a.token, a.rep, a.add)
        ids, values = np.empty((n_rows, k), np.int32), np.empty((n_rows, k), np.float32)
        rows.top_k(logits, n_vocab, broken, k, ids.reshape(-1), values.reshape(-1))
        lse = None
        if batch.want_lse:
            lse = np.empty(n_rows, np.float32)
            rows.log_sum_exp(logits, n_vocab, broken, lse)
        status = np.zeros(len(batch.seq_start) - 1, np.int32)
        of_tokens, of_rows = machine.values.bad[TOKENS][:n_tokens], machine.values.bad[ROWS][:n_rows]
        bad = np.concatenate([np.flatnonzero(of_tokens), batch.rows[(of_rows | broken) != 0]])
        status[np.searchsorted(batch.seq_start, bad, side="right") - 1] = 1
        shown = logits.reshape(n_rows, n_vocab).copy() if batch.want_logits else None
        hidden = None
        if batch.want_hidden:
            view = self._plan.hidden
            width = self._plan.buffers[view.buf].width
            states = machine.buffers[view.buf][: n_rows * width].reshape(n_rows, width)
            hidden = states[:, view.start : view.start + view.width].copy()
        return StepOutput(ids, values, status, lse, shown, hidden)

    def copy_page(self, cls: int, src: int, dst: int) -> None:
        """Copy page `src` to `dst` in every layer of cache class `cls`."""
        machine = self._opened()
        n_pages = self._config.n_pages
        if not 0 <= cls < len(n_pages):
            raise ValueError(f"cache class {cls} does not exist (there are {len(n_pages)})")
        if not (0 <= src < n_pages[cls] and 0 <= dst < n_pages[cls]):
            raise ValueError(f"pages {src} and {dst} of class {cls}: expected 0..{n_pages[cls] - 1}")
        for layer in machine.layers[cls]:
            layer.copy(src, dst)

    def close(self) -> None:
        """Stop the threads, drop weights and caches. Idempotent."""
        if self._machine is not None:
            self._machine.team.close()
            self._machine, self._steps = None, []

    def _opened(self) -> Machine:
        if self._machine is None:
            raise NativeError("the executable is closed")
        if os.getpid() != self._pid:
            raise EngineError(
                f"the threads of process {self._pid} do not exist in a forked child: open the model there"
            )
        return self._machine


def _n_cores() -> int:
    """Physical cores, as far as this process may run on them."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(psutil.cpu_count(logical=False) or allowed, allowed)
