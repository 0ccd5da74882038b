"""A vocabulary of a real one's size is ready at once, text streams through, and no text takes quadratic time.

Times are those of the thread, the best of several.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from limits import seconds
from unit.tokenizer import toy

from edgellm.tokenizer import Tokenizer
from edgellm.tokenizer.pretokenize import FAMILIES
from edgellm.tokenizer.split import Splitter

MEGABYTE = 1_000_000
pytestmark = pytest.mark.timing


def best(work: Callable[[], Any], tries: int = 3) -> float:
    """Seconds of the calling thread for the fastest of several runs."""
    times = []
    for _ in range(tries):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return min(times)


@pytest.fixture(scope="module")
def big() -> dict[str, Any]:
    return toy.large(128_256, 280_000)


def test_128k_tokens_load_in_time(big: dict[str, Any]) -> None:
    def load() -> list[int]:
        tokenizer = Tokenizer.from_metadata(big)
        tokenizer.warm()
        return tokenizer.encode("hello world, this is text")

    assert len(big["tokenizer.ggml.tokens"]) > 128_000
    assert best(load) < seconds(0.6)


def prose(n: int) -> str:
    words = [f"{chr(97 + i % 26)}{'abcdefgh'[: i % 7 + 1]}{'xyz'[i % 3]}" for i in range(997)]
    lines = " ".join(words[i * i % 997] for i in range(n // 5)).split(" ")
    return "\n".join(" ".join(lines[i : i + 12]) + ", 1987: (ok)." for i in range(0, len(lines), 12))[:n]


def test_text_streams_through(big: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_metadata(big)
    tokenizer.warm()
    others = prose(MEGABYTE // 4).replace(". ", "。").replace("a", "é")  # every other word needs the library
    for text, least in ((prose(MEGABYTE), 1.5 * MEGABYTE), (others, 0.5 * MEGABYTE)):
        size = len(text.encode())
        ids = tokenizer.encode(text, add_special=False)
        assert best(lambda text=text: tokenizer.encode(text)) < seconds(size / least)  # type: ignore[misc]
        assert best(lambda ids=ids: tokenizer.decode(ids)) < seconds(size / (1.5 * MEGABYTE))  # type: ignore[misc]
        assert tokenizer.decode(ids) == text


SHAPES = [
    "a",
    "A",
    " ",
    "\n",
    "1",
    "!",
    ".",
    "'s",
    " \n",
    " \t",
    "Aa",
    "中",
    "é",
    "a\u0301",
    "\u0301",
    "🦙",
    "1,",
    "12 ",
    "x ",
]


def grows_linearly(work: Callable[[str], Any], shape: str, tail: str = "x") -> bool:
    """Whether sixteen times the text takes less than eighty times as long, or no time to speak of."""
    few, many = (shape * (n // len(shape)) + tail for n in (1_000, 16_000))
    if best(lambda: work(many), 1) < seconds(0.05):
        return True
    return best(lambda: work(many)) < max(80 * best(lambda: work(few)), 0.15)


@pytest.mark.parametrize("name", sorted({id(f): n for n, f in FAMILIES.items()}.values()))
def test_no_text_is_quadratic_to_cut(name: str) -> None:
    splitter = Splitter(FAMILIES[name])
    slow = [s for s in SHAPES for tail in ("x", "") if not grows_linearly(splitter.words, s, tail)]
    slow += [s for s in ("A", " ", " \n", "1", "!") if not grows_linearly(splitter.by_library, s)]
    assert slow == []


MERGES = ["a a", "aa aa", "aaaa aaaa", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "1 1", "A A", "! !", "Ġ x", ". ."]
PIECES = dict.fromkeys(["a", "aa", "aaaa", "▁", "▁▁", "▁▁▁▁", "x", "▁x", "1", "A", "AA", "."], -1.0)
BREAKS = [(c * n, toy.USER) for c in "\n\t" for n in range(1, 32)] + [("  ", toy.USER), ("<x>", toy.USER)]


@pytest.mark.parametrize(
    "metadata",
    [
        toy.byte_level(MERGES, []),
        toy.byte_level(MERGES, BREAKS),
        toy.plain_utf8(["a a", "aa aa", "▁ ▁", "▁▁ ▁▁", "▁ x", "1 1", "\n \n"]),
        toy.sentencepiece(PIECES, []),
        toy.sentencepiece(PIECES, BREAKS),
    ],
    ids=["byte-level", "byte-level with runs", "plain UTF-8", "sentencepiece", "sentencepiece with runs"],
)
def test_no_text_is_quadratic_to_encode(metadata: dict[str, Any], way: str) -> None:
    tokenizer = Tokenizer.from_metadata(metadata)
    tokenizer.warm()
    assert [s for s in SHAPES if not grows_linearly(tokenizer.encode, s)] == []


def test_a_megabyte_without_spaces(way: str) -> None:
    tokenizer = Tokenizer.from_metadata(toy.byte_level(MERGES, []))
    text = "aab" * (MEGABYTE // 3)
    assert tokenizer.decode(tokenizer.encode(text)) == text
