"""Pieces of answers that several routes share: ids, token counts, timings, log-probabilities."""

from __future__ import annotations

import math
import secrets
from typing import Any

from edgellm.core.results import Completion, Logprobs, TokenLogprob

LOWEST = -9999.0
"""A log-probability of minus infinity: JSON has none."""


def new_id(prefix: str) -> str:
    """An id that no other answer has."""
    return prefix + secrets.token_hex(12)


def finite(value: float) -> float:
    """A log-probability that JSON can hold."""
    return value if math.isfinite(value) else LOWEST


def usage(completions: list[Completion], reasoning: int = 0) -> dict[str, Any]:
    """OpenAI's token counts, over all prompts. reasoning: how many of the answers' tokens are thoughts."""
    prompt = sum(c.usage.prompt_tokens for c in completions)
    answer = sum(c.usage.completion_tokens for c in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": sum(c.usage.cached_tokens for c in completions)},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def timings(completion: Completion) -> dict[str, Any]:
    """llama.cpp's timings: milliseconds, and rates a second (0 where there is nothing to divide)."""
    counts, times = completion.usage, completion.timings
    return timings_of(
        counts.prompt_tokens,
        counts.cached_tokens,
        counts.completion_tokens,
        len(completion.choices),
        times.prefill,
        times.decode,
    )


def timings_of(
    n_all: int, n_cached: int, n_predicted: int, n_choices: int, prefill: float, decode: float
) -> dict[str, Any]:
    """The same from tokens (of the prompt, of those in the cache, of the answers) and seconds."""
    n_prompt = n_all - n_cached
    n_steps = max(0, n_predicted - n_choices)  # the first token is the prompt's
    return {
        "cache_n": n_cached,
        "prompt_n": n_prompt,
        "prompt_ms": prefill * 1e3,
        "prompt_per_token_ms": prefill * 1e3 / n_prompt if n_prompt else 0.0,
        "prompt_per_second": n_prompt / prefill if prefill > 0 else 0.0,
        "predicted_n": n_predicted,
        "predicted_ms": decode * 1e3,
        "predicted_per_token_ms": decode * 1e3 / n_steps if n_steps else 0.0,
        "predicted_per_second": n_steps / decode if n_steps and decode > 0 else 0.0,
    }


def _chat_entry(t: TokenLogprob) -> dict[str, Any]:
    return {"id": t.id, "token": t.token, "bytes": list(t.data), "logprob": finite(t.logprob)}


def chat_entries(logprobs: Logprobs) -> list[dict[str, Any]]:
    """Tokens in the chat shape, with their alternatives."""
    return [{**_chat_entry(t), "top_logprobs": [_chat_entry(x) for x in t.top]} for t in logprobs.content]


def chat_logprobs(logprobs: Logprobs | None) -> dict[str, Any] | None:
    """The `logprobs` of a chat choice."""
    return None if logprobs is None else {"content": chat_entries(logprobs), "refusal": None}


def legacy_logprobs(entries: list[TokenLogprob | None], first: tuple[str, int], shift: int) -> dict[str, Any]:
    """The `logprobs` of a text completion. None is the first token of an echoed prompt, which has no probability.

    first: its text and offset. shift: characters of text before the first of the other entries' own.
    """
    shape: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for t in entries:
        if t is None:
            row: tuple[Any, ...] = (first[0], None, None, first[1])
        else:
            top = {x.key: finite(x.logprob) for x in t.top}
            top.setdefault(t.key, finite(t.logprob))
            row = (t.key, finite(t.logprob), top, t.offset + shift)
        for name, value in zip(shape, row, strict=True):
            shape[name].append(value)
    return shape


def finish(reason: str | None) -> str | None:
    """An engine's finish reason in OpenAI's words."""
    return reason if reason in (None, "stop", "length") else "stop"
