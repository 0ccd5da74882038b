"""Memory while a model is opened: never the weights twice, and with a tile cache none of one's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgellm import _native
from edgellm.gguf.qtypes import QType
from edgellm.gguf.writer import Tensor, write

pytestmark = [
    pytest.mark.skipif(not _native.available(), reason="the native library is not here"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

D, F, VOCAB, LAYERS = 1024, 16384, 256, 2

CHILD = """
import sys
import edgellm
import edgellm.backends.native
import edgellm.engine.loader

def memory(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024

before = memory("VmRSS")
with edgellm.LLM(sys.argv[1], weights=sys.argv[2], n_ctx=64, n_threads=2) as llm:
    opened, anonymous = memory("VmHWM") - before, memory("RssAnon")
    llm.logits([1, 2, 3])
    print(opened, memory("VmHWM") - before, memory("RssAnon") - anonymous)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of 110 MB, two layers of Q8_0."""
    keys = {
        "general.architecture": "llama",
        "llama.context_length": 64,
        "llama.embedding_length": D,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": F,
        "llama.attention.head_count": 8,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    shapes = {"token_embd": (VOCAB, D), "output": (VOCAB, D)}
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.attn_{name}": (D, D) for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.ffn_gate": (F, D), f"blk.{i}.ffn_up": (F, D), f"blk.{i}.ffn_down": (D, F)}
    rng = np.random.default_rng(7)
    tensors = []
    for name, shape in shapes.items():
        blocks = rng.integers(0, 256, (shape[0] * shape[1] // 32, 34), dtype=np.uint8)
        blocks[:, :2] = np.frombuffer(np.float16(2e-4).tobytes(), np.uint8)
        tensors.append(Tensor(f"{name}.weight", shape, QType.Q8_0, blocks.reshape(-1)))
    norms = ["output_norm", *(f"blk.{i}.{n}_norm" for i in range(LAYERS) for n in ("attn", "ffn"))]
    tensors += [Tensor(f"{n}.weight", (D,), QType.F32, np.ones(D, np.float32).view(np.uint8)) for n in norms]
    path = tmp_path_factory.mktemp("memory") / "m.gguf"
    write(path, keys, tensors)
    return path


@pytest.mark.parametrize("weights", ["tiles", "cache", "mmap"])
def test_memory_stays_within_the_weights(model: Path, weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGELLM_CACHE", str(model.parent / "cache"))
    size = model.stat().st_size
    command = [sys.executable, "-c", CHILD, str(model), weights]
    for _ in range(2 if weights == "cache" else 1):  # written, then found
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        opened, in_all, anonymous = (int(n) for n in done.stdout.split())
        assert in_all <= 1.1 * size + (32 << 20)
        assert in_all > 0.9 * size, "the weights have been read, so they are in memory"
        assert anonymous < 16 << 20
    if weights != "tiles":
        assert opened < 32 << 20
