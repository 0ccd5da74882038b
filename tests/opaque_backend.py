"""A backend whose memory the host may not touch, as on a GPU: handles, explicit copies, and commands.

The device gets the plan as bytes, tensors by upload, and then one command per op; results come back by download. A
handle raises HostAccess for everything else, so that host code which peeks into buffers, weights or caches fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgellm.backends.base import BackendConfig, BackendInfo
from edgellm.backends.checks import check_batch, check_config
from edgellm.backends.reference.interpret import Step, interpret
from edgellm.backends.reference.memory import Caches, Weights
from edgellm.backends.reference.output import step_output
from edgellm.core.errors import NativeError
from edgellm.core.types import Batch, StepOutput
from edgellm.gguf.reader import GGUFFile
from edgellm.models.plan import Plan
from edgellm.models.rope import RopeCache


class HostAccess(RuntimeError):
    """The host touched device memory."""


class Handle:
    """Something on the device. Only the device can look inside."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "_number", number)

    def _refuse(self, *_: object, **__: object) -> Any:
        raise HostAccess("device memory is not accessible from the host: upload, launch and download instead")

    __getattr__ = __setattr__ = __getitem__ = __setitem__ = _refuse
    __len__ = __iter__ = __array__ = __add__ = __bool__ = __float__ = _refuse


class Device:
    """Memory behind handles. Arguments that are handles are resolved on the device, all others are copied there."""

    def __init__(self) -> None:
        memory: dict[int, Any] = {}
        counter = iter(range(1 << 62))

        def resolve(x: Any) -> Any:
            if isinstance(x, Handle):
                return memory[object.__getattribute__(x, "_number")]
            return x.copy() if isinstance(x, np.ndarray) else x

        def make(build: Callable[..., Any], *args: Any) -> Handle:
            number = next(counter)
            memory[number] = build(*map(resolve, args))
            return Handle(number)

        def free(handle: Handle) -> None:
            memory.pop(object.__getattribute__(handle, "_number"), None)

        def download(handle: Handle) -> Any:
            return resolve(resolve(handle))

        self.make, self.free, self.download = make, free, download
        self.n_objects = lambda: len(memory)

    def upload(self, array: np.ndarray[Any, Any]) -> Handle:
        """A copy of a host array."""
        return self.make(lambda x: x, array)

    def launch(self, kernel: Callable[..., Any], *args: Any) -> None:
        """Run a command; nothing comes back."""
        self.free(self.make(kernel, *args))


class _DeviceFile:
    """The uploaded tensors, with the part of GGUFFile's interface that dequantisation needs."""

    def __init__(self, path: object, infos: dict[str, Any], names: tuple[str, ...], *tensors: Any) -> None:
        self.path, self.tensors = path, infos
        self._data = dict(zip(names, tensors, strict=True))

    def data(self, name: str) -> Any:
        return self._data[name]


class OpaqueBackend:
    """See the module."""

    name = "opaque"

    def __init__(self) -> None:
        self.device = Device()

    def compile(
        self, plan: Plan, file: GGUFFile, config: BackendConfig, progress: Callable[[float], None] | None = None
    ) -> OpaqueExecutable:
        return OpaqueExecutable(self.device, plan, file, config)


class OpaqueExecutable:
    """Host side of a plan on the device: it knows the plan and handles, nothing else."""

    def __init__(self, device: Device, plan: Plan, file: GGUFFile, config: BackendConfig) -> None:
        check_config(plan, config)
        self.device, self.plan, self.config = device, plan, config
        names = tuple(sorted({w.tensor for w in plan.weights}))
        infos = {n: file.tensors[n] for n in names}
        uploads = [device.upload(file.data(n)) for n in names]
        there = device.make(_DeviceFile, file.path, infos, names, *uploads)
        self.program = device.make(Plan.from_bytes, plan.to_bytes())
        self.weights = device.make(Weights, self.program, there)
        self.caches = device.make(Caches, self.program, config)
        self.ropes = device.make(_ropes, self.program, self.weights, config.n_ctx)
        self.open = True
        self.info = BackendInfo("opaque", "none", 1, config.weights, 0, 0)

    def run(self, batch: Batch) -> StepOutput:
        if not self.open:
            raise NativeError("the executable is closed")
        check_batch(self.plan, self.config, batch)
        d = self.device
        inputs = [batch.tokens, batch.positions, batch.seq_start, batch.rows, *batch.pages]
        uploads = [d.upload(x) for x in inputs]
        there = d.make(_device_batch, *uploads)
        d.launch(_fill_ropes, self.ropes, there)
        step = d.make(_begin, self.program, there, self.weights, self.caches, self.ropes)
        for i in range(len(self.plan.ops)):
            d.launch(_run_op, self.program, i, step)
        logits = d.make(lambda s, p: s.buffers[p.logits], step, self.program)
        failed = d.make(lambda s: s.failed, step)
        hidden = d.make(lambda s, p: s.read(p.hidden).copy(), step, self.program)
        there_hidden = d.download(hidden) if batch.want_hidden else None
        out = step_output(batch, d.download(logits), d.download(failed), there_hidden)
        for handle in (*uploads, there, step, logits, failed, hidden):
            d.free(handle)
        return out

    def copy_page(self, cls: int, src: int, dst: int) -> None:
        if not self.open:
            raise NativeError("the executable is closed")
        self.device.launch(Caches.copy_page, self.caches, cls, src, dst)

    def close(self) -> None:
        if self.open:
            self.open = False
            for handle in (self.program, self.weights, self.caches, self.ropes):
                self.device.free(handle)


# Kernels: these run on the device.


def _ropes(plan: Plan, weights: Weights, n_ctx: int) -> list[RopeCache]:
    return [RopeCache(r, n_ctx, None if r.factors is None else weights[r.factors]) for r in plan.ropes]


def _device_batch(tokens: Any, positions: Any, starts: Any, rows: Any, *pages: Any) -> Batch:
    return Batch(tokens, positions, starts, pages, rows)


def _fill_ropes(ropes: list[RopeCache], batch: Batch) -> None:
    for rope in ropes:
        rope.ensure(int(batch.positions.max()) + 1)


def _begin(plan: Plan, batch: Batch, weights: Weights, caches: Caches, ropes: list[RopeCache]) -> Step:
    n = {"T": len(batch.tokens), "R": len(batch.rows)}
    buffers = [np.zeros((n[b.axis], b.width), {"f32": np.float32, "i32": np.int32}[b.dtype]) for b in plan.buffers]
    return Step(plan, batch, weights, caches, ropes, buffers, np.zeros(len(batch.seq_start) - 1, np.int32))


def _run_op(plan: Plan, index: int, step: Step) -> None:
    with np.errstate(all="ignore"):
        interpret(plan.ops[index], step)
