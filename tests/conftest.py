"""Fixtures for every test: the golden data, and the real models where they are.

Tests need only the repository and the package index. A test that asks for `smollm2_path` or `gemma3_path` is
skipped, with the reason, where the model is not here; it also gets the marker `real` (leave them out with
`pytest -m "not real"`).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

REPOSITORY = Path(__file__).resolve().parent.parent
GOLDEN = REPOSITORY / "tests" / "golden"
# No test depends on how fast the machine is.
settings.register_profile("edgellm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edgellm")

MODEL_FIXTURES = {"smollm2_path": "smollm2:135m", "gemma3_path": "gemma3:270m-base"}


def pytest_configure() -> None:
    # A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not MODEL_FIXTURES.keys().isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.real)


def pytest_report_header() -> list[str]:
    found = [f"{name}: {find_model(name) or 'not here'}" for name in MODEL_FIXTURES.values()]
    return ["models: " + ", ".join(found)]


@cache
def find_model(name: str) -> Path | None:
    """The file of a starter model: in EDGELLM_TEST_MODELS, else in the model cache; None if in neither."""
    from edgellm import hub
    from edgellm.core import env

    folder = env.TEST_MODELS.get()
    if folder is not None:
        file = next(entry.file for entry in hub.catalog() if entry.name == name)
        found = sorted(p for p in folder.rglob(file) if p.is_file())
        if found:
            return found[0]
    return next((model.path for model in hub.list_local() if model.name == name), None)


def _need(name: str) -> Path:
    path = find_model(name)
    if path is None:
        pytest.skip(f"{name} is not here: run `edgellm pull {name}`, or set EDGELLM_TEST_MODELS to its folder")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1."""
    return _need("smollm2:135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M (base) Q4_K_M."""
    return _need("gemma3:270m-base")


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """tests/golden: see the README there."""
    return GOLDEN


@pytest.fixture(scope="session")
def shared_golden_dir() -> Path:
    """A larger collection of golden data beside the checkout; skips where there is none."""
    path = REPOSITORY.parent / "shared" / "golden"
    if not path.is_dir():
        pytest.skip("no larger golden collection beside the checkout (../shared/golden)")
    return path


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One architecture case: the model as a file, the tokens, and the logits that they must give.

    logits: float32 [24, n_vocab], one row per token of `tokens`.
    logits_long: the last rows for `tokens_long`.
    """

    name: str
    path: Path
    tokens: list[int]
    tokens_long: list[int]
    logits: NDArray[np.float32]
    logits_long: NDArray[np.float32]
    description: dict[str, Any]


@pytest.fixture(scope="session")
def golden_case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GoldenCase]:
    """golden_case("llama-dense"): writes the case's GGUF once per session and loads its answers."""
    from golden.materialize import materialize

    @cache
    def load(name: str) -> GoldenCase:
        path = tmp_path_factory.mktemp("golden") / f"{name}.gguf"
        case = materialize(GOLDEN / "archs" / f"{name}.json", path)
        with np.load(GOLDEN / "archs" / f"{name}.npz") as arrays:
            logits, logits_long = arrays["logits"], arrays["logits_long"]
        return GoldenCase(name, path, case["tokens"], case["tokens_long"], logits, logits_long, case)

    return load


def nmse(golden: NDArray[Any], ours: NDArray[Any]) -> float:
    """sum((golden - ours)^2) / sum(golden^2), over all rows at once, in float64."""
    a, b = np.asarray(golden, np.float64), np.asarray(ours, np.float64)
    return float(((a - b) ** 2).sum() / (a**2).sum())


@pytest.fixture(scope="session", name="nmse")
def nmse_fixture() -> Callable[[NDArray[Any], NDArray[Any]], float]:
    """The distance that golden cases are judged by."""
    return nmse


def shared_library(folder: str, name: str) -> Path:
    """Path of a native library in build/<folder>/native."""
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    return REPOSITORY / "build" / folder / "native" / f"{name}{suffix}"


@pytest.fixture(scope="session")
def emulated_library() -> Path:
    """libedgellm_emulated: the AVX-512 and AVX-VNNI kernels on any AVX2 machine; skips where it could not be built."""
    path = shared_library("release", "libedgellm_emulated")
    if not path.exists():
        pytest.skip("libedgellm_emulated is not built: it needs an x86 machine and SIMDe (Debian: libsimde-dev)")
    return path


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No EDGELLM_* and HF_* variables; returns monkeypatch to set some."""
    for name in list(os.environ):
        if name.startswith(("EDGELLM_", "HF_")):
            monkeypatch.delenv(name)
    return monkeypatch
