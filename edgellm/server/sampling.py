"""The sampling fields of a request, in the spellings of OpenAI, llama.cpp and vLLM, as SamplingParams.

A field that is known but needs what this release lacks is refused by name (501); an unknown one is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from edgellm.core.config import DEFAULTS, SamplingParams
from edgellm.core.record import replace
from edgellm.server.errors import invalid, unsupported
from edgellm.server.fields import Body, kind_of

_HINTS = ("cache_prompt", "parallel_tool_calls", "store")
"""Switches that change no answer: taken, and without effect."""

Tokenize = Callable[[str], list[int]]
"""A piece of text, without BOS, as token ids."""

MAX_CHOICES = 128
"""Largest `n`, as OpenAI's."""

_NUMBERS = {
    name: name
    for name in (
        "temperature top_p min_p typical_p top_n_sigma xtc_probability xtc_threshold dynatemp_range "
        "dynatemp_exponent repeat_penalty presence_penalty frequency_penalty dry_multiplier dry_base mirostat_tau "
        "mirostat_eta"
    ).split()
} | {"repetition_penalty": "repeat_penalty"}
_INTEGERS = {
    name: name for name in ("top_k repeat_last_n dry_allowed_length dry_penalty_last_n mirostat min_tokens").split()
}
_INERT = {
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "grammar": ("",),
    "json_schema": (),
    "response_format": ({"type": "text"},),
    "bad_words": ([],),
    "lora": ([],),
    "min_keep": (0,),
    "adaptive_target": (-1, -1.0),
    "samplers": ([],),
    "post_sampling_probs": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "reasoning_budget_tokens": (-1,),
    "thinking_budget_tokens": (-1,),
    "thinking_token_budget": (-1,),
    "reasoning_budget_message": ("",),
    "logits_processors": ([],),
    "t_max_predict_ms": (0, -1),
    "n_discard": (0,),
}
"""Fields that cannot be honoured, with the values that ask for nothing."""


def refuse_unsupported(body: Body) -> None:
    """ApiError (501) for the first field that asks for what this release does not do, 400 for a format unknown."""
    form = body.inner("response_format")
    if form is not None and form.text("type") not in _FORMATS:
        raise invalid(f"response_format.type must be one of {', '.join(_FORMATS)}, found {form.raw('type')!r:.60}",
                      "response_format.type")  # fmt: skip
    if form is not None and form.text("type") == "json_schema" and form.inner("json_schema") is None:
        raise invalid("response_format.json_schema is required with type json_schema", "response_format.json_schema")
    for name, neutral in _INERT.items():
        if name in body and body.raw(name) not in neutral:
            raise unsupported(name)


_FORMATS = ("text", "json_object", "json_schema", "regex", "ebnf", "grammar", "lark", "choice", "structural_tag")


def read(body: Body, tokenize: Tokenize, *, defaults: SamplingParams, max_tokens: int | None = None) -> SamplingParams:
    """The sampling parameters of a request.

    defaults: the server's own, for fields that the request leaves open. max_tokens: the limit where neither gives one.
    Raises ApiError for wrong types and fields that are not supported, RequestError for values out of range.
    """
    refuse_unsupported(body)
    for name in _HINTS:
        body.flag(name)
    given: dict[str, Any] = {}
    for name, field in _NUMBERS.items():
        value = body.number(name)
        if value is not None and (field == name or field not in given):
            given[field] = value
    for name, field in _INTEGERS.items():
        whole = body.integer(name)
        if whole is not None:
            given[field] = whole
    for name in ("top_k",):  # vLLM's "off"
        if given.get(name) == -1:
            given[name] = 0
    seed = body.integer("seed")
    if seed is not None and seed != -1:
        given["seed"] = seed
    limit = _limit(body)
    if limit is not None:
        given["max_tokens"] = None if limit == -1 else limit
    elif max_tokens is not None and defaults.max_tokens is None:
        given["max_tokens"] = max_tokens
    if body.raw("stop") not in (None, []):
        given["stop"] = _strings(body, "stop")
    if "dry_sequence_breakers" in body:
        given["dry_sequence_breakers"] = _strings(body, "dry_sequence_breakers")
    for name in ("stop_token_ids", "allowed_token_ids"):
        if (ids := body.array(name)) is not None:
            given[name] = ids
    if body.flag("ignore_eos"):
        given["ignore_eos"] = True
    if "logit_bias" in body:
        given["logit_bias"] = _biases(body, tokenize)
    params = SamplingParams(**given)
    return merge(params, given, defaults)


def merge(params: SamplingParams, given: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    """`params` with the fields that were not given taken from `defaults`."""
    empty = SamplingParams()
    inherited = {
        name: value
        for name in SamplingParams.__match_args__
        if name not in given and (value := getattr(defaults, name)) != getattr(empty, name)
    }
    return replace(params, **inherited) if inherited else params


def choices(body: Body, name: str = "n") -> int:
    """How many answers are wanted."""
    n = body.integer(name, 1)
    if n is None or not 1 <= n <= MAX_CHOICES:
        raise invalid(f"Field '{name}': must be from 1 to {MAX_CHOICES}, found {n}", name)
    best_of = body.integer("best_of")
    if best_of is not None and best_of != n:
        raise invalid(f"Field 'best_of': must equal n, which is {n}: answers are not ranked", "best_of")
    return n


def streaming(body: Body) -> tuple[bool, bool]:
    """Whether the answer is streamed, and whether a stream ends with its token counts."""
    stream = body.flag("stream")
    options = body.inner("stream_options")
    include = options is not None and options.flag("include_usage")
    if options is not None and not stream:
        raise invalid("Field 'stream_options': is only allowed with stream: true", "stream_options")
    return stream, include


def _limit(body: Body) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "n_predict"):
        limit = body.integer(name)
        if limit is not None:
            if limit < -1:
                raise invalid(f"Field '{name}': must be -1 (no limit) or more, found {limit}", name)
            return limit
    return None


def _strings(body: Body, name: str) -> list[str]:
    value = body.raw(name)
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise invalid(f"Field '{name}': expected a string or an array of strings, found {kind_of(value)}", name)
    return [s for s in strings if s] if name == "stop" else strings


def _biases(body: Body, tokenize: Tokenize) -> dict[int, float]:
    """OpenAI's {"id": bias}, and llama.cpp's [[id or text, bias or false], ...]."""
    value = body.raw("logit_bias")
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list) and all(isinstance(p, list) and len(p) == 2 for p in value):
        pairs = [(p[0], p[1]) for p in value]
    else:
        raise invalid("Field 'logit_bias': expected an object or an array of pairs", "logit_bias")
    biases: dict[int, float] = {}
    for token, bias in pairs:
        if bias is False:
            bias = -math.inf
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise invalid(f"Field 'logit_bias': a bias must be a number or false, found {kind_of(bias)}", "logit_bias")
        for token_id in _bias_tokens(token, tokenize):
            biases[token_id] = body.real("logit_bias", bias)
    return biases


def _bias_tokens(token: object, tokenize: Tokenize) -> list[int]:
    if isinstance(token, int) and not isinstance(token, bool):
        return [token]
    if isinstance(token, str):
        digits = token.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 12:
            return [int(token)]
        return tokenize(token)
    raise invalid(f"Field 'logit_bias': expected token ids or text, found {kind_of(token)}", "logit_bias")


def effective(params: SamplingParams, model_defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What the fields come to for a model, as plain JSON: for /props and the native route."""
    shown: dict[str, Any] = {}
    for name in DEFAULTS:
        value = getattr(params, name)
        shown[name] = model_defaults.get(name, DEFAULTS[name]) if value is None else value
    shown["dry_sequence_breakers"] = list(shown["dry_sequence_breakers"])
    shown["seed"] = params.seed
    shown["stop"] = list(params.stop)
    shown["max_tokens"] = -1 if params.max_tokens is None else params.max_tokens
    shown["n_predict"] = shown["max_tokens"]
    shown["ignore_eos"] = params.ignore_eos
    shown["logit_bias"] = [{"token": t, "bias": b if math.isfinite(b) else False} for t, b in params.logit_bias.items()]
    return shown
