"""Wheels for every platform from one machine: `make wheels`, or python scripts/wheels.py [--quick] [PLATFORM ...].

The library is compiled by clang as the package `ziglang` brings it, with the headers and C libraries of every target;
each is a build folder of its own, build/cross/<platform>, two at a time: linking uses one core. --quick is for tests:
into build/cross-quick, and optimised, a little, only where they run kernels: the same bits. The Python part is the same
everywhere: it is built once, as the wheel `py3-none-any`, and each platform's wheel is that one with its library added.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
MAX_WHEEL_BYTES = 8_000_000


@dataclass(frozen=True)
class Platform:
    """tags: the wheel's, without `py3-none-`. target: Zig's. system, processor: CMake's. imports: what the library may
    need, in lower case; a `*` at the end stands for anything. static: link test programs so, which then run without a
    system of that kind, under qemu too. tested: tests run its kernels, so that optimising pays with --quick too."""

    name: str
    tags: str
    target: str
    system: str
    processor: str
    library: str
    imports: tuple[str, ...]
    static: bool = False
    tested: bool = False


GLIBC = ("libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-*")
MUSL = ("libc.so", "libc.musl-*")
MACOS = ("/usr/lib/libsystem.b.dylib",)
WINDOWS = ("kernel32.dll", "api-ms-win-core-synch-l1-2-0.dll", "api-ms-win-crt-*")

PLATFORMS = (
    Platform("linux-x86_64", "manylinux_2_17_x86_64.manylinux2014_x86_64", "x86_64-linux-gnu.2.17",
             "Linux", "x86_64", "libedgellm.so", GLIBC),
    Platform("linux-aarch64", "manylinux_2_17_aarch64.manylinux2014_aarch64", "aarch64-linux-gnu.2.17",
             "Linux", "aarch64", "libedgellm.so", GLIBC),
    Platform("musl-x86_64", "musllinux_1_2_x86_64", "x86_64-linux-musl",
             "Linux", "x86_64", "libedgellm.so", MUSL, static=True, tested=True),
    Platform("musl-aarch64", "musllinux_1_2_aarch64", "aarch64-linux-musl",
             "Linux", "aarch64", "libedgellm.so", MUSL, static=True, tested=True),
    Platform("macos-x86_64", "macosx_11_0_x86_64", "x86_64-macos.11.0",
             "Darwin", "x86_64", "libedgellm.dylib", MACOS),
    Platform("macos-arm64", "macosx_11_0_arm64", "aarch64-macos.11.0",
             "Darwin", "arm64", "libedgellm.dylib", MACOS),
    Platform("windows-x86_64", "win_amd64", "x86_64-windows-gnu",
             "Windows", "x86_64", "libedgellm.dll", WINDOWS, tested=True),
    Platform("windows-arm64", "win_arm64", "aarch64-windows-gnu",
             "Windows", "aarch64", "libedgellm.dll", WINDOWS),
)  # fmt: skip
"""Every platform with a library. Elsewhere the wheel `py3-none-any` serves."""


def run(*command: object) -> None:
    """Run a command silently; where it fails, end with its output."""
    env = {**os.environ, "CMAKE_C_COMPILER_LAUNCHER": "", "CFLAGS": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    argv = [str(c) for c in command]
    done = subprocess.run(argv, cwd=ROOT, env=env, text=True, errors="replace", stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)}\nended with code {done.returncode}:\n{done.stdout[-6000:]}")


def zig() -> Path:
    """The compiler of the package `ziglang`. ImportError where it is not installed."""
    import ziglang

    return Path(ziglang.__file__).parent / ("zig.exe" if os.name == "nt" else "zig")


def folder_of(platform: Platform, quick: bool = False) -> Path:
    """A platform's build folder."""
    return ROOT / "build" / ("cross-quick" if quick else "cross") / platform.name


def library_of(platform: Platform, quick: bool = False) -> Path:
    """Where `compile_library` leaves the library."""
    return folder_of(platform, quick) / "native" / platform.library


def compile_library(platform: Platform, targets: tuple[str, ...] = ("edgellm",), quick: bool = False) -> None:
    """Bring the targets of a platform up to date, every warning an error."""
    folder = folder_of(platform, quick)
    level = "3" if not quick else "1" if platform.tested else "0"
    run(
        "cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, f"-DCMAKE_C_COMPILER={zig()};cc",
        f"-DCMAKE_C_COMPILER_TARGET={platform.target}", f"-DCMAKE_SYSTEM_NAME={platform.system}",
        f"-DCMAKE_SYSTEM_PROCESSOR={platform.processor}", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_C_FLAGS_RELEASE=-O{level} -DNDEBUG -fno-sanitize=undefined", "-DEDGELLM_WERROR=ON",
        # CMake's questions are compiled but not linked: Zig would build a C library for them alone, for a minute.
        "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
        "-DEDGELLM_BUILD_TESTS=ON", "-DCMAKE_SHARED_LINKER_FLAGS=-s",
        f"-DCMAKE_EXE_LINKER_FLAGS=-s{' -static' if platform.static else ''}",  # stripped or not: two C libraries
        "-DCMAKE_INSTALL_NAME_TOOL=cmake",  # Apple's; CMake asks for it, but nothing is installed
    )  # fmt: skip
    run("cmake", "--build", folder, "--target", *targets)


# ---- wheels ------------------------------------------------------------------------------------------


def build_any() -> Path:
    """dist/edgellm-<version>-py3-none-any.whl: the Python part, which runs on the backends in Python alone."""
    options = ["--config-settings=cmake.define.EDGELLM_LIBRARY=OFF", "--config-settings=wheel.platlib=false"]
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", DIST, *options, ROOT)
    return next(DIST.glob("edgellm-*-py3-none-any.whl"))


def build_sdist() -> Path:
    """dist/edgellm-<version>.tar.gz"""
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT)
    return next(DIST.glob("edgellm-*.tar.gz"))


def add_library(wheel: Path, platform: Platform, library: Path) -> Path:
    """The platform's wheel beside `wheel`, the py3-none-any one: with the library, its tags, and a new RECORD.

    The same input gives the same bytes: times are fixed, order is sorted.
    """
    with zipfile.ZipFile(wheel) as z:
        files = {name: z.read(name) for name in z.namelist() if not name.endswith("/RECORD")}
    files[f"edgellm/_native/{platform.library}"] = library.read_bytes()
    info = next(name.removesuffix("WHEEL") for name in files if name.endswith(".dist-info/WHEEL"))
    kept = [
        line
        for line in files[info + "WHEEL"].decode().splitlines()
        if line.strip() and not line.startswith(("Tag:", "Root-Is-Purelib:"))
    ]
    tags = [f"Tag: py3-none-{tag}" for tag in platform.tags.split(".")]
    files[info + "WHEEL"] = "\n".join([*kept, "Root-Is-Purelib: false", *tags, ""]).encode()
    rows = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(files[name])}")
    files[info + "RECORD"] = "\n".join([*rows, info + "RECORD,,", ""]).encode()
    target = wheel.with_name(wheel.name.replace("-any.whl", f"-{platform.tags}.whl"))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            z.writestr(entry, data)
    return target


def main(names: list[str]) -> int:
    """Build the named platforms' wheels, or all of them with the sdist, and say what each weighs and needs."""
    from wheels_imports import imported, newest_glibc

    quick = "--quick" in names
    names = [n for n in names if n != "--quick"]
    unknown = [n for n in names if n not in {p.name for p in PLATFORMS}]
    if unknown:
        print(f"no platform {unknown[0]!r}; there are: {', '.join(p.name for p in PLATFORMS)}", file=sys.stderr)
        return 2
    chosen = [p for p in PLATFORMS if not names or p.name in names]
    shutil.rmtree(DIST, ignore_errors=True)
    with ThreadPoolExecutor(2) as pool:
        building = pool.submit(build_any)
        packing = None if names else pool.submit(build_sdist)
        compiling = [pool.submit(compile_library, p, quick=quick) for p in reversed(chosen)]  # Windows takes longest
        pure = building.result()
        print(f"{pure.name}  {pure.stat().st_size / 1e6:.2f} MB  no library", flush=True)
        if packing:
            sdist = packing.result()
            print(f"{sdist.name}  {sdist.stat().st_size / 1e6:.2f} MB", flush=True)
        for work in compiling:
            work.result()
    failed = 0
    for platform in chosen:
        library = library_of(platform, quick)
        wheel = add_library(pure, platform, library)
        size = wheel.stat().st_size
        needs = imported(library)
        glibc = f", glibc {newest_glibc(library)}" if platform.imports is GLIBC else ""
        print(f"{wheel.name}  {size / 1e6:.2f} MB  needs {', '.join(needs)}{glibc}", flush=True)
        if size > MAX_WHEEL_BYTES:
            print(f"    larger than {MAX_WHEEL_BYTES / 1e6:.0f} MB", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
