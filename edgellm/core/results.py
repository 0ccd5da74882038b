"""What a request returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgellm.core.errors import EdgeLLMError


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
class Choice:
    """One answer of a request.

    finish_reason: "stop" (end of turn, or the stop string in `stop`), "length" (max_tokens, or the context is full),
    "cancelled", "error". token_ids: all that were sampled, those of text that a stop string cut off included.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request. `str(c)` is the first choice's text.

    seed: replays the result together with `fingerprint` (numerics version, model hash, KV type).
    error: the exception, when finish_reason is "error", or "cancelled" because the model was closed.
    """

    choices: list[Choice]
    usage: Usage
    timings: Timings
    seed: int
    fingerprint: str
    error: EdgeLLMError | None = None
    logprobs: None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, object]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """Generated token ids of the first choice, the end-of-turn token included where one was sampled."""
        return self.choices[0].token_ids

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
class Chunk:
    """A piece of a streamed answer. The last chunk of a choice has finish_reason and no further text follows it.

    The last chunk of the request also carries the whole Completion.
    """

    text: str
    token_ids: list[int]
    index: int = 0
    finish_reason: str | None = None
    completion: Completion | None = None

    def __str__(self) -> str:
        return self.text
