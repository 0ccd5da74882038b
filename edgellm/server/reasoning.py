"""What a model thinks before it answers, told apart from the answer by the marks of its chat template."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from edgellm.core.results import Chunk


class Marks(NamedTuple):
    """What stands before and behind a model's thoughts."""

    begin: str
    end: str


KNOWN = (
    Marks("<think>", "</think>"),
    Marks("<seed:think>", "</seed:think>"),
    Marks("<thinking>", "</thinking>"),
    Marks("<reasoning>", "</reasoning>"),
)
"""Marks that are text. Where a family's are control tokens, which never become text, nothing is told apart."""


def marks_of(template: str) -> Marks | None:
    """The marks that a chat template knows; None where its model does not think aloud."""
    return next((marks for marks in KNOWN if marks.end in template), None)


class Thoughts(NamedTuple):
    """How an answer may begin. marks: of the model. begun: whether the prompt ends within thoughts already."""

    marks: Marks
    begun: bool

    @classmethod
    def after(cls, marks: Marks, end_of_prompt: str) -> Thoughts:
        """Of an answer to a prompt, by the end of it that the template (or a prefilled answer) has written."""
        return cls(marks, end_of_prompt.rfind(marks.begin) > end_of_prompt.rfind(marks.end))

    def split(self, text: str) -> tuple[str, str]:
        """(thoughts, answer) of a whole text."""
        splitter = Splitter(self)
        first, last = splitter.push(text), splitter.finish()
        return first[0] + last[0], first[1] + last[1]

    def count(self, pieces: Iterable[str]) -> int:
        """How many of the pieces (one a token) are thoughts, their marks included."""
        splitter, n = Splitter(self), 0
        for n, piece in enumerate(pieces, 1):  # noqa: B007 - n is used when the loop has ended
            splitter.push(piece)
            if splitter.answering:
                break
        return n if splitter.thinking or splitter.thought else 0


class Splitter:
    """Splits a growing text. Blanks around thoughts, and before the answer behind them, belong to neither.

    thinking: within thoughts. answering: past them, or there are none. thought: there were some.
    """

    def __init__(self, thoughts: Thoughts) -> None:
        self._marks = thoughts.marks
        self.thinking = self.thought = thoughts.begun
        self.answering = False
        self._held = ""
        self._fresh = True  # nothing but blanks so far of what is being written

    def push(self, text: str) -> tuple[str, str]:
        """(thoughts, answer) that became certain with some more text."""
        if self.answering and not self._fresh:
            return "", text
        self._held += text
        thoughts = ""
        if not self.thinking and not self.answering:
            begin, stripped = self._marks.begin, self._held.lstrip()
            if stripped.startswith(begin):
                self.thinking = self.thought = True
                self._held = stripped[len(begin) :]
            elif begin.startswith(stripped):
                return "", ""
            else:
                self.answering, self._fresh = True, False
                return "", self._release()
        if self.thinking:
            if self._fresh:
                self._held = self._held.lstrip()
            at = self._held.find(self._marks.end)
            if at < 0:
                return self._certain(), ""
            thoughts = self._held[:at].rstrip()
            self._held = self._held[at + len(self._marks.end) :]
            self.thinking, self.answering, self._fresh = False, True, True
        self._held = self._held.lstrip()
        if self._held:
            self._fresh = False
        return thoughts, self._release()

    def finish(self) -> tuple[str, str]:
        """What was held back, when no more text comes."""
        rest = self._release()
        return (rest.rstrip(), "") if self.thinking else ("", rest)

    def _certain(self) -> str:
        """The thoughts held, but for blanks at their end and what may be the beginning of the mark behind them."""
        end, text = self._marks.end, self._held
        keep = next((n for n in range(min(len(end) - 1, len(text)), 0, -1) if text.endswith(end[:n])), 0)
        certain = text[: len(text) - keep].rstrip()
        self._held = text[len(certain) :]
        if certain:
            self._fresh = False
        return certain

    def _release(self) -> str:
        text, self._held = self._held, ""
        return text


class Splitters:
    """Splits the chunks of a request, each choice by itself. thoughts: None leaves everything to the answer."""

    def __init__(self, thoughts: Thoughts | None) -> None:
        self._thoughts = thoughts
        self._choices: dict[int, Splitter] = {}

    def of(self, chunk: Chunk) -> tuple[str, str]:
        """(thoughts, answer) that became certain with a chunk."""
        if self._thoughts is None:
            return "", chunk.text
        splitter = self._choices.get(chunk.index)
        if splitter is None:
            splitter = self._choices[chunk.index] = Splitter(self._thoughts)
        thoughts, answer = splitter.push(chunk.text)
        if chunk.finish_reason is None:
            return thoughts, answer
        last = splitter.finish()
        return thoughts + last[0], answer + last[1]
