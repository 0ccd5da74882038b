"""The tokenizers of the two real models, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.tokenizer import Tokenizer, words


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_path)


@pytest.fixture(scope="session")
def gemma3(gemma3_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(gemma3_path)


@pytest.fixture(params=["by hand", "by library"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who merges new words: both are tried."""
    monkeypatch.setattr(words, "_BY_HAND", 10**9 if request.param == "by hand" else 0)
    return str(request.param)
