"""The libraries of other processors and systems, run: under qemu (AArch64), under Wine (Windows), and musl's as it is.

Bits are those of this machine: kernel_check prints the digest of a sample that test_neon.py pins, the C example the
tokens that Python chooses.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from distribution.conftest import EVERY, SAMPLE_DIGEST, TinyPlan, lacking, program

STEP_CHECKS = ("pool", "environment", "pages", "parts", "status and edits", "hidden", "messages")
"""Parts of step_check that take seconds in emulation, where the others take minutes: what depends on the system."""


def check(*command: object, cwd: Path, **variables: str) -> str:
    env = {**os.environ, **variables}
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, errors="replace", cwd=cwd, env=env, timeout=500
    )
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def arm(cross: Callable[..., Path]) -> tuple[list[object], Path]:
    qemu = program("qemu-aarch64", package="qemu-user")
    return [qemu, "-cpu", "max"], cross("musl-aarch64", "edgellm_tests") / "tests"


@pytest.fixture(scope="module")
def windows(cross: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[list[object], Path]:
    wine = program("wine64", "/usr/lib/wine/wine64", "wine", package="wine64")
    os.environ.update(
        WINEPREFIX=str(tmp_path_factory.mktemp("wine")), WINEDEBUG="-all", WINEDLLOVERRIDES="mscoree,mshtml="
    )
    return [wine], cross("windows-x86_64", "edgellm_tests") / "tests"


def digests(output: str) -> dict[str, str]:
    return dict(re.findall(r"^digest (\S+) (\w+)\s*$", output, re.MULTILINE))


@pytest.mark.slow
def test_kernels_and_steps_with_musl(cross: Callable[..., Path]) -> None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        lacking("this machine runs no programs for Linux on x86-64")
    folder = cross("musl-x86_64", "kernel_check", "step_check") / "tests"
    best = re.findall(r"^(\S+) available", check(folder / "kernel_check", "--list", cwd=folder), re.MULTILINE)[-1]
    output = check(folder / "kernel_check", "--digest", "--level", best, *EVERY, cwd=folder)
    assert digests(output) == {best: SAMPLE_DIGEST}
    for part in STEP_CHECKS:
        assert check(folder / "step_check", part, cwd=folder).endswith("ok\n")


@pytest.mark.slow
def test_kernels_on_windows(windows: tuple[list[object], Path]) -> None:
    before, folder = windows
    listed = check(*before, folder / "kernel_check.exe", "--list", cwd=folder)
    best = re.findall(r"^(\S+) available", listed, re.MULTILINE)[-1]
    output = check(*before, folder / "kernel_check.exe", "--digest", "--level", best, *EVERY, cwd=folder)
    assert digests(output) == {best: SAMPLE_DIGEST}


@pytest.mark.slow
def test_steps_on_windows(windows: tuple[list[object], Path]) -> None:
    before, folder = windows
    assert "machines" in check(*before, folder / "cpu_check.exe", cwd=folder)
    for part in STEP_CHECKS:
        assert check(*before, folder / "step_check.exe", part, cwd=folder).split()[-1] == "ok"


@pytest.mark.slow
def test_steps_on_aarch64(arm: tuple[list[object], Path]) -> None:
    before, folder = arm
    check(*before, folder / "cpu_check", cwd=folder)
    for part in STEP_CHECKS:
        assert check(*before, folder / "step_check", part, cwd=folder).endswith("ok\n")


@pytest.mark.slow
def test_the_example_runs_on_the_aarch64_library(cross: Callable[..., Path], tiny_plan: TinyPlan) -> None:
    """The library of the wheel, loaded by Debian's glibc of that processor."""
    qemu = program("qemu-aarch64", package="qemu-user")
    root = Path("/usr/aarch64-linux-gnu")
    if not (root / "lib" / "libc.so.6").exists():
        lacking(f"there is no {root}/lib/libc.so.6 (Debian: apt install libc6-arm64-cross)")
    folder = cross("linux-aarch64", "generate") / "tests"
    command = [qemu, "-cpu", "max", "-L", root, folder / "generate", tiny_plan.path, *tiny_plan.arguments]
    assert check(*command, cwd=folder) == tiny_plan.answer


@pytest.mark.slow
def test_the_example_runs_on_the_windows_library(
    windows: tuple[list[object], Path], cross: Callable[..., Path], tiny_plan: TinyPlan
) -> None:
    before, _ = windows
    folder = cross("windows-x86_64", "generate")
    shutil.copy(folder / "native" / "libedgellm.dll", folder / "tests")  # Windows looks beside the program
    command = [*before, folder / "tests" / "generate.exe", tiny_plan.path, *tiny_plan.arguments]
    assert check(*command, cwd=folder).split() == tiny_plan.answer.split()
