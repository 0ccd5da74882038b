"""What every backend may rely on: the sizes of a configuration, and a batch that fits plan and configuration."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edgellm.backends.base import BackendConfig
from edgellm.core.errors import ConfigError
from edgellm.core.kv import KV_FORMATS
from edgellm.core.types import I32, MAX_TOP_K, NO_PAGE, PAGE_TOKENS, Batch
from edgellm.models.plan import Plan

_LIMIT = 1 << 31


def check_config(plan: Plan, config: BackendConfig) -> None:
    """ConfigError unless sizes are positive and there is one page count for each cache class of the plan."""
    for name in ("n_ctx", "max_tokens", "max_rows", "max_seqs"):
        value = getattr(config, name)
        if not 1 <= value < _LIMIT:
            raise ConfigError(f"{name} is {value}, expected a positive 32-bit number")
    if len(config.n_pages) != len(plan.caches) or not all(1 <= n < _LIMIT for n in config.n_pages):
        raise ConfigError(
            f"n_pages is {config.n_pages}, expected {len(plan.caches)} positive numbers, one for each cache class"
        )
    if config.weights.startswith("cache"):
        raise ConfigError(f"weights is {config.weights!r}, but only the native backend runs from a tile cache")
    for name, value, allowed in (
        ("k_type", config.k_type, tuple(KV_FORMATS)),
        ("v_type", config.v_type, tuple(KV_FORMATS)),
        ("weights", config.weights, ("mmap", "tiles")),
    ):
        if value not in allowed:
            raise ConfigError(f"{name} is {value!r}, expected one of {', '.join(allowed)}")


def check_batch(plan: Plan, config: BackendConfig, batch: Batch) -> None:
    """ValueError, naming the field, unless the batch is as core/types.py describes it and within the configuration.

    Beyond shapes and ranges: no page that the step writes belongs to two of its sequences.
    """
    n_tokens, n_seqs, n_rows = len(batch.tokens), len(batch.seq_start) - 1, len(batch.rows)
    _int32("tokens", batch.tokens, (n_tokens,))
    _int32("positions", batch.positions, (n_tokens,))
    _int32("seq_start", batch.seq_start, (n_seqs + 1,))
    _int32("rows", batch.rows, (n_rows,))
    _in("number of tokens", n_tokens, 1, config.max_tokens)
    _in("number of sequences", n_seqs, 1, config.max_seqs)
    _in("number of rows", n_rows, 0, config.max_rows)
    _in("top_k", batch.top_k, 0, min(MAX_TOP_K, plan.n_vocab))
    _range("tokens", batch.tokens, 0, plan.n_vocab - 1)
    _range("positions", batch.positions, 0, config.n_ctx - 1)
    _range("rows", batch.rows, 0, n_tokens - 1)
    if (np.diff(batch.rows) <= 0).any():
        raise ValueError("rows must ascend without repeats")
    starts = batch.seq_start
    if starts[0] != 0 or starts[-1] != n_tokens or (np.diff(starts) <= 0).any():
        raise ValueError(f"seq_start must ascend from 0 to {n_tokens}, every sequence with a token: {starts[:8]}...")
    for s in range(n_seqs):
        if (np.diff(batch.positions[starts[s] : starts[s + 1]]) != 1).any():
            raise ValueError(f"positions of sequence {s} are not consecutive")
    if len(batch.pages) != len(plan.caches):
        raise ValueError(f"there are {len(batch.pages)} block tables, expected {len(plan.caches)}")
    for c in range(len(plan.caches)):
        _pages(plan, config, batch, c)
    if batch.adjust is not None:
        a, n = batch.adjust, len(batch.adjust.row)
        _int32("adjust.row", a.row, (n,))
        _int32("adjust.token", a.token, (n,))
        _range("adjust.row", a.row, 0, n_rows - 1)
        _range("adjust.token", a.token, 0, plan.n_vocab - 1)
        if (np.diff(a.row) < 0).any():
            raise ValueError("adjust.row must ascend")
        for name, x in (("adjust.rep", a.rep), ("adjust.add", a.add)):
            if x.dtype != np.float32 or x.shape != (n,):
                raise ValueError(f"{name} has type {x.dtype} and shape {x.shape}, expected float32 ({n},)")


def first_visible(plan: Plan, cls: int, position: int) -> int:
    """The first position that a token at `position` reads from this cache class."""
    c = plan.caches[cls]
    return max(0, position - c.window + 1) if c.kind == "window" else 0


def _pages(plan: Plan, config: BackendConfig, batch: Batch, c: int) -> None:
    table, kind = batch.pages[c], plan.caches[c].kind
    n_seqs = len(batch.seq_start) - 1
    if table.ndim != 2:
        raise ValueError(f"pages[{c}] has {table.ndim} dimensions, expected 2")
    _int32(f"pages[{c}]", table, (n_seqs, table.shape[1]))
    _range(f"pages[{c}]", table, NO_PAGE, config.n_pages[c] - 1)
    written: set[int] = set()
    for s in range(n_seqs):
        rows = batch.positions[batch.seq_start[s] : batch.seq_start[s + 1]]
        first, last = int(rows[0]), int(rows[-1])
        if kind == "state":
            used, dirty = table[s, :1], table[s, :1]
        else:
            lo, hi = first_visible(plan, c, first) // PAGE_TOKENS, last // PAGE_TOKENS + 1
            used, dirty = table[s, lo:hi], table[s, first // PAGE_TOKENS : hi]
            if len(used) < hi - lo:
                raise ValueError(f"pages[{c}] has {table.shape[1]} entries, sequence {s} needs {hi}")
        if len(used) == 0 or (used == NO_PAGE).any():
            raise ValueError(f"pages[{c}]: a page that sequence {s} reads or writes is not resident")
        if written.intersection(dirty.tolist()):
            raise ValueError(f"pages[{c}]: sequence {s} writes a page that another sequence writes")
        written.update(dirty.tolist())


def _int32(name: str, x: I32 | NDArray[np.generic], shape: tuple[int, ...]) -> None:
    if x.dtype != np.int32 or x.shape != shape:
        raise ValueError(f"{name} has type {x.dtype} and shape {x.shape}, expected int32 {shape}")


def _in(name: str, value: int, lo: int, hi: int) -> None:
    if not lo <= value <= hi:
        raise ValueError(f"{name} is {value}, expected {lo}..{hi}")


def _range(name: str, x: I32, lo: int, hi: int) -> None:
    if len(x) and (x.min(initial=lo) < lo or x.max(initial=hi) > hi):
        raise ValueError(f"{name} has values from {x.min()} to {x.max()}, expected {lo}..{hi}")
