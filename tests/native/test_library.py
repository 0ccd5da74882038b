"""The shared library as a file: what it needs, what it shows, and which instructions are where."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ALLOWED = re.compile(r"^(libc|libm|libpthread|ld-linux[\w-]*)\.so(\.\d+)*$|^libc\.musl-\w+\.so\.\d+$")


def tool(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} (binutils) is not here")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def library(repository: Path) -> Path:
    if not sys.platform.startswith("linux"):
        pytest.skip("reads an ELF file")
    path = repository / "edgellm" / "_native" / "libedgellm.so"
    if not path.exists():
        pytest.skip("the native library is not built: make build")
    return path


def test_it_needs_only_libc_libm_and_pthread(library: Path) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", tool("readelf", "-d", str(library)))
    assert [n for n in needed if not ALLOWED.match(n)] == []


def test_it_shows_exactly_the_functions_of_the_header(library: Path, repository: Path) -> None:
    header = (repository / "native" / "include" / "edgellm.h").read_text()
    between = header.split("/* cdef begin */")[1].split("/* cdef end */")[0]
    between = re.sub(r"/\*.*?\*/", "", between, flags=re.DOTALL)
    declared = set(re.findall(r"\b(el_\w+)\s*\([^;{}]*\);", between))
    shown = {line.split()[-1] for line in tool("nm", "-D", "--defined-only", str(library)).splitlines()}
    assert len(declared) > 5
    assert shown == declared


def test_it_has_no_executable_stack_and_no_writable_code(library: Path) -> None:
    stack = re.search(r"GNU_STACK.*\n?.*", tool("readelf", "-lW", str(library)))
    assert stack is not None
    assert "RWE" not in stack.group()


def test_only_level_files_use_wide_registers(repository: Path) -> None:
    """Everything but kernels/isa/<level>*.c must run on the platform's baseline."""
    folder = repository / "build" / "release" / "native" / "CMakeFiles" / "el_base.dir"
    objects = sorted(folder.rglob("*.o"))
    if not objects:
        pytest.skip("the native library is not built here: make build")
    wide = [
        str(path.relative_to(folder))
        for path in objects
        if re.search(r"%[yz]mm\d|\tv(?!er[rw]\b)[a-z]\w+ +.*%xmm", tool("objdump", "-d", str(path)))
    ]
    assert wide == []
