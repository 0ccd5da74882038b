"""Damaged files through all that edgellm does with one, in a child process: always the same ones.

The long run is `python scripts/fuzz.py files --count 200000`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import shared_library
from fuzz.image import Image
from fuzz.seeds import SEEDS, without_text

import edgellm
from edgellm import _native
from edgellm.backends.native import NativeBackend  # noqa: F401 - the seeds are for this backend

COUNT = 1500

needs_library = pytest.mark.skipif(not _native.available(), reason=_native.why_not())


@needs_library
@pytest.mark.parametrize("name", SEEDS)
@pytest.mark.parametrize("change", [Image.copy, without_text], ids=["with text", "without"])
def test_the_seeds_are_sound(tmp_path: Path, name: str, change: Callable[[Image], Image]) -> None:
    """Else what is made from them would all be refused at the same place."""
    path = tmp_path / "seed.gguf"
    path.write_bytes(change(SEEDS[name]()).to_bytes())
    with edgellm.LLM(path, n_threads=1, max_seqs=1, n_ctx=32) as llm:
        assert llm.logits([1, 2, 3]).shape == (3, llm.info.n_vocab)
        if change is Image.copy:
            assert llm.detokenize(llm.tokenize("hello", add_special=False)) == "hello"


@needs_library
def test_damaged_files(repository: Path, tmp_path: Path) -> None:
    """Under the sanitizers where that library is built, and belongs to the package that is tested."""
    asan = shared_library("asan", "libedgellm")
    usable = asan.exists() and asan.stat().st_mtime >= _native.library_path().stat().st_mtime
    library = ["--library", str(asan)] if usable else ["--release"]
    command = [sys.executable, str(repository / "scripts" / "fuzz.py"), "files", "--count", str(COUNT), "--seed", "1"]
    done = subprocess.run([*command, *library, "--out", str(tmp_path)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-6000:]
    summary = json.loads(done.stdout)
    assert summary["findings"] == 0
    assert sum(summary["ends"].values()) == COUNT
    # Neither all refused at the door nor all let in.
    assert summary["ends"]["done"] > COUNT // 10
    assert summary["ends"]["load: GGUFError"] > COUNT // 4
    assert summary["ends"]["load: UnsupportedModel"] > COUNT // 20
