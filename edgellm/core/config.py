"""Options of an engine and of a request: frozen, validated once, with the units and defaults in one place."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Collection, Mapping
from typing import Any, TypeGuard

from edgellm.core.errors import RequestError
from edgellm.core.record import dataclass, field

MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1024
MAX_BIAS = 1e30
"""Largest finite logit bias either way: a sum with any logit stays within float32."""

MAX_TOP_LOGPROBS = 100
"""Most alternatives whose log-probabilities a request may ask for, a token."""

BREAKERS = ("\n", ":", '"', "*")

DEFAULTS: dict[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": BREAKERS,
    "min_tokens": 0,
}
"""What an unset field means when the model's file says nothing (llama.cpp's defaults)."""

GGUF_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
    "general.sampling.mirostat": "mirostat",
    "general.sampling.mirostat_tau": "mirostat_tau",
    "general.sampling.mirostat_eta": "mirostat_eta",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
}
"""The model author's own defaults, by metadata key."""

ALIASES = {
    "temp": "temperature",
    "typical": "typical_p",
    "typ_p": "typical_p",
    "top_nsigma": "top_n_sigma",
    "dynatemp_exp": "dynatemp_exponent",
    "mirostat_mode": "mirostat",
    "mirostat_ent": "mirostat_tau",
    "mirostat_lr": "mirostat_eta",
    "repetition_penalty": "repeat_penalty",
    "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "repeat_last_n",
    "penalty_present": "presence_penalty",
    "penalty_freq": "frequency_penalty",
    "dry_sequence_breaker": "dry_sequence_breakers",
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "n_probs": "logprobs",
}
"""Other spellings that keyword arguments may have, and the name each stands for."""


@dataclass(frozen=True, slots=True)
class ResolvedParams:
    """SamplingParams with every choice made; fields mean the same."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str, ...]
    max_tokens: int | None
    min_tokens: int
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    logit_bias: Mapping[int, float]
    allowed_token_ids: tuple[int, ...] | None
    logprobs: int | None
    prompt_logprobs: int | None
    context_shift: bool


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen. None = the model file's `general.sampling.*`, else the default in parentheses.

    Order: penalties, DRY and bias, top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature, one draw; equal
    logits rank by lower id. docs/sampling.md has every formula.

    temperature: 0 = greedy (0.8).  top_k: keep the k likeliest; 0 = all (40).
    top_p: keep the smallest set with probability >= top_p; 1 = all (0.95).
    min_p: drop tokens below min_p times the likeliest's probability; 0 = off (0.05).
    typical_p: keep the most typical set with probability > typical_p; 1 = all (1.0).
    top_n_sigma: drop logits further than this many standard deviations below the best; 0 or less = off (-1.0).
    xtc_probability: how often XTC drops all but the least likely of the tokens that have at least xtc_threshold; 0 =
    never (0.0, 0.1).  dynatemp_range, dynatemp_exponent: temperature +- range by entropy; 0 = off (0.0, 1.0).
    mirostat: 1 or 2 in place of all but penalties, bias and temperature; 0 = off (0).  mirostat_tau: the surprise
    aimed at, in bits (5.0).  mirostat_eta: learning rate (0.1).
    repeat_penalty: divides positive and multiplies negative logits of recent tokens; 1 = off (1.0).
    repeat_last_n: how many recent tokens the penalties look at; 0 = none, -1 = the whole context (64).
    presence_penalty, frequency_penalty: subtracted once, or once per occurrence (0.0).
    dry_multiplier, dry_base, dry_allowed_length: a token that would continue a repetition of n tokens loses
    multiplier * base^(n - allowed_length) where n >= allowed_length; multiplier 0 = off (0.0, 1.75, 2).
    dry_penalty_last_n: as repeat_last_n (64).  dry_sequence_breakers: no repetition reaches across one (\\n : " *).
    seed: 64-bit; None draws one, which the result reports.
    max_tokens: None = until end of turn or context.  min_tokens: before so many, nothing ends the answer (0).
    stop: strings that end the text and are cut off.  stop_token_ids: tokens that end it.
    ignore_eos: the model's own ending tokens are never chosen.
    logit_bias: token id -> added to its logit; -inf bans it.  allowed_token_ids: no others are chosen.
    logprobs: report log-probabilities of the tokens chosen and of this many alternatives (True = 0).
    prompt_logprobs: the same for the prompt's tokens.
    context_shift: an answer that fills the context goes on up to max_tokens: the first 4 tokens and the later half of
        the others stay, and are computed again. Completion.notes says so.

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
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: tuple[str, ...] | None = None
    min_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    context_shift: bool = False

    def __post_init__(self) -> None:
        _set(self, "stop", _strings("stop", () if self.stop is None else self.stop))
        if self.dry_sequence_breakers is not None:
            _set(self, "dry_sequence_breakers", _strings("dry_sequence_breakers", self.dry_sequence_breakers))
        _set(self, "logit_bias", _biases(self.logit_bias))
        _set(self, "stop_token_ids", _ids("stop_token_ids", () if self.stop_token_ids is None else self.stop_token_ids))
        if self.allowed_token_ids is not None:
            _set(self, "allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids))
            if not self.allowed_token_ids:
                raise RequestError("allowed_token_ids is empty: name at least one token, or leave it out")
        for name, low, high in _NUMBERS:
            _check_number(self, name, low, high)
        for name in ("logprobs", "prompt_logprobs"):
            if isinstance(getattr(self, name), bool):
                _set(self, name, 0 if getattr(self, name) else None)
        for name, least, most in _INTEGERS:
            _check_int(self, name, least, most)
        for name in ("ignore_eos", "context_shift"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be True or False, found {getattr(self, name)!r:.80}")
        if self.context_shift and self.max_tokens is None:
            raise RequestError("context_shift needs max_tokens: an answer would have no end")
        if self.context_shift and self.prompt_logprobs is not None:
            raise RequestError("context_shift and prompt_logprobs do not go together: leave one of them out")
        if self.max_tokens is not None and (self.min_tokens or 0) > self.max_tokens:
            raise RequestError(f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}")

    def resolved(self, model_defaults: Mapping[str, Any]) -> ResolvedParams:
        """Fill the open fields: the caller's value, else the model's, else ours."""
        values: dict[str, Any] = {name: getattr(self, name) for name in ResolvedParams.__match_args__}
        for name, default in DEFAULTS.items():
            if values[name] is None:
                values[name] = model_defaults.get(name, default)
        return ResolvedParams(**values)

    @staticmethod
    def from_kwargs(params: SamplingParams | None, kwargs: Mapping[str, Any]) -> SamplingParams:
        """Build from either `params` or keyword arguments; both together or an unknown name is a TypeError.

        Keyword arguments may have the spellings of ALIASES; n_predict=-1 is no limit; top_logprobs (with logprobs=True)
        is the number that `logprobs` takes.
        """
        if params is not None:
            if kwargs:
                raise TypeError(f"pass either params or keyword arguments, not both (found {sorted(kwargs)})")
            if not isinstance(params, SamplingParams):
                raise TypeError(f"params must be a SamplingParams, found {type(params).__name__}")
            return params
        given = dict(kwargs)
        if given.get("n_predict") == -1:
            del given["n_predict"]
        for alias in ALIASES.keys() & given.keys():
            name = ALIASES[alias]
            if name in given:
                raise TypeError(f"{alias} and {name} are the same option: pass one")
            given[name] = given.pop(alias)
        if given.get("top_logprobs") is not None:
            if given.get("logprobs") is not True:
                raise RequestError("top_logprobs needs logprobs=True")
            given["logprobs"] = given["top_logprobs"]
        given.pop("top_logprobs", None)
        known = set(SamplingParams.__match_args__)
        unknown = sorted(set(given) - known)
        if unknown:
            raise TypeError(f"unknown sampling option {unknown[0]!r}; known: {', '.join(sorted(known))}")
        return SamplingParams(**given)


_NUMBERS = (
    ("temperature", 0.0, 1e6),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("typical_p", 0.0, 1.0),
    ("top_n_sigma", -1e6, 1e6),
    ("xtc_probability", 0.0, 1.0),
    ("xtc_threshold", 0.0, 1.0),
    ("dynatemp_range", 0.0, 1e6),
    ("dynatemp_exponent", 0.0, 1e6),
    ("mirostat_tau", 0.0, 1e6),
    ("mirostat_eta", 0.0, 1e6),
    ("repeat_penalty", 1e-6, 1e6),
    ("presence_penalty", -1e6, 1e6),
    ("frequency_penalty", -1e6, 1e6),
    ("dry_multiplier", 0.0, 1e6),
    ("dry_base", 0.0, 1e6),
)
_INTEGERS = (
    ("top_k", 0, 2**31 - 1),
    ("mirostat", 0, 2),
    ("repeat_last_n", -1, 2**31 - 1),
    ("dry_allowed_length", 0, 2**31 - 1),
    ("dry_penalty_last_n", -1, 2**31 - 1),
    ("seed", -(2**63), 2**64 - 1),
    ("max_tokens", 0, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("logprobs", 0, MAX_TOP_LOGPROBS),
    ("prompt_logprobs", 0, MAX_TOP_LOGPROBS),
)


def _is_real(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def as_integer(value: Any) -> int | None:
    """A whole number of any library's type as Python's; None for anything else, truth values included."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


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
    integer = as_integer(value)
    if integer is None or not low <= integer <= high:
        raise RequestError(f"{name} must be an integer from {low} to {high}, found {value!r:.80}")
    _set(params, name, integer)


def _strings(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, list | tuple):
        raise RequestError(f"{name} must be a string or a list of strings, found {type(value).__name__}")
    if len(value) > MAX_STOP_STRINGS:
        raise RequestError(f"{name} has {len(value)} strings, at most {MAX_STOP_STRINGS} are allowed")
    for s in value:
        if not isinstance(s, str) or not 0 < len(s) <= MAX_STOP_CHARS:
            raise RequestError(f"{name} must hold strings of 1 to {MAX_STOP_CHARS} characters, found {s!r:.80}")
    return tuple(value)


def _ids(name: str, value: object) -> tuple[int, ...]:
    """Token ids, ascending and each once."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        raise RequestError(f"{name} must be a list of token ids, found {type(value).__name__}")
    ids = set()
    for token in value:
        integer = as_integer(token)
        if integer is None or not 0 <= integer < 2**31:
            raise RequestError(f"{name} must hold token ids, found {token!r:.80}")
        ids.add(integer)
    return tuple(sorted(ids))


def _biases(logit_bias: object) -> dict[int, float]:
    """A checked copy."""
    if logit_bias is None:
        return {}
    if not isinstance(logit_bias, Mapping):
        raise RequestError(f"logit_bias must map token ids to numbers, found {type(logit_bias).__name__}")
    checked = {}
    for token, bias in logit_bias.items():
        integer = as_integer(token)
        if integer is None or integer < 0:
            raise RequestError(f"logit_bias keys must be token ids, found {token!r:.80}")
        if not _is_real(bias) or not (-MAX_BIAS <= bias <= MAX_BIAS or bias == -math.inf):
            raise RequestError(
                f"logit_bias[{token}] must be a number from {-MAX_BIAS:g} to {MAX_BIAS:g} or -inf, found {bias!r:.80}"
            )
        checked[integer] = float(bias)
    return checked
