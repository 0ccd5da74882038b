"""Runs the native test programs (native/tests/*.c): optimised, and under the sanitizers.

`make test` builds them into build/; where they are not built, each is skipped with the reason.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
BUILDS = {
    "release": "",
    "asan": "address and undefined-behaviour sanitizers",
    "tsan": "thread sanitizer",
}
PROGRAMS = sorted(p.stem for p in (REPOSITORY / "native" / "tests").glob("*.c"))


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(build: str, name: str) -> None:
    if (name, build) == ("kernel_check", "tsan"):
        pytest.skip("kernel_check has one thread: the thread sanitizer has nothing to watch")
    program = REPOSITORY / "build" / build / "tests" / (name + (".exe" if os.name == "nt" else ""))
    if not program.exists():
        pytest.skip(f"{program.relative_to(REPOSITORY)} is not built ({BUILDS[build] or 'optimised'}): make test")
    done = subprocess.run([str(program)], cwd=REPOSITORY, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{name} ({build}) ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
