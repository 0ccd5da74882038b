"""How byte-pair vocabularies cut text into words before merging: families as data.

A file names its pre-tokenizer in `tokenizer.ggml.pre`. A family is a list of patterns; each one cuts the
pieces that the one before left, matches and the text between them alike. Patterns are those of the models'
published tokenizer.json, in the syntax of the `tokenizers` library (Oniguruma); `split.py` also reads them with
Python's `re`, for text that is all ASCII, and says what that allows in a pattern.

A new value is one more word in a row of the table. What holds for every family, and what cutting long text
relies on: a space between two ASCII letters begins a new word (unless the family `joins`), and an ASCII letter
after a line break does. No pattern may need more than linear time: write what looks ahead over a run of any
length so that it matches at the run's start only.
"""

from __future__ import annotations

from edgellm.core.record import dataclass


def _ranges(text: str) -> str:
    """The inside of a character class from hexadecimal code points and ranges."""
    return "".join("-".join(chr(int(end, 16)) for end in part.split("-")) for part in text.split())


_CONTRACTION = "'(?:[stmd]|re|ve|ll)"
_ANY_CASE = "'(?i:[stmd]|re|ve|ll)"

_GPT2 = _CONTRACTION + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Digits first, each alone, then _GPT2 on what lies between: one pattern does both at half the cost.
_DIGITS_GPT2 = _CONTRACTION + r"| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_ANY_CASE}|{_WORD}|\p{{N}}{{1,3}}{_TAIL}"
_QWEN2 = rf"{_ANY_CASE}|{_WORD}|\p{{N}}{_TAIL}"
_QWEN35 = (
    _ANY_CASE + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}" + r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED = rf"{_ANY_CASE}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{_SPACES}"
_BAILING = rf"{_ANY_CASE}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    _ANY_CASE
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    + r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_MINICPM5 = rf"{_ANY_CASE}|{_WORD}|\p{{N}}+{_TAIL}"
_JAIS2 = (
    rf"{_ANY_CASE}|{_WORD}|\p{{N}}{{1,3}}"
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"|\s{1,2}(?!\S)|\s"
)

# Case-aware words: capitals, then small letters; letters without case count as both.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CASE_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}{_CASE_TAIL}"
_CASED = rf"{_LEAD}{_UPPER}*{_LOWER}+(?:{_ANY_CASE})?|{_LEAD}{_UPPER}+{_LOWER}*(?:{_ANY_CASE})?"
_GPT4O = rf"{_CASED}|\p{{N}}{{1,3}}{_CASE_TAIL}"
_YOUTU = rf"{_CASED}|\p{{N}}{_CASE_TAIL}"

# Digits in threes counted from the right: first the whole number, then what is left over at its front.
_NUMBER, _FRONT = r"(?<!\d)\d+\b", r"\A\d{1,2}(?=(?:\d{3})+\z)"

_PUNCTUATED = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = _PUNCTUATED + r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES
_SPARK = _PUNCTUATED + r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
_HAN_KANA = "[" + _ranges("4e00-9fa5 3040-309f 30a0-30ff") + "]+"
_CJK = "[" + _ranges("4e00-9fa5 800-4e00 ac00-d7ff") + "]+"

_CASED_LETTERS = _ranges("""
    41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376 377 37b-37d 37f 386 388-38a 38c 38e-3a1
    3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd 1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a
    1e00-1f15 1f18-1f1d 1f20-1f45 1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4
    1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 2119-211d 2124 2126 2128
    212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183 2184 2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2 2cf3 a640-a66d
    a680-a69b a722-a76f a771-a787 a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f
    104b0-104d3 104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943
""")
_ASCII_LIKE_SIGNS = _ranges("21-2f 3a-7e ff01-ff0f ff1a-ff5e 2018-201f 3000-3002")

_ASIAN = _ranges(
    "4e00-9fff 3400-4dbf f900-faff 3040-309f 30a0-30ff ff65-ff9f 2f00-2fdf e40-e7f e80-eff 1780-17ff 1000-109f "
    "aa60-aa7f a9e0-a9ff ac00-d7af 1100-11ff"
)
_YOUTU_RUNS = (
    f"[{_ranges('ac00-d7a3 3131-318e')}]+"
    f"|[{_ranges('ff01 2026 201c 201d 2018 2019 2014 ff1a ff1b ff0c 3001-303f fe30-fe4f')}]+"
    f"|[{_ranges('3105-312f')}]+|{_HAN_KANA}"
)
# `Family.plain` of cascades. Every sign is of one class there, and what a step takes no later one wants.
_PLAIN_FALCON = r"[\p{P}\p{S}]+| ?[A-Za-z]+| ?[0-9]{1,2}(?![0-9])|[0-9]{3}| (?=[0-9]{3})|\s+(?![^\s\p{P}\p{S}])|\s+"
_PLAIN_DEFAULT = r"[\p{P}$+<=>^~|]+| ?[A-Za-z]+|[0-9]{1,3}| ?`+|\s+(?![^\s\p{P}$+<=>^~|])|\s+"
_PLAIN_DEEPSEEK_LLM = r"[\r\n]|\s?[A-Za-z]+|\s?[\p{P}\p{S}]+|[0-9]+|(?:[^\S\r\n](?![A-Za-z\p{P}\p{S}]))+"
_PLAIN_DEEPSEEK_CODER = r"[\r\n]|\s?[A-Za-z]+|\s?[\p{P}]+|[0-9]|(?:[\p{S}]|[^\S\r\n](?![A-Za-z\p{P}]))+"
_BLOOM = " ?[^(\\s|.,!?" + _ranges("2026 3002 ff0c 3001 964 6d4 60c") + ")]+"


@dataclass(frozen=True, slots=True)
class Family:
    """One way to cut text.

    patterns:      applied in order, each to every piece the previous one made.
    ignore_merges: a word that is a token as a whole becomes that token, whatever the merges say.
    add_bos:       whether a BOS token is added when the file does not say.
    joins:         a word may hold spaces, so that long text may only be cut at line breaks.
    raw:           the vocabulary is written in UTF-8 with ▁ for a space, not in the byte alphabet.
    whole_breaks:  a run of line breaks that is a token becomes that token, whatever the merges say.
    plain:         one pattern with the effect of all on ASCII text without control characters other than white
                   space: several steps cost their time on every word.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    joins: bool = False
    raw: bool = False
    whole_breaks: bool = False
    plain: str = ""


_ROWS: tuple[tuple[str, Family], ...] = (
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", Family((_LLAMA3,), True, True)),
    ("glm4 glm5", Family((_LLAMA3,), True)),
    ("dbrx smaug-bpe chatglm-bpe", Family((_LLAMA3,))),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        Family((_QWEN2,)),
    ),
    ("qwen35", Family((_QWEN35,))),
    ("ufakzeka", Family((rf"{_WORD}|\p{{N}}{_TAIL}",))),
    ("laguna", Family((r"[^\n]+|\n+", _QWEN2))),
    ("minicpm5", Family((r"\p{N}{1,3}", _MINICPM5), True)),
    ("seed-coder", Family((_SEED,))),
    ("bailingmoe bailingmoe2 llada-moe", Family((_BAILING,))),
    ("exaone-moe", Family((_EXAONE_MOE,), joins=True)),
    ("jais-2", Family((_JAIS2,))),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4 modern-bert jina-es "
        "jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
        Family((_GPT2,)),
    ),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        Family((_DIGITS_GPT2,)),
    ),
    ("falcon", Family((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"), plain=_PLAIN_FALCON)),
    (
        "deepseek-llm",
        Family(
            (
                r"[\r\n]",
                rf"\s?[{_CASED_LETTERS}]+",
                rf"\s?[{_ASCII_LIKE_SIGNS}]+",
                r"(?<!\s)\s+\z",
                _CJK,
                r"\p{N}+",
            ),
            plain=_PLAIN_DEEPSEEK_LLM,
        ),
    ),
    ("deepseek-coder", Family((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"), plain=_PLAIN_DEEPSEEK_CODER)),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", Family((r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3))),
    ("spark2_5", Family((r"\p{N}{1,3}", _HAN_KANA, _SPARK, r"\p{N}"))),
    ("afmoe", Family((r"\p{N}+", r"\A\p{N}{1,2}(?=(?:\p{N}{3})+\z)", r"\p{N}{3}", f"[{_ASIAN}]+", _DEEPSEEK3))),
    ("tekken", Family((_TEKKEN,), True, True)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", Family((_GPT4O,))),
    ("granite-embed-multi-97m", Family((_GPT4O,), True)),
    ("tiny_aya cohere2moe", Family((_NUMBER, _FRONT, _GPT4O))),
    ("youtu", Family((_YOUTU_RUNS, _YOUTU), True)),
    (
        "chameleon",
        Family(
            (
                r"<sentinel:[0-9]+>",
                r"IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`\{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
    ("bloom poro-chat gpt3-finnish", Family((_BLOOM,))),
    ("viking", Family((_BLOOM, r"\p{N}"))),
    ("gemma4 granite-embed-multi-311m", Family((r"[^\n]+|\n+",), False, True, joins=True, raw=True, whole_breaks=True)),
    ("sarvam-moe", Family((r"[^\n]+|\n+",), joins=True, raw=True)),
    ("default", Family((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"), plain=_PLAIN_DEFAULT)),
)

FAMILIES: dict[str, Family] = {name: family for names, family in _ROWS for name in names.split()}
"""`tokenizer.ggml.pre` -> family."""
