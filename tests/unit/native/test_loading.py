"""Loading the native library, and every way in which that can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgellm import _native
from edgellm.core.errors import NativeError


def test_a_missing_library(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_environment.setenv("EDGELLM_LIBRARY", str(tmp_path / "nothing.so"))
    assert not _native.available()
    assert "there is no native library at" in _native.why_not()
    assert "nothing.so" in _native.why_not()
    with pytest.raises(NativeError, match="make build"):
        _native.lib()


def test_a_file_that_is_no_library(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "text.so"
    path.write_text("not a library")
    clean_environment.setenv("EDGELLM_LIBRARY", str(path))
    assert "cannot be loaded" in _native.why_not()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="builds ELF libraries")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("int unrelated;", "cannot be loaded as edgellm's native library"),
        ("int el_abi_version(void) { return 99; }", "interface version 99, expected 6"),
        (
            "int el_abi_version(void) { return 6; } int el_struct_size(const char *n) { return 12; }",
            "struct el_error has 12 bytes, expected 512",
        ),
    ],
)
def test_another_library(clean_environment: pytest.MonkeyPatch, tmp_path: Path, code: str, message: str) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make a wrong library with")
    source, library = tmp_path / "wrong.c", tmp_path / "wrong.so"
    source.write_text(code)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    clean_environment.setenv("EDGELLM_LIBRARY", str(library))
    assert message in _native.why_not()


def test_the_package_imports_without_cffi_work(clean_environment: pytest.MonkeyPatch) -> None:
    """Importing does not load the library: that happens at the first use."""
    clean_environment.setenv("EDGELLM_LIBRARY", "/nonexistent/libedgellm.so")
    program = "import edgellm._native as n; print(n.available())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity mask here")
def test_default_threads_follow_the_affinity_mask() -> None:
    if not _native.available():
        pytest.skip(_native.why_not())
    program = """
import os
from edgellm import _native
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(_native.default_threads())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
    assert 1 <= _native.default_threads() <= len(os.sched_getaffinity(0))


def test_the_machine() -> None:
    if not _native.available():
        pytest.skip(_native.why_not())
    levels = _native.isa_levels()
    assert levels[0] == ("scalar", True, "")
    assert all(bool(why) != usable for _, usable, why in levels)
    assert _native.default_threads() >= 1
    assert _native.probe_bandwidth(1, 8 << 20) > 1e8
    assert _native.probe_int8(1) > 1e7
