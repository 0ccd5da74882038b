"""From a finished request to its Completion, and from scored tokens to log-probabilities with their texts."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from edgellm.core.errors import TokenizerError
from edgellm.core.record import later
from edgellm.core.results import Choice, Chunk, Completion, Logprobs, Timings, TokenLogprob, Usage
from edgellm.core.types import Scored
from edgellm.engine.request import Delta, Done, Event, Request
from edgellm.tokenizer import Tokenizer


class LogprobText:
    """Puts texts to the scored tokens of one choice, in order; `offset` counts the characters of the text so far."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._offset = 0

    def add(self, scores: Sequence[Scored]) -> Logprobs:
        """The next tokens."""
        return Logprobs([self._one(s) for s in scores])

    def skip(self, token: int) -> None:
        """A token that has no log-probability, as the first of a prompt."""
        self._advance(self._text(token)[1])

    def _one(self, s: Scored) -> TokenLogprob:
        text, data = self._text(s.token)
        top = [TokenLogprob(i, *self._text(i), logprob) for i, logprob in s.top]
        entry = TokenLogprob(s.token, text, data, s.logprob, self._offset, top)
        self._advance(data)
        return entry

    def _advance(self, data: bytes) -> None:
        self._offset += len(self._decode(data))

    def _text(self, token: int) -> tuple[str, bytes]:
        """A token's text (U+FFFD for what is no character, a control token as the file spells it) and its bytes."""
        try:
            data = self._tokenizer.token_bytes(token)
            if not data and self._tokenizer.is_control(token):
                return self._tokenizer.token_text(token), b""
        except TokenizerError:  # no vocabulary: token ids still work
            return "", b""
        return data.decode("utf-8", "replace"), data


def scored_tokens(request: Request, tokenizer: Tokenizer) -> list[TokenLogprob]:
    """The log-probabilities of a prompt's tokens, with their texts."""
    texts = LogprobText(tokenizer)
    for token in request.prompt[: request.scored_from]:
        texts.skip(token)
    return texts.add(request.prompt_logprobs).content


def completion_of(request: Request, tokenizer: Tokenizer, fingerprint: Callable[[], str]) -> Completion:
    """What a finished request returns."""
    n_prompt = len(request.prompt)
    params = request.params
    choices = [
        Choice(
            s.index,
            "".join(s.text),
            s.answer,
            s.finish_reason or "error",
            s.stop_token if s.stops.matched is None else s.stops.matched,
            None if params.logprobs is None else LogprobText(tokenizer).add(s.logprobs),
        )
        for s in request.sequences
    ] or [Choice(0, "", [], "error")]
    prompt_logprobs = None
    if params.prompt_logprobs is not None:
        prompt_logprobs = [None, *scored_tokens(request, tokenizer)]
    first = request.first_token or request.finished
    return Completion(
        choices=choices,
        usage=Usage(n_prompt, sum(len(c.token_ids) for c in choices), request.cached_tokens),
        timings=Timings(
            queue=max(0.0, request.started - request.submitted),
            prefill=max(0.0, first - request.started),
            decode=max(0.0, request.finished - first),
            first_token=max(0.0, first - request.submitted),
        ),
        seed=request.seed,
        fingerprint=later(fingerprint),
        error=request.error,
        prompt_logprobs=prompt_logprobs,
        notes=(*request.notes, *_forgotten(request)),
    )


def _forgotten(request: Request) -> list[str]:
    """What context_shift has done, where it has done something."""
    return [
        f"context_shift: the context was full, {s.forgotten} tokens of "
        f"{'it' if request.n == 1 else f'that of choice {s.index}'} were forgotten"
        for s in request.sequences
        if s.forgotten
    ]


class Chunks:
    """Turns the events of a streamed request into chunks. The last one carries the Completion."""

    def __init__(self, request: Request, tokenizer: Tokenizer, fingerprint: Callable[[], str]) -> None:
        self._request, self._tokenizer, self._fingerprint = request, tokenizer, fingerprint
        self._texts = [LogprobText(tokenizer) for _ in range(request.n)]
        self._n_ended = 0
        self._last = Delta(0, "", [], "error")

    def of(self, event: Event) -> Chunk | None:
        """The chunk of an event. None for the end of the last choice, which the request's end will report."""
        if isinstance(event, Done):
            return self._chunk(self._last, completion_of(self._request, self._tokenizer, self._fingerprint))
        if event.finish_reason is not None:
            self._n_ended += 1
            if self._n_ended == self._request.n:
                self._last = event
                return None
        return self._chunk(event)

    def _chunk(self, d: Delta, completion: Completion | None = None) -> Chunk:
        logprobs = None if d.logprobs is None else self._texts[d.index].add(d.logprobs)
        return Chunk(d.text, d.tokens, d.index, d.finish_reason, completion, logprobs)
