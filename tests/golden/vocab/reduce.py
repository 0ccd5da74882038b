"""Writes `<name>.vocab.json.xz`: of a vocabulary, what the strings of `<name>.json` can touch.

    python tests/golden/vocab/reduce.py NAME FILE.gguf

Kept are all special tokens and byte tokens, every token whose text occurs in one of the strings as the vocabulary
spells it, and every merge whose result does. Whatever way the strings are cut into words, merging looks at
nothing else: each text that can come up is a piece of a string. So these files give the same ids as the whole
vocabularies, and wrong cutting gives wrong ids with both.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
LONGEST = 64  # bytes; longer texts that are not special are dropped, and their absence noticed

META_SPACE = "▁"
NORMAL = 1


def byte_letters() -> dict[int, str]:
    """The byte alphabet: translation table from Latin-1 characters."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return {b: chr(b) if b in printable else chr(next(others)) for b in range(256)}


def parts_of(strings: Iterable[str], byte_level: bool) -> set[str]:
    """Every piece of at most LONGEST characters of the strings as a vocabulary spells them."""
    found: set[str] = set()
    for text in strings:
        text = f" {text}"  # some vocabularies put a space before
        if byte_level:
            text = text.encode("utf-8").decode("latin-1").translate(byte_letters())
        else:
            text = text.replace(" ", META_SPACE)
        for size in range(1, LONGEST + 1):
            found.update(text[i : i + size] for i in range(len(text) - size + 1))
    return found


def reduce(metadata: dict[str, Any], strings: list[str]) -> dict[str, Any]:
    """The reduced vocabulary: `keys`, `n`, `tokens` and `types` by id, `scores` by id if any, `merges` in order."""
    prefix = "tokenizer.ggml."
    arrays = {"tokens", "token_type", "scores", "merges"}
    keys = {k: v for k, v in metadata.items() if k.startswith(prefix) and k.removeprefix(prefix) not in arrays}
    keys |= {k: metadata[k] for k in ("general.architecture", "general.name") if k in metadata}
    keys = {k: v for k, v in keys.items() if isinstance(v, (str, int, float, bool))}
    tokens = metadata[prefix + "tokens"].to_list()
    types = np.asarray(metadata[prefix + "token_type"])
    merges = metadata[prefix + "merges"].to_list() if prefix + "merges" in metadata else []
    parts = parts_of(strings, keys[prefix + "model"] == "gpt2")
    kept = [i for i, text in enumerate(tokens) if types[i] != NORMAL or text in parts]
    out = {
        "keys": keys,
        "n": len(tokens),
        "tokens": {i: tokens[i] for i in kept},
        "types": {i: int(types[i]) for i in kept if types[i] != NORMAL},
        "merges": [m for m in merges if "".join(m.split(" ", 1)) in parts],
    }
    if prefix + "scores" in metadata:
        scores = np.asarray(metadata[prefix + "scores"])
        out["scores"] = {i: float(scores[i]) for i in kept}
    return out


def restore(path: Path) -> dict[str, Any]:
    """Metadata of a reduced vocabulary; tokens that were dropped have a text that no text contains."""
    data = json.loads(lzma.decompress(path.read_bytes()))
    n = data["n"]
    tokens = [f"\U0010fffe{i}" for i in range(n)]
    types, scores = np.full(n, NORMAL, np.int32), np.full(n, -1e9, np.float32)
    for i, text in data["tokens"].items():
        tokens[int(i)] = text
    for i, kind in data["types"].items():
        types[int(i)] = kind
    for i, score in data.get("scores", {}).items():
        scores[int(i)] = score
    arrays: dict[str, Any] = {"tokens": tokens, "token_type": types, "merges": data["merges"]}
    if "scores" in data:
        arrays["scores"] = scores
    return data["keys"] | {f"tokenizer.ggml.{k}": v for k, v in arrays.items()}


def main(name: str, file: str) -> None:
    """Reduces one file."""
    from edgellm.gguf import GGUFFile

    strings = json.loads((HERE / f"{name}.json").read_bytes())["strings"]
    with GGUFFile(file) as gguf:
        data = reduce(dict(gguf.metadata), strings)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    (HERE / f"{name}.vocab.json.xz").write_bytes(lzma.compress(text.encode("utf-8"), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main(*sys.argv[1:])
