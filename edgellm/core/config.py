"""Options of an engine and of a request: frozen, validated once, with the units and defaults in one place."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeGuard

from edgellm.core.errors import RequestError

MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1024
MAX_BIAS = 1e30
"""Largest finite logit bias either way: a sum with any logit stays within float32."""

DEFAULTS: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""What an unset field means when the model's file says nothing (llama.cpp's defaults)."""

GGUF_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
}
"""The model author's own defaults, by metadata key."""


@dataclass(frozen=True, slots=True)
class ResolvedParams:
    """SamplingParams with every choice made; fields mean the same."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    max_tokens: int | None
    stop: tuple[str, ...]
    logit_bias: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. None = the model file's `general.sampling.*`, else the default in parentheses.

    Order: penalties and bias, top-k, top-p, min-p, temperature, one draw. Equal logits rank by lower id.

    temperature: 0 = greedy (0.8).  top_k: keep the k likeliest; 0 = all (40).
    top_p: keep the smallest set with probability >= top_p; 1 = all (0.95).
    min_p: drop tokens below min_p times the likeliest's probability; 0 = off (0.05).
    repeat_penalty: divides positive and multiplies negative logits of recent tokens; 1 = off (1.0).
    repeat_last_n: how many recent tokens the penalties look at; 0 = none, -1 = the whole context (64).
    presence_penalty, frequency_penalty: subtracted once, or once per occurrence (0.0).
    seed: 64-bit; None draws one, which the result reports.
    max_tokens: None = until end of turn or context.  stop: strings that end the text and are cut off.
    logit_bias: token id -> added to its logit; -inf bans it.

    Raises RequestError for a value of the wrong kind or out of range. NumPy's numbers count as numbers.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _set(self, "stop", _stop_strings(self.stop))
        _set(self, "logit_bias", _biases(self.logit_bias))
        _check_number(self, "temperature", 0.0, 1e6)
        _check_int(self, "top_k", 0, 2**31 - 1)
        _check_number(self, "top_p", 0.0, 1.0)
        _check_number(self, "min_p", 0.0, 1.0)
        _check_number(self, "repeat_penalty", 1e-6, 1e6)
        _check_int(self, "repeat_last_n", -1, 2**31 - 1)
        _check_number(self, "presence_penalty", -1e6, 1e6)
        _check_number(self, "frequency_penalty", -1e6, 1e6)
        _check_int(self, "seed", -(2**63), 2**64 - 1)
        _check_int(self, "max_tokens", 0, 2**31 - 1)

    def resolved(self, model_defaults: Mapping[str, Any]) -> ResolvedParams:
        """Fill the open fields: the caller's value, else the model's, else ours."""
        chosen = {
            name: model_defaults.get(name, default) if getattr(self, name) is None else getattr(self, name)
            for name, default in DEFAULTS.items()
        }
        return ResolvedParams(max_tokens=self.max_tokens, stop=self.stop, logit_bias=self.logit_bias, **chosen)

    @staticmethod
    def from_kwargs(params: SamplingParams | None, kwargs: Mapping[str, Any]) -> SamplingParams:
        """Build from either `params` or keyword arguments; both together or an unknown name is a TypeError."""
        if params is not None:
            if kwargs:
                raise TypeError(f"pass either params or keyword arguments, not both (found {sorted(kwargs)})")
            if not isinstance(params, SamplingParams):
                raise TypeError(f"params must be a SamplingParams, found {type(params).__name__}")
            return params
        given = dict(kwargs)
        if "temp" in given:
            if "temperature" in given:
                raise TypeError("temp and temperature are the same option: pass one")
            given["temperature"] = given.pop("temp")
        known = {f.name for f in fields(SamplingParams)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise TypeError(f"unknown sampling option {unknown[0]!r}; known: {', '.join(sorted(known))}")
        return SamplingParams(**given)


def _is_real(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_integral(value: object) -> TypeGuard[int]:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _set(params: SamplingParams, name: str, value: object) -> None:
    object.__setattr__(params, name, value)


def _check_number(params: SamplingParams, name: str, low: float, high: float) -> None:
    value = getattr(params, name)
    if value is None:
        return
    if not _is_real(value) or not low <= value <= high:
        raise RequestError(f"{name} must be a number from {low:g} to {high:g}, found {value!r:.80}")
    _set(params, name, float(value))


def _check_int(params: SamplingParams, name: str, low: int, high: int) -> None:
    value = getattr(params, name)
    if value is None:
        return
    if not _is_integral(value) or not low <= value <= high:
        raise RequestError(f"{name} must be an integer from {low} to {high}, found {value!r:.80}")
    _set(params, name, int(value))


def _stop_strings(stop: object) -> tuple[str, ...]:
    if stop is None:
        return ()
    if isinstance(stop, str):
        stop = (stop,)
    if not isinstance(stop, list | tuple):
        raise RequestError(f"stop must be a string or a list of strings, found {type(stop).__name__}")
    if len(stop) > MAX_STOP_STRINGS:
        raise RequestError(f"stop has {len(stop)} strings, at most {MAX_STOP_STRINGS} are allowed")
    for s in stop:
        if not isinstance(s, str) or not 0 < len(s) <= MAX_STOP_CHARS:
            raise RequestError(f"stop must hold strings of 1 to {MAX_STOP_CHARS} characters, found {s!r:.80}")
    return tuple(stop)


def _biases(logit_bias: object) -> dict[int, float]:
    """A checked copy."""
    if logit_bias is None:
        return {}
    if not isinstance(logit_bias, Mapping):
        raise RequestError(f"logit_bias must map token ids to numbers, found {type(logit_bias).__name__}")
    checked = {}
    for token, bias in logit_bias.items():
        if not _is_integral(token) or token < 0:
            raise RequestError(f"logit_bias keys must be token ids, found {token!r:.80}")
        if not _is_real(bias) or not (-MAX_BIAS <= bias <= MAX_BIAS or bias == -math.inf):
            raise RequestError(
                f"logit_bias[{token}] must be a number from {-MAX_BIAS:g} to {MAX_BIAS:g} or -inf, found {bias!r:.80}"
            )
        checked[int(token)] = float(bias)
    return checked
