"""How soon the program is there: it starts, finds the model, loads it and says its first word."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from limits import seconds

TRIES = 15


def first_byte(*argv: str) -> float:
    """Seconds from the start of `python -m edgellm` to its first byte: the median of several runs."""
    taken = []
    for _ in range(TRIES):
        begin = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "edgellm", *argv], stdout=subprocess.PIPE)
        with process:
            assert process.stdout is not None
            assert process.stdout.read(1)
            taken.append(time.perf_counter() - begin)
            process.stdout.read()
        assert process.returncode == 0
    median = sorted(taken)[TRIES // 2]
    print(f"\n{' '.join(argv)}: {median:.3f} s, {min(taken):.3f} to {max(taken):.3f}")
    return median


@pytest.mark.timing
def test_help() -> None:
    assert first_byte("--help") < seconds(0.2)


@pytest.mark.timing
def test_the_first_token_of_a_run(smollm2_path: Path) -> None:
    """With the file in the page cache, and no cache of its tiles."""
    assert first_byte("run", str(smollm2_path), "Hi", "-n", "1") < seconds(0.6)
