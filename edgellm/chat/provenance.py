"""Which parts of a rendered prompt come from the messages: without this, text that somebody typed could be
read as the template's control tokens.

The messages are rendered a second time with their characters tagged (see tags.py), so that the output shows
them wherever the template put them, trimmed, sliced or quoted. Only if that rendering equals the plain one,
tags taken off, are its tags believed.

A template may look into the text, though (`'</think>' in content`), and then tags would lead it astray. So
what the template looks for stays as it is in assistant messages, where such marks are the model's own. If
that is not enough, the texts are searched for as they stand in the plain rendering; and if they are not all
there, the request fails: text is never let through unseen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from edgellm.chat.tags import HAS_TAGS, TAGGED_TEXT, tag, untag
from edgellm.core.errors import RequestError, TemplateError

Segment = tuple[str, bool]
"""Text, and whether it is the template's own, in which control tokens count."""

Render = Callable[[dict[str, Any]], str]

FIXED = frozenset(("role", "type"))
"""Keys whose values templates compare with their own words: never tagged, so they must look like names."""

_NAME = re.compile(r"[\w$.:@/^*+?()#, -]*")
_DATA = frozenset(("arguments", "default", "enum", "const", "examples"))
_NAMES = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))


def segments(plain: str, context: dict[str, Any], render: Render, probes: Iterable[str]) -> list[Segment]:
    """Cuts the rendering of `context` into the template's own text and text of the messages and tools.

    plain:  what `render` made of `context`.   render: renders a changed copy of it; may raise TemplateError.
    probes: strings that the template may look for in texts.
    Raises TemplateError when a text cannot be followed, RequestError for names that no template needs.
    """
    texts = list(_texts(context))
    if not any(texts):
        return [(plain, True)]
    if not HAS_TAGS.search(plain) and not any(map(HAS_TAGS.search, texts)):
        kept = tuple(p for p in probes if any(p in text for text in texts))
        for keep, keys in dict.fromkeys(((kept, True), (kept, False), ((), True), ((), False))):
            found = _tagged(plain, _retag(context, keep, keys), render)
            if found is not None:
                return found
    return _located(plain, [t.strip() for t in texts if t.strip()])


def _tagged(plain: str, context: dict[str, Any], render: Render) -> list[Segment] | None:
    """Segments by the tags in a rendering of a tagged context; None if it differs from the plain one."""
    try:
        text = render(context)
    except TemplateError:
        return None
    if untag(text) != plain:
        return None
    out: list[Segment] = []
    at = 0
    for match in TAGGED_TEXT.finditer(text):
        if match.start() > at:
            out.append((plain[at : match.start()], True))
        out.append((plain[match.start() : match.end()], False))
        at = match.end()
    if at < len(plain):
        out.append((plain[at:], True))
    return out


def _located(plain: str, texts: list[str]) -> list[Segment]:
    """Segments by looking for the texts, which must stand in the rendering exactly as often as in the input."""
    spans: list[tuple[int, int]] = []
    for text, wanted in Counter(texts).items():
        places = [m.start() for m in re.finditer(re.escape(text), plain)]
        expected = wanted + sum(other.count(text) for other in texts if other != text)
        if len(places) == expected and places:
            spans += [(p, p + len(text)) for p in places]
        elif not _NAME.fullmatch(text):
            raise TemplateError(
                "the chat template changes or examines a message in a way that cannot be followed, so its text "
                f"cannot be told from control tokens: {text[:80]!r}. Change that text, or render the prompt "
                "yourself and pass it to generate()"
            )
    out: list[Segment] = []
    at = 0
    for start, end in sorted(spans):
        if start > at:
            out.append((plain[at:start], True))
        if end > at:
            out.append((plain[max(start, at) : end], False))
            at = end
    if at < len(plain):
        out.append((plain[at:], True))
    return out


def _texts(value: Any, key: str = "", data: bool = False) -> Iterator[str]:
    """All strings of the context that tags are put on; checks those that none are put on.

    data: the value is somebody's data, in which no key means anything to a template.
    """
    if isinstance(value, str):
        if data or key not in FIXED:
            yield value
        elif not _NAME.fullmatch(value):
            raise RequestError(f"{key} must be a plain name, found {value[:80]!r}")
    elif isinstance(value, dict):
        for k, v in value.items():
            if data or key in _NAMES:
                yield k
            elif not _NAME.fullmatch(k):
                raise RequestError(f"keys must be plain names, found {k[:80]!r}")
            yield from _texts(v, "" if key in _NAMES else k, data or (k in _DATA and key not in _NAMES))
    elif isinstance(value, list):
        for v in value:
            yield from _texts(v, key, data)


def _retag(context: dict[str, Any], keep: tuple[str, ...], keys: bool) -> dict[str, Any]:
    """The context with tags on its texts.

    keep: what stays untagged in assistant messages. keys: tag the names of arguments and properties too;
    otherwise they must be plain.
    """
    spare = re.compile("|".join(map(re.escape, sorted(keep, key=len, reverse=True)))) if keep else None

    def mark(text: str, spared: bool) -> str:
        if spare is None or not spared:
            return tag(text)
        out, at = [], 0
        for match in spare.finditer(text):
            out += [tag(text[at : match.start()]), match.group()]
            at = match.end()
        return "".join(out) + tag(text[at:])

    def walk(value: Any, key: str, data: bool, spared: bool) -> Any:
        if isinstance(value, str):
            return mark(value, spared) if data or key not in FIXED else value
        if isinstance(value, list):
            return [walk(v, key, data, spared) for v in value]
        if not isinstance(value, dict):
            return value
        spared = spared or (not data and value.get("role") == "assistant")
        names = data or key in _NAMES
        return {
            mark(k, spared) if names and (keys or not _NAME.fullmatch(k)) else k: walk(
                v, "" if key in _NAMES else k, data or (k in _DATA and key not in _NAMES), spared
            )
            for k, v in value.items()
        }

    return {k: walk(v, k, False, False) for k, v in context.items()}
