"""A description of an open model, for people and for `--json`."""

from __future__ import annotations

from edgellm.core.record import dataclass, late, later, replace
from edgellm.engine.loader import Loaded
from edgellm.kvcache.disk import StoreStats


@late("fingerprint")
@dataclass(frozen=True, slots=True)
class LLMInfo:
    """What was opened and chosen. Sizes in bytes; kv_bytes is what the cache takes when it is full.

    fingerprint: `el<numerics version>-<model hash>-<kv type>`: the same fingerprint, seed and request give the same
        answer. Marks follow where results are others: strict=False, a context so long that other RoPE factors apply,
        backend="reference". The hash is a function of every byte of the model's files: they are read when it is first
        asked for (10 GB/s from memory), unless an earlier process has done so since they last changed. Raises
        GGUFError where they cannot be read, or have changed since the model was opened.
    """

    path: str
    architecture: str
    n_params: int
    bits_per_weight: float
    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    backend: str
    isa: str
    n_threads: int
    weights: str
    weight_bytes: int
    scratch_bytes: int
    kv_type: str
    kv_bytes: int
    has_chat_template: bool
    fingerprint: str


def describe(loaded: Loaded) -> LLMInfo:
    """Collect the facts of an open model."""
    return LLMInfo(
        path=str(loaded.file.path),
        architecture=loaded.plan.arch,
        n_params=loaded.model.n_params,
        bits_per_weight=loaded.model.bits_per_weight,
        n_vocab=loaded.plan.n_vocab,
        n_ctx=loaded.n_ctx,
        n_ctx_train=loaded.plan.n_ctx_train,
        backend=loaded.backend.name,
        isa=loaded.backend.isa,
        n_threads=loaded.backend.n_threads,
        weights=loaded.backend.weights,
        weight_bytes=loaded.backend.weight_bytes,
        scratch_bytes=loaded.backend.scratch_bytes,
        kv_type=loaded.kv_type,
        kv_bytes=loaded.kv_bytes,
        has_chat_template=loaded.template.has_template,
        fingerprint=later(loaded.fingerprint),
    )


@dataclass(frozen=True, slots=True)
class LLMStats:
    """What an engine is doing, and counters since it was opened.

    running, waiting: sequences with a place in the steps, and in the queue.  requests: not yet ended.
    pages_used, pages: of 32 tokens, over all cache classes.  seconds_native: inside the backend; seconds_python: around
    it, in busy steps.  guessed, accepted: tokens of speculative decoding.  disk: of `prefix_cache_dir`, None without.
    """

    running: int
    waiting: int
    requests: int
    pages_used: int
    pages: int
    steps: int
    tokens: int
    seconds_native: float
    seconds_python: float
    guessed: int = 0
    accepted: int = 0
    disk: StoreStats | None = None


def count(loaded: Loaded) -> LLMStats:
    """Read an engine's books from any thread, without stopping it: numbers that change may be of two steps."""
    load, stats, spec = loaded.engine.load, loaded.engine.stats, loaded.engine.speculation
    return LLMStats(
        running=load.running,
        waiting=load.waiting,
        requests=load.requests,
        pages_used=load.pages_used,
        pages=load.pages,
        steps=stats.steps,
        tokens=stats.tokens,
        seconds_native=stats.seconds_native,
        seconds_python=stats.seconds_python,
        guessed=0 if spec is None else sum(spec.stats.guessed),
        accepted=0 if spec is None else sum(spec.stats.accepted),
        disk=None if loaded.disk is None else replace(loaded.disk.stats),
    )
