"""The sampling options as data: one table for the parsers, for `/set parameter` and for the documentation.

A row whose field SamplingParams does not have is left out, so the table may name options before they exist.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from edgellm.core.config import ALIASES, DEFAULTS, SamplingParams
from edgellm.core.errors import ConfigError, RequestError

MAX_IDS = 1 << 20
"""Token ids that one option may list."""


class Option(NamedTuple):
    """A field of SamplingParams on the command line.

    field: its name there. flags: as llama.cpp spells them where it has the option.
    parse: from one argument to a value; raises ValueError. metavar: None for a switch.
    names: what else `/set parameter` calls it. many: may be given several times, and values are collected.
    unset: a value that means "not set".
    """

    field: str
    flags: tuple[str, ...]
    parse: Callable[[str], Any]
    metavar: str | None
    help: str
    names: tuple[str, ...] = ()
    many: bool = False
    unset: object = None

    @property
    def words(self) -> tuple[str, ...]:
        """Every name that `/set parameter` takes for it, the field's own first."""
        spelt = (flag[2:].replace("-", "_") for flag in self.flags if flag.startswith("--"))
        return tuple(dict.fromkeys((self.field, *spelt, *self.names)))

    @property
    def described(self) -> str:
        """The help with the default of a model that says nothing."""
        default = DEFAULTS.get(self.field)
        return f"{self.help} ({default:g})" if isinstance(default, int | float) else self.help


def _ids(text: str) -> list[int]:
    """Token ids separated by commas."""
    found = [int(part) for part in text.split(",") if part.strip()]
    if not found or len(found) > MAX_IDS:
        raise ValueError
    return found


def _bias(text: str) -> tuple[int, float]:
    """ID+BIAS or ID-BIAS; "ID-inf" and "IDfalse" ban the token."""
    if text.endswith("false"):
        return int(text.removesuffix("false").rstrip("+-:= ")), float("-inf")
    at = max(text.find("+"), text.find("-"))
    if at < 1:
        raise ValueError
    return int(text[:at]), float(text[at:])


def _breaker(text: str) -> str:
    """Text in which \\n and \\t are what they are in most languages."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _switch(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError


_ALL = (
    Option("max_tokens", ("-n", "--predict", "--n-predict"), int, "N", "most tokens (-1: until done)",
           ("num_predict",), unset=-1),
    Option("temperature", ("--temp", "--temperature"), float, "T", "temperature; 0 = greedy"),
    Option("top_k", ("--top-k",), int, "K", "keep the K likeliest; 0 = all"),
    Option("top_p", ("--top-p",), float, "P", "keep the likeliest set of probability P"),
    Option("min_p", ("--min-p",), float, "P", "drop tokens below P times the likeliest"),
    Option("typical_p", ("--typical", "--typical-p"), float, "P", "locally typical sampling; 1 = off"),
    Option("top_n_sigma", ("--top-n-sigma", "--top-nsigma"), float, "N",
           "drop tokens more than N deviations below the likeliest; -1 = off"),
    Option("xtc_probability", ("--xtc-probability",), float, "P", "chance of leaving out the top choices; 0 = off"),
    Option("xtc_threshold", ("--xtc-threshold",), float, "P", "what a top choice is: at least this probability"),
    Option("repeat_penalty", ("--repeat-penalty",), float, "X", "penalise recent tokens; 1 = off"),
    Option("repeat_last_n", ("--repeat-last-n",), int, "N", "how many recent tokens count; -1 = all"),
    Option("presence_penalty", ("--presence-penalty",), float, "X", "subtracted from tokens seen"),
    Option("frequency_penalty", ("--frequency-penalty",), float, "X", "subtracted for each occurrence"),
    Option("dry_multiplier", ("--dry-multiplier",), float, "X", "DRY: penalise repeated sequences; 0 = off"),
    Option("dry_base", ("--dry-base",), float, "X", "DRY: growth of the penalty with the length"),
    Option("dry_allowed_length", ("--dry-allowed-length",), int, "N", "DRY: lengths up to N are free"),
    Option("dry_penalty_last_n", ("--dry-penalty-last-n",), int, "N", "DRY: how many recent tokens count; -1 = all"),
    Option("dry_sequence_breakers", ("--dry-sequence-breaker",), _breaker, "TEXT",
           "DRY: sequences do not run past this text (repeatable; none: there is no such text)", many=True),
    Option("dynatemp_range", ("--dynatemp-range",), float, "X", "temperature varies by X either way; 0 = off"),
    Option("dynatemp_exponent", ("--dynatemp-exp",), float, "X", "exponent of the varying temperature"),
    Option("mirostat", ("--mirostat",), int, "N", "Mirostat version: 0 = off, 1 or 2"),
    Option("mirostat_eta", ("--mirostat-lr",), float, "X", "Mirostat: learning rate"),
    Option("mirostat_tau", ("--mirostat-ent",), float, "X", "Mirostat: target entropy"),
    Option("seed", ("-s", "--seed"), int, "N", "seed; -1 = another one each time (-1)", unset=-1),
    Option("stop", ("--stop", "-r", "--reverse-prompt"), str, "TEXT", "end the answer here (repeatable)", many=True),
    Option("stop_token_ids", ("--stop-token-ids",), _ids, "ID,..", "end the answer at these tokens"),
    Option("allowed_token_ids", ("--allowed-token-ids",), _ids, "ID,..", "choose among these tokens only"),
    Option("min_tokens", ("--min-tokens",), int, "N", "do not end the answer before N tokens"),
    Option("ignore_eos", ("--ignore-eos",), _switch, None, "go on when the model ends its turn"),
    Option("context_shift", ("--context-shift",), _switch, None,
           "an answer that fills the context goes on without its older half; needs -n"),
    Option("logit_bias", ("-l", "--logit-bias"), _bias, "ID(+/-)BIAS",
           "change a token's logit: 15043+1; 15043-inf bans it (repeatable)", many=True),
    Option("logprobs", ("--logprobs",), int, "N", "with --json: log-probabilities of the answer's tokens and N others"),
    Option("prompt_logprobs", ("--prompt-logprobs",), int, "N", "with --json: the same for the prompt's tokens"),
)  # fmt: skip

_FIELDS = frozenset(SamplingParams.__match_args__)
OPTIONS = tuple(option for option in _ALL if option.field in _FIELDS)
BY_WORD = {word: option for option in OPTIONS for word in option.words}
BY_WORD.update({word: BY_WORD[field] for word, field in ALIASES.items() if field in BY_WORD})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen; unset = the model's own default, else llama.cpp's."""
    group = parser.add_argument_group("sampling options")
    for o in OPTIONS:
        if o.metavar is None:
            group.add_argument(*o.flags, dest=o.field, action="store_true", default=None, help=o.described)
        else:
            action = "append" if o.many else "store"
            group.add_argument(
                *o.flags, dest=o.field, type=_named(o.parse), action=action, metavar=o.metavar, help=o.described
            )


def from_arguments(args: argparse.Namespace) -> SamplingParams:
    """The sampling options that were given. Raises ConfigError, before a model is opened."""
    return build({o.field: v for o in OPTIONS if (v := getattr(args, o.field, None)) is not None})


def build(given: Mapping[str, Any]) -> SamplingParams:
    """SamplingParams of these fields; ConfigError for a value that cannot be honoured."""
    values = dict(given)
    for o in OPTIONS:
        if o.field in values and o.unset is not None and values[o.field] == o.unset:
            del values[o.field]
    if values.get("dry_sequence_breakers") == ["none"]:
        values["dry_sequence_breakers"] = ()
    try:
        if isinstance(values.get("logit_bias"), list):
            values["logit_bias"] = {int(token): float(bias) for token, bias in values["logit_bias"]}
        return SamplingParams(**values)
    except (RequestError, TypeError, ValueError) as e:
        raise ConfigError(str(e)) from None


def given_fields(params: SamplingParams) -> dict[str, Any]:
    """The fields that are set, as plain data that `build` takes again."""
    plain = SamplingParams()
    chosen = {name: getattr(params, name) for name in SamplingParams.__match_args__}
    return {n: _plain(v) for n, v in chosen.items() if v != getattr(plain, n)}


def read_words(option: Option, words: list[str]) -> Any:
    """The value that these words mean for `/set parameter`. Raises ConfigError."""
    try:
        if option.many:
            return [option.parse(word) for word in words]
        (word,) = words
        return option.parse(word)
    except ValueError:
        expected = option.metavar or "true or false"
        raise ConfigError(f"{option.field} takes {expected}, found {' '.join(words)!r:.80}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [[k, v if math.isfinite(v) else str(v)] for k, v in value.items()]
    return list(value) if isinstance(value, tuple | frozenset) else value


def _named(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse` under the name that argparse puts into "invalid NAME value"."""
    if parse in (int, float, str):
        return parse

    def read(text: str) -> Any:
        return parse(text)

    read.__name__ = {"_ids": "list of ids", "_bias": "ID(+/-)BIAS"}.get(parse.__name__, "option")
    return read
