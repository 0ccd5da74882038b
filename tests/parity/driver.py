"""Runs token sequences through an executable, with pages in any order: what an engine does, in its simplest form."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm.backends.base import Backend, BackendConfig, Executable
from edgellm.backends.select import select_backend
from edgellm.core.errors import NativeError
from edgellm.core.types import I32, NO_PAGE, PAGE_TOKENS, Batch, StepOutput
from edgellm.gguf.reader import GGUFFile
from edgellm.models.plan import Plan


def config(plan: Plan, **changes: object) -> BackendConfig:
    """A small configuration with float32 KV; the trained context, at most 256."""
    n_ctx = min(plan.n_ctx_train, 256)
    values: dict[str, object] = {
        "n_ctx": n_ctx,
        "max_tokens": n_ctx,
        "max_rows": n_ctx,
        "max_seqs": 8,
        "n_pages": (64,) * len(plan.caches),
        "k_type": "f32",
        "v_type": "f32",
    }
    return BackendConfig(**{**values, **changes})  # type: ignore[arg-type]


@dataclass
class Pages:
    """Free pages of every cache class, handed out in a shuffled order."""

    plan: Plan
    n_pages: tuple[int, ...]
    seed: int = 0
    free: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self.free = [rng.sample(range(n), n) for n in self.n_pages]


class Timeline:
    """One sequence: its tokens so far and its block tables. Window classes give back pages that nothing will see."""

    def __init__(self, pages: Pages) -> None:
        self.pages, self.n = pages, 0
        self.tables: list[list[int]] = [[] for _ in pages.plan.caches]

    def grow(self, n: int) -> None:
        """Pages for n more tokens."""
        for c, cls in enumerate(self.pages.plan.caches):
            wanted = 1 if cls.kind == "state" else -(-(self.n + n) // PAGE_TOKENS)
            while len(self.tables[c]) < wanted:
                self.tables[c].append(self.pages.free[c].pop())
            if cls.kind == "window":
                for j in range(max(0, self.n - cls.window + 1) // PAGE_TOKENS):
                    if self.tables[c][j] != NO_PAGE:
                        self.pages.free[c].insert(0, self.tables[c][j])
                        self.tables[c][j] = NO_PAGE


def batch(
    plan: Plan, work: Sequence[tuple[Timeline, Sequence[int]]], rows: Sequence[int] | None = None, **options: object
) -> Batch:
    """One step over several timelines with their new tokens; all rows are wanted unless `rows` says which."""
    tokens: list[int] = []
    positions: list[int] = []
    starts = [0]
    for line, new in work:
        line.grow(len(new))
        tokens += new
        positions += range(line.n, line.n + len(new))
        starts.append(len(tokens))
        line.n += len(new)
    tables = []
    for c in range(len(plan.caches)):
        width = max(len(line.tables[c]) for line, _ in work)
        tables.append(_i32([line.tables[c] + [NO_PAGE] * (width - len(line.tables[c])) for line, _ in work]))
    wanted = range(len(tokens)) if rows is None else rows
    values = {"top_k": 0, "want_logits": True, **options}
    return Batch(_i32(tokens), _i32(positions), _i32(starts), tuple(tables), _i32(wanted), **values)  # type: ignore[arg-type]


def teacher_forced(
    executable: Executable, plan: Plan, tokens: Sequence[int], chunks: Sequence[int], line: Timeline
) -> NDArray[np.float32]:
    """Logits [T, V] of every token, fed in chunks of the given sizes (the last one repeats)."""
    out, at, i = [], 0, 0
    while at < len(tokens):
        size = chunks[min(i, len(chunks) - 1)]
        step: StepOutput = executable.run(batch(plan, [(line, tokens[at : at + size])]))
        assert step.logits is not None
        assert not step.status.any()
        out.append(step.logits)
        at, i = at + size, i + 1
    return np.concatenate(out)


def usable(name: str) -> Backend:
    """The backend; skips where its library is not built."""
    try:
        return select_backend(name)
    except NativeError as e:
        pytest.skip(f"the {name} backend is not usable here: {e}")


def compiled(backend: Backend, plan: Plan, file: GGUFFile, **changes: object) -> tuple[Executable, Pages]:
    """An executable with the small configuration, and its free pages."""
    c = config(plan, **changes)
    return backend.compile(plan, file, c), Pages(plan, c.n_pages)


def _i32(values: object) -> I32:
    return np.array(values, np.int32)
