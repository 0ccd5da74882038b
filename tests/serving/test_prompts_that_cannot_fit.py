"""A prompt that cannot fit is refused before time goes into tokenising it."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgellm


@pytest.mark.real
def test_endless_text_is_not_tokenised(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with edgellm.LLM(smollm2_path, n_ctx=64) as llm:
        tokenizer = llm._loaded.tokenizer
        text = "a" * 1_000_000
        least = tokenizer.least_tokens(text)
        assert 64 < least <= 1_000_000
        with monkeypatch.context() as patch:
            patch.setattr(type(tokenizer), "encode", lambda *_a, **_k: pytest.fail("it was tokenised"))
            patch.setattr(type(tokenizer), "encode_segments", lambda *_a, **_k: pytest.fail("it was tokenised"))
            for call in (llm.generate, llm.chat):
                with pytest.raises(edgellm.ContextOverflow, match=r"request \(at least \d+ tokens\) exceeds"):
                    call(text)
        assert tokenizer.least_tokens("Hello world, how are you?") <= len(llm.tokenize("Hello world, how are you?"))


def test_names_too_long_are_not_found() -> None:
    with pytest.raises(edgellm.ModelNotFound):
        edgellm.LLM("x" * 5000)
    with pytest.raises(edgellm.ConfigError):
        edgellm.LLM("smollm2:135m", isa=5)  # type: ignore[arg-type]
