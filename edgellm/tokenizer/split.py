"""Cutting text into the words of a pre-tokenizer family.

Text that is all ASCII, most of what is ever tokenised, is cut by Python's `re`, with the Unicode classes of the
patterns replaced by their ASCII part: the same words, several times faster than the `tokenizers` library, which
cuts everything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain, groupby

from edgellm.tokenizer.pretokenize import Family

CHUNK = 4096
"""Long text is taken in pieces of at least this many characters, cut where a word begins anyway."""

_BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_AFTER_BREAK = re.compile(r"(?<=\n)(?=[A-Za-z])")

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_NEVER = "\x80"  # in ASCII text, a class without ASCII members matches what it matches here: nothing
_ASCII_CLASSES = {
    "L": "A-Za-z",
    "Lu": "A-Z",
    "Ll": "a-z",
    "Lt": _NEVER,
    "Lm": _NEVER,
    "Lo": _NEVER,
    "M": _NEVER,
    "N": "0-9",
    "P": "".join("\\" + c for c in "!\"#%&'()*,-./:;?@[\\]_{}"),
    "S": "".join("\\" + c for c in "$+<=>^`|~"),
}
_ASCII = "".join(map(chr, range(128)))

Step = Callable[[str], list[str]]


class Splitter:
    """Cuts text into words. Thread-safe."""

    def __init__(self, family: Family) -> None:
        self._patterns = family.patterns
        self._steps = [_step(pattern) for pattern in family.patterns]
        self._plain = re.compile(to_ascii(family.plain), re.ASCII).findall if family.plain else None
        self._cut = _AFTER_BREAK if family.joins else _BETWEEN_WORDS
        self._library: Callable[[str], list[tuple[str, tuple[int, int]]]] | None = None

    def chunks(self, text: str) -> Iterator[list[str]]:
        """The words of `text`, a few thousand at a time."""
        at = 0
        while len(text) - at > 2 * CHUNK:
            match = self._cut.search(text, at + CHUNK)
            if match is None:
                break
            yield self.words(text[at : match.start()])
            at = match.start()
        yield self.words(text[at:])

    def words(self, text: str) -> list[str]:
        """The words of `text`; joined they are `text` again."""
        if text.isascii():
            return self._of_ascii(text)
        words: list[str] = []
        for is_ascii, pieces in groupby(self._cut.split(text), str.isascii):
            cut = self._of_ascii if is_ascii else self.by_library
            words += cut("".join(pieces))
        return words

    def by_library(self, text: str) -> list[str]:
        """The words of any text, by the library alone."""
        if self._library is None:
            import tokenizers  # only text that is not ASCII needs it
            from tokenizers import pre_tokenizers

            steps = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in self._patterns]
            self._library = pre_tokenizers.Sequence(steps).pre_tokenize_str
        return [word for word, _ in self._library(text)]

    def _of_ascii(self, text: str) -> list[str]:
        if self._plain is not None and not _CONTROL.search(text):
            return self._plain(text)
        words = [text] if text else []
        for step in self._steps:
            words = list(filter(None, chain.from_iterable(map(step, words))))
        return words


def _step(pattern: str) -> Step:
    """Cuts ASCII text: the matches of `pattern` and what is between them, perhaps with empty strings."""
    ascii_pattern = to_ascii(pattern)
    compiled = re.compile(ascii_pattern, re.ASCII)
    if pattern.endswith(r"|\s+") and all(map(compiled.match, _ASCII)):
        return compiled.findall  # there is nothing between the matches
    return re.compile(f"({ascii_pattern})", re.ASCII).split


def to_ascii(pattern: str) -> str:
    r"""A pattern for Python's `re` that matches in ASCII text what `pattern` matches there.

    Patterns may use what both engines write alike, and \p{...} and \z. They have no groups of their own.
    """
    out: list[str] = []
    inside = False
    for token in re.findall(r"\\p\{\w+\}|\\.|.", pattern, re.DOTALL):
        if token.startswith(r"\p"):
            members = _ASCII_CLASSES[token[3:-1]]
            out.append(members if inside else f"[{members}]")
            continue
        if token in "[]":
            inside = token == "["
        out.append(r"\Z" if token == r"\z" else token)
    return "".join(out)
