"""The whole library on a processor without AVX: no instruction that it lacks is reached, and the bits are the same.

qemu's user emulation plays the processor. An instruction that it lacks ends the process with SIGILL.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrices import random_matrix
from serving.tiny import HEADS, N_VOCAB, metadata

from edgellm import _native
from edgellm.backends.lower import ACT_FORMATS
from edgellm.gguf.qtypes import QType
from edgellm.gguf.writer import Tensor, write

SCRIPT = Path(__file__).with_name("old_processor.py")


def model(path: Path, qtype: QType) -> Path:
    """A llama of one layer whose matrices are of one type, with a real vocabulary."""
    d = max(64, qtype.block)
    square = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes = {"token_embd.weight": (N_VOCAB, d), "output.weight": (N_VOCAB, d)}
    shapes |= {f"blk.0.{name}.weight": (d, d) for name in square}
    rng = np.random.default_rng(int(qtype))
    tensors = [Tensor(name, shape, qtype, random_matrix(rng, qtype, shape, 0.2)) for name, shape in shapes.items()]
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        tensors.append(Tensor(f"{name}.weight", (d,), QType.F32, rng.normal(1, 0.2, d).astype(np.float32)))
    sizes: dict[str, Any] = {"llama.embedding_length": d, "llama.feed_forward_length": d}
    return write(path, metadata(64, **sizes, **{"llama.attention.head_count": HEADS}), tensors)


def run(command: list[str], models: list[Path], repository: Path) -> dict[str, dict[str, Any]]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("EDGELLM_", "COV_", "COVERAGE_"))}
    environment |= {"PYTHONPATH": str(repository), "OPENBLAS_NUM_THREADS": "1"}
    command = [*command, sys.executable, str(SCRIPT), *map(str, models)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_whole_library_on_a_processor_without_avx(tmp_path: Path, repository: Path) -> None:
    qemu = shutil.which("qemu-x86_64")
    if qemu is None or platform.machine() != "x86_64":
        pytest.skip("needs an x86-64 build and qemu-x86_64 (Debian: apt install qemu-user)")
    if not _native.available():
        pytest.skip(_native.why_not())
    models = [model(tmp_path / f"{qtype}.gguf", qtype) for qtype in ACT_FORMATS]
    here = run([], models, repository)
    old = run([qemu, "-cpu", "Nehalem"], models, repository)
    assert {found["level"] for found in old.values()} == {"scalar"}
    for path, found in here.items():
        assert {**found, "level": "scalar"} == old[path]
