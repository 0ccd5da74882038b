"""Ids of every string of tests/golden/vocab, with what these strings touch of each vocabulary and, where the larger
collection is present, with whole vocabularies; by hand and by the libraries."""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import pytest
from golden.vocab.reduce import reduce, restore

from edgellm.core.errors import TokenizerError
from edgellm.gguf import GGUFFile
from edgellm.tokenizer import Tokenizer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REAL = ("gemma3", "smollm2")
VOCABULARIES = (
    "aquila baichuan command-r deepseek-coder deepseek-llm falcon gemma-4 gpt-2 gpt-neox llama-bpe llama-spm mpt phi-3 "
    "qwen2 qwen35 refact starcoder"
).split()
BOTH_WAYS = ("falcon", "llama-bpe", "llama-spm")
LATER = ("bert-bge", "nomic-bert-moe")


def differences(golden_dir: Path) -> list[dict[str, str]]:
    with open(golden_dir / "tokenizer_differences.toml", "rb") as file:
        found: list[dict[str, str]] = tomllib.load(file).get("difference", [])
    return found


def ids_of(tokenizer: Tokenizer, text: str, which: str) -> list[int]:
    if which == "plain":
        return tokenizer.encode(text, add_special=False)
    return tokenizer.encode(text, parse_special=True)


def check(tokenizer: Tokenizer, name: str, golden_dir: Path, way: str) -> None:
    cases: dict[str, Any] = json.loads((golden_dir / "vocab" / f"{name}.json").read_bytes())
    excused = {(d["list"], d["string"]) for d in differences(golden_dir) if d["vocab"] == name}
    wrong = {
        (which, text)
        for which in ("plain", "special")
        for text, ids in zip(cases["strings"], cases[which], strict=True)
        if ids_of(tokenizer, text, which) != ids
    }
    assert wrong == excused
    assert len(cases["strings"]) > 90
    assert (tokenizer._encoding()._library is not None) == (way == "by library")


def test_every_case_is_tested(golden_dir: Path) -> None:
    names = {*VOCABULARIES, *(f"{n}-model" for n in REAL)}
    assert {p.name.removesuffix(".json") for p in (golden_dir / "vocab").glob("*.json")} == names
    assert {p.name.removesuffix(".vocab.json.xz") for p in (golden_dir / "vocab").glob("*.xz")} == names


@pytest.mark.parametrize("name", [*VOCABULARIES, *(f"{n}-model" for n in REAL)])
def test_what_the_strings_touch(name: str, golden_dir: Path, way: str) -> None:
    metadata = restore(golden_dir / "vocab" / f"{name}.vocab.json.xz")
    check(Tokenizer.from_metadata(metadata), name, golden_dir, way)


@pytest.mark.parametrize("model", REAL)
def test_real_models(model: str, request: pytest.FixtureRequest, golden_dir: Path, way: str) -> None:
    path = request.getfixturevalue(f"{model}_path")
    check(Tokenizer.from_gguf(path), f"{model}-model", golden_dir, way)


@pytest.fixture
def vocab_file(request: pytest.FixtureRequest, shared_golden_dir: Path, tmp_path: Path) -> Path:
    path = tmp_path / "vocab.gguf"
    path.write_bytes(lzma.decompress((shared_golden_dir / "vocab_files" / f"{request.param}.gguf.xz").read_bytes()))
    return path


@pytest.mark.parametrize(("vocab_file", "name"), [(n, n) for n in VOCABULARIES], indirect=["vocab_file"])
def test_whole_vocabularies(vocab_file: Path, name: str, golden_dir: Path) -> None:
    check(Tokenizer.from_gguf(vocab_file), name, golden_dir, "by hand")


@pytest.mark.parametrize(("vocab_file", "name"), [(n, n) for n in BOTH_WAYS], indirect=["vocab_file"])
def test_whole_vocabularies_both_ways(vocab_file: Path, name: str, golden_dir: Path, way: str) -> None:
    check(Tokenizer.from_gguf(vocab_file), name, golden_dir, way)


@pytest.mark.parametrize("vocab_file", ["gpt-2"], indirect=True)
def test_the_reduced_files_are_what_the_script_writes(vocab_file: Path, golden_dir: Path) -> None:
    strings = json.loads((golden_dir / "vocab" / "gpt-2.json").read_bytes())["strings"]
    with GGUFFile(vocab_file) as gguf:
        data = json.loads(json.dumps(reduce(dict(gguf.metadata), strings)))
    assert data == json.loads(lzma.decompress((golden_dir / "vocab" / "gpt-2.vocab.json.xz").read_bytes()))


@pytest.mark.parametrize("vocab_file", LATER, indirect=True)
def test_what_is_not_implemented_is_refused(vocab_file: Path) -> None:
    tokenizer = Tokenizer.from_gguf(vocab_file)
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml\.model"):
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
