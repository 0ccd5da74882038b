"""Build the tiny GGUF of a golden architecture case, bit for bit, from its JSON description.

    python materialize.py archs/llama-dense.json out.gguf

A case is `<name>.json` (metadata, tensor shapes, `tokens`, `tokens_long`) with `<name>.npz`: `logits`,
float32 [24, n_vocab], teacher forced, one row per input token; `logits_long`, the last rows for the 96-token
input.
Weights are F32 and come from a hash of the tensor's name, so a case is kilobytes instead of megabytes.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFValueType, GGUFWriter


def uniform(name: str, n: int, salt: str) -> np.ndarray:
    """n float32 values in [-1, 1) with step 2**-11, a pure function of (salt, name)."""
    seed = int.from_bytes(hashlib.sha256(f"{salt}:{name}".encode()).digest()[:8], "little")
    with np.errstate(over="ignore"):
        x = (np.arange(n, dtype=np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return ((x >> np.uint64(52)).astype(np.int64) - 2048).astype(np.float32) / np.float32(2048)


def weights(name: str, shape: list[int], salt: str) -> np.ndarray:
    """The float32 tensor `name`, row-major `shape` (outermost first)."""
    u = uniform(name, int(np.prod(shape)), salt)
    if "norm" in name and name.endswith(("weight", "_norm")):
        v = 1.0 + 0.25 * u
    elif "rope_freqs" in name or "rope_factors" in name:
        v = 1.0 + 0.5 * (u + 1.0) / 2
    elif ".ssm_a" in name or name.endswith("ssm_a"):
        v = -(0.25 + 0.5 * (u + 1.0) / 2)
    else:
        v = u * 0.125
    return v.astype(np.float32).reshape(shape)


def materialize(case_json: str | Path, out: str | Path) -> dict:
    """Write the case's GGUF to `out`; returns the parsed case."""
    case = json.loads(Path(case_json).read_text())
    w = GGUFWriter(str(out), case["arch"])
    for key, (kind, value) in case["metadata"].items():
        if kind.startswith("arr:"):
            w.add_key_value(key, value, GGUFValueType.ARRAY, GGUFValueType[kind[4:]])
        else:
            w.add_key_value(key, value, GGUFValueType[kind])
    if case["metadata"].get("tokenizer.ggml.model", ["", ""])[1] != "no_vocab":
        w.add_token_list([f"tok_{i}" for i in range(case["n_vocab"])])
        w.add_token_scores([0.0] * case["n_vocab"])
    for name, shape in case["tensors"].items():
        w.add_tensor(name, weights(name, shape, case["salt"]))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return case


if __name__ == "__main__":
    materialize(sys.argv[1], sys.argv[2])
