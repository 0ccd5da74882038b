"""How byte-level BPE vocabularies cut text into words before merging: families as data.

A file names its pre-tokenizer in `tokenizer.ggml.pre`. A family is a list of patterns; each one cuts the
pieces that the one before left, matches and the text between them alike. Patterns are those of the models'
published tokenizer.json, in the syntax of the `tokenizers` library (Oniguruma).

A new value is one more word in a row of the table. One thing holds for every family in it, and the encoder
relies on that: a space between two ASCII letters always begins a new word.
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTION = "'(?:[stmd]|re|ve|ll)"
_ANY_CASE = "'(?i:[stmd]|re|ve|ll)"

_GPT2 = _CONTRACTION + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Digits first, each alone, then _GPT2 on what lies between: one pattern does both at half the cost.
_DIGITS_GPT2 = _CONTRACTION + r"| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_QWEN35 = (
    _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}" + r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Family:
    """One way to cut text.

    patterns:      applied in order, each to every piece the previous one made.
    ignore_merges: a word that is a token as a whole becomes that token, whatever the merges say.
    add_bos:       whether a BOS token is added when the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_ROWS: tuple[tuple[str, Family], ...] = (
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2", Family((_LLAMA3,), True, True)),
    ("glm4 glm5", Family((_LLAMA3,), True)),
    ("dbrx smaug-bpe chatglm-bpe", Family((_LLAMA3,))),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        Family((_QWEN2,)),
    ),
    ("qwen35", Family((_QWEN35,))),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4",
        Family((_GPT2,)),
    ),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        Family((_DIGITS_GPT2,)),
    ),
    ("falcon", Family((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))),
    ("deepseek-coder", Family((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"))),
    ("default", Family((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
)

FAMILIES: dict[str, Family] = {name: family for names, family in _ROWS for name in names.split()}
"""`tokenizer.ggml.pre` -> family."""
