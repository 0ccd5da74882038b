"""The wheels of every platform as files: tags, size, contents, what their libraries need. `make wheels` builds them."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import struct
import sys
import tarfile
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from distribution.conftest import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))
from wheels import GLIBC, MAX_WHEEL_BYTES, PLATFORMS, Platform, add_library

sys.path.pop(0)

MACHINES = {"x86_64": (62, 0x01000007, 0x8664), "aarch64": (183, 0x0100000C, 0xAA64)}
"""Processor -> its number in an ELF, a Mach-O and a PE file."""
X86_LEVELS = ("scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni")
each = pytest.mark.parametrize("platform", PLATFORMS, ids=lambda p: p.name)


def wheel_of(dist: Path, platform: Platform) -> Path:
    return next(dist.glob(f"edgellm-*-py3-none-{platform.tags}.whl"))


def machine(data: bytes) -> int:
    if data[:4] == b"\x7fELF":
        return int(struct.unpack_from("<H", data, 18)[0])
    if data[:2] == b"MZ":
        return int(struct.unpack_from("<H", data, struct.unpack_from("<I", data, 60)[0] + 4)[0])
    return int(struct.unpack_from("<I", data, 4)[0])


@each
def test_a_wheel_is_the_python_part_and_one_library_for_its_processor(dist: Path, platform: Platform) -> None:
    path = wheel_of(dist, platform)
    assert path.stat().st_size <= MAX_WHEEL_BYTES
    with zipfile.ZipFile(next(dist.glob("*-none-any.whl"))) as pure, zipfile.ZipFile(path) as wheel:
        name = f"edgellm/_native/{platform.library}"
        assert set(wheel.namelist()) - set(pure.namelist()) == {name}
        assert set(pure.namelist()) <= set(wheel.namelist())
        library = wheel.read(name)
        tags = [line for line in wheel.read(info(wheel) + "WHEEL").decode().splitlines() if line.startswith("Tag:")]
    assert tags == [f"Tag: py3-none-{tag}" for tag in platform.tags.split(".")]
    assert machine(library) in MACHINES["x86_64" if platform.processor == "x86_64" else "aarch64"]
    if platform.processor == "x86_64":
        assert [level for level in X86_LEVELS if level.encode() + b"\0" not in library] == []


@each
def test_a_library_needs_only_the_system(dist: Path, platform: Platform, imports: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel_of(dist, platform)) as wheel:
        library = Path(wheel.extract(f"edgellm/_native/{platform.library}", tmp_path))
    needed = [name.lower() for name in imports.imported(library)]
    assert needed
    assert [n for n in needed if not any(fnmatchcase(n, pattern) for pattern in platform.imports)] == []
    if platform.imports is GLIBC:
        assert tuple(map(int, imports.newest_glibc(library).split("."))) <= (2, 17)


def info(wheel: zipfile.ZipFile) -> str:
    return next(n.removesuffix("WHEEL") for n in wheel.namelist() if n.endswith(".dist-info/WHEEL"))


def test_records_say_what_is_in_the_wheels(dist: Path) -> None:
    for path in dist.glob("*.whl"):
        with zipfile.ZipFile(path) as wheel:
            files = {n for n in wheel.namelist() if not n.endswith("/")}
            rows = list(csv.reader(io.StringIO(wheel.read(info(wheel) + "RECORD").decode())))
            assert {row[0] for row in rows} == files, path.name
            for name, digest, size in rows:
                if name.endswith("RECORD"):
                    continue
                data = wheel.read(name)
                ours = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert (f"sha256={ours}", str(len(data))) == (digest, size), f"{path.name}: {name}"


def test_the_wheel_for_any_platform_has_no_library(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*-none-any.whl"))) as wheel:
        names = wheel.namelist()
        text = wheel.read(info(wheel) + "WHEEL").decode()
    assert [n for n in names if n.endswith((".so", ".dylib", ".dll"))] == []
    assert {"edgellm/llm.py", "edgellm/hub/catalog.toml", "edgellm/_native/edgellm.h"} <= set(names)
    assert "Root-Is-Purelib: true" in text


def test_the_source_distribution_holds_what_a_build_needs(dist: Path) -> None:
    with tarfile.open(next(dist.glob("edgellm-*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    here = {p.relative_to(REPOSITORY).as_posix() for p in (REPOSITORY / "native").rglob("*.[ch]")}
    assert {"CMakeLists.txt", "pyproject.toml", "models/catalog.toml", "edgellm/llm.py", "PKG-INFO"} <= names
    assert here - names == set()
    assert [n for n in names if n.endswith((".so", ".dylib", ".dll", ".gguf"))] == []


def test_adding_a_library_is_reproducible(tmp_path: Path) -> None:
    pure = tmp_path / "edgellm-9-py3-none-any.whl"
    with zipfile.ZipFile(pure, "w") as z:
        z.writestr("edgellm/a.py", "a = 1\n")
        z.writestr("edgellm-9.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("edgellm-9.dist-info/RECORD", "")
    library = tmp_path / "x"
    library.write_bytes(b"\x7fELF")
    first = add_library(pure, PLATFORMS[0], library).read_bytes()
    path = add_library(pure, PLATFORMS[0], library)
    assert path.read_bytes() == first
    with zipfile.ZipFile(path) as z:
        assert z.read("edgellm/_native/libedgellm.so") == b"\x7fELF"
        assert "Root-Is-Purelib: false" in z.read("edgellm-9.dist-info/WHEEL").decode()
