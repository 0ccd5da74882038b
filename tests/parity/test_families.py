"""Every family computes what llama.cpp computes, on every backend that runs it, in one piece and in chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GoldenCase
from golden.materialize import materialize
from numpy.typing import NDArray
from parity.driver import Timeline, compiled, teacher_forced, usable

from edgellm.gguf.reader import GGUFFile
from edgellm.models import Plan, load_plan

MORE = Path(__file__).parent / "data"
"""Cases beyond the golden ones, and answers computed with an exact GELU for the Gemma 4 cases; see its README."""

BOTH = """
llama-dense llama-moe gemma3-dense gemma-dense gemma2-dense qwen2-dense qwen3-dense qwen3moe-moe
phi3-dense smollm3-dense mistral3-dense llama-linear llama-yarn llama-longrope phi3-longrope smollm3-nope
mistral3-yarn gpt-oss-yarn gpt-oss-moe
arcee-sharp cohere2-sharp command-r-sharp ernie4_5-moe-sharp ernie4_5-sharp exaone-sharp
exaone4-sharp glm4-pairs glm4-sharp gptneox-parallel gptneox-sharp granite-nope granite-sharp granitemoe-sharp
hunyuan-dense-sharp hunyuan-moe-sharp internlm2-sharp llama-experts minicpm-sharp nemotron-sharp olmo2-sharp olmoe-sharp
phi2-sharp qwen2-sharp qwen2moe-sharp qwen3moe-experts seed_oss-sharp stablelm-parallel stablelm-sharp starcoder2-sharp
""".split()
REFERENCE = "deepseek2-yarn qwen35-dense mamba2-dense deepseek2-moe gemma4-e2b gemma4-moe".split()
NATIVE = "command-r-deep exaone4-deep".split()  # 64 layers, which is slow in NumPy
BACKENDS = {
    **dict.fromkeys(BOTH, ("reference", "native")),
    **dict.fromkeys(REFERENCE, ("reference",)),
    **dict.fromkeys(NATIVE, ("native",)),
}
"""The backends that run each case."""

CONTEXTS = {"llama-longrope": (256, 512), "phi3-longrope": (256, 512)}
"""Contexts of the short and of the long answers, where they matter: both models change their divisors at 256 tokens."""
WHOLE: tuple[int, ...] = (256,)
CHUNKS: tuple[int, ...] = (1, 7, 32, 1, 19)
CASES = [(name, backend, WHOLE) for name, backends in BACKENDS.items() for backend in backends]
CASES += [(name, backends[-1], CHUNKS) for name, backends in BACKENDS.items()]
LIMIT = 1e-6
LONG_LIMIT = {"gemma4-e2b": 1e-5}
"""That case amplifies float32 rounding over its 96 tokens; ours lands at 2e-6."""


@pytest.fixture(scope="session")
def case_of(
    golden_case: Callable[[str], GoldenCase], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], GoldenCase]:
    """A case by name, with the exact answers where there are some."""

    def load(name: str) -> GoldenCase:
        if (MORE / f"{name}.json").exists():
            path = tmp_path_factory.mktemp("more") / f"{name}.gguf"
            found = materialize(MORE / f"{name}.json", path)
            none = np.zeros((0, 0), np.float32)
            case = GoldenCase(name, path, found["tokens"], found["tokens_long"], none, none, found)
        else:
            case = golden_case(name)
        if (MORE / f"{name}.npz").exists():
            with np.load(MORE / f"{name}.npz") as answers:
                case = replace(case, logits=answers["logits"], logits_long=answers["logits_long"])
        return case

    return load


@pytest.mark.parametrize(
    ("name", "backend", "chunks"), CASES, ids=[f"{n}-{b}-{'whole' if c == WHOLE else 'chunks'}" for n, b, c in CASES]
)
def test_logits(
    name: str,
    backend: str,
    chunks: tuple[int, ...],
    case_of: Callable[[str], GoldenCase],
    nmse: Callable[[NDArray[Any], NDArray[Any]], float],
) -> None:
    case = case_of(name)
    with GGUFFile(case.path) as file:
        plan, _ = load_plan(file)
        short, long = (
            answers(backend, plan, file, tokens, chunks, n_ctx)
            for tokens, n_ctx in zip((case.tokens, case.tokens_long), CONTEXTS.get(name, (256, 256)), strict=True)
        )
    assert nmse(case.logits, short) < LIMIT
    assert nmse(case.logits_long, long[-len(case.logits_long) :]) < LONG_LIMIT.get(name, LIMIT)


def answers(
    backend: str, plan: Plan, file: GGUFFile, tokens: list[int], chunks: tuple[int, ...], n_ctx: int
) -> NDArray[np.float32]:
    """The logits of every token, on a backend with a context of n_ctx tokens."""
    executable, pages = compiled(usable(backend), plan, file, n_ctx=min(n_ctx, plan.n_ctx_train))
    try:
        return teacher_forced(executable, plan, tokens, chunks, Timeline(pages))
    finally:
        executable.close()


def test_the_context_chooses_the_divisors(
    case_of: Callable[[str], GoldenCase], nmse: Callable[[NDArray[Any], NDArray[Any]], float]
) -> None:
    for name in CONTEXTS:
        case = case_of(name)
        with GGUFFile(case.path) as file:
            plan, _ = load_plan(file)
            other = answers("reference", plan, file, case.tokens, WHOLE, 257)
        assert nmse(case.logits, other) > 1e-3
