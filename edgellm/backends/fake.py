"""A backend without a model: logits are a function of the token history, and the page table is watched.

What it stores in a page is not K and V but the tokens themselves, each with a hash of everything before it. Before a
step it reads every position that real attention would read, and raises PageError where the pages do not hold one
unbroken past: a page freed too early, shared wrongly, not copied before writing, or a state slot that was moved on. A
whole table that was swapped for another sequence's shows in the answer, which follows what the pages hold.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgellm.backends.base import BackendConfig, BackendInfo
from edgellm.backends.checks import check_batch, check_config, first_visible
from edgellm.backends.reference.output import step_output
from edgellm.core.errors import NativeError
from edgellm.core.record import replace
from edgellm.core.types import F32, I32, PAGE_TOKENS, Batch, Pick, RunOutput, StepOutput
from edgellm.gguf.reader import GGUFFile
from edgellm.models import ops as o
from edgellm.models.plan import Buffer, CacheClass, CacheLayer, Plan, Weight
from edgellm.sampling.edits import adjust_for
from edgellm.sampling.sampler import rank_of

U64 = NDArray[np.uint64]

Script = Callable[[Sequence[int]], "int | F32"]
"""From a sequence's tokens so far to the next one, or to a whole row of logits [V]."""

_START = 0x9E3779B97F4A7C15
_MULTIPLIER = 0xD1342543DE82EF95
_MASK = (1 << 64) - 1


class PageError(AssertionError):
    """A page (or state slot) does not hold what the sequence put there: a bug in whoever built the block tables."""


def fake_plan(n_vocab: int = 256, n_ctx: int = 4096, classes: Sequence[tuple[str, int]] = (("full", 0),)) -> Plan:
    """A sound plan with these cache classes, (kind, window) each, for use without a file."""
    width = 4
    caches, ops = [], [o.Embed(o.View(0, 0, width), 0)]
    x = o.View(0, 0, width)
    conv = 2
    for c, (kind, window) in enumerate(classes):
        slot = o.Slot(c, 0)
        if kind == "state":
            caches.append(CacheClass(kind, (CacheLayer(0, 0, 0, ((1, width),)),)))
            ops.append(o.Conv1d(x, x, conv, None, "none", slot))  # type: ignore[arg-type]
        else:
            caches.append(CacheClass(kind, (CacheLayer(1, width, width),), window))
            ops.append(o.KVWrite(x, None if kind == "latent" else x, slot))  # type: ignore[arg-type]
    ops.append(o.SelectRows(x, o.View(1, 0, width)))  # type: ignore[arg-type]
    ops.append(o.Linear(o.View(1, 0, width), o.View(2, 0, n_vocab), (o.Part(1),)))  # type: ignore[arg-type]
    plan = Plan(
        arch="fake",
        n_vocab=n_vocab,
        n_ctx_train=n_ctx,
        buffers=(Buffer("x", width), Buffer("out", width, "R"), Buffer("logits", n_vocab, "R")),
        weights=(
            Weight("fake.embd", (n_vocab, width), "embedding"),
            Weight("fake.output", (n_vocab, width)),
            Weight("fake.conv", (width, 2), "vector"),
        ),
        ropes=(),
        caches=tuple(caches),
        ops=tuple(ops),
        logits=2,
    )
    plan.check()
    return plan


class FakeBackend:
    """Makes executables that follow a script.

    script: what comes after a sequence of tokens; None: pseudo-random logits with one clear winner, a function of the
    tokens alone. It needs a cache class that keeps every token ("full" or "latent").
    failing: sequences for which a step reports a value that is not finite.
    multi_step: the executables can run several decode steps in one call.
    parts: the executables can also compute a step in so many parts; 0: they cannot.
    step_seconds: how long a step takes. on_step: called with every batch before it runs.
    """

    name = "fake"

    def __init__(
        self,
        script: Script | None = None,
        *,
        failing: Callable[[Sequence[int]], bool] | None = None,
        multi_step: bool = True,
        parts: int = 0,
        step_seconds: float = 0.0,
        on_step: Callable[[Batch], None] | None = None,
    ) -> None:
        self.multi_step, self.parts = multi_step, parts
        self.script, self.failing, self.step_seconds, self.on_step = script, failing, step_seconds, on_step

    def compile(
        self,
        plan: Plan,
        file: GGUFFile | None,
        config: BackendConfig,
        progress: Callable[[float], None] | None = None,
    ) -> FakeExecutable:
        """See Backend. The file is not read."""
        if progress is not None:
            progress(1.0)
        if self.parts:
            return (FakeMultiStepInParts if self.multi_step else FakeInParts)(self, plan, config)
        return (FakeMultiStep if self.multi_step else FakeExecutable)(self, plan, config)


class FakeExecutable:
    """See FakeBackend. n_steps counts the steps that ran."""

    def __init__(self, backend: FakeBackend, plan: Plan, config: BackendConfig) -> None:
        check_config(plan, config)
        self._backend, self._plan, self._config = backend, plan, config
        self._open = True
        self.n_steps = 0
        self._stores = [_Store(c, n) for c, n in zip(plan.caches, config.n_pages, strict=True)]
        self._full = next((i for i, c in enumerate(plan.caches) if c.kind in ("full", "latent")), None)
        if self._full is None and (backend.script or backend.failing):
            raise ValueError("a scripted fake needs a plan with a full or latent cache class")
        self.info = BackendInfo("fake", "none", 1, config.weights, 0, 0)

    def run(self, batch: Batch) -> StepOutput:
        """Follow the script. ValueError on a malformed batch, PageError on pages of another past."""
        if not self._open:
            raise NativeError("the executable is closed")
        check_batch(self._plan, self._config, batch)
        if self._backend.on_step is not None:
            self._backend.on_step(batch)
        if self._backend.step_seconds:
            time.sleep(self._backend.step_seconds)
        n_seqs = len(batch.seq_start) - 1
        chains = [self._advance(batch, s) for s in range(n_seqs)]
        logits = np.empty((len(batch.rows), self._plan.n_vocab), np.float32)
        status = np.zeros(n_seqs, np.int32)
        for r, row in enumerate(batch.rows):
            s = int(np.searchsorted(batch.seq_start, row, side="right")) - 1
            logits[r] = self._logits(batch, s, int(row), int(chains[s][row - batch.seq_start[s]]))
        if self._backend.failing is not None:
            for s in range(n_seqs):
                last = int(batch.positions[batch.seq_start[s + 1] - 1])
                status[s] = self._backend.failing(self._history(batch, s, last))
        self.n_steps += 1
        return step_output(batch, logits, status, self._hidden(batch, chains) if batch.want_hidden else None)

    def copy_page(self, cls: int, src: int, dst: int) -> None:
        """Copy page `src` to `dst` of cache class `cls`."""
        if not 0 <= cls < len(self._stores):
            raise ValueError(f"cache class {cls} does not exist (there are {len(self._stores)})")
        n = self._config.n_pages[cls]
        if not (0 <= src < n and 0 <= dst < n):
            raise ValueError(f"pages {src} and {dst} of class {cls}: expected 0..{n - 1}")
        self._stores[cls].tokens[dst] = self._stores[cls].tokens[src]
        self._stores[cls].chains[dst] = self._stores[cls].chains[src]

    def read_page(self, cls: int, page: int) -> bytes:
        """The contents of a page of class `cls`: its tokens, then their chains."""
        store = self._stores[cls]
        tokens: bytes = store.tokens[page].tobytes()
        return tokens + bytes(store.chains[page].tobytes())

    def write_page(self, cls: int, page: int, data: bytes | memoryview) -> None:
        """Set the contents of a page."""
        store = self._stores[cls]
        n = store.tokens[page].nbytes
        store.tokens[page] = np.frombuffer(data[:n], np.int32)
        store.chains[page] = np.frombuffer(data[n:], np.uint64)

    def release_pages(self, cls: int, pages: list[int]) -> None:
        """Forget what is in pages of class `cls`."""
        self._stores[cls].tokens[pages] = -1

    def close(self) -> None:
        """Idempotent."""
        self._open = False

    def _advance(self, batch: Batch, s: int) -> list[int]:
        """Check the past of sequence s in every class, store its new tokens; the chain after each of them."""
        rows = slice(int(batch.seq_start[s]), int(batch.seq_start[s + 1]))
        tokens, first = batch.tokens[rows], int(batch.positions[rows][0])
        chain, chains = self._past(batch, s), []
        for token in tokens.tolist():
            chain = (chain * _MULTIPLIER + token + 1) & _MASK
            chains.append(chain)
        for c, store in enumerate(self._stores):
            store.write(batch.pages[c][s], first, tokens, np.array(chains, np.uint64))
        return chains

    def _past(self, batch: Batch, s: int) -> int:
        """The chain before the new tokens of sequence s. PageError where its classes hold something else."""
        first = int(batch.positions[batch.seq_start[s]])
        pasts = [
            store.past(batch.pages[c][s], first_visible(self._plan, c, first), first, f"sequence {s}, cache class {c}")
            for c, store in enumerate(self._stores)
        ]
        known = {p for p in pasts if p is not None}
        if len(known) > 1:
            raise PageError(f"sequence {s}: its cache classes hold different pasts before position {first}")
        return known.pop() if known else _START

    def _history(self, batch: Batch, s: int, last: int) -> list[int]:
        assert self._full is not None  # noqa: S101 - the constructor saw to it
        tokens: list[int] = self._stores[self._full].read(batch.pages[self._full][s], 0, last + 1)[0].tolist()
        return tokens

    def _hidden(self, batch: Batch, chains: list[list[int]]) -> F32:
        """Pseudo-random states, a function of the history alone."""
        flat = [chain for chain_list in chains for chain in chain_list]
        rows = [chain_logits(flat[row], self._plan.hidden.width) for row in batch.rows.tolist()]
        return np.stack(rows) if rows else np.empty((0, self._plan.hidden.width), np.float32)

    def _logits(self, batch: Batch, s: int, row: int, chain: int) -> F32:
        if self._backend.script is None:
            return chain_logits(chain, self._plan.n_vocab)
        answer = self._backend.script(self._history(batch, s, int(batch.positions[row])))
        if isinstance(answer, np.ndarray):
            return answer
        logits = np.zeros(self._plan.n_vocab, np.float32)
        logits[answer] = 10.0
        return logits


class FakeMultiStep(FakeExecutable):
    """A FakeExecutable that can run several decode steps in one call."""

    _halted = False

    def run_steps(self, batch: Batch, picks: Sequence[Pick], n_steps: int, ends: tuple[int, ...]) -> RunOutput:
        """Step after step, each with the tokens that `picks` chose in the one before."""
        if batch.adjust is not None:
            raise ValueError("the batch of a run has edits: they belong to its picks")
        chosen: list[list[int]] = [[] for _ in picks]
        for step in range(n_steps):
            out = self.run(replace(batch, adjust=adjust_for(picks, chosen, self._plan.n_vocab)))
            tokens = out.top_ids[:, 0].copy()
            for s, (p, x) in enumerate(zip(picks, out.top_logits, strict=True)):
                banned = x[0] == -np.inf
                tokens[s] = -1 if banned else out.top_ids[s, rank_of(p._replace(n_generated=p.n_generated + step), x)]
            for said, token in zip(chosen, tokens.tolist(), strict=True):
                said.append(token)
            if out.status.any() or np.isin(tokens, [*ends, -1]).any() or self._halted:
                break
            batch = replace(batch, tokens=tokens, positions=batch.positions + 1)
        return RunOutput(chosen, out.status.tolist())

    def halt(self, halted: bool = True) -> None:
        """End run_steps after the step it is in."""
        self._halted = halted


class FakeInParts(FakeExecutable):
    """A FakeExecutable that can compute a step in parts: what the pages hold is read in the first and written in the
    last, so that whoever touches them in between is found out."""

    _begun: Batch | None = None
    _left = 0

    def begin(self, batch: Batch) -> None:
        """Begin a step in parts."""
        check_batch(self._plan, self._config, batch)
        copies = {f: getattr(batch, f).copy() for f in ("tokens", "positions", "seq_start", "rows")}
        self._begun = replace(batch, **copies, pages=tuple(p.copy() for p in batch.pages))
        self._left = self._backend.parts
        for s in range(len(batch.seq_start) - 1):
            self._past(batch, s)

    def advance(self, seconds: float) -> StepOutput | None:
        """Compute the next part; what came out of the last one."""
        if self._begun is None:
            raise NativeError("no step in parts was begun, or it is complete")
        self._left -= 1
        if self._left and seconds != float("inf"):
            return None
        batch, self._begun = self._begun, None
        return self.run(batch)


class FakeMultiStepInParts(FakeInParts, FakeMultiStep):
    """Both."""


def chain_logits(chain: int, n_vocab: int) -> F32:
    """Pseudo-random logits in 0 .. 4, with one token at 8: those of the unscripted fake after this history."""
    x = np.arange(n_vocab, dtype=np.uint64) * np.uint64(_START) + np.uint64(chain)
    x ^= x >> np.uint64(31)
    x *= np.uint64(_MULTIPLIER)
    x ^= x >> np.uint64(29)
    logits: F32 = (x >> np.uint64(40)).astype(np.float32) / np.float32(2**22)
    logits[(chain >> 17) % n_vocab] = 8.0
    return logits


def chain_of(tokens: Sequence[int]) -> int:
    """The hash of a token history, as the fake keeps it."""
    chain = _START
    for token in tokens:
        chain = (chain * _MULTIPLIER + int(token) + 1) & _MASK
    return chain


class _Store:
    """What one cache class holds: per page and slot a token (-1: never written) and the chain after it.

    A state class has one slot per page: the number of tokens taken in, and the chain after the last of them.
    """

    def __init__(self, cls: CacheClass, n_pages: int) -> None:
        self.kind = cls.kind
        slots = 1 if cls.kind == "state" else PAGE_TOKENS
        self.tokens: I32 = np.full((n_pages, slots), -1, np.int32)
        self.chains: U64 = np.zeros((n_pages, slots), np.uint64)

    def past(self, table: I32, visible: int, first: int, where: str) -> int | None:
        """The chain after position first - 1, with all that is visible checked; None at the start of a sequence."""
        if first == 0:
            return None
        if self.kind == "state":
            if self.tokens[table[0], 0] != first:
                raise PageError(
                    f"{where}: state slot {table[0]} has taken in {self.tokens[table[0], 0]} tokens, expected {first}"
                )
            return int(self.chains[table[0], 0])
        if visible >= first:  # a window of one token sees nothing of the past
            return None
        tokens, chains = self.read(table, visible, first)
        before = np.concatenate([np.array([_START if visible == 0 else 0], np.uint64), chains[:-1]])
        right = (tokens >= 0) & (chains == before * np.uint64(_MULTIPLIER) + (tokens + 1).astype(np.uint64))
        if visible > 0:
            right[0] = tokens[0] >= 0  # what came before it is out of sight
        if not right.all():
            j = visible + int(np.flatnonzero(~right)[0])
            page = table[j // PAGE_TOKENS]
            raise PageError(f"{where}: page {page} does not hold this sequence's own position {j}")
        return int(chains[-1])

    def read(self, table: I32, first: int, last: int) -> tuple[I32, U64]:
        """Tokens and chains of positions first .. last - 1."""
        at = np.arange(first, last)
        page, slot = table[at // PAGE_TOKENS], at % PAGE_TOKENS
        return self.tokens[page, slot], self.chains[page, slot]

    def write(self, table: I32, first: int, tokens: I32, chains: U64) -> None:
        """Store the new tokens from position `first` on."""
        if self.kind == "state":
            self.tokens[table[0], 0] = first + len(tokens)
            self.chains[table[0], 0] = chains[-1]
            return
        at = np.arange(first, first + len(tokens))
        page, slot = table[at // PAGE_TOKENS], at % PAGE_TOKENS
        self.tokens[page, slot] = tokens
        self.chains[page, slot] = chains
