"""What becomes of every argument of llama-cpp-python's `Llama`: the one table that code, tests and docs read.

"mapped" does what it does there. "ignored" is accepted and changes nothing about the answer; a value other than the
default is named in the log. "refused" would change the answer in a way that edgellm does not do: any value other than
the default raises ConfigError (constructor) or RequestError (calls) with the note.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from edgellm.core.errors import ConfigError, EdgeLLMError
from edgellm.core.record import dataclass

RANDOM_SEEDS = (None, -1, 0xFFFFFFFF)
"""Seeds that mean: another one each time."""

KV_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 8: "q8_0", 30: "bf16"}
"""GGML's number of a KV format -> its name here."""


POOLINGS = {None: None, -1: None, 1: "mean", 2: "cls", 3: "last"}
"""llama.cpp's number of a pooling -> its name here."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its default there, what becomes of it, and what a reader should know."""

    name: str
    default: Any
    fate: str
    note: str


def _table(*rows: tuple[str, Any, str, str]) -> dict[str, Argument]:
    return {row[0]: Argument(*row) for row in rows}


_NO_GPU = "edgellm computes on the CPU"
_IN_FILE = "the model file says it; a changed value needs a changed file"

CONSTRUCTOR = _table(
    ("n_gpu_layers", 0, "ignored", _NO_GPU),
    ("split_mode", 1, "ignored", _NO_GPU),
    ("main_gpu", 0, "ignored", _NO_GPU),
    ("tensor_split", None, "ignored", _NO_GPU),
    ("vocab_only", False, "refused", "open the vocabulary alone with edgellm.Tokenizer.from_gguf(path)"),
    ("use_mmap", True, "mapped", 'True: weights="auto"; False: weights="tiles", a copy in memory of its own'),
    ("use_mlock", False, "ignored", "weights are not locked in memory"),
    ("kv_overrides", None, "refused", _IN_FILE),
    ("seed", 0xFFFFFFFF, "mapped", "the seed of every call without one; -1 and 2^32-1: another one each call"),
    ("n_ctx", 512, "mapped", "0: what the model was trained for"),
    ("n_batch", 512, "mapped", "the smaller of n_batch and n_ubatch is what a step computes at most"),
    ("n_ubatch", 512, "mapped", "see n_batch"),
    ("n_threads", None, "mapped", "None: one per physical core this process may use"),
    ("n_threads_batch", None, "ignored", "prompt and answer use the same threads"),
    ("rope_scaling_type", -1, "refused", _IN_FILE),
    (
        "pooling_type",
        -1,
        "mapped",
        "-1: as the file says, else mean; 1 mean, 2 cls, 3 last; there is one vector a text",
    ),
    ("attention_type", -1, "refused", _IN_FILE),
    ("rope_freq_base", 0.0, "refused", _IN_FILE),
    ("rope_freq_scale", 0.0, "refused", _IN_FILE),
    ("yarn_ext_factor", -1.0, "refused", _IN_FILE),
    ("yarn_attn_factor", 1.0, "refused", _IN_FILE),
    ("yarn_beta_fast", 32.0, "refused", _IN_FILE),
    ("yarn_beta_slow", 1.0, "refused", _IN_FILE),
    ("yarn_orig_ctx", 0, "refused", _IN_FILE),
    ("logits_all", False, "mapped", "what `scores` holds; log-probabilities do not need it"),
    ("embedding", False, "mapped", "embeddings and text come from one object"),
    ("offload_kqv", True, "ignored", _NO_GPU),
    ("flash_attn", False, "ignored", "attention is always computed block by block"),
    ("op_offload", None, "ignored", _NO_GPU),
    ("swa_full", None, "ignored", "answers are the same with a full and a sliding cache"),
    ("no_perf", False, "ignored", "every completion of edgellm.LLM carries its timings"),
    ("last_n_tokens_size", 64, "mapped", "repeat_last_n of every call"),
    ("lora_base", None, "refused", "adapters are not supported: merge them into the model file"),
    ("lora_scale", 1.0, "refused", "adapters are not supported: merge them into the model file"),
    ("lora_path", None, "refused", "adapters are not supported: merge them into the model file"),
    ("numa", False, "ignored", "memory is placed by the system"),
    ("chat_format", None, "mapped", "None: the model file's own template; else one of the names below"),
    ("chat_handler", None, "mapped", "called with llama=this object and the arguments of create_chat_completion"),
    ("draft_model", None, "mapped", 'anything: guesses from the text itself, LLM(draft="prompt"); same answers'),
    ("tokenizer", None, "refused", "the model file's vocabulary is used"),
    ("type_k", None, "mapped", "GGML's number of f32, f16, bf16, q8_0 or q4_0, or edgellm's name of a format"),
    ("type_v", None, "mapped", "see type_k"),
    ("spm_infill", False, "mapped", "with suffix=: suffix first, then prefix"),
    ("verbose", True, "mapped", "whether ignored arguments are named in the log (logger edgellm.compat)"),
)

_STEP = "the engine samples by itself; use logit_bias, or LLM.logits and a loop of your own"

CALL = _table(
    ("tfs_z", 1.0, "refused", "tail-free sampling is gone from llama.cpp too; use min_p or typical_p"),
    ("stopping_criteria", None, "refused", "use stop=, or leave the stream when you have enough"),
    ("logits_processor", None, "refused", _STEP),
    ("grammar", None, "refused", "grammars are not supported in this release"),
    ("functions", None, "refused", "write them as tools="),
    ("function_call", None, "refused", "write it as tool_choice="),
    ("tool_choice", None, "mapped", '"auto" and "none"; a required or a named tool is refused'),
    ("penalize_nl", True, "ignored", "line ends are penalised like any token, as in llama.cpp"),
    ("reset", True, "mapped", "False: the tokens come behind those that eval() was given"),
    ("idx", None, "refused", "the next token follows the last one"),
)
"""Arguments of calls that are not simply passed on; all others do what they do there."""

FROM_PRETRAINED = _table(
    ("additional_files", None, "ignored", "all parts of a split model are fetched by themselves"),
    ("local_dir", None, "refused", "models are kept in one cache; set EDGELLM_CACHE to move it"),
    ("local_dir_use_symlinks", "auto", "ignored", "there is no local_dir"),
    ("cache_dir", None, "refused", "models are kept in one cache; set EDGELLM_CACHE to move it"),
)


def check(table: Mapping[str, Argument], given: Mapping[str, Any], error: type[EdgeLLMError]) -> list[str]:
    """Refuses what has to be refused; returns a sentence for each argument that changes nothing.

    given: arguments by name. Raises TypeError for a name that the table lacks, `error` for a refused value.
    """
    ignored = []
    for name, value in given.items():
        argument = table.get(name)
        if argument is None:
            near = difflib.get_close_matches(name, table, n=1)
            raise TypeError(f"unknown argument {name!r}" + (f"; did you mean {near[0]}?" if near else ""))
        if argument.fate == "mapped" or value is None or _same(value, argument.default):
            continue
        if argument.fate == "refused":
            raise error(f"{name}={value!r:.80} is not supported: {argument.note}")
        ignored.append(f"{name}={value!r:.80} changes nothing: {argument.note}")
    return ignored


def _same(value: object, default: object) -> bool:
    """Equal, or both empty; arrays count as values."""
    if default is None:
        return isinstance(value, list | tuple | dict) and not value
    return type(value) in (type(default), int, float, bool, str) and value == default


def pooling(value: int | None) -> str | None:
    """The name of a pooling. Raises ConfigError for a number that has none."""
    if value not in POOLINGS:
        raise ConfigError(f"pooling_type={value!r:.80} is not supported: {CONSTRUCTOR['pooling_type'].note}")
    return POOLINGS[value]


def kv_type(value: int | str | None) -> str:
    """The name of a KV format; what is no number of one is left to edgellm.LLM to refuse."""
    return "f16" if value is None else KV_TYPES.get(value, str(value)) if isinstance(value, int) else value
