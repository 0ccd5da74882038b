"""What "auto" is where the native library cannot be loaded, and what it says."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from edgellm.backends.select import automatic, numba_why_not, select_backend
from edgellm.core.errors import ConfigError


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A path where no library is."""
    path = str(tmp_path / "libnothing.so")
    monkeypatch.setenv("EDGELLM_LIBRARY", path)
    return path


def test_numba_is_next_with_one_warning(no_library: str, caplog: pytest.LogCaptureFixture) -> None:
    if why := numba_why_not():
        pytest.skip(f"Numba cannot be imported: {why}")
    assert automatic()[0] == "numba"
    with caplog.at_level(logging.WARNING):
        assert select_backend("auto").name == "numba"
    assert len(caplog.records) == 1
    assert "computing with Numba" in caplog.text
    assert no_library in caplog.text


def test_without_numba_the_reference_answers_and_says_what_to_install(
    no_library: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with caplog.at_level(logging.WARNING):
        assert select_backend("auto").name == "reference"
    assert len(caplog.records) == 1
    assert 'pip install "edgellm[numba]"' in caplog.text
    with pytest.raises(ConfigError, match=r'backend="numba" needs Numba.*pip install "edgellm\[numba\]"'):
        select_backend("numba")


def test_numba_that_may_not_compile_is_not_used(no_library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if why := numba_why_not():
        pytest.skip(f"Numba cannot be imported: {why}")
    monkeypatch.setattr(sys.modules["numba"].config, "DISABLE_JIT", 1)
    assert automatic()[0] == "reference"
    with pytest.raises(ConfigError, match="NUMBA_DISABLE_JIT is set: unset it"):
        select_backend("numba")


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match="auto, native or numba or reference, found 'cuda'"):
        select_backend("cuda")
