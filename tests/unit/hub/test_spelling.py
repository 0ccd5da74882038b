"""Every way of writing a model on Hugging Face, and what looks like one and is none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgellm.core.errors import ModelNotFound
from edgellm.hub.spelling import HFName, mirror_hint, parse, safe_path

STRANGE = ["https://example.com/u/r", "ollama:x/y", "u/r\0", "u /r", "u/r:", "../r", "-u/r"]
HF = "https://huggingface.co"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("u/r", HFName("u/r", explicit=False)),
        ("u/r:Q8_0", HFName("u/r", tag="Q8_0", explicit=False)),
        ("u/r:latest", HFName("u/r", explicit=False)),
        ("u/r:my file.gguf", HFName("u/r", tag="my file.gguf", explicit=False)),
        ("ggml-org/gemma-3.1_x:UD-Q4_K_XL", HFName("ggml-org/gemma-3.1_x", tag="UD-Q4_K_XL", explicit=False)),
        ("u/r@v1.0:Q8_0", HFName("u/r", "v1.0", "Q8_0", explicit=False)),
        ("u/r@refs/pr/3:Q8_0", HFName("u/r", "refs/pr/3", "Q8_0", explicit=False)),
        (" hf:u/r ", HFName("u/r")),
        ("HF:u/r:q4_k_m", HFName("u/r", tag="q4_k_m")),
        ("hf://u/r", HFName("u/r")),
        ("hf://u/r@abc/sub/f.gguf", HFName("u/r", "abc", file="sub/f.gguf")),
        ("hf:u/r@refs/pr/3/f.gguf", HFName("u/r", "refs/pr/3", file="f.gguf")),
        ("hf:u/r/f.gguf", HFName("u/r", file="f.gguf")),
        ("hf:u/r/Q8_0", HFName("u/r", file="Q8_0")),
        ("hf.co/u/r", HFName("u/r")),
        ("hf.co/u/r:Q8_0", HFName("u/r", tag="Q8_0")),
        ("huggingface.co/u/r/", HFName("u/r")),
        ("https://hf.co/u/r:Q8_0", HFName("u/r", tag="Q8_0")),
        ("http://www.huggingface.co/u/r", HFName("u/r")),
        ("https://HuggingFace.co/u/r#readme", HFName("u/r")),
        (f"{HF}/u/r/resolve/main/f.gguf", HFName("u/r", file="f.gguf")),
        (f"{HF}/u/r/resolve/main/a%20b/f.gguf?download=true", HFName("u/r", file="a b/f.gguf")),
        (f"{HF}/u/r/blob/main/f.gguf", HFName("u/r", file="f.gguf")),
        (f"{HF}/u/r/raw/v2/f.gguf", HFName("u/r", "v2", file="f.gguf")),
        (f"{HF}/u/r/blob/refs%2Fpr%2F1/a/f.gguf", HFName("u/r", "refs/pr/1", file="a/f.gguf")),
        (f"{HF}/u/r/blob/refs/pr/1/a/f.gguf", HFName("u/r", "refs/pr/1", file="a/f.gguf")),
        (f"{HF}/u/r/tree/main", HFName("u/r")),
        (f"{HF}/u/r/tree/main/Q4_K_M", HFName("u/r", file="Q4_K_M")),
        (f"{HF}/u/r/discussions/3", HFName("u/r")),
        (f"{HF}/u/r?local-app=llama.cpp", HFName("u/r")),
        (f"{HF}/u/r?show_file_info=sub%2Ff.gguf", HFName("u/r", file="sub/f.gguf")),
        (f"{HF}/u/r/tree/main?show_file_info=f.gguf", HFName("u/r", file="f.gguf")),
        (f"{HF}/api/models/u/r", HFName("u/r")),
    ],
)
def test_spellings(text: str, expected: HFName) -> None:
    assert parse(text, HF) == expected


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:8123", "https://mirror.example/hf"])
def test_the_endpoint_is_read_like_the_hub_itself(endpoint: str) -> None:
    expected = HFName("u/r", file="f.gguf")
    assert parse(f"{endpoint}/u/r/resolve/main/f.gguf", endpoint) == expected
    assert parse(f"{endpoint.partition('//')[2]}/u/r/resolve/main/f.gguf", endpoint) == expected
    assert parse(f"{HF}/u/r/resolve/main/f.gguf", endpoint) == expected
    assert parse("https://other.example/u/r", endpoint) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "u",
        "smollm2:135m",
        "folder/missing.gguf",
        "./u/r",
        "/u/r",
        "~/u/r",
        "a/b/c",
        "a\\b",
        "C:\\u\\r",
        "u/r:a:b",
        *STRANGE,
    ],
)
def test_what_is_no_spelling(text: str) -> None:
    assert parse(text, HF) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://huggingface.co/datasets/u/r", "one of Hugging Face's datasets, not a model"),
        ("hf.co/spaces/u/r", "one of Hugging Face's spaces, not a model"),
        ("hf:gpt2", "names no repository"),
        ("https://huggingface.co/", "names no repository"),
        ("hf:u/..", "is not the name of a repository"),
        ("hf:u/a--b", "is not the name of a repository"),
        ("hf:u/" + "x" * 97, "is not the name of a repository"),
        ("hf:u/r@../main", "is not the name of a revision"),
        ("hf:u/r@..", "is not the name of a revision"),
        ("hf:u/r/../x.gguf", "not the path of a file"),
        ("hf:u/r/.hidden.gguf", "not the path of a file"),
        ("https://huggingface.co/u/r/resolve/main/..%2f..%2fx.gguf", "not the path of a file"),
        ("https://huggingface.co/u/r/resolve/main/a%5Cb.gguf", "not the path of a file"),
    ],
)
def test_spellings_that_name_no_model(text: str, words: str) -> None:
    with pytest.raises(ModelNotFound, match=words):
        parse(text, HF)


def test_names_are_written_back() -> None:
    for text in ("u/r", "u/r:Q8_0", "u/r@v1:Q8_0", "hf:u/r/f.gguf", "hf:u/r@v1/a/f.gguf"):
        assert str(parse(text, HF)) == text


def test_safe_paths() -> None:
    for good in ("a.gguf", "Q4_K_M/m-00001-of-00002.gguf", "a b/ü.gguf"):
        assert safe_path(good)
    for bad in ("", "/a", "a//b", "../a", "a/../b", "a\\b", "c:x", "a\0", "a/.git", "a.", "a /b", "x" * 501, "a?b"):
        assert not safe_path(bad)


def test_mirrors_are_recognised() -> None:
    assert mirror_hint("https://m.example/u/r/resolve/main/f.gguf").endswith("set HF_ENDPOINT=https://m.example.")
    assert mirror_hint("https://m.example/f.gguf") == ""


def test_the_spellings_of_the_documentation(repository: Path) -> None:
    """Every spelling in the table of docs/models.md names u/r."""
    text = (repository / "docs" / "models.md").read_text(encoding="utf-8")
    table = text.partition("| spelling | means |")[2].partition("\n\n")[0]
    spellings = [s for row in table.splitlines()[2:] for s in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    assert len(spellings) > 12
    for spelling in spellings:
        found = parse(spelling.replace("REVISION", "v1"), HF)
        assert found is not None, spelling
        assert found.repo == "u/r"
