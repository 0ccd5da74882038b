"""Opening a model: file -> plan -> memory budget -> executable -> engine, with the tokenizer built alongside."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from edgellm.backends.base import BackendConfig, BackendInfo, page_bytes
from edgellm.backends.select import select_backend
from edgellm.chat.template import ChatTemplate
from edgellm.core import memory as system_memory
from edgellm.core.config import GGUF_SAMPLING_KEYS, SamplingParams, as_integer
from edgellm.core.env import MAX_THREADS
from edgellm.core.errors import CapacityError, ConfigError, GGUFError, RequestError, TokenizerError
from edgellm.core.kv import KV_FORMATS, KV_NAMES, kv_name, kv_pair_name
from edgellm.core.layouts import WEIGHTS, is_layout
from edgellm.core.record import dataclass, replace
from edgellm.core.types import PAGE_TOKENS
from edgellm.core.version import NUMERICS_VERSION
from edgellm.engine.draft_model import DraftModel
from edgellm.engine.engine import Engine
from edgellm.engine.request import Decoder
from edgellm.engine.scheduler import Budget
from edgellm.engine.spec import EngineSpec
from edgellm.engine.speculation import PromptLookup, Speculation
from edgellm.engine.warming import Warming
from edgellm.gguf.reader import GGUFFile
from edgellm.gguf.values import StringArray
from edgellm.kvcache.disk import DiskStore
from edgellm.kvcache.spec import ClassSpec
from edgellm.kvcache.table import Ledger
from edgellm.models.plan import Plan
from edgellm.models.spec import ModelInfo, load_plan
from edgellm.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Called with a stage ("weights") and a fraction, from 0.0 before anything of it is done to 1.0."""

KV_FRACTION = 0.4
"""Default share of the memory available at start that the KV cache may grow to."""

MAX_LOGIT_ROWS = 64
"""Output rows a step computes at most; bounds the logits scratch."""


OTHER_BITS = frozenset(("reference",))
"""Backends that docs/numerics.md exempts: their results are others, and their fingerprints say so."""

DISK_BYTES = 10 << 30
"""Default of what the files of the prefix cache may take."""


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
    prefix_cache: bool = True
    prefix_cache_dir: str | None = None
    prefix_cache_size: int = DISK_BYTES
    draft: str | None = None
    warm: bool = True
    check: bool = False


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to serve. fingerprint: says it, and reads the whole file where that has to be; GGUFError."""

    file: GGUFFile
    plan: Plan
    model: ModelInfo
    tokenizer: Tokenizer
    template: ChatTemplate
    engine: Engine
    disk: DiskStore | None
    warming: Warming
    backend: BackendInfo
    n_ctx: int
    kv_type: str
    kv_bytes: int
    fingerprint: Callable[[], str]
    sampling_defaults: dict[str, float | int]


def open_model(path: str, options: OpenOptions, progress: Progress | None = None) -> Loaded:
    """Open the file at `path` and start its engine. Everything opened is closed again when something fails.

    Raises ModelNotFound, GGUFError, UnsupportedModel, CacheError, CapacityError, ConfigError, NativeError.
    """
    options = _checked(options)
    with ExitStack() as undo:
        file = GGUFFile(path)
        undo.callback(file.close)
        plan, model = load_plan(file, strict=options.strict)
        tokenizer = Tokenizer.from_metadata(file.metadata)
        _check_vocabulary(file, plan.n_vocab, options.strict)
        template = ChatTemplate.from_metadata(file.metadata)
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
            cached=options.weights == "auto",
        )
        kv_type = kv_pair_name(options.k_type, options.v_type)
        backend = select_backend(options.backend)
        # Beside the weights: this is Python, and they are repacked without it.
        warming = Warming(tokenizer, template)
        undo.callback(warming.join)
        if options.warm:
            warming.start()
        if progress is not None:
            progress("weights", 0.0)
        try:
            executable = backend.compile(plan, file, config, (lambda f: progress("weights", f)) if progress else None)
        except CapacityError as e:
            raise CapacityError(f"{e}. {_ways_out(file, config, kv_bytes)}") from e
        undo.callback(executable.close)
        info = executable.info
        marks = ("" if options.strict else "-lax") + ("-long" if plan.long_context(n_ctx) else "")
        marks += f"-{info.name}" if info.name in OTHER_BITS else ""
        fingerprint = partial(_fingerprint, file, kv_type + marks)
        classes = tuple(ClassSpec(c.kind, c.window) for c in plan.caches)
        spec = EngineSpec(n_ctx, plan.n_vocab, classes, n_pages, budget, options.check, options.prefix_cache)

        def new_decoder() -> Decoder | None:
            try:
                return tokenizer.stream()
            except TokenizerError:  # token ids still work
                return None

        speculation = None if options.draft is None else _speculation(options, plan, file, config, budget, undo)
        disk = None
        if options.prefix_cache_dir is not None:
            folder = os.path.expanduser(options.prefix_cache_dir)
            disk = DiskStore(folder, f"{fingerprint()}-{info.name}", options.prefix_cache_size)
            undo.callback(disk.close)
        engine = Engine(executable, spec, new_decoder, tokenizer.token_bytes, speculation, disk)
        undo.callback(engine.close)
        loaded = Loaded(
            file=file,
            plan=plan,
            model=model,
            tokenizer=tokenizer,
            template=template,
            engine=engine,
            disk=disk,
            warming=warming,
            backend=info,
            n_ctx=n_ctx,
            kv_type=kv_type,
            kv_bytes=kv_bytes,
            fingerprint=fingerprint,
            sampling_defaults=_sampling_defaults(file),
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
        undo.pop_all()
        return loaded


PROMPT = "prompt"
"""As `draft`: guesses from the text itself."""


def _speculation(
    options: OpenOptions, plan: Plan, file: GGUFFile, config: BackendConfig, budget: Budget, undo: ExitStack
) -> Speculation:
    """Speculative decoding as options.draft says. ConfigError where the models do not go together."""
    if any(c.kind == "state" for c in plan.caches):
        raise ConfigError(
            f"draft={options.draft!r:.80}: {plan.arch} has recurrent layers, which cannot take tokens back"
        )
    if options.draft == PROMPT:
        return Speculation(PromptLookup())
    small = GGUFFile(str(options.draft))
    undo.callback(small.close)
    draft, _ = load_plan(small, strict=options.strict)
    if draft.n_vocab != plan.n_vocab or _words(small) != _words(file):
        raise ConfigError(f"draft: {small.path} has another vocabulary: a draft model needs the same tokens")
    if any(c.kind == "state" for c in draft.caches):
        raise ConfigError(f"draft: {draft.arch} has recurrent layers, which cannot take tokens back")
    n_pages = tuple(max(config.n_pages) for _ in draft.caches)
    config = replace(config, n_pages=n_pages, weights=_weights_mode(options.weights, small))
    executable = select_backend(options.backend).compile(draft, small, config)
    undo.callback(executable.close)
    classes = tuple(ClassSpec(c.kind, c.window) for c in draft.caches)
    ledger = Ledger(classes, n_pages, config.n_ctx, prefix_cache=False)
    return Speculation(DraftModel(executable, ledger, config.n_ctx, budget, small.close))


def _words(file: GGUFFile) -> list[str]:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    return list(tokens) if isinstance(tokens, StringArray) else []


def _fingerprint(file: GGUFFile, kind: str) -> str:
    return f"el{NUMERICS_VERSION}-{file.fingerprint()[:12]}-{kind}"


def _checked(options: OpenOptions) -> OpenOptions:
    """The options with aliases resolved, their numbers as Python's. ConfigError for what no model could honour."""
    options = replace(options, k_type=kv_name(options.k_type), v_type=kv_name(options.v_type))
    numbers: dict[str, Any] = {}
    for name, low, high in (
        ("n_ctx", 1, 1 << 24),
        ("n_threads", 1, MAX_THREADS),
        ("max_seqs", 1, 4096),
        ("kv_memory", 1, 1 << 50),
        ("n_batch", 1, 1 << 16),
        ("prefix_cache_size", 1, 1 << 50),
    ):
        value = getattr(options, name)
        if value is None:
            continue
        integer = numbers[name] = as_integer(value)
        if integer is None or not low <= integer <= high:
            raise ConfigError(f"{name} must be an integer from {low} to {high}, found {value!r:.80}")
    for kind in (options.k_type, options.v_type):
        if kind not in KV_FORMATS:
            raise ConfigError(
                f"kv_type must be one of {', '.join(KV_NAMES)}, or a pair of them for K and V, found {kind!r:.80}"
            )
    if not is_layout(options.weights):
        allowed = ", ".join(f'"{w}"' for w in WEIGHTS)
        raise ConfigError(f'weights must be one of {allowed}, or "cache:FILE", found {options.weights!r:.80}')
    if options.prefix_cache_dir is not None and not options.prefix_cache:
        raise ConfigError("prefix_cache_dir needs the prefix cache: leave out prefix_cache=False")
    if options.isa is not None and not isinstance(options.isa, str):
        raise ConfigError(f"isa must be the name of a level, found {options.isa!r:.80}")
    return replace(options, **numbers)


_NO_TOKEN = (-1, 2**32 - 1)
"""What converters write for a special token that a model has not."""


def _check_vocabulary(file: GGUFFile, n_vocab: int, strict: bool) -> None:
    """GGUFError (a warning unless strict) for tokens, or ids of special tokens, that the model has no rows for."""
    problems = []
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, StringArray) and len(tokens) > n_vocab:
        problems.append(f"tokenizer.ggml.tokens has {len(tokens)} entries, but token_embd.weight has {n_vocab} rows")
    for key, value in file.metadata.items():
        if not key.startswith("tokenizer.ggml.") or not key.endswith("_token_id"):
            continue
        if isinstance(value, int) and not isinstance(value, bool) and (0 <= value < n_vocab or value in _NO_TOKEN):
            continue
        problems.append(f"{key} is {value!r:.60}, expected a token id from 0 to {n_vocab - 1}")
    if problems and strict:
        raise GGUFError(
            f"{file.path}: {'; '.join(problems[:4])}. Load it anyway with strict=False (--no-strict), which passes "
            f"over these"
        )
    for problem in problems:
        log.warning("%s: %s; passed over because strict is off", file.path, problem)


def _sampling_defaults(file: GGUFFile) -> dict[str, float | int]:
    """The file's own defaults; one that no request could ask for is left out, and said."""
    defaults: dict[str, float | int] = {}
    for key, name in GGUF_SAMPLING_KEYS.items():
        value: Any = file.metadata.get(key)
        if value is None:
            continue
        if isinstance(value, float) and value.is_integer() and name in ("top_k", "repeat_last_n", "mirostat"):
            value = int(value)
        try:
            defaults[name] = getattr(SamplingParams(**{name: value}), name)
        except RequestError as e:
            log.warning("%s: the default in %s is ignored: %s", file.path, key, e)
    return defaults


def _ways_out(file: GGUFFile, config: BackendConfig, kv_bytes: int) -> str:
    """What a model takes, what there is, and what would take less."""
    weights, there = sum(t.n_bytes for t in file.tensors.values()), system_memory.available()
    less = [] if config.weights == "mmap" else ['weights="mmap" (runs from the file)']
    for name, value, least in (
        ("kv_memory", kv_bytes, 2**24), ("max_seqs", config.max_seqs, 1), ("n_batch", config.max_tokens, 32),
    ):  # fmt: skip
        if value > least:
            less.append(f"{name} below {value}")
    return (
        f"{there / 2**20:.0f} MiB are available to this process; the weights are {weights / 2**20:.0f} MiB, and the KV "
        f"cache may grow to {kv_bytes / 2**20:.0f} MiB. Less is needed with {', '.join(less) or 'a smaller model'}"
    )


def _weights_mode(wanted: str, file: GGUFFile) -> str:
    if wanted != "auto":
        return wanted
    size = sum(t.n_bytes for t in file.tensors.values())
    return "tiles" if size < largest_tiled(system_memory.available()) else "mmap"


def largest_tiled(available: int) -> int:
    """Bytes of weights that weights="auto" repacks where this much memory is available; larger models stay mapped."""
    return max(0, int((available - 2**28) / 1.25))


def _kv_budget(plan: Plan, options: OpenOptions, max_seqs: int) -> tuple[int, tuple[int, ...], int]:
    """Context length, pages per class and bytes they take when full. Memory is used only as it is written."""
    wanted = plan.n_ctx_train if options.n_ctx is None else options.n_ctx
    if wanted > plan.n_ctx_train:
        log.warning(
            "the context of %d tokens is longer than the model was trained for (trained for %d): answers that use "
            "more may be worthless",
            wanted,
            plan.n_ctx_train,
        )
    memory = options.kv_memory
    if memory is None:
        memory = int(system_memory.available() * KV_FRACTION)
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
            least = growing + sum(fixed_pages(c, PAGE_TOKENS) * sizes[c] for c in fixed)
            way_out = f"n_ctx={fits} would fit" if fits else f"kv_memory must be at least {least} bytes"
            if fixed and max_seqs > 1:
                way_out += "; a smaller max_seqs needs less"
            raise CapacityError(
                f"a context of {wanted} tokens needs {need / 2**20:.1f} MiB of KV cache, "
                f"{memory / 2**20:.1f} MiB are there: {way_out}"
            )
        log.warning("the context is limited to %d of %d tokens by %.0f MiB of KV memory", fits, wanted, memory / 2**20)
        wanted, per_sequence = fits, pages
    n_pages = [fixed_pages(c, wanted) if c in fixed else pages for c in range(len(plan.caches))]
    if options.prefix_cache:  # as many again for the cache, where they fit: without windows there is no going on
        left = memory - sum(n * s for n, s in zip(n_pages, sizes, strict=True))
        for c in fixed:
            n_pages[c] += max(0, min(n_pages[c], left // len(fixed) // sizes[c]))
    return wanted, tuple(n_pages), sum(n * s for n, s in zip(n_pages, sizes, strict=True))
