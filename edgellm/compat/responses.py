"""Completions and chunks as the plain data that llama-cpp-python returns (OpenAI's shapes)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

from edgellm.core.record import dataclass, field
from edgellm.core.results import Chunk, Completion, Logprobs, TokenLogprob

Response = dict[str, Any]
Chunks = Generator[Chunk, None, None]


@dataclass(frozen=True, slots=True)
class Reply:
    """What all pieces of one answer have in common.

    model: the name to report. eog_ids: tokens that end an answer; they are not counted as part of it.
    prompt: the text to repeat before the answer, "" for none. offset: where the answer begins in the text, in
    characters; without `prompt` llama-cpp-python counts the prompt, too.
    """

    model: str
    eog_ids: frozenset[int]
    prompt: str = ""
    offset: int = 0
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    created: int = field(default_factory=lambda: int(time.time()))

    # -- text ------------------------------------------------------------------------------------------------------

    def text(self, completion: Completion, scored_prompt: Sequence[TokenLogprob] = ()) -> Response:
        """A finished text completion. scored_prompt: the prompt's tokens, where `logprobs` begins with them."""
        logprobs = None
        if completion.logprobs is not None:
            logprobs = self._legacy(completion.logprobs)
            if scored_prompt:
                logprobs = _after_prompt(scored_prompt, logprobs)
        choice = {"text": self.prompt + completion.text, "logprobs": logprobs}
        return self._text(choice, completion.finish_reason) | {"usage": self._usage(completion)}

    def text_chunks(self, chunks: Chunks) -> Iterator[Response]:
        """A streamed text completion: the last chunk has no text, only the reason why the answer ended."""
        with closing(chunks):  # leaving this stream stops the work
            if self.prompt:
                yield self._text({"text": self.prompt, "logprobs": None}, None)
            for chunk in chunks:
                if chunk.text or (chunk.logprobs is not None and chunk.logprobs.content):
                    logprobs = None if chunk.logprobs is None else self._legacy(chunk.logprobs)
                    yield self._text({"text": chunk.text, "logprobs": logprobs}, None)
                if chunk.finish_reason is not None:
                    yield self._text({"text": "", "logprobs": None}, chunk.finish_reason)

    def _text(self, choice: dict[str, Any], finish_reason: str | None) -> Response:
        return self._body(f"cmpl-{self.id}", "text_completion", choice | {"index": 0, "finish_reason": finish_reason})

    def _legacy(self, logprobs: Logprobs) -> dict[str, Any]:
        data = logprobs.legacy()
        data["text_offset"] = [self.offset + n for n in data["text_offset"]]
        return data

    # -- chat ------------------------------------------------------------------------------------------------------

    def chat(self, completion: Completion) -> Response:
        """A finished chat completion."""
        logprobs = None if completion.logprobs is None else completion.logprobs.chat()
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": completion.text},
            "logprobs": logprobs,
            "finish_reason": completion.finish_reason,
        }
        return self._body(f"chatcmpl-{self.id}", "chat.completion", choice) | {"usage": self._usage(completion)}

    def chat_chunks(self, chunks: Chunks) -> Iterator[Response]:
        """A streamed chat completion: the role first, the reason why the answer ended last."""
        with closing(chunks):
            yield self._delta({"role": "assistant"}, None)
            for chunk in chunks:
                if chunk.text or (chunk.logprobs is not None and chunk.logprobs.content):
                    yield self._delta({"content": chunk.text}, None, chunk.logprobs)
                if chunk.finish_reason is not None:
                    yield self._delta({}, chunk.finish_reason)

    def _delta(self, delta: dict[str, str], finish_reason: str | None, logprobs: Logprobs | None = None) -> Response:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": None if logprobs is None else logprobs.chat(),
            "finish_reason": finish_reason,
        }
        return self._body(f"chatcmpl-{self.id}", "chat.completion.chunk", choice)

    # -- both ------------------------------------------------------------------------------------------------------

    def _body(self, name: str, kind: str, choice: dict[str, Any]) -> Response:
        return {"id": name, "object": kind, "created": self.created, "model": self.model, "choices": [choice]}

    def _usage(self, completion: Completion) -> dict[str, int]:
        ids = completion.token_ids
        n = len(ids) - (1 if ids and ids[-1] in self.eog_ids else 0)
        prompt = completion.usage.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": n, "total_tokens": prompt + n}


def _after_prompt(prompt: Sequence[TokenLogprob], answer: dict[str, Any]) -> dict[str, Any]:
    """The answer's log-probabilities behind those of the prompt, whose first token gets none."""
    data = Logprobs(list(prompt)).legacy()
    data["token_logprobs"][0] = data["top_logprobs"][0] = None
    return {name: data[name] + answer[name] for name in data}
