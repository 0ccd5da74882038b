"""The neon levels on an Arm processor that qemu-user plays: every kernel, the choice of a level, and whole steps.

No Python runs on Arm: what the native engine is given here is recorded and replayed there, and must give the same
logits.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from distribution.conftest import EVERY, SAMPLE_DIGEST, program
from distribution.trace import recording
from kernels.test_kernels import check, digests, levels, names_in_source, passed, program_of

from edgellm import _native
from edgellm.engine import selftest

QEMU = "qemu-aarch64"
NEON = ("neon", "neon_dotprod", "neon_i8mm")
PROCESSORS = {"cortex-a53": 1, "cortex-a76": 2, "max": 3}
"""A processor without dot product instructions, one with them, one with everything: how many of NEON it runs."""


@pytest.fixture(scope="module")
def arm(cross: Callable[..., Path]) -> Path:
    """The folder of the programs."""
    program(QEMU, package="qemu-user")
    return cross("musl-aarch64", "edgellm_tests") / "tests"


def on(processor: str, *command: str | Path, expect: int = 0) -> str:
    return check(QEMU, "-cpu", processor, *command, expect=expect)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("level", NEON)
def test_a_neon_level_equals_scalar_and_x86(arm: Path, level: str, repository: Path) -> None:
    output = on("max", arm / "kernel_check", "--digest", "--level", level, *EVERY)
    assert passed(output) == {level: names_in_source(repository)[0]}
    assert digests(output) == {level: SAMPLE_DIGEST}


@pytest.mark.slow
def test_the_sample_has_the_same_digest_here(repository: Path) -> None:
    """At the best level; that the others equal it in all cases is for tests/kernels."""
    best = [name for name, usable, _ in _native.isa_levels() if usable][-1]
    output = check(program_of(repository, "kernel_check"), "--digest", "--level", best, *EVERY)
    assert digests(output) == {best: SAMPLE_DIGEST}


@pytest.mark.slow
@pytest.mark.parametrize(("processor", "n"), PROCESSORS.items())
def test_levels_are_those_of_the_processor(arm: Path, processor: str, n: int) -> None:
    available = levels(arm / "kernel_check", QEMU, "-cpu", processor)
    assert available == {"scalar": True} | {level: i < n for i, level in enumerate(NEON)}
    listing = on(processor, arm / "kernel_check", "--list")
    assert ("no dot product" in listing) == (n < 2)
    assert ("no int8 matrix" in listing) == (n == 2)
    assert "machines" in on(processor, arm / "cpu_check")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The steps of the self-test's model, whose matrices have every weight type."""
    if not _native.available():
        pytest.skip("no native library here to record: make build")
    folder = tmp_path_factory.mktemp("trace")
    with recording(folder / "selftest.trace"):
        selftest.logits(selftest.write_model(folder / "selftest.gguf"), "native")
    return folder / "selftest.trace"


def replayed(output: str) -> tuple[str, str]:
    """(level, hash of the logits)"""
    found = re.fullmatch(r"(\w+) ([0-9a-f]{64})\n", output)
    assert found, output
    return found[1], found[2]


@pytest.mark.slow
def test_a_replay_gives_the_logits_of_python(trace: Path, repository: Path) -> None:
    replay = program_of(repository, "replay")
    for level in [name for name, usable, _ in _native.isa_levels() if usable]:
        assert replayed(check(replay, trace, level)) == (level, selftest.LOGITS_SHA256)


@pytest.mark.slow
def test_steps_give_the_same_logits_on_arm(arm: Path, trace: Path) -> None:
    for level in ("scalar", *NEON):
        assert replayed(on("max", arm / "replay", trace, level)) == (level, selftest.LOGITS_SHA256)
    for processor, n in PROCESSORS.items():
        assert replayed(on(processor, arm / "replay", trace)) == (NEON[n - 1], selftest.LOGITS_SHA256)
    assert "no dot product" in on("cortex-a53", arm / "replay", trace, "neon_i8mm", expect=1)


@pytest.mark.slow
def test_a_changed_weight_changes_the_replay(trace: Path, tmp_path: Path, repository: Path) -> None:
    data = bytearray(trace.read_bytes())
    data[len(data) // 3] ^= 0x10
    (tmp_path / "changed").write_bytes(data)
    replay = program_of(repository, "replay")
    done = subprocess.run([replay, tmp_path / "changed"], capture_output=True, text=True)
    assert done.returncode or replayed(done.stdout)[1] != selftest.LOGITS_SHA256
    assert "no trace" in check(replay, Path(__file__), expect=2)
    (tmp_path / "cut").write_bytes(trace.read_bytes()[:-4096])
    assert "ends too early" in check(replay, tmp_path / "cut", expect=2)
