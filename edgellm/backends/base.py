"""What the engine asks of a backend: compile a plan, run batches. Frozen contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from edgellm.core.kv import KV_FORMATS
from edgellm.core.record import dataclass
from edgellm.core.types import PAGE_TOKENS, Batch, StepOutput
from edgellm.gguf.reader import GGUFFile
from edgellm.models.plan import Plan


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """Sizes and choices fixed when a plan is compiled.

    n_ctx: longest sequence. max_tokens: most tokens T in a step. max_rows: most output rows R in a step.
    max_seqs: most sequences S in a step. n_pages: pages per cache class (state classes: slots).
    k_type, v_type: formats of core/kv.py. weights: "mmap" | "tiles" | "cache" | "cache:FILE" (native only).
    cached: use a good tile cache where there is one, whatever `weights` says. isa: level name, None = best.
    n_threads: None = automatic.
    """

    n_ctx: int
    max_tokens: int
    max_rows: int
    max_seqs: int
    n_pages: tuple[int, ...]
    k_type: str = "f16"
    v_type: str = "f16"
    weights: str = "tiles"
    isa: str | None = None
    n_threads: int | None = None
    cached: bool = False


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What was chosen: backend name, ISA level, threads, weight mode, bytes held for weights and scratch."""

    name: str
    isa: str
    n_threads: int
    weights: str
    weight_bytes: int
    scratch_bytes: int


class Executable(Protocol):
    """A compiled plan with its weights, caches and scratch. Used by one thread at a time."""

    info: BackendInfo

    def run(self, batch: Batch) -> StepOutput:
        """Compute one step. Raises NativeError / ValueError on a malformed batch; never crashes on one."""
        ...

    def copy_page(self, cls: int, src: int, dst: int) -> None:
        """Copy page `src` to `dst` in every layer of cache class `cls`."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...


class Backend(Protocol):
    """Turns a plan and a file into an Executable."""

    name: str

    def compile(
        self,
        plan: Plan,
        file: GGUFFile,
        config: BackendConfig,
        progress: Callable[[float], None] | None = None,
    ) -> Executable:
        """Raises UnsupportedModel where an op or a weight type is not implemented by this backend."""
        ...


def page_bytes(plan: Plan, cls: int, k_type: str, v_type: str) -> int:
    """Bytes one page of cache class `cls` takes over all its layers (state class: one sequence's slot)."""
    total = 0
    for layer in plan.caches[cls].layers:
        if plan.caches[cls].kind == "state":
            total += sum(4 * int(np.prod(s)) for s in layer.state)
        else:
            total += layer.heads * KV_FORMATS[k_type].n_bytes(layer.k_dim, PAGE_TOKENS)
            if plan.caches[cls].kind != "latent":
                total += layer.heads * KV_FORMATS[v_type].n_bytes(layer.v_dim, PAGE_TOKENS)
    return total
