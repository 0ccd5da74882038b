"""Opening a model: file -> plan -> memory budget -> executable -> engine, with the tokenizer built alongside."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from edgellm.backends.base import BackendConfig, BackendInfo, page_bytes
from edgellm.backends.select import select_backend
from edgellm.chat.template import ChatTemplate
from edgellm.core.config import GGUF_SAMPLING_KEYS
from edgellm.core.errors import CapacityError, ConfigError
from edgellm.core.types import PAGE_TOKENS
from edgellm.core.version import NUMERICS_VERSION
from edgellm.engine.engine import Engine, EngineSpec
from edgellm.engine.scheduler import Budget
from edgellm.gguf.reader import GGUFFile
from edgellm.kvcache.table import ClassSpec
from edgellm.models.plan import Plan
from edgellm.models.spec import ModelInfo, load_plan
from edgellm.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Called with a stage ("weights") and a fraction 0..1."""

KV_FRACTION = 0.4
"""Default share of the memory available at start that the KV cache may grow to."""

MAX_LOGIT_ROWS = 64
"""Output rows a step computes at most; bounds the logits scratch."""


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """Options of `open_model`, already plain values; see LLM for their meaning."""

    n_ctx: int | None = None
    n_threads: int | None = None
    k_type: str = "f16"
    v_type: str = "f16"
    weights: str = "auto"
    backend: str = "auto"
    isa: str | None = None
    max_seqs: int | None = None
    kv_memory: int | None = None
    n_batch: int = 512
    strict: bool = True
    check: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to serve."""

    file: GGUFFile
    plan: Plan
    model: ModelInfo
    tokenizer: Tokenizer
    template: ChatTemplate
    engine: Engine
    backend: BackendInfo
    n_ctx: int
    kv_type: str
    kv_bytes: int
    fingerprint: str
    sampling_defaults: dict[str, float | int]


def open_model(path: str, options: OpenOptions, progress: Progress | None = None) -> Loaded:
    """Open the file at `path` and start its engine. Everything opened is closed again when a step fails."""
    file = GGUFFile(path)
    try:
        plan, model = load_plan(file, strict=options.strict)
        tokenizer = Tokenizer.from_metadata(file.metadata)
        warm = threading.Thread(target=tokenizer.warm, name="edgellm-tokenizer", daemon=True)
        warm.start()
        max_seqs = 8 if options.max_seqs is None else options.max_seqs
        n_ctx, n_pages, kv_bytes = _kv_budget(plan, options, max_seqs)
        max_tokens = max(options.n_batch, max_seqs)
        budget = Budget(max_tokens, max_seqs, max(min(max_tokens, MAX_LOGIT_ROWS), max_seqs))
        config = BackendConfig(
            n_ctx=n_ctx,
            max_tokens=budget.tokens,
            max_rows=budget.rows,
            max_seqs=budget.seqs,
            n_pages=n_pages,
            k_type=options.k_type,
            v_type=options.v_type,
            weights=_weights_mode(options.weights, file),
            isa=options.isa,
            n_threads=options.n_threads,
        )
        backend = select_backend(options.backend)
        executable = backend.compile(plan, file, config, (lambda f: progress("weights", f)) if progress else None)
        info = executable.info
        classes = tuple(ClassSpec(c.kind, c.window) for c in plan.caches)
        spec = EngineSpec(n_ctx, plan.n_vocab, classes, n_pages, budget, options.check)
        engine = Engine(executable, spec, tokenizer.stream if tokenizer.usable else lambda: None)
        kv_type = options.k_type if options.k_type == options.v_type else f"{options.k_type}+{options.v_type}"
        loaded = Loaded(
            file=file,
            plan=plan,
            model=model,
            tokenizer=tokenizer,
            template=ChatTemplate.from_metadata(file.metadata),
            engine=engine,
            backend=info,
            n_ctx=n_ctx,
            kv_type=kv_type,
            kv_bytes=kv_bytes,
            fingerprint=f"el{NUMERICS_VERSION}-{file.fingerprint()[:12]}-{kv_type}{'' if options.strict else '-lax'}",
            sampling_defaults={
                name: file.metadata[key]
                for key, name in GGUF_SAMPLING_KEYS.items()
                if isinstance(file.metadata.get(key), int | float)
            },
        )
        log.info(
            "%s: %s, %.0f M parameters, %.2f bits per weight, context %d, KV up to %.0f MiB, %d threads, %s, %s",
            path,
            model.arch,
            model.n_params / 1e6,
            model.bits_per_weight,
            n_ctx,
            kv_bytes / 2**20,
            info.n_threads,
            info.isa,
            info.weights,
        )
        return loaded
    except BaseException:
        file.close()
        raise


def _weights_mode(wanted: str, file: GGUFFile) -> str:
    if wanted not in ("auto", "mmap", "tiles"):
        raise ConfigError(f'weights must be "auto", "mmap" or "tiles", found {wanted!r}')
    if wanted != "auto":
        return wanted
    size = sum(t.n_bytes for t in file.tensors.values())
    return "tiles" if psutil.virtual_memory().available > 1.25 * size + 2**28 else "mmap"


def _kv_budget(plan: Plan, options: OpenOptions, max_seqs: int) -> tuple[int, tuple[int, ...], int]:
    """Context length, pages per class and bytes they take when full. Memory is used only as it is written."""
    _check_range("max_seqs", max_seqs, 1, 4096)
    _check_range("n_batch", options.n_batch, 1, 1 << 16)
    wanted = plan.n_ctx_train if options.n_ctx is None else options.n_ctx
    _check_range("n_ctx", wanted, 1, 1 << 24)
    memory = options.kv_memory
    if memory is None:
        memory = int(psutil.virtual_memory().available * KV_FRACTION)
    sizes = [page_bytes(plan, c, options.k_type, options.v_type) for c in range(len(plan.caches))]
    growing = sum(size for size, cache in zip(sizes, plan.caches, strict=True) if cache.kind in ("full", "latent"))

    def fixed_pages(c: int, n_ctx: int) -> int:
        """Pages of a window or state class that serve max_seqs sequences whatever their length."""
        cache = plan.caches[c]
        if cache.kind == "state":
            return max_seqs
        span = min(n_ctx, cache.window + max(options.n_batch, max_seqs))
        return max_seqs * (-(-span // PAGE_TOKENS) + 2)

    fixed = [c for c, cache in enumerate(plan.caches) if cache.kind in ("window", "state")]
    left = memory - sum(fixed_pages(c, wanted) * sizes[c] for c in fixed)
    per_sequence = -(-wanted // PAGE_TOKENS)
    pages = min(max(0, left) // growing, max_seqs * per_sequence) if growing else per_sequence
    if pages < per_sequence:
        fits = pages * PAGE_TOKENS
        if options.n_ctx is not None or fits < PAGE_TOKENS:
            need = per_sequence * growing + memory - left
            raise CapacityError(
                f"a context of {wanted} tokens needs {need / 2**20:.0f} MiB of KV cache, "
                f"{memory / 2**20:.0f} MiB are there: n_ctx={fits} would fit"
            )
        log.warning("the context is limited to %d of %d tokens by %.0f MiB of KV memory", fits, wanted, memory / 2**20)
        wanted, per_sequence = fits, pages
    n_pages = tuple(fixed_pages(c, wanted) if c in fixed else pages for c in range(len(plan.caches)))
    return wanted, n_pages, sum(n * s for n, s in zip(n_pages, sizes, strict=True))


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be an integer from {low} to {high}, found {value!r}")
