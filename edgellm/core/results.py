"""What a request returns."""

from __future__ import annotations

from typing import Any

from edgellm.core.errors import EdgeLLMError
from edgellm.core.record import dataclass, field, late


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request over all its choices; cached_tokens of the prompt were not computed again."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds spent waiting in the queue, on the prompt, and on the answer; time to the first token from submit."""

    queue: float
    prefill: float
    decode: float
    first_token: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability in the model's own distribution, before any sampler.

    token: its text; U+FFFD for bytes that are no whole characters, `data` has them. A control token is spelt out, and
    has no bytes. offset: where it begins in the text, in characters (of `top`'s entries: 0).
    top: the likeliest tokens in its place, likeliest first.
    """

    id: int
    token: str
    data: bytes
    logprob: float
    offset: int = 0
    top: list[TokenLogprob] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The text as the older shape spells it: bytes that are no characters as "bytes:\\x.." """
        try:
            self.data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{b:02x}" for b in self.data)
        return self.token


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of the tokens of an answer, or of a piece of it, in order."""

    content: list[TokenLogprob]

    def chat(self) -> dict[str, Any]:
        """As plain data, in the shape of OpenAI's chat completions."""

        def entry(t: TokenLogprob) -> dict[str, Any]:
            return {"token": t.token, "bytes": list(t.data), "logprob": t.logprob}

        return {
            "content": [{**entry(t), "top_logprobs": [entry(x) for x in t.top]} for t in self.content],
            "refusal": None,
        }

    def legacy(self) -> dict[str, Any]:
        """As plain data, in the shape of OpenAI's older completions: `top_logprobs` has the chosen token too."""
        return {
            "tokens": [t.key for t in self.content],
            "token_logprobs": [t.logprob for t in self.content],
            "top_logprobs": [{**{x.key: x.logprob for x in t.top}, t.key: t.logprob} for t in self.content],
            "text_offset": [t.offset for t in self.content],
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a request.

    finish_reason: "stop" (end of turn, or the stop string or token id in `stop`), "length" (max_tokens, or the context
    is full), "cancelled", "error". token_ids: all that were sampled, those of text that a stop string cut off included;
    logprobs has the same ones.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop: str | int | None = None
    logprobs: Logprobs | None = None


@late("fingerprint")
@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request. `str(c)` is the first choice's text.

    seed: replays the result together with `fingerprint` (numerics version, model hash, KV type).
        It is a function of every byte of the model, which is read for it when it is first asked for; see LLMInfo.
    error: the exception, when finish_reason is "error", or "cancelled" because the model was closed.
    prompt_logprobs: one entry a prompt token, where they were asked for; the first is None.
    notes: what was done to a chat's messages that the model's template cannot express, one sentence each.
    """

    choices: list[Choice]
    usage: Usage
    timings: Timings
    seed: int
    fingerprint: str
    error: EdgeLLMError | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, object]] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """Generated token ids of the first choice, the end-of-turn token included where one was sampled."""
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> Logprobs | None:
        """Log-probabilities of the first choice's tokens, where they were asked for."""
        return self.choices[0].logprobs

    @property
    def finish_reason(self) -> str:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def message(self) -> dict[str, str]:
        """The first choice as a chat message."""
        return {"role": "assistant", "content": self.text}

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Score:
    """How likely a continuation is: `logprob` is the sum over its tokens, natural logarithms."""

    logprob: float
    tokens: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed answer. The last chunk of a choice has finish_reason and no further text follows it.

    The last chunk of the request also carries the whole Completion. logprobs: of token_ids, where they were asked for.
    """

    text: str
    token_ids: list[int]
    index: int = 0
    finish_reason: str | None = None
    completion: Completion | None = None
    logprobs: Logprobs | None = None

    def __str__(self) -> str:
        return self.text
