"""Runs the native test programs (native/tests/*.c): optimised, and under the sanitizers.

`make test` builds them into build/; where they are not built, each is skipped with the reason.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from native.conftest import REPOSITORY, program_path

BUILDS = {
    "release": "",
    "asan": "address and undefined-behaviour sanitizers",
    "tsan": "thread sanitizer",
}
PROGRAMS = sorted(p.stem for p in (REPOSITORY / "native" / "tests").glob("*.c"))
LEFT_OUT = {
    ("kernel_check", "release"): "tests/kernels runs it",
    ("kernel_check", "tsan"): "it has one thread: the thread sanitizer has nothing to watch",
    **{("replay", build): "it needs a trace: tests/distribution/test_neon.py runs it" for build in BUILDS},
}
RUNS = [(name, build) for build in BUILDS for name in PROGRAMS if (name, build) not in LEFT_OUT]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "build"), RUNS)
def test_program(build: str, name: str, finished: Callable[[Path], subprocess.CompletedProcess[str]]) -> None:
    program = program_path(build, name)
    if not program.exists():
        pytest.skip(f"{program.relative_to(REPOSITORY)} is not built ({BUILDS[build] or 'optimised'}): make test")
    done = finished(program)
    assert done.returncode == 0, f"{name} ({build}) ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
