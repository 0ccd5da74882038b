"""The public surface as a user's program calls it. Never run: a type checker reads it (test_contract.py)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import edgellm

if TYPE_CHECKING:
    from typing_extensions import assert_type

    with edgellm.LLM("smollm2:135m", n_ctx=2048, kv_type=("f16", "f32"), weights="auto", strict=True) as llm:
        pass

    # -- generate ------------------------------------------------------------------------------------------------
    assert_type(llm.generate("Hi"), edgellm.Completion)
    assert_type(llm.generate([1, 2, 3], temperature=0.0, max_tokens=5), edgellm.Completion)
    assert_type(llm.generate("Hi", edgellm.SamplingParams(top_k=1), n=2), edgellm.Completion)
    assert_type(llm.generate("Hi", stream=False), edgellm.Completion)
    assert_type(llm.generate("Hi", stream=True), Generator[edgellm.Chunk, None, None])
    assert_type(llm.generate([1, 2], stream=True, on_error="raise"), Generator[edgellm.Chunk, None, None])
    assert_type(llm.generate(["Hi", "Ho"]), list[edgellm.Completion])
    assert_type(llm.generate([[1], [2, 3]], n=2), list[edgellm.Completion])
    assert_type(llm.generate(("Hi", "Ho"), stream=False), list[edgellm.Completion])

    # -- chat ----------------------------------------------------------------------------------------------------
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
    assert_type(llm.chat(messages), edgellm.Completion)
    assert_type(llm.chat("Hi", tools=None, response_format=None), edgellm.Completion)
    assert_type(llm.chat(messages, stream=False, logprobs=True, top_logprobs=3), edgellm.Completion)
    assert_type(llm.chat(messages, stream=True), Generator[edgellm.Chunk, None, None])
    for chunk in llm.chat("Hi", stream=True):
        assert_type(chunk.text, str)
        assert_type(chunk.logprobs, edgellm.Logprobs | None)
        assert_type(chunk.completion, edgellm.Completion | None)

    # -- what comes back -----------------------------------------------------------------------------------------
    answer = llm.generate("Hi", prompt_logprobs=1)
    assert_type(str(answer), str)
    assert_type(answer.text, str)
    assert_type(answer.token_ids, list[int])
    assert_type(answer.finish_reason, str)
    assert_type(answer.seed, int)
    assert_type(answer.fingerprint, str)
    assert_type(answer.error, edgellm.EdgeLLMError | None)
    assert_type(answer.usage.total_tokens, int)
    assert_type(answer.timings.first_token, float)
    assert_type(answer.choices, list[edgellm.Choice])
    assert_type(answer.choices[0].stop, str | int | None)
    assert_type(answer.logprobs, edgellm.Logprobs | None)
    assert_type(answer.prompt_logprobs, list[edgellm.TokenLogprob | None] | None)

    # -- the rest ------------------------------------------------------------------------------------------------
    assert_type(llm.tokenize("Hi", add_special=False, parse_special=True), list[int])
    assert_type(llm.detokenize([1, 2]), str)
    assert_type(llm.render(messages), str)
    assert_type(llm.logits([1, 2], rows="last"), NDArray[np.float32])
    assert_type(llm.logits([1, 2], slice(0, 1)), NDArray[np.float32])
    assert_type(llm.embed(["Hi", "Ho"], pooling="mean", normalize=False), NDArray[np.float32])
    assert_type(llm.score("Hi", " there"), edgellm.Score)
    assert_type(llm.score([1], [2, 3]).tokens, list[edgellm.TokenLogprob])
    assert_type(llm.score("Hi", [" there", " you"]), list[edgellm.Score])
    assert_type(llm.info.n_ctx, int)
    assert_type(llm.tokenizer, edgellm.Tokenizer)
    assert_type(llm.close(), None)
    assert_type(edgellm.Tokenizer.from_gguf("model.gguf").encode("Hi"), list[int])
    assert_type(edgellm.numerics_version, int)

    # -- asyncio -------------------------------------------------------------------------------------------------
    async def program() -> None:
        async with edgellm.AsyncLLM("smollm2:135m", n_ctx=2048, max_seqs=32) as a:
            assert_type(await a.generate("Hi"), edgellm.Completion)
            assert_type(await a.generate([1, 2, 3], temperature=0.0), edgellm.Completion)
            assert_type(await a.generate(["Hi", "Ho"], edgellm.SamplingParams(top_k=1), n=2), list[edgellm.Completion])
            assert_type(await a.chat(messages), edgellm.Completion)
            assert_type(a.chat(messages, stream=True), AsyncGenerator[edgellm.Chunk, None])
            async for chunk in a.generate("Hi", stream=True):
                assert_type(chunk, edgellm.Chunk)
            assert_type(await a.tokenize("Hi", add_special=False), list[int])
            assert_type(await a.detokenize([1, 2]), str)
            assert_type(await a.render(messages), str)
            assert_type(await a.chat_prompt(messages, tools=None), tuple[list[int], tuple[str, ...]])
            assert_type(await a.logits([1, 2], rows="last"), NDArray[np.float32])
            assert_type(await a.embed("Hi"), NDArray[np.float32])
            assert_type(await a.score("Hi", " there"), edgellm.Score)
            assert_type(await a.score("Hi", [" there", " you"]), list[edgellm.Score])
            assert_type(a.info.n_ctx, int)
            assert_type(a.stats.running, int)
