"""context_shift: an answer goes on where the context ends, as a prompt of what was kept would."""

from __future__ import annotations

from typing import Any

import pytest
from serving.conftest import OpenLLM
from serving.test_prefix_cache import KINDS, Golden, text

from edgellm.backends.fake import FakeBackend
from edgellm.core.errors import RequestError

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def kept(tokens: list[int]) -> list[int]:
    return [*tokens[:4], *tokens[4 + (len(tokens) - 4) // 2 :]]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("way", ["several steps in a call", "step by step", "guessing"])
def test_it_goes_on_as_a_prompt_of_what_is_kept(open_llm: OpenLLM, golden_case: Golden, name: str, way: str) -> None:
    if way == "guessing" and name == "mamba2-dense":
        pytest.skip("a recurrent state cannot take back what it has read: such models are refused")
    path, n_ctx = golden_case(name).path, 64
    llm = open_llm(
        FakeBackend(multi_step=way != "step by step"),
        path=path,
        n_ctx=n_ctx,
        draft="prompt" if way == "guessing" else None,
    )
    if llm._loaded.engine.speculation is not None:
        llm._loaded.engine.speculation._always = True
    prompt, n = [*text(15), *text(15)], 150
    out = llm.generate(prompt, max_tokens=n, context_shift=True, **GREEDY)
    alone, expected, context, forgotten = open_llm(path=path, n_ctx=n_ctx), list[int](), prompt, 0
    while len(expected) < n:
        said = alone.generate(context, max_tokens=min(n - len(expected), n_ctx - len(context)), **GREEDY).token_ids
        expected += said
        forgotten += len(context) + len(said) - len(kept([*context, *said])) if len(expected) < n else 0
        context = kept([*context, *said])
    assert out.token_ids == expected
    assert out.finish_reason == "length"
    assert out.notes == (f"context_shift: the context was full, {forgotten} tokens of it were forgotten",)
    assert out.usage.completion_tokens == n
    assert out.usage.cached_tokens == 0


@pytest.mark.parametrize("sampling", [{"temperature": 0.9}, {"temperature": 0.9, "repeat_penalty": 1.2, "top_k": 0}])
def test_neighbours_and_chunks_do_not_matter(open_llm: OpenLLM, sampling: dict[str, Any]) -> None:
    options = {**sampling, "ignore_eos": True, "max_tokens": 200, "context_shift": True}
    alone = open_llm(n_ctx=64, max_seqs=1, prefix_cache=False)
    prompts = [text(10 + i, i) for i in range(6)]
    expected = [alone.generate(p, seed=i, **options).token_ids for i, p in enumerate(prompts)]
    llm = open_llm(
        FakeBackend(multi_step=False), n_ctx=64, max_seqs=3, n_batch=7, kv_memory=3 * alone.info.kv_bytes // 2
    )
    streams = [llm.generate(p, seed=i, stream=True, **options) for i, p in enumerate(prompts)]
    got: list[list[int]] = [[] for _ in prompts]
    for i, stream in enumerate(streams):
        for chunk in stream:
            got[i] += chunk.token_ids
    assert got == expected
    out = llm.generate(prompts[0], n=2, seed=0, **options)
    assert out.choices[0].token_ids == expected[0]
    assert len(out.notes) == 2
    short = llm.generate(prompts[0], seed=0, **{**options, "max_tokens": 20})
    assert (short.token_ids, short.notes) == (expected[0][:20], ())


def test_what_is_refused(open_llm: OpenLLM) -> None:
    llm = open_llm()
    with pytest.raises(RequestError, match="context_shift needs max_tokens"):
        llm.generate([1], context_shift=True)
    with pytest.raises(RequestError, match="context_shift must be True or False"):
        llm.generate([1], context_shift=1, max_tokens=5)
    with pytest.raises(RequestError, match="do not go together"):
        llm.generate([1], context_shift=True, max_tokens=5, prompt_logprobs=1)
    with llm.session([1, 2]) as session, pytest.raises(RequestError, match="leave out context_shift"):
        session.generate(max_tokens=5, context_shift=True)
