"""Every kernel of every ISA level equals scalar bit for bit: runs native/tests/kernel_check.c in four ways.

As built for this machine; with the AVX-512 and AVX-VNNI kernels compiled to AVX2 instructions
(`kernel_check_emulated`), so that they are tested everywhere; with level avx_vnni in AVX-512's encoding
(`kernel_check_evex`), for processors that have only that one; and under qemu-user as an old processor without AVX,
where nothing but scalar may run.
`make test` builds the programs in build/release; alone, this file builds what is missing or old in build/kernels.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SUFFIX = ".exe" if os.name == "nt" else ""
DIGEST = "774dd047995fa95d"
"""Hash of every kernel's results on the tables' data. It belongs to numerics_version 1 and to the tables of
native/tests/kernel_check: where those change, run `kernel_check --digest`; where only kernels change, it must not."""


def build(repository: Path, target: str, folder: Path) -> Path:
    """Bring `target` up to date in a CMake build folder and return the program."""
    cmake = shutil.which("cmake")
    if cmake is None or shutil.which(os.environ.get("CC", "cc").split()[0]) is None:
        pytest.skip(f"{target} is not built and there is no cmake or C compiler here: make test")
    if not (folder / "CMakeCache.txt").exists():
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DEDGELLM_BUILD_TESTS=ON", "-DEDGELLM_BUILD_EMULATED=AUTO"]
        run([cmake, "-S", str(repository), "-B", str(folder), *options])
    if target.endswith("_emulated") and "EDGELLM_HAVE_SIMDE" not in (folder / "CMakeCache.txt").read_text():
        run([cmake, str(folder)])  # SIMDe may have come since
        if "EDGELLM_HAVE_SIMDE" not in (folder / "CMakeCache.txt").read_text():
            reason = "no SIMDe headers, so the AVX-512 kernels are not emulated (Debian: apt install libsimde-dev)"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
    run([cmake, "--build", str(folder), "--target", target, "--parallel"])
    return folder / "tests" / (target + SUFFIX)


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def program_of(repository: Path, target: str) -> Path:
    ready = repository / "build" / "release"
    use_ready = (ready / "tests" / (target + SUFFIX)).exists()
    return build(repository, target, ready if use_ready else repository / "build" / "kernels")


@pytest.fixture(scope="module")
def native(repository: Path) -> Path:
    return program_of(repository, "kernel_check")


@pytest.fixture(scope="module")
def emulated(repository: Path) -> Path:
    return program_of(repository, "kernel_check_emulated")


def check(*command: str | Path, expect: int = 0) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=500)
    assert done.returncode == expect, f"ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def passed(output: str) -> dict[str, set[str]]:
    """Level -> names of the tests that passed."""
    found: dict[str, set[str]] = {}
    for level, name in re.findall(r"^ok +(\S+) +(\S+)", output, re.MULTILINE):
        found.setdefault(level, set()).add(name)
    return found


def digests(output: str) -> dict[str, str]:
    return dict(re.findall(r"^digest (\S+) (\w+)$", output, re.MULTILINE))


def levels(program: str | Path, *before: str | Path) -> dict[str, bool]:
    """Level -> whether it is available."""
    lines = check(*before, program, "--list").splitlines()
    return {line.split()[0]: line.split()[1] == "available" for line in lines}


def names_in_source(repository: Path) -> tuple[set[str], set[str]]:
    """Names of the tests that compare levels, and of those that check what scalar computes."""
    source = (repository / "native" / "tests" / "kernel_check.c").read_text(encoding="utf-8")
    names = set(re.findall(r'^    \{"([\w.]+)", ', source, re.MULTILINE))
    meaning = {n for n in names if n.endswith(".meaning")}
    return names - meaning, meaning


@pytest.mark.slow
def test_scalar_computes_what_it_should(native: Path, repository: Path) -> None:
    assert passed(check(native, "--level", "scalar")) == {"scalar": names_in_source(repository)[1]}


@pytest.mark.slow
def test_every_level_of_this_machine_equals_scalar(native: Path, repository: Path) -> None:
    available = [level for level, yes in levels(native).items() if yes]
    output = check(native, "--digest")
    assert available[0] == "scalar"
    assert passed(output) == dict.fromkeys(available, names_in_source(repository)[0])
    assert digests(output) == dict.fromkeys(available, DIGEST)


@pytest.mark.slow
def test_levels_equal_scalar_in_emulation(emulated: Path, repository: Path) -> None:
    available = levels(emulated)
    if not available["avx2"]:
        pytest.skip("the emulated kernels are made of AVX2 instructions, which this machine lacks")
    assert all(available.values())
    names = names_in_source(repository)[0]
    output = check(emulated, "--digest", "--level", "avx512_vnni")
    assert passed(output) == {"avx512_vnni": names}
    assert digests(output) == {"avx512_vnni": DIGEST}
    for level in ("avx_vnni", "avx512"):  # the rest of their kernels is that of avx2 and of avx512_vnni
        output = check(emulated, "--level", level, "--kernel", "mm.")
        assert passed(output) == {level: {n for n in names if n.startswith("mm.")}}


@pytest.mark.slow
def test_avx_vnni_equals_scalar_in_the_other_encoding(native: Path, repository: Path) -> None:
    if platform.machine() != "x86_64" or not levels(native)["avx512_vnni"]:
        pytest.skip("needs a processor with AVX-512 VNNI; where there is none the emulation tests the same body")
    output = check(program_of(repository, "kernel_check_evex"), "--level", "avx_vnni", "--kernel", "mm.")
    assert passed(output) == {"avx_vnni": {n for n in names_in_source(repository)[0] if n.startswith("mm.")}}


@pytest.mark.slow
def test_a_processor_without_avx_runs_scalar_only(native: Path) -> None:
    qemu = shutil.which("qemu-x86_64")
    if qemu is None or platform.machine() != "x86_64":
        pytest.skip("needs an x86-64 build and qemu-x86_64 (Debian: apt install qemu-user)")
    old = [qemu, "-cpu", "Nehalem"]
    available = levels(native, *old)
    assert [level for level, yes in available.items() if yes] == ["scalar"]
    assert "the processor has no AVX" in check(*old, native, "--list")
    part = ["--digest", "--level", "scalar", "--kernel", "attn_fold"]
    assert digests(check(*old, native, *part)) == digests(check(native, *part))
    for name in ("mm.Q3_K.meaning", "mm.Q5_K.meaning", "mm.BF16.meaning", "attention.meaning", "quantize.A16.meaning"):
        assert passed(check(*old, native, "--level", "scalar", "--kernel", name)) == {"scalar": {name}}


def test_usage_errors_end_with_2(native: Path) -> None:
    assert "no ISA level of that name" in check(native, "--level", "avx9", expect=2)
    assert "no kernel's name contains nonsense" in check(native, "--kernel", "nonsense", expect=2)
    assert "cannot use the argument --nonsense" in check(native, "--nonsense", expect=2)
