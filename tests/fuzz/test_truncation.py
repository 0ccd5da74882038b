"""A file that another program cuts short while a model is in use: an error, not the end of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.seeds import k_quants, llama

from edgellm.core.errors import GGUFError
from edgellm.gguf import GGUFFile

WHOLE = """
import sys
from pathlib import Path
import edgellm
from edgellm.engine import loader
path, moment = Path(sys.argv[1]), sys.argv[2]
size = path.stat().st_size

def cut():
    with open(path, "r+b") as f:
        f.truncate(4096)

def before_the_weights(*args, _real=loader.select_backend):
    cut()
    return _real(*args)

if moment == "loading":
    loader.select_backend = before_the_weights
try:
    with edgellm.LLM(path, weights="tiles", n_ctx=64, n_threads=2) as llm:
        print(llm.logits([1, 2, 3]).shape)
        cut()
        llm.logits([200, 201])
except edgellm.EdgeLLMError as e:
    print(f"{type(e).__name__}: {e}")
"""


def run(path: Path, moment: str) -> str:
    """What a child prints that has the file cut under it; fails if a signal ended it."""
    done = subprocess.run([sys.executable, "-c", WHOLE, str(path), moment], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"the child ended with {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the other systems' layers are not there yet")
@pytest.mark.parametrize("seed", [llama, k_quants])
@pytest.mark.parametrize("moment", ["loading", "running"])
def test_cut_short_with_tiles(tmp_path: Path, seed, moment: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(seed().to_bytes())
    out = run(path, moment)
    if moment == "running":
        assert out.startswith("(3, ")
    last = out.splitlines()[-1]
    assert last.startswith(("GGUFError: ", "NativeError: ", "EngineError: "))
    assert "cut short" in last or "cut it short" in last


def test_reading_says_that_the_file_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(llama().to_bytes())
    with GGUFFile(path) as file:
        name, info = next((n, t) for n, t in file.tensors.items() if t.offset > 8192)
        whole = file.read(name)
        assert whole.tobytes() == file.data(name).tobytes()
        assert file.read(name, 5, 7).tobytes() == whole[5:12].tobytes()
        with open(path, "r+b") as f:
            f.truncate(info.offset + info.n_bytes - 1)
        with pytest.raises(GGUFError, match="another program has cut it short"):
            file.read(name)
        assert file.read(name, 0, info.n_bytes - 1).tobytes() == whole[:-1].tobytes()
        with open(path, "r+b") as f:
            f.truncate(8192)
        with pytest.raises(GGUFError, match="another program has cut it short"):
            file.fingerprint()
    with pytest.raises(GGUFError, match="the file is closed"):
        file.read(name)
    with pytest.raises(GGUFError, match="the file is closed"):
        file.source(name)
