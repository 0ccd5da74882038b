"""Ids of every string of tests/golden/vocab, and of the larger collection where it is present."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import pytest

from edgellm.tokenizer import Tokenizer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Vocabularies of the larger collection whose kind and pre-tokenizer are implemented.
MORE = (
    "aquila baichuan command-r deepseek-coder falcon gpt-2 gpt-neox llama-bpe llama-spm mpt phi-3 qwen2 qwen35 "
    "refact starcoder"
).split()
LATER = "bert-bge deepseek-llm gemma-4 nomic-bert-moe".split()


def differences(golden_dir: Path) -> list[dict[str, str]]:
    with open(golden_dir / "tokenizer_differences.toml", "rb") as file:
        found: list[dict[str, str]] = tomllib.load(file).get("difference", [])
    return found


def ids_of(tokenizer: Tokenizer, text: str, which: str) -> list[int]:
    if which == "plain":
        return tokenizer.encode(text, add_special=False)
    return tokenizer.encode(text, parse_special=True)


def check(tokenizer: Tokenizer, cases: dict[str, Any], name: str, golden_dir: Path) -> None:
    excused = {(d["list"], d["string"]) for d in differences(golden_dir) if d["vocab"] == name}
    wrong = {
        (which, text)
        for which in ("plain", "special")
        for text, ids in zip(cases["strings"], cases[which], strict=True)
        if ids_of(tokenizer, text, which) != ids
    }
    assert wrong == excused
    assert len(cases["strings"]) > 90


@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_real_models(model: str, request: pytest.FixtureRequest, golden_dir: Path) -> None:
    tokenizer = request.getfixturevalue(model)
    name = f"{model}-model"
    check(tokenizer, json.loads((golden_dir / "vocab" / f"{name}.json").read_bytes()), name, golden_dir)


@pytest.fixture
def vocab_file(request: pytest.FixtureRequest, shared_golden_dir: Path, tmp_path: Path) -> Path:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(lzma.decompress((shared_golden_dir / "vocab_files" / f"{request.param}.gguf.xz").read_bytes()))
    return path


@pytest.mark.parametrize(("vocab_file", "name"), [(n, n) for n in MORE], indirect=["vocab_file"])
def test_other_vocabularies(vocab_file: Path, name: str, shared_golden_dir: Path, golden_dir: Path) -> None:
    cases = json.loads((shared_golden_dir / "vocab" / f"{name}.json").read_bytes())
    check(Tokenizer.from_gguf(vocab_file), cases, name, golden_dir)


@pytest.mark.parametrize("vocab_file", LATER, indirect=True)
def test_what_is_not_implemented_is_refused(vocab_file: Path) -> None:
    from edgellm.core.errors import TokenizerError

    tokenizer = Tokenizer.from_gguf(vocab_file)
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.(model|pre)"):
        tokenizer.encode("Hello")
    assert tokenizer.n_vocab > 0
    assert tokenizer.eog_ids


def test_differences_have_a_reason(golden_dir: Path) -> None:
    for entry in differences(golden_dir):
        assert set(entry) == {"vocab", "list", "string", "reason"}
        assert len(entry["reason"]) > 20
    with open(golden_dir / "tokenizer_differences.toml", "rb") as file:
        for rule in tomllib.load(file)["rule"]:
            assert set(rule) == {"what", "why"}
