"""What callers pass to the façades: checked, and turned into plain lists and pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

import numpy as np

from edgellm.core import memory
from edgellm.core.config import as_integer
from edgellm.core.errors import CapacityError, ConfigError, RequestError
from edgellm.core.types import F32

Message = dict[str, Any]

NAMED_PROMPTS = 20
"""Prompts that one error names at most."""


def is_ids(value: object) -> TypeGuard[list[int] | tuple[int, ...]]:
    """Whether a value is a list of token ids (or empty)."""
    return isinstance(value, list | tuple) and all(as_integer(i) is not None for i in value)


def token_ids(value: object, name: str) -> list[int]:
    """Token ids in any collection, as a new list. RequestError, which names the argument, for anything else."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise RequestError(f"{name} must be a list of token ids, found {type(value).__name__}")
    try:
        items = list(value)
    except TypeError:  # an array that is one number
        raise RequestError(f"{name} must be a list of token ids, found one number") from None
    ids = []
    for i, item in enumerate(items):
        integer = as_integer(item)
        if integer is None:
            raise RequestError(f"{name} must be a list of token ids, found {item!r:.80} at place {i}")
        ids.append(integer)
    return ids


def all_of(wrong: list[RequestError | TypeError], n: int, argument: str) -> RequestError | TypeError:
    """One error for all that is wrong with a list of n prompts, the argument of that name."""
    if len(wrong) == 1:
        return wrong[0]
    shown = [str(e) for e in wrong[:NAMED_PROMPTS]]
    if len(wrong) > NAMED_PROMPTS:
        shown.append(f"and {len(wrong) - NAMED_PROMPTS} more")
    return RequestError(f"{len(wrong)} of {n} {argument} cannot be used: " + "; ".join(shown))


def as_messages(messages: str | list[Message]) -> list[Message]:
    """A conversation; a text alone is one user message."""
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


def kv_pair(kv_type: object) -> tuple[str, str]:
    """(K, V) types; whether they are supported is seen when the model is opened."""
    if isinstance(kv_type, str):
        return kv_type, kv_type
    if isinstance(kv_type, list | tuple) and len(kv_type) == 2 and all(isinstance(t, str) for t in kv_type):
        return kv_type[0], kv_type[1]
    raise ConfigError(f"kv_type must be a type or a pair of types for K and V, found {kv_type!r:.80}")


def row_range(rows: object, n: int) -> tuple[int, int]:
    """First and last + 1 of the rows of n that the argument of `logits` means."""
    if rows is None:
        return 0, n
    if isinstance(rows, slice):
        try:
            first, stop, step = rows.indices(n)
        except (TypeError, ValueError) as e:
            raise RequestError(f"rows must be a slice of whole numbers, found {rows!r:.80}: {e}") from None
        if step != 1 or stop <= first:
            raise RequestError(f"rows must be a non-empty slice with step 1 of {n} tokens, found {rows}")
        return first, stop
    if isinstance(rows, str):
        if rows == "last":
            return n - 1, n
        raise RequestError(f'rows must be None, "last" or a slice, found {rows!r:.80}')
    raise RequestError(f'rows must be None, "last" or a slice, found {type(rows).__name__}')


def new_logits(n: int, n_vocab: int) -> F32:
    """An array [n, n_vocab] for results; CapacityError, with what would fit, where memory is short."""
    row, free = 4 * n_vocab, memory.available()
    if n * row > free:
        raise CapacityError(
            f"{n} rows of {n_vocab} logits need {n * row / 1e6:.1f} MB, {free / 1e6:.1f} MB are available: "
            f"ask for at most {free // row} rows at a time"
        )
    return np.empty((n, n_vocab), np.float32)
