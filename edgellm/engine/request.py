"""What the engine works on: a Request (what the user sent) and its Sequences (token timelines, one per choice)."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from edgellm.core.config import ResolvedParams
from edgellm.core.errors import EdgeLLMError
from edgellm.core.record import dataclass, field
from edgellm.core.types import F32, Scored
from edgellm.engine.embedding import Pool
from edgellm.kvcache.prefix import Node
from edgellm.kvcache.table import Tables
from edgellm.sampling.sampler import Sampler
from edgellm.sampling.stops import StopMatcher


class Decoder(Protocol):
    """Token ids to text, whole code points only (the tokenizer's stream decoder)."""

    def push(self, token: int) -> str:
        """Text that became certain with this token."""
        ...

    def flush(self) -> str:
        """Text of bytes still held back."""
        ...


@dataclass(slots=True)
class Delta:
    """News of one choice: text and tokens since the last one, with their log-probabilities where wanted; finish_reason
    on the last."""

    index: int
    text: str
    tokens: list[int]
    finish_reason: str | None = None
    logprobs: list[Scored] | None = None


@dataclass(slots=True)
class Done:
    """Last event of a request: all choices have ended. error is set when it failed."""

    error: EdgeLLMError | None = None


Event = Delta | Done


class Sink(Protocol):
    """Where a request's events go: a queue, or what else takes them. Called by the engine thread."""

    def put(self, event: Event, /) -> None:
        """Take an event. Must not block."""
        ...


@dataclass(slots=True, eq=False)
class Pin:
    """Keeps the pages of a request's first sequence when it has ended, until it is let go (Engine.unpin).

    Everything here belongs to the engine thread. tables: None until there is something to keep. n_tokens: so many
    tokens of the sequence are computed in them.
    """

    tables: Tables | None = None
    n_tokens: int = 0
    let_go: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """What the user sent. `events` receives Deltas (when stream) and one Done.

    logit_rows: None to generate; (first, stop) to write the logits of those prompt positions into `logits` instead,
    float32 [stop - first, V], which the sender allocates.
    pool: takes the final hidden states of those positions, in place of logits.
    scored_from: the first prompt token whose log-probability is wanted, where prompt_logprobs are.
    salt: requests of different salts share nothing in the prefix cache: a tenant cannot tell what another has sent.
    client: whose request it is; clients of one priority are served in turns.
    priority: a higher one is admitted first, and loses its pages last; waiting raises it (`queue.py`).
    pin: keeps what was computed; with max_tokens=0 the prompt is computed for that alone.
    cached_tokens: of the prompt, tokens that were found in the prefix cache (`Usage.cached_tokens`).
    eog_ids: the model's tokens that end an answer.  ends: those that end this one.
    prompt_logprobs: of prompt tokens scored_from, ... (the first of all has none), where the parameters ask for them.
    wake: called after the news of a step have been put, once for all requests that name the same one.
    notes: what the sender did to the messages behind the prompt; passed on to the Completion.
    """

    prompt: list[int]
    params: ResolvedParams
    seed: int
    n: int = 1
    stream: bool = False
    priority: int = 0
    salt: str = ""
    client: str = ""
    pin: Pin | None = None
    logit_rows: tuple[int, int] | None = None
    pool: Pool | None = None
    scored_from: int = 1
    eog_ids: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    ends: frozenset[int] = field(init=False)
    prompt_logprobs: list[Scored] = field(default_factory=list)
    cached_tokens: int = 0
    events: Sink = field(default_factory=SimpleQueue[Event])
    wake: Callable[[], None] | None = None
    sequences: list[Sequence] = field(default_factory=list)
    logits: F32 | None = None
    error: EdgeLLMError | None = None
    cancelled: bool = False
    submitted: float = 0.0
    started: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0

    def __post_init__(self) -> None:
        stops = self.params.stop_token_ids
        self.ends = frozenset() if self.params.ignore_eos else self.eog_ids
        if stops:
            self.ends = self.ends.union(stops)

    @property
    def done(self) -> bool:
        """Whether every sequence has ended."""
        return all(s.finish_reason is not None for s in self.sequences)


@dataclass(slots=True, eq=False)
class Sequence:
    """One token timeline: prompt and generated tokens; the first n_cached of them are in the KV cache.

    tokens   |<------ n_prompt ------>|<-- generated -->|
    cached   |<-------- n_cached -------->|             the rest is computed in the next steps

    node, n_settled: the first n_settled pages are in the prefix cache, and end there in `node` (None: none are).
    past, forgotten: tokens that were generated before the context was full and the oldest were forgotten (`shift.py`),
    and how many those were; `tokens` begins anew with what stays, which is the prompt then.
    unasked: it waits until it is known what of its beginning is on disk, and that is back (`tier.py`).
    n_known: most tokens that were ever in the KV cache; what is found beyond them is news (`Request.cached_tokens`).
    draft: guesses at the next tokens, which this step verifies. record, guesser, guessed_kind: what speculation.py and
    a guesser keep about this sequence.
    """

    request: Request
    index: int
    tokens: list[int]
    n_prompt: int
    tables: Tables
    sampler: Sampler
    decoder: Decoder | None
    stops: StopMatcher
    max_tokens: int
    arrival: int = 0
    queued: float = 0.0
    n_cached: int = 0
    node: Node | None = None
    n_settled: int = 0
    n_known: int = 0
    unasked: bool = False
    past: list[int] = field(default_factory=list)
    forgotten: int = 0
    text: list[str] = field(default_factory=list)
    logprobs: list[Scored] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    record: Any = None
    guesser: Any = None
    guessed_kind: int = 0
    finish_reason: str | None = None

    @property
    def first_row(self) -> int:
        """The first position whose output row is wanted: those before it are only for the cache."""
        request = self.request
        if request.logit_rows is not None:
            return request.logit_rows[0]
        if self.index == 0 and request.params.prompt_logprobs is not None:
            done = len(request.prompt_logprobs) + request.scored_from - 1
            if done < self.n_prompt - 1:
                return done
        return len(self.tokens) - 1

    @property
    def reads_cache(self) -> bool:
        """Whether it may use what the prefix cache has: not where the prompt's own logits are wanted."""
        request = self.request
        return request.logit_rows is None and (self.index > 0 or request.params.prompt_logprobs is None)

    @property
    def stop_token(self) -> int | None:
        """The token of `stop_token_ids` that ended the answer, if one did."""
        last = self.tokens[-1]
        return last if self.n_generated and last in self.request.params.stop_token_ids else None

    @property
    def n_generated(self) -> int:
        """Tokens sampled so far."""
        return len(self.past) + len(self.tokens) - self.n_prompt

    @property
    def answer(self) -> list[int]:
        """All tokens sampled so far."""
        return [*self.past, *self.tokens[self.n_prompt :]]

    @property
    def n_pending(self) -> int:
        """Tokens not yet in the cache: 1 while decoding, more while prefilling."""
        return len(self.tokens) - self.n_cached
