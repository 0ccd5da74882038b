"""Every family computes what llama.cpp computes, on every backend that runs it, in one piece and in chunks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import GoldenCase
from parity.driver import Timeline, compiled, teacher_forced

from edgellm.backends.base import Backend
from edgellm.backends.select import select_backend
from edgellm.core.errors import NativeError
from edgellm.gguf.reader import GGUFFile
from edgellm.models import load_plan

CASES = {
    "llama-dense": ("reference", "native"),
    "llama-moe": ("reference", "native"),
    "gemma3-dense": ("reference", "native"),
}
WHOLE, CHUNKS = (256,), (1, 7, 32, 1, 19)
LIMIT = 1e-6


def usable(name: str) -> Backend:
    """The backend; skips where its library is not built."""
    try:
        return select_backend(name)
    except (NativeError, ImportError) as e:
        pytest.skip(f"the {name} backend is not usable here: {e}")


@pytest.mark.parametrize("chunks", [WHOLE, CHUNKS], ids=["whole", "chunks"])
@pytest.mark.parametrize(("name", "backend"), [(n, b) for n, backends in CASES.items() for b in backends])
def test_logits(
    name: str,
    backend: str,
    chunks: tuple[int, ...],
    golden_case: Callable[[str], GoldenCase],
    nmse: Callable[..., float],
) -> None:
    case = golden_case(name)
    with GGUFFile(case.path) as file:
        plan, _ = load_plan(file)
        executable, pages = compiled(usable(backend), plan, file)
        short = teacher_forced(executable, plan, case.tokens, chunks, Timeline(pages))
        long = teacher_forced(executable, plan, case.tokens_long, chunks, Timeline(pages))
        executable.close()
    assert nmse(case.logits, short) < LIMIT
    assert nmse(case.logits_long, long[-len(case.logits_long) :]) < LIMIT
