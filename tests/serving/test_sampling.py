"""Sampling through the whole engine: every option alone and in company, log-probabilities, limits, replays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from serving.conftest import OpenLLM
from serving.tiny import END, N_VOCAB, ids, saying

from edgellm import LLM, Completion, ContextOverflow, Logprobs, RequestError, SamplingParams
from edgellm.backends.fake import FakeBackend, chain_logits, chain_of

OPTIONS: list[dict[str, Any]] = [
    {"typical_p": 0.6, "temperature": 2.0},
    {"top_n_sigma": 1.2, "temperature": 3.0},
    {"xtc_probability": 0.5, "xtc_threshold": 0.02, "temperature": 2.0},
    {"dynatemp_range": 1.0, "temperature": 2.0},
    {"mirostat": 1, "temperature": 2.0},
    {"mirostat": 2, "temperature": 2.0},
    {"dry_multiplier": 4.0, "dry_allowed_length": 0, "dry_sequence_breakers": (), "temperature": 2.0},
    {"repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25, "repeat_last_n": -1, "top_k": 0},
    {"repeat_penalty": 1.7, "repeat_last_n": 3, "temperature": 2.0},
    {"logit_bias": {5: 4.0, 9: -math.inf}, "min_tokens": 12, "stop_token_ids": [17], "temperature": 3.0},
    {"allowed_token_ids": list(range(40)), "temperature": 3.0},
    {"logprobs": 3, "temperature": 2.0},
    {"logprobs": 0, "repeat_penalty": 1.5, "presence_penalty": 2.0, "temperature": 2.0},
    {"ignore_eos": True, "top_k": 7},
]
N = 20
WIDE = {"top_p": 1.0, "min_p": 0.0, "temperature": 2.0}


def run(llm: LLM, options: dict[str, Any], **more: Any) -> Completion:
    return llm.generate([1, 2, 3], **{**WIDE, "max_tokens": N, "seed": 11, **options, **more})


@pytest.mark.parametrize("multi_step", [True, False], ids=["runs", "steps"])
def test_the_same_tokens_alone_in_company_and_streamed(open_llm: OpenLLM, multi_step: bool) -> None:
    llm = open_llm(FakeBackend(multi_step=multi_step))
    plain = run(llm, {"temperature": 2.0}).token_ids
    alone = [run(llm, o).token_ids for o in OPTIONS]
    assert len({tuple(t) for t in [*alone, plain]}) > 8
    for options, expected in zip(OPTIONS, alone, strict=True):
        chunks = list(llm.generate([1, 2, 3], **{**WIDE, "max_tokens": N, "seed": 11, **options}, stream=True))
        assert [t for c in chunks for t in c.token_ids] == expected
        assert run(llm, options, n=2).choices[0].token_ids == expected
    requests = [
        llm._request([1, 2, 3], SamplingParams(**{**WIDE, "max_tokens": N, "seed": 11, **o}), 1, False) for o in OPTIONS
    ]
    assert [c.token_ids for c in llm._run(requests, "raise")] == alone


def test_runs_and_steps_choose_the_same(open_llm: OpenLLM) -> None:
    answers = []
    for multi_step in (True, False):
        llm = open_llm(FakeBackend(multi_step=multi_step))
        answers.append([run(llm, o).token_ids for o in OPTIONS])
        llm.close()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_preempted_answer_is_the_same(open_llm: OpenLLM, options: dict[str, Any]) -> None:
    """With pages for fewer sequences than run, answers are thrown out of the cache and computed again."""
    llm = open_llm(n_ctx=64, max_seqs=4, kv_memory=3 * 64 * 32 * 8)
    expected = run(llm, options, max_tokens=40).token_ids
    together = llm.generate([[1, 2, 3]] * 4, **{**WIDE, "max_tokens": 40, "seed": 11, **options})
    assert [c.token_ids for c in together] == [expected] * 4


@pytest.mark.parametrize("options", [{}, *OPTIONS], ids=str)
def test_a_seed_passed_back_replays(llm: LLM, options: dict[str, Any]) -> None:
    first = llm.generate([4, 5], **{**WIDE, "max_tokens": N, **options})
    again = llm.generate([4, 5], **{**WIDE, "max_tokens": N, "seed": first.seed, **options})
    assert (again.token_ids, again.seed, again.fingerprint) == (first.token_ids, first.seed, first.fingerprint)
    assert again.logprobs == first.logprobs


# ---- ends ----------------------------------------------------------------------------------------------------------


def test_stop_token_ids_end_the_answer(open_llm: OpenLLM) -> None:
    llm = open_llm(FakeBackend(saying("hello")))
    stop = ids("l")[0]
    for stream in (False, True):
        c = llm.generate("x", stop_token_ids=[stop, 0], temperature=0)
        if stream:
            c = list(llm.generate("x", stop_token_ids=[stop, 0], temperature=0, stream=True))[-1].completion  # type: ignore[assignment]
        assert (c.text, c.finish_reason, c.choices[0].stop) == ("he", "stop", stop)
        assert c.token_ids == ids("hel")


def test_ignore_eos_never_chooses_it(open_llm: OpenLLM) -> None:
    def script(history: Any) -> Any:
        row = np.zeros(N_VOCAB, np.float32)
        row[END], row[70] = 10.0, 5.0
        return row

    llm = open_llm(FakeBackend(script))
    assert llm.generate("x", temperature=0, max_tokens=9).finish_reason == "stop"
    c = llm.generate("x", temperature=0, max_tokens=9, ignore_eos=True)
    assert (c.token_ids, c.finish_reason) == ([70] * 9, "length")
    c = llm.generate("x", temperature=0, max_tokens=9, min_tokens=4)
    assert (c.token_ids, c.finish_reason) == ([70] * 4 + [END], "stop")
    c = llm.generate("x", temperature=0, max_tokens=9, min_tokens=3, stop_token_ids=[70], logit_bias={71: 1.0})
    assert (c.token_ids[:3], c.finish_reason, c.choices[0].stop) == ([71] * 3, "stop", None)


def test_stop_strings_count_after_min_tokens(open_llm: OpenLLM) -> None:
    llm = open_llm(FakeBackend(saying("abab")))
    assert llm.generate("x", temperature=0, stop=["b"]).text == "a"
    c = llm.generate("x", temperature=0, stop=["b"], min_tokens=3)
    assert (c.text, c.choices[0].stop) == ("aba", "b")


@pytest.mark.parametrize(
    "options",
    [{"allowed_token_ids": [5], "logit_bias": {5: -math.inf}}, {"allowed_token_ids": [END], "ignore_eos": True},
     {"allowed_token_ids": [END], "min_tokens": 2, "mirostat": 2}, {"min_tokens": 3, "stop_token_ids": range(N_VOCAB)}],
    ids=str,
)  # fmt: skip
def test_a_request_that_allows_nothing_fails_by_itself(llm: LLM, options: dict[str, Any]) -> None:
    c = llm.generate([1], max_tokens=5, **options)
    assert c.finish_reason == "error"
    assert isinstance(c.error, RequestError)
    assert "bans every token" in str(c.error)
    assert len(llm.generate([1], max_tokens=5, ignore_eos=True).token_ids) == 5


# ---- log-probabilities ---------------------------------------------------------------------------------------------


def expected_logprobs(history: list[int]) -> np.ndarray:
    x = chain_logits(chain_of(history), N_VOCAB).astype(np.float64)
    return x - x.max() - math.log(np.exp(x - x.max()).sum())


@pytest.mark.parametrize(
    "options", [{}, {"repeat_penalty": 2.0, "logit_bias": {3: 20.0}}, {"top_k": 0}, {"allowed_token_ids": [3, 4, 90]},
                {"temperature": 0}, {"dry_multiplier": 1.0}, {"mirostat": 2}], ids=str
)  # fmt: skip
def test_logprobs_are_the_models_own(llm: LLM, options: dict[str, Any]) -> None:
    """Whatever edits and samplers did to choose the token."""
    c = llm.generate([8, 9], max_tokens=6, logprobs=4, seed=3, **options)
    assert c.logprobs is not None
    history = [8, 9]
    for entry, token in zip(c.logprobs.content, c.token_ids, strict=True):
        expected = expected_logprobs(history)
        order = np.argsort(-expected, kind="stable")[:4].tolist()
        assert entry.id == token
        assert entry.logprob == pytest.approx(expected[token], abs=1e-5)
        assert [x.id for x in entry.top] == order
        assert [x.logprob for x in entry.top] == pytest.approx(expected[order], abs=1e-5)
        history.append(token)
    chunks = list(llm.generate([8, 9], max_tokens=6, logprobs=4, seed=3, stream=True, **options))
    assert [e for x in chunks if x.logprobs for e in x.logprobs.content] == c.logprobs.content
    assert all(len(x.logprobs.content) == len(x.token_ids) for x in chunks if x.logprobs)


def test_no_logprobs_unless_asked(llm: LLM) -> None:
    c = llm.generate([8], max_tokens=2)
    assert (c.logprobs, c.prompt_logprobs) == (None, None)
    assert all(x.logprobs is None for x in llm.generate([8], max_tokens=2, stream=True))


def test_both_shapes_of_logprobs(open_llm: OpenLLM) -> None:
    llm = open_llm(FakeBackend(saying("aé", end=True)))
    c = llm.generate("x", temperature=0, logprobs=True, top_logprobs=2)
    assert isinstance(c.logprobs, Logprobs)
    chat = c.logprobs.chat()
    assert [t["token"] for t in chat["content"]] == ["a", "\ufffd", "\ufffd", "<|im_end|>"]
    assert [t["bytes"] for t in chat["content"]] == [[97], [0xC3], [0xA9], []]
    assert [len(t["top_logprobs"]) for t in chat["content"]] == [2] * 4
    assert chat["content"][0]["top_logprobs"][0] == {
        "token": "a",
        "bytes": [97],
        "logprob": c.logprobs.content[0].logprob,
    }
    assert chat["refusal"] is None
    legacy = c.logprobs.legacy()
    assert legacy["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "<|im_end|>"]
    assert legacy["text_offset"] == [0, 1, 1, 2]
    assert legacy["top_logprobs"][0]["a"] == legacy["token_logprobs"][0]
    alone = llm.generate("x", temperature=0, logprobs=0, max_tokens=1).logprobs
    assert alone is not None
    assert alone.chat()["content"][0]["top_logprobs"] == []
    assert list(alone.legacy()["top_logprobs"][0]) == ["a"]


@pytest.mark.parametrize("options", [{}, {"n_batch": 3}, {"n_batch": 1, "max_seqs": 1}], ids=str)
def test_prompt_logprobs(open_llm: OpenLLM, options: dict[str, Any]) -> None:
    """However the prompt is cut into steps."""
    llm = open_llm(**options)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    c = llm.generate(prompt, prompt_logprobs=2, max_tokens=3, temperature=0, n=2, presence_penalty=1.0)
    assert c.prompt_logprobs is not None
    assert c.prompt_logprobs[0] is None
    for t, entry in enumerate(c.prompt_logprobs[1:], 1):
        expected = expected_logprobs(prompt[:t])
        assert entry is not None
        assert (entry.id, len(entry.top), entry.offset) == (prompt[t], 2, t)
        assert entry.logprob == pytest.approx(expected[prompt[t]], abs=1e-5)
        assert entry.top[0].id == int(expected.argmax())
    assert c.token_ids == llm.generate(prompt, max_tokens=3, temperature=0, presence_penalty=1.0).token_ids
    scored = llm.generate(prompt, prompt_logprobs=0, max_tokens=0)
    assert (scored.finish_reason, scored.token_ids) == ("length", [])
    assert [e and e.logprob for e in scored.prompt_logprobs or []] == [e and e.logprob for e in c.prompt_logprobs]
    assert llm.generate([7], prompt_logprobs=1, max_tokens=1).prompt_logprobs == [None]
    full = [5] * llm.info.n_ctx
    assert len(llm.generate(full, prompt_logprobs=0).prompt_logprobs or []) == len(full)


def test_prompt_logprobs_of_the_logits(llm: LLM) -> None:
    prompt = [3, 1, 4, 1, 5]
    logits = llm.logits(prompt).astype(np.float64)
    c = llm.generate(prompt, prompt_logprobs=0, max_tokens=0)
    for t, entry in enumerate((c.prompt_logprobs or [])[1:]):
        assert entry is not None
        x = logits[t]
        assert entry.logprob == pytest.approx(x[prompt[t + 1]] - math.log(np.exp(x).sum()), abs=1e-5)


# ---- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_token_ids": [N_VOCAB]}, f"stop_token_ids names token {N_VOCAB}, the vocabulary ends at {N_VOCAB - 1}"),
        ({"allowed_token_ids": [1, 999]}, "allowed_token_ids names token 999"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        ({"stop_token_ids": "5"}, "stop_token_ids must be a list of token ids, found str"),
        ({"stop_token_ids": [-1]}, "stop_token_ids must hold token ids, found -1"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5, more than max_tokens, which is 4"),
        ({"logprobs": 101}, "logprobs must be an integer from 0 to 100"),
        ({"prompt_logprobs": -1}, "prompt_logprobs must be an integer from 0 to 100"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs=True"),
        ({"mirostat": 3}, "mirostat must be an integer from 0 to 2"),
        ({"typical_p": 1.5}, "typical_p must be a number from 0 to 1"),
        ({"xtc_threshold": -0.1}, "xtc_threshold must be a number from 0 to 1"),
        ({"dynatemp_range": -1}, "dynatemp_range must be a number from 0"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers must hold strings of 1 to"),
        ({"ignore_eos": 1}, "ignore_eos must be True or False, found 1"),
    ],
    ids=str,
)
def test_bad_options_are_named(llm: LLM, options: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate([1], **options)
    assert llm._loaded.engine.stats.steps == 0


def test_other_spellings() -> None:
    given = {
        "temp": 0.5, "typ_p": 0.9, "top_nsigma": 2.0, "dynatemp_exp": 2.0, "mirostat_ent": 4.0, "mirostat_lr": 0.2,
        "repetition_penalty": 1.1, "penalty_last_n": 5, "n_predict": 7, "n_probs": 2,
    }  # fmt: skip
    p = SamplingParams.from_kwargs(None, given)
    assert p == SamplingParams(
        temperature=0.5, typical_p=0.9, top_n_sigma=2.0, dynatemp_exponent=2.0, mirostat_tau=4.0, mirostat_eta=0.2,
        repeat_penalty=1.1, repeat_last_n=5, max_tokens=7, logprobs=2,
    )  # fmt: skip
    assert SamplingParams.from_kwargs(None, {"n_predict": -1}).max_tokens is None
    assert SamplingParams.from_kwargs(None, {"logprobs": True, "top_logprobs": 5}).logprobs == 5
    assert SamplingParams(logprobs=False, prompt_logprobs=True) == SamplingParams(prompt_logprobs=0)
    with pytest.raises(TypeError, match="repetition_penalty and repeat_penalty are the same option"):
        SamplingParams.from_kwargs(None, {"repetition_penalty": 1.1, "repeat_penalty": 1.1})


def test_a_thousand_prompts_with_three_bad_ones(llm: LLM) -> None:
    prompts: list[Any] = [[1 + i % 50] for i in range(1000)]
    prompts[17], prompts[400], prompts[999] = [], [9999], [1] * 300
    with pytest.raises(RequestError) as caught:
        llm.generate(prompts, max_tokens=1)
    message = str(caught.value)
    assert message.startswith("3 of 1000 prompts cannot be used: prompts[17] has no tokens")
    assert "prompts[400]: token id 9999 is outside the vocabulary" in message
    assert "prompts[999]: request (300 tokens) exceeds the available context size (256 tokens)" in message
    assert llm._loaded.engine.stats.steps == 0
    with pytest.raises(ContextOverflow, match=r"prompts\[1\]: request \(300 tokens\) exceeds") as one:
        llm.generate([[1], [1] * 300], max_tokens=1)
    assert one.value.n_prompt == 300
    with pytest.raises(RequestError, match=r"30 of 30 prompts .*prompts\[19\].*; and 10 more$"):
        llm.generate([[]] * 30)
    with pytest.raises(TypeError, match=r"prompts\[1\] must be text or token ids, found float"):
        llm.generate([[1], 2.5])  # type: ignore[list-item]
