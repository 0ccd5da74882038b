"""LLM.logits: forms of `rows`, chunk sizes, companions, and a real computation on the reference backend."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from serving.conftest import OpenLLM
from serving.tiny import N_VOCAB

from edgellm import LLM, ContextOverflow, RequestError
from edgellm.backends.fake import FakeBackend, chain_logits, chain_of

TOKENS = [(7 * i + 3) % N_VOCAB for i in range(150)]
EXPECTED = np.stack([chain_logits(chain_of(TOKENS[: t + 1]), N_VOCAB) for t in range(len(TOKENS))])


def test_all_rows(llm: LLM) -> None:
    out = llm.logits(TOKENS)
    assert (out.dtype, out.shape, out.flags.c_contiguous) == (np.float32, (150, N_VOCAB), True)
    assert (out == EXPECTED).all()
    assert (llm.logits(np.array(TOKENS)) == EXPECTED).all()
    assert (llm.logits(tuple(TOKENS)) == EXPECTED).all()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("last", slice(149, 150)),
        (slice(None), slice(None)),
        (slice(10, 20), slice(10, 20)),
        (slice(-5, None), slice(145, 150)),
        (slice(None, 1), slice(0, 1)),
        (slice(148, 10_000), slice(148, 150)),
        (slice(64, 129), slice(64, 129)),
    ],
)
@pytest.mark.parametrize("n_batch", [1, 7, 64, 512])
def test_forms_of_rows(open_llm: OpenLLM, rows: Any, expected: slice, n_batch: int) -> None:
    assert (open_llm(n_batch=n_batch).logits(TOKENS, rows) == EXPECTED[expected]).all()


def test_rows_before_the_end_need_no_later_tokens(llm: LLM) -> None:
    assert llm.logits(TOKENS, slice(0, 5)).shape == (5, N_VOCAB)
    assert llm._loaded.engine.stats.tokens == 5


@pytest.mark.parametrize(
    ("tokens", "rows", "error", "words"),
    [
        ([1, 2], "first", RequestError, 'must be None, "last" or a slice'),
        ([1, 2], 1, RequestError, "rows must be"),
        ([1, 2], slice("a", None), RequestError, "rows must be a slice of whole numbers"),
        ([1, 2], slice(None, None, 0), RequestError, "rows must be a slice of whole numbers"),
        ([1, 2], slice(0, 2, 2), RequestError, "step 1"),
        ([1, 2], slice(1, 1), RequestError, "non-empty slice"),
        ([1, 2], slice(5, 9), RequestError, "non-empty slice"),
        ([], None, RequestError, "no tokens"),
        ("text", None, RequestError, "tokens must be a list of token ids, found str"),
        ([1, 2.5], None, RequestError, "tokens must be a list of token ids, found 2.5 at place 1"),
        (5, None, RequestError, "tokens must be a list of token ids, found int"),
        (np.array(5), None, RequestError, "tokens must be a list of token ids, found one number"),
        (np.ones((2, 2), np.int32), None, RequestError, "tokens must be a list of token ids, found array"),
        ([N_VOCAB], None, RequestError, "outside the vocabulary"),
        ([1] * 257, None, ContextOverflow, r"257 tokens\) exceeds .* \(256 tokens\)"),
        ([1] * 257, slice(0, 5), ContextOverflow, r"257 tokens"),
    ],
)
def test_what_is_refused(llm: LLM, tokens: Any, rows: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        llm.logits(tokens, rows)
    assert llm._loaded.engine.stats.steps == 0


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ("ab", "ids must be a list of token ids, found str"),
        (None, "ids must be a list of token ids, found NoneType"),
        (5, "ids must be a list of token ids, found int"),
        ({1: 2}, "ids must be a list of token ids, found dict"),
        ([1, "a"], "ids must be a list of token ids, found 'a' at place 1"),
        ([[1]], r"ids must be a list of token ids, found \[1\] at place 0"),
        ([True], "ids must be a list of token ids, found True at place 0"),
        ([1.0], "ids must be a list of token ids, found 1.0 at place 0"),
        ([N_VOCAB], "outside the vocabulary"),
    ],
)
def test_what_detokenize_refuses(llm: LLM, ids: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        llm.detokenize(ids)


class Whole:
    """A whole number of another library."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def test_any_library_s_whole_numbers_are_numbers(open_llm: OpenLLM) -> None:
    counts: Any = {"n_ctx": Whole(64), "n_threads": np.int64(2), "max_seqs": np.uint8(4), "n_batch": np.array(32)}
    llm = open_llm(**counts)
    assert llm.info.n_ctx == 64
    ids: Any = [Whole(72), np.int32(105), 1]
    plain = [72, 105, 1]
    text = llm.detokenize(plain)
    assert llm.detokenize(ids) == llm.detokenize(tuple(ids)) == llm.detokenize(np.array(plain)) == text
    assert np.array_equal(llm.logits(ids), llm.logits(plain))
    assert np.array_equal(llm.logits(np.array(plain)), llm.logits(plain))
    options: Any = {
        "max_tokens": Whole(2),
        "seed": np.uint64(7),
        "stop_token_ids": [Whole(3)],
        "logit_bias": {Whole(5): 1},
    }
    many = llm.generate(ids, n=Whole(2), temperature=1, **options)
    assert [c.text for c in many.choices] == [
        c.text
        for c in llm.generate(
            plain, n=2, temperature=1, max_tokens=2, seed=7, stop_token_ids=(3,), logit_bias={5: 1}
        ).choices
    ]
    assert many.seed == 7
    assert type(many.seed) is int


def test_logits_beside_generating_requests(open_llm: OpenLLM) -> None:
    llm = open_llm(FakeBackend(step_seconds=0.001), n_batch=16)
    options: dict[str, Any] = {"max_tokens": 60, "seed": 4, "temperature": 3.0, "logit_bias": {3: 1.0}}
    alone = llm.generate([5], **options).token_ids
    results: list[Any] = [None] * 6

    def generate(i: int) -> None:
        results[i] = llm.generate([5], **options).token_ids

    def logits(i: int) -> None:
        results[i] = llm.logits(TOKENS)

    threads = [threading.Thread(target=generate if i % 2 else logits, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert all(results[i] == alone for i in (1, 3, 5))
    assert all((results[i] == EXPECTED).all() for i in (0, 2, 4))


@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense"])
def test_golden_models_through_the_whole_engine(
    name: str, golden_case: Callable[[str], Any], nmse: Callable[[Any, Any], float]
) -> None:
    case = golden_case(name)
    for n_batch in (5, 512):
        with LLM(case.path, backend="reference", kv_type="f32", n_batch=n_batch) as llm:
            assert nmse(case.logits, llm.logits(case.tokens)) < 1e-6
            long = llm.logits(case.tokens_long, slice(-len(case.logits_long), None))
            assert nmse(case.logits_long, long) < 1e-6
            first = llm.generate(case.tokens, max_tokens=1, temperature=0)
            assert first.token_ids == [int(case.logits[-1].argmax())]
            assert first.text == ""
