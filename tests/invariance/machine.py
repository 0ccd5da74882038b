"""Logits of a text under a Setup: everything that must not change a bit."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from parity.driver import Pages, Timeline, batch

from edgellm.backends.base import BackendConfig
from edgellm.backends.lower import lower
from edgellm.backends.native import tilefile
from edgellm.backends.select import select_backend
from edgellm.core.types import Batch, StepOutput
from edgellm.gguf.reader import GGUFFile
from edgellm.models.spec import load_plan


@dataclass(frozen=True)
class Setup:
    """threads; prefill chunk; weights mode ("cache": a tile cache of the test's own); other sequences beside; ISA level
    (None = best); what computes; parts: every step in the smallest parts, a step of another sequence after each."""

    threads: int = 2
    chunk: int = 32
    weights: str = "tiles"
    others: int = 0
    isa: str | None = None
    backend: str = "native"
    parts: bool = False


def in_parts(executable: Any, step: Batch, beside: Batch) -> StepOutput:
    """What `run` would return for a step, which must have been computed in several parts."""
    executable.begin(step)
    for n in range(100_000):
        out: StepOutput | None = executable.advance(0.0)
        if out is not None:
            assert n > 3
            return out
        executable.run(beside)
    raise AssertionError("a step in parts does not end")


def logits(
    path: Path, tokens: list[int], setup: Setup, k_type: str = "f16", v_type: str | None = None
) -> NDArray[np.float32]:
    """float32 [T, V]: teacher forced in chunks, beside `others` different texts that take part in every step."""
    with GGUFFile(path) as file:
        plan = load_plan(file)[0]
        weights = f"cache:{tile_cache(path)}" if setup.weights == "cache" else setup.weights
        n = 1 + setup.others
        bystanders = 2 if setup.parts else 0
        chunk = min(setup.chunk, len(tokens))
        pages = (n + bystanders) * (-(-len(tokens) // 32) + 1)
        config = BackendConfig(
            n_ctx=len(tokens) + 32,
            max_tokens=max(n * chunk, 9 * bystanders),
            max_rows=chunk,
            max_seqs=max(n, bystanders),
            n_pages=(pages,) * len(plan.caches),
            k_type=k_type,
            v_type=v_type or k_type,
            weights=weights,
            isa=setup.isa,
            n_threads=setup.threads,
        )
        executable = select_backend(setup.backend).compile(plan, file, config)
        try:
            lines = [Timeline(Pages(plan, config.n_pages, seed=setup.chunk))]
            lines += [Timeline(lines[0].pages) for _ in range(setup.others)]
            mine = setup.others // 2  # somewhere in the middle of the batch
            texts = [tokens if i == mine else tokens[i + 1 :] + tokens[: i + 1] for i in range(n)]
            out = []
            beside = None
            if setup.parts:
                others = [(Timeline(lines[0].pages), tokens[-9 * (i + 1) :][:9]) for i in range(bystanders)]
                beside = batch(plan, others, rows=[8])
            for at in range(0, len(tokens), chunk):
                work = [(line, text[at : at + chunk]) for line, text in zip(lines, texts, strict=True)]
                size = len(work[0][1])
                mixed = batch(plan, work, rows=range(mine * size, (mine + 1) * size))
                step = in_parts(executable, mixed, beside) if beside is not None else executable.run(mixed)
                assert not step.status.any()
                assert step.logits is not None
                out.append(step.logits)
            return np.concatenate(out)
        finally:
            executable.close()


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="edgellm-tiles-")


@cache
def tile_cache(path: Path) -> Path:
    """A tile cache of a model, which goes with this process."""
    target = Path(_folder().name) / f"{path.parent.name}-{path.name}.tiles"
    with GGUFFile(path) as file:
        plan = load_plan(file)[0]
        tilefile.write(target, file, tilefile.lay_out(file, plan, lower(plan, lambda t: file.tensors[t].qtype)))
    return target


def flush_to_zero_in_this_process(folder: Path) -> bool:
    """Load a library built with -ffast-math, whose start-up code makes the CPU flush subnormals; True if it did."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return False
    source, library = folder / "fast.c", folder / "libfast.so"
    source.write_text("float half(float x) { return x * 0.5f; }\n")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-ffast-math", source, "-o", library], check=True)
    half = ctypes.CDLL(str(library)).half
    half.restype, half.argtypes = ctypes.c_float, [ctypes.c_float]
    return bool(half(1.1754944e-38) == 0.0)
