"""An installed wheel: a venv without pip and without a compiler on PATH, and what is left when it is removed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from distribution.conftest import lacking

BIN = "Scripts" if os.name == "nt" else "bin"


def run(*command: object, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """A program with nothing but `variables` in its environment."""
    argv = [str(c) for c in command]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, env=variables, timeout=300, cwd="/")


def install(venv: Path, wheel: Path) -> None:
    """Install a wheel into a venv that has no pip; the dependencies are those of this interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    purelib = sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})
    # A folder on sys.path, whose own .pth files (this checkout's editable install) are not read.
    Path(purelib, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(venv / BIN / "python"), "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir()}


@pytest.fixture(scope="module")
def here(dist: Path, wheels: Any) -> Path:
    """The wheel for this machine."""
    libc = "musl" if "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "") else "linux"
    name = {"Linux": libc, "Darwin": "macos", "Windows": "windows"}.get(platform.system(), "")
    machine = {"AMD64": "x86_64", "ARM64": "arm64"}.get(platform.machine(), platform.machine())
    found = next((p for p in wheels.PLATFORMS if p.name == f"{name}-{machine}"), None)
    if found is None:
        lacking(f"there is no wheel for {platform.system()} on {platform.machine()}")
        raise AssertionError
    return next(dist.glob(f"*-{found.tags}.whl"))


def test_the_installed_wheel_answers_and_leaves_nothing(here: Path, tmp_path: Path, smollm2_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    before = files(venv)
    install(venv, here)
    answer = run(
        venv / BIN / "edgellm", "chat", smollm2_path, "--temp", "0", "-n", "24",
        stdin="Name three colors.\n", PATH=str(venv / BIN), HOME=str(tmp_path / "home"),
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "blue" in answer.stdout.lower()
    code = "import edgellm, sys; print(edgellm.__file__); print(*sorted({'gguf','rich','ziglang'} & set(sys.modules)))"
    where = run(venv / BIN / "python", "-c", code, PATH=str(venv / BIN), HOME=str(tmp_path / "home"))
    assert where.stdout.startswith(str(venv)), where.stdout + where.stderr
    pip = [sys.executable, "-m", "pip", "--python", str(venv / BIN / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "uninstall", "-q", "-y", "edgellm"], check=True, capture_output=True)
    assert {f for f in files(venv) - before if not f.endswith("dependencies.pth")} == set()
    home = tmp_path / "home"
    assert files(home) == set() if home.exists() else True


def test_without_a_library_the_reference_backend_answers_and_says_what_to_install(
    dist: Path, tmp_path: Path, golden_case: Any
) -> None:
    venv = tmp_path / "venv"
    install(venv, next(dist.glob("*-none-any.whl")))
    python = venv / BIN / "python"
    code = (
        "import sys, edgellm\n"
        "llm = edgellm.LLM(sys.argv[1], backend='reference', n_ctx=64)\n"
        "print(llm.generate([1, 2, 3], max_tokens=2, temperature=0).token_ids)\n"
        "llm.close()\n"
        "from edgellm._native import why_not\n"
        "print(why_not())\n"
    )
    done = run(python, "-c", code, golden_case("llama-dense").path, PATH=str(venv / BIN), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    tokens, reason = done.stdout.splitlines()
    assert len(tokens.split(",")) == 2
    assert "`pip install --force-reinstall edgellm`" in reason
    assert 'backend="reference"' in reason
