"""What the tests of this folder need and may lack. EDGELLM_NO_SKIP (continuous integration) makes a lack a failure."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

EVERY = ("--every", "12")
SAMPLE_DIGEST = "77a1cc0c122b92ff"
"""As DIGEST in tests/kernels/test_kernels.py, of the sample of the long tables that EVERY makes: emulation is slow."""

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def lacking(reason: str) -> None:
    """Skip the test for this reason, or fail it where nothing may be skipped."""
    if os.environ.get("EDGELLM_NO_SKIP"):
        pytest.fail(f"EDGELLM_NO_SKIP is set, and {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def wheels() -> Any:
    """scripts/wheels.py as a module."""
    sys.path.insert(0, str(REPOSITORY / "scripts"))
    try:
        return importlib.import_module("wheels")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="session")
def imports() -> Any:
    """scripts/wheels_imports.py as a module."""
    sys.path.insert(0, str(REPOSITORY / "scripts"))
    try:
        return importlib.import_module("wheels_imports")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="session")
def dist(wheels: Any) -> Path:
    """The folder of all wheels and the sdist, as `make wheels` leaves it."""
    if len(list(wheels.DIST.glob("*.whl"))) != len(wheels.PLATFORMS) + 1:
        lacking("the wheels of all platforms are not built: make wheels")
    return Path(wheels.DIST)


@pytest.fixture(scope="session")
def cross(wheels: Any) -> Callable[..., Path]:
    """cross(name, target...): builds targets for a platform and returns its build folder."""

    def build(name: str, *targets: str) -> Path:
        try:
            wheels.zig()
        except ImportError:
            lacking("clang for other platforms (the package ziglang) is not installed: make wheels")
        platform = next(p for p in wheels.PLATFORMS if p.name == name)
        wheels.compile_library(platform, targets, quick=True)
        return Path(wheels.folder_of(platform, quick=True))

    return build


def program(*names: str, package: str) -> str:
    """The first of these programs that is on PATH or at that path."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        lacking(f"there is no {names[0]} (Debian: apt install {package})")
    return str(found)


class TinyPlan(NamedTuple):
    """A plan file, arguments for the C example, and the line it must print: what Python chooses."""

    path: Path
    arguments: list[str]
    answer: str


def dump_plan(model: Path, target: Path, n_ctx: int) -> None:
    """Run native/examples/dump_plan.py."""
    command = [sys.executable, str(REPOSITORY / "native" / "examples" / "dump_plan.py"), str(model), str(target)]
    done = subprocess.run([*command, str(n_ctx)], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def chosen(model: Path, tokens: list[int], n: int, n_ctx: int) -> str:
    """The line that the C example must print."""
    import edgellm

    with edgellm.LLM(str(model), n_ctx=n_ctx, backend="native") as llm:
        ids = llm.generate(tokens, max_tokens=n, temperature=0).token_ids
    return " ".join(map(str, ids)) + "\n"


@pytest.fixture(scope="session")
def tiny_plan(tmp_path_factory: pytest.TempPathFactory, golden_case: Callable[[str], Any]) -> TinyPlan:
    case = golden_case("llama-dense")
    path = tmp_path_factory.mktemp("plan") / "tiny.plan"
    dump_plan(case.path, path, 128)
    tokens = case.tokens[:12]
    return TinyPlan(path, ["20", *map(str, tokens)], chosen(case.path, tokens, 20, 128))
