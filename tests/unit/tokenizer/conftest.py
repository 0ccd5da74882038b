"""The tokenizers of the two real models, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_path)


@pytest.fixture(scope="session")
def gemma3(gemma3_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(gemma3_path)
