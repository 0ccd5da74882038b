"""What is done with a damaged file: all that a user's first minute with it would do, down to logits."""

from __future__ import annotations

import contextlib
import logging
import random
from pathlib import Path

import numpy as np
from fuzz.seeds import N_VOCAB

import edgellm
from edgellm.backends.base import BackendConfig
from edgellm.backends.native import NativeBackend, NativeExecutable
from edgellm.core.errors import CapacityError, ModelError, NumericsError, RequestError
from edgellm.core.types import PAGE_TOKENS, Batch
from edgellm.gguf import GGUFFile, StringArray
from edgellm.models import load_plan

TEXT = "hello world <|im_end|></s> \u65e5\u672c\U0001f600\n\0x"
TOKENS = [1, 5, 2, 200, 9, 9, 30, 7]
TYPED = (ModelError, CapacityError, RequestError, NumericsError)
"""Errors that a damaged file may end in. Any other, EngineError and NativeError too, is a fault of ours."""


def use(path: Path, rng: random.Random, whole: bool) -> str:
    """Load, compute a few steps. whole: by LLM, with text and a few tokens generated; else by the backend alone.

    Where it ended, "load" .. "done", with the class of the error. Raises whatever is not one of TYPED.
    """
    stage = ["load"]
    try:
        (_by_llm if whole else _by_backend)(path, rng, stage)
    except TYPED as e:
        if not str(e).strip():
            raise AssertionError(f"{type(e).__name__} without a word") from e
        if whole and stage == ["load"]:  # a model that cannot run may still lend its vocabulary
            with contextlib.suppress(*TYPED):
                read(path)
        return f"{stage[-1]}: {type(e).__name__}"
    return "done"


def _by_llm(path: Path, rng: random.Random, stage: list[str]) -> None:
    llm = edgellm.LLM(
        path,
        n_threads=rng.choice((1, 2)),
        weights=rng.choice(("tiles", "mmap")),
        strict=rng.random() < 0.6,
        n_ctx=rng.choice((None, None, 16, 48)),
        kv_memory=1 << 26,
        max_seqs=2,
        kv_type=rng.choice(("f16", "f32")),
    )
    with llm:
        stage.append("compute")
        n_vocab = llm.info.n_vocab
        ids = [t % n_vocab for t in TOKENS]
        logits = llm.logits(ids)
        if logits.shape != (len(ids), n_vocab) or not np.isfinite(logits).all():
            raise AssertionError(f"logits {logits.shape} that are not all finite, without an error")
        stage.append("generate")
        llm.generate([ids, ids[:2]], max_tokens=3, seed=1, temperature=0.8, on_error="raise")
        if llm.info.n_vocab == N_VOCAB and rng.random() < 0.3:
            stage.append("template")
            llm.render([{"role": "user", "content": "hello"}])
    stage.append("tokenizer")
    read(path)


def _by_backend(path: Path, rng: random.Random, stage: list[str]) -> None:
    """Two sequences side by side, then a step more of each: a tenth of the time that an engine takes."""
    with GGUFFile(path) as file:
        plan = load_plan(file, strict=rng.random() < 0.6).plan
        file.fingerprint()
        n_ctx = min(plan.n_ctx_train, rng.choice((16, 48, 4096)))
        pages = -(-n_ctx // PAGE_TOKENS)
        config = BackendConfig(
            n_ctx,
            max_tokens=16,
            max_rows=16,
            max_seqs=2,
            n_pages=(2 * pages,) * len(plan.caches),
            k_type=rng.choice(("f16", "f32")),
            v_type=rng.choice(("f16", "f32")),
            weights=rng.choice(("tiles", "mmap")),
            n_threads=rng.choice((1, 2)),
        )
        executable = NativeBackend().compile(plan, file, config)
        try:
            stage.append("compute")
            n = min(len(TOKENS), n_ctx - 1)
            ids = np.array([t % plan.n_vocab for t in TOKENS[:n]], np.int32)
            tables = tuple(np.arange(2 * pages, dtype=np.int32).reshape(2, pages) for _ in plan.caches)
            both = np.arange(2 * n, dtype=np.int32)
            if n:
                starts = np.array([0, n, 2 * n], np.int32)
                _step(executable, Batch(np.tile(ids, 2), both % n, starts, tables, both, 3, True), plan.n_vocab)
            last = Batch(ids[:1].repeat(2) if n else np.zeros(2, np.int32), np.full(2, n, np.int32),
                         np.arange(3, dtype=np.int32), tables, np.arange(2, dtype=np.int32), 3, True)  # fmt: skip
            _step(executable, last, plan.n_vocab)
        finally:
            executable.close()


def _step(executable: NativeExecutable, batch: Batch, n_vocab: int) -> None:
    out = executable.run(batch)
    if out.logits is None or out.logits.shape != (len(batch.rows), n_vocab):
        raise AssertionError("no logits of the shape that was asked for")
    if out.status.any():
        raise NumericsError("a value that is not finite")
    if not np.isfinite(out.logits).all():
        raise AssertionError("logits that are not all finite, without an error")


def read(path: Path) -> None:
    """All that a file says, and its vocabulary at work."""
    with GGUFFile(path) as file:
        for value in file.metadata.values():
            if isinstance(value, StringArray):
                value.to_list("replace")
        text(edgellm.Tokenizer.from_metadata(file.metadata))


def text(tokenizer: edgellm.Tokenizer) -> None:
    """Text to ids and back; a vocabulary that cannot do it says so."""
    tokenizer.warm()
    for name in ("eog_ids", "suppressed_ids", "fim_ids"):  # read for what they may raise
        getattr(tokenizer, name, None)
    if not tokenizer.usable:
        return
    ids = tokenizer.encode(TEXT, parse_special=True)
    if any(not 0 <= i < tokenizer.n_vocab for i in ids):
        raise AssertionError(f"ids outside the vocabulary of {tokenizer.n_vocab}: {ids}")
    tokenizer.decode(ids, special=True)
    stream = tokenizer.stream()
    for i in ids:
        stream.push(i)
    tokenizer.encode_segments([("<|im_start|>", True), (TEXT, False)])


def quiet() -> None:
    """Warnings about what was ignored would be the bulk of the output."""
    logging.disable(logging.CRITICAL)
