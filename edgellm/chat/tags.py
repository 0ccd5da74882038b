"""Tags: characters that stand in for others, so that a rendering shows where they went.

ASCII goes to rare ideographs, which repr() prints as they are, the rest of planes 0 and 1 to the private
planes. White space, quotes, backslashes, the characters of HTML escapes and the rarest ideographs are
neutral: they carry no tag, so that trimming and escaping work on tagged text as on any other. A control
token has other characters too.
"""

from __future__ import annotations

import re

_ASCII, _PLANE = 0x2A000, 0xF0000
_TAGGED = "\U0002a021-\U0002a07e\U000f0000-\U0010ffff"
_NEUTRAL = "\\s\"'\\\\<>&\x00-\x1f\x7f\U00020000-\U0002a020\U0002a07f-\U000effff"
_IS_NEUTRAL = re.compile(f"[{_NEUTRAL}]")

HAS_TAGS = re.compile(f"[{_TAGGED}]")
"""Finds a tagged character: or one that looks like it, in a text that must then do without tags."""

TAGGED_TEXT = re.compile(f"[{_TAGGED}]+(?:[{_NEUTRAL}]+[{_TAGGED}]+)*")
"""A stretch of tagged text, with the neutral characters inside it."""


class _Tag(dict[int, int]):
    def __missing__(self, code: int) -> int:
        neutral = code >= 0x20000 or _IS_NEUTRAL.match(chr(code))
        self[code] = code if neutral else code + (_ASCII if code < 0x80 else _PLANE)
        return self[code]


class _Untag(dict[int, int]):
    def __missing__(self, code: int) -> int:
        tagged = HAS_TAGS.match(chr(code))
        self[code] = code - (_ASCII if code < _PLANE else _PLANE) if tagged else code
        return self[code]


_TAG, _UNTAG = _Tag(), _Untag()


def tag(text: str) -> str:
    """The text with tags on; as long as before."""
    return text.translate(_TAG)


def untag(text: str) -> str:
    """The text with tags taken off; as long as before."""
    return text.translate(_UNTAG)


def escape_non_ascii(json: str) -> str:
    """JSON text in ASCII, but for tagged ASCII."""

    def escape(match: re.Match[str]) -> str:
        character = untag(match.group())
        if character.isascii():
            return match.group()
        units = character.encode("utf-16-be")
        return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))

    return re.sub(r"[^\x00-\x7f]", escape, json)
