#!/usr/bin/env python3
"""Every development step of edgellm, behind `make VERB` or `python scripts/dev.py VERB [arguments]`.

Needs only Python with venv and a C compiler; CMake and Ninja come from the package index when the machine
has none. Each verb first creates what it needs (.venv, the native library) and skips what is up to date.
Arguments after the verb go to the program that it runs: `make test ARGS="-k gguf"`,
`python scripts/dev.py bench -p 512`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WINDOWS = os.name == "nt"
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if WINDOWS else "bin")
PYTHON = BIN / ("python.exe" if WINDOWS else "python")
BUILD = ROOT / "build"
PACKAGE_STAMP = VENV / "edgellm-packages.json"

MIN_PYTHON = (3, 10)
MIN_CMAKE = (3, 20)
TEST_MODELS = ("smollm2:135m", "gemma3:270m-base")
NINJA_PROGRESS = re.compile(r"\[\d+/\d+\] ")
FIRST_HALF = ("compat", "invariance", "kernels", "native", "parity", "real", "serving", "terminal")
"""Folders of tests/ that take as long as all others together."""
SANITIZERS = {"asan": "address,undefined", "tsan": "thread"}
WHEEL_TOOLS = ("ziglang==0.17.1", "build>=1.2")
"""What `wheels` needs besides: clang with the C libraries of all platforms (400 MB), and the builder of the sdist."""


LEVELS_HERE = """
from edgellm._native import isa_levels
print(";".join(name for name, usable, _ in isa_levels() if usable))
"""
"""Prints the instruction set levels of this machine, as CMake wants a list."""


class Failure(Exception):
    """A step that failed: what happened, and the way out."""


# ---- running things --------------------------------------------------------------------------------------


def say(text: str, end: str = "\n") -> None:
    """Progress goes to standard error: standard output belongs to the program that the verb runs."""
    print(text, end=end, file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Announce one step on a line of its own, with its time when it is done."""
    say(f"edgellm: {what} ...", end="")
    start = time.monotonic()
    try:
        yield
    except BaseException:
        say(" failed")
        raise
    say(f" {time.monotonic() - start:.0f} s")


def environment() -> dict[str, str]:
    """The child's environment: the venv's programs first, and pip without questions."""
    env = dict(os.environ)
    env["PATH"] = os.pathsep.join([str(BIN), env.get("PATH", "")])
    env.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", VIRTUAL_ENV=str(VENV))
    return env


def quiet(command: Sequence[object], way_out: str, lines: int = 30) -> str:
    """Run a command silently and return its output; on failure show the end of it and the way out."""
    argv = [str(c) for c in command]
    try:
        done = subprocess.run(
            argv, cwd=ROOT, env=environment(), text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except OSError as e:
        raise Failure(f"{argv[0]} could not be started: {e}\n{way_out}") from None
    if done.returncode != 0:
        told = [line for line in done.stdout.splitlines() if not NINJA_PROGRESS.match(line)]
        tail = "\n".join("    " + line for line in told[-lines:])
        raise Failure(f"{shlex.join(argv)}\nended with code {done.returncode}:\n{tail}\n{way_out}")
    return done.stdout


def hand_over(command: Sequence[object]) -> int:
    """Run the verb's own program on this terminal; its exit code is ours."""
    argv = [str(c) for c in command]
    if not WINDOWS:
        sys.stdout.flush()
        os.chdir(ROOT)
        os.execve(argv[0], argv, environment())
    return subprocess.run(argv, cwd=ROOT, env=environment()).returncode


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """One set-up or build at a time in this checkout; a second one waits."""
    BUILD.mkdir(exist_ok=True)
    with open(BUILD / ".lock", "a+") as f:
        if WINDOWS:
            import msvcrt

            f.seek(0)
            while True:
                try:
                    msvcrt.locking(f.fileno(), msvcrt.LK_NBLCK, 1)
                    break
                except OSError:
                    time.sleep(0.5)
        else:
            import fcntl

            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                say("edgellm: waiting for another build in this folder to end")
                fcntl.flock(f, fcntl.LOCK_EX)
        yield  # closing the file releases the lock


def digest(*parts: object) -> str:
    """One hash over texts and the names and contents of files; a file that is missing counts as empty."""
    h = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) and part.exists() else b""
        h.update(f"{part}\0{len(data)}\0".encode())
        h.update(data)
    return h.hexdigest()


def read_stamp(path: Path) -> dict[str, object]:
    try:
        stamp = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


# ---- set-up: the virtual environment and what is in it ---------------------------------------------------


def check_interpreter() -> None:
    if sys.version_info < MIN_PYTHON:
        found, needed = sys.version.split()[0], ".".join(map(str, MIN_PYTHON))
        raise Failure(
            f"this is Python {found}, edgellm needs {needed} or later.\n"
            "Run it with a newer one: make PYTHON=python3.12 ..."
        )
    import importlib.util

    missing = [m for m in ("venv", "ensurepip") if importlib.util.find_spec(m) is None]
    if missing and not PYTHON.exists():
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise Failure(
            f"this Python lacks {' and '.join(missing)}, so .venv cannot be created.\n"
            f"Debian, Ubuntu: sudo apt install python{version}-venv     Alpine: apk add py3-pip\n"
            "or run with another Python: make PYTHON=/path/to/python3 ..."
        )


def create_venv() -> None:
    works = PYTHON.exists() and subprocess.run(
        [str(PYTHON), "-c", "import pip"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode == 0  # fmt: skip
    if works:
        return
    with step("creating .venv"):
        quiet(
            [sys.executable, "-m", "venv", "--clear", VENV],
            "Delete .venv and try again; with little space, free some: it needs about 400 MB.",
        )
        offline = "Check the network connection or proxy (pip's own settings apply) and try again."
        quiet([PYTHON, "-m", "pip", "install", "-q", "--upgrade", "pip"], offline)


def cmake_is_enough() -> bool:
    """Whether PATH, .venv included, has a CMake that is new enough and a Ninja."""
    path = environment()["PATH"]
    cmake = shutil.which("cmake", path=path)
    if cmake is None or shutil.which("ninja", path=path) is None:
        return False
    try:
        text = subprocess.run([cmake, "--version"], capture_output=True, text=True).stdout
        found = text.split("version", 1)[1].split()[0].split(".")
        return (int(found[0]), int(found[1])) >= MIN_CMAKE
    except (OSError, IndexError, ValueError):
        return False


def setup(dev: bool) -> None:
    """.venv with the package (editable: the source tree itself), its dependencies and, for dev, the tools."""
    check_interpreter()
    create_venv()
    key = digest(ROOT / "pyproject.toml", ROOT / "edgellm/core/version.py", VENV / "pyvenv.cfg", str(ROOT))
    stamp = read_stamp(PACKAGE_STAMP)
    dev = dev or stamp.get("dev") is True  # never take the tools away again
    way_out = "Check the network connection or proxy (pip's own settings apply) and try again."
    if stamp != {"key": key, "dev": dev}:
        what = "Python packages and development tools" if dev else "Python packages"
        with step(f"installing {what} into .venv"):
            # No CMake here: `build` compiles, quicker and incrementally, into the same source tree.
            settings = ["--config-settings=wheel.cmake=false", "--config-settings=editable.mode=inplace"]
            target = f"{ROOT}[dev]" if dev else ROOT
            quiet([PYTHON, "-m", "pip", "install", "-q", *settings, "-e", target], way_out)
            PACKAGE_STAMP.write_text(json.dumps({"key": key, "dev": dev}))
    if not cmake_is_enough():
        with step("installing CMake and Ninja into .venv"):
            quiet([PYTHON, "-m", "pip", "install", "-q", "cmake", "ninja"], way_out)


# ---- build: the native library into the source tree ------------------------------------------------------


def check_compiler() -> None:
    """Settle on a C compiler: CC, which must be there, or the first of cc, gcc and clang."""
    wanted = os.environ.get("CC")
    if wanted:
        if shutil.which(shlex.split(wanted)[0]) is None:
            raise Failure(f"CC is set to {wanted!r}, which is not on PATH. Correct or unset it.")
        return
    found = next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if found is None:
        raise Failure(
            "no C compiler found (cc, gcc or clang).\n"
            "Debian, Ubuntu: sudo apt install build-essential     Fedora: sudo dnf install gcc make\n"
            "macOS: xcode-select --install     Windows: LLVM-MinGW or MSYS2, with its bin folder on PATH"
        )
    os.environ["CC"] = found  # else the wheel's build would take the compiler that Python was built with


def native_sources() -> list[Path]:
    found = [
        p for p in (ROOT / "native").rglob("*") if p.is_file() and p.suffix in (".c", ".h", ".inl", ".txt", ".def")
    ]
    return sorted(found)


def compile_native(folder: str, targets: Sequence[str], *options: str) -> None:
    """Configure build/<folder> and build the targets in it; only what changed is compiled."""
    where = BUILD / folder
    configure = [
        "cmake", "-G", "Ninja", "-S", ROOT, "-B", where, "-DEDGELLM_BUILD_TESTS=ON", *options,
        *shlex.split(os.environ.get("CMAKE_ARGS", "")),
    ]  # fmt: skip
    way_out = f"The whole log: cmake --build {where.relative_to(ROOT)}   Start afresh: make clean"
    try:
        quiet(configure, way_out)
    except Failure:
        if not (where / "CMakeCache.txt").exists():
            raise
        shutil.rmtree(where)  # the cache of a moved folder or another compiler
        quiet(configure, way_out)
    log = quiet(["cmake", "--build", where, "--target", *targets], way_out, lines=60)
    if "warning:" in log:
        say("\n" + "\n".join(line for line in log.splitlines() if "warning:" in line))


def library_path() -> Path:
    name = "libedgellm.dll" if WINDOWS else "libedgellm.dylib" if sys.platform == "darwin" else "libedgellm.so"
    return ROOT / "edgellm" / "_native" / name


def build() -> None:
    """The optimised library, its header and the model catalogue, placed in the source tree."""
    check_compiler()
    settings = [os.environ.get(v, "") for v in ("CC", "CFLAGS", "LDFLAGS", "CMAKE_ARGS")]
    inputs = [ROOT / "CMakeLists.txt", ROOT / "edgellm/core/version.py", ROOT / "models/catalog.toml"]
    key = digest(*inputs, *native_sources(), *settings)
    stamp = BUILD / "release.json"
    if library_path().exists() and read_stamp(stamp) == {"key": key}:
        return
    with step("building the native library"):
        compile_native("release", ["edgellm"], "-DCMAKE_BUILD_TYPE=Release", "-DEDGELLM_BUILD_EMULATED=AUTO")
        install = ["cmake", "--install", BUILD / "release", "--component", "python", "--prefix", ROOT]
        quiet(install, "Start afresh: make clean")
        stamp.write_text(json.dumps({"key": key}))


def prepare(dev: bool = False) -> None:
    with lock():
        setup(dev)
        build()
        precompile()


def precompile() -> None:
    """Python's bytecode of the package: its first start is as quick as the next, even if Python may not write any."""
    quiet([BIN / "python", "-m", "compileall", "-q", ROOT / "edgellm"], "A file of edgellm/ is not valid Python.")


# ---- verbs -----------------------------------------------------------------------------------------------


def verb_setup(args: list[str]) -> int:
    """create .venv with the package, its dependencies and the development tools"""
    with lock():
        setup(dev=True)
    return 0


def verb_build(args: list[str]) -> int:
    """compile the native library into the source tree"""
    prepare()
    return 0


def verb_chat(args: list[str]) -> int:
    """open a chat in the terminal with a small model, fetched the first time"""
    prepare()
    return hand_over([BIN / "edgellm", "chat", *args])


def verb_bench(args: list[str]) -> int:
    """measure prefill and decode speed of the default model"""
    prepare()
    return hand_over([BIN / "edgellm", "bench", *args])


def verb_test(args: list[str]) -> int:
    """run every test, those on real models included (--no-models: without)"""
    models = "--no-models" not in args
    args = [a for a in args if a != "--no-models"]
    prepare(dev=True)
    with lock():
        with step("building the native tests"):
            options = ("-DCMAKE_BUILD_TYPE=Release", "-DEDGELLM_BUILD_EMULATED=AUTO")
            compile_native("release", ["edgellm_for_tests"], *options)
        here = quiet([PYTHON, "-c", LEVELS_HERE], "The library in edgellm/_native cannot be used: make clean").strip()
        for folder, sanitizers in SANITIZERS.items():
            options = (
                "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O1 -g1",  # compiles five times as fast as -O2 -g
                f"-DEDGELLM_SANITIZE={sanitizers}",
                f"-DEDGELLM_LEVELS={here}",  # no others can run
            )
            try:
                with step(f"building the native tests with -fsanitize={sanitizers}"):
                    compile_native(folder, ["edgellm_tests"], *options)
            except Failure as e:
                if "no sanitizer support" not in str(e):  # CMake's words in native/CMakeLists.txt
                    raise
                say(f"edgellm: this compiler has no {sanitizers} sanitizer; its tests will be skipped")
    if models and not os.environ.get("EDGELLM_TEST_MODELS"):
        say("edgellm: fetching " + " and ".join(TEST_MODELS))
        pull = subprocess.run([str(BIN / "edgellm"), "pull", *TEST_MODELS], cwd=ROOT, env=environment())
        if pull.returncode != 0:
            raise Failure(
                "the models for the tests could not be fetched (see above).\n"
                "Without network: make test ARGS=--no-models; tests on real models are then skipped.\n"
                "With the files elsewhere: EDGELLM_TEST_MODELS=/folder make test"
            )
    if args:
        return hand_over([PYTHON, "-m", "pytest", "-q", *args])
    return in_two_halves()


def verb_limits(args: list[str]) -> int:
    """check what is promised about times and speeds: for an idle machine"""
    prepare(dev=True)
    os.environ["EDGELLM_LIMITS"] = "1"  # tests/limits.py
    return hand_over([PYTHON, "-m", "pytest", "-q", "-m", "timing", *args])


def in_two_halves() -> int:
    """Run all tests in two processes, since most use one core: those of FIRST_HALF, and all others."""
    tests = ROOT / "tests"
    folders = sorted(p.name for p in tests.iterdir() if any(p.rglob("test_*.py")))
    halves = ([f for f in folders if f in FIRST_HALF], [f for f in folders if f not in FIRST_HALF])
    command = [PYTHON, "-m", "pytest", "-q", "--durations=20", "-p", "no:cacheprovider"]
    log = BUILD / "tests.log"
    with open(log, "w") as file:
        argvs = [[str(c) for c in [*command, *(tests / f for f in half)]] for half in halves]
        other = subprocess.Popen(argvs[1], cwd=ROOT, env=environment(), stdout=file, stderr=subprocess.STDOUT)
        try:
            first = subprocess.run(argvs[0], cwd=ROOT, env=environment()).returncode
            second = other.wait()
        except BaseException:
            other.kill()
            raise
    print(log.read_text(errors="replace"), flush=True)
    return first or second


def c_files() -> list[Path]:
    return [p for p in native_sources() if p.suffix in (".c", ".h", ".inl")]


def verb_check(args: list[str]) -> int:
    """formatting, lint, types, and a build in which every warning is an error"""
    with lock():
        setup(dev=True)
        check_compiler()
        again = "Most of it is mended by: make format"
        sources = c_files()

        def warnings_are_errors() -> None:
            # -O1 sees what -O3 sees but for a few warnings, in a third of the time.
            options = ("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_C_FLAGS_RELEASE=-O1 -DNDEBUG", "-DEDGELLM_WERROR=ON")
            compile_native("werror", ["edgellm", "edgellm_tests"], *options)

        checks: list[tuple[str, Callable[[], object]]] = [
            ("ruff format", lambda: quiet([PYTHON, "-m", "ruff", "format", "--check", "."], again)),
            ("ruff check", lambda: quiet([PYTHON, "-m", "ruff", "check", "."], again, lines=200)),
            ("mypy --strict", lambda: quiet([PYTHON, "-m", "mypy", "--strict", "edgellm"], "", lines=200)),
            ("clang-format",
             lambda: sources and quiet([BIN / "clang-format", "--dry-run", "--Werror", *sources], again)),
            ("compiling with -Werror", warnings_are_errors),
        ]  # fmt: skip
        failed = []
        for name, check in checks:
            try:
                with step(name):
                    check()
            except Failure as e:
                say(str(e))
                failed.append(name)
    if failed:
        raise Failure("not clean: " + ", ".join(failed))
    return 0


def verb_format(args: list[str]) -> int:
    """reformat Python and C, and mend what the linter can mend by itself"""
    with lock():
        setup(dev=True)
    quiet([PYTHON, "-m", "ruff", "format", "-q", "."], "")
    subprocess.run([str(PYTHON), "-m", "ruff", "check", "-q", "--fix", "."], cwd=ROOT)
    sources = c_files()
    if sources:
        quiet([BIN / "clang-format", "-i", *sources], "")
    return 0


def verb_wheel(args: list[str]) -> int:
    """build the wheel for this platform into dist/"""
    with lock():
        setup(dev=False)
        check_compiler()
        dist = ROOT / "dist"
        for old in dist.glob("edgellm-*.whl"):
            old.unlink()
        with step("building the wheel"):
            quiet(
                [PYTHON, "-m", "pip", "wheel", "-q", "--no-deps", "-w", dist, ROOT],
                "Start afresh: make clean",
                60,
            )
    for wheel in dist.glob("edgellm-*.whl"):
        print(f"{wheel.relative_to(ROOT)} ({wheel.stat().st_size / 1e6:.1f} MB)")
    return 0


def verb_wheels(args: list[str]) -> int:
    """build the wheels of every platform, and the source distribution, into dist/"""
    with lock():
        setup(dev=False)
        if subprocess.run([str(PYTHON), "-c", "import ziglang, build.__main__"], capture_output=True).returncode != 0:
            with step("installing clang for all platforms into .venv"):
                quiet([PYTHON, "-m", "pip", "install", "-q", *WHEEL_TOOLS], "Check the network connection or proxy.")
        return subprocess.run(
            [str(PYTHON), ROOT / "scripts" / "wheels.py", *args], cwd=ROOT, env=environment()
        ).returncode


def verb_clean(args: list[str]) -> int:
    """remove what was built (--all: .venv too)"""
    installed = [ROOT / "edgellm/_native/edgellm.h", ROOT / "edgellm/hub/catalog.toml", library_path()]
    for folder in [BUILD, ROOT / "dist", *([VENV] if "--all" in args else [])]:
        shutil.rmtree(folder, ignore_errors=True)
    for file in installed:
        file.unlink(missing_ok=True)
    return 0


def verb_help(args: list[str]) -> int:
    """this list"""
    print('make VERB [ARGS="..."]     or: python scripts/dev.py VERB [...]\n')
    for name, function in VERBS.items():
        print(f"  {name:8} {function.__doc__}")
    print("\nEach verb sets up and builds first what it needs. `make chat` is all it takes to begin.")
    return 0


VERBS: dict[str, Callable[[list[str]], int]] = {
    "chat": verb_chat,
    "test": verb_test,
    "limits": verb_limits,
    "check": verb_check,
    "format": verb_format,
    "bench": verb_bench,
    "wheel": verb_wheel,
    "wheels": verb_wheels,
    "setup": verb_setup,
    "build": verb_build,
    "clean": verb_clean,
    "help": verb_help,
}


def main(argv: list[str]) -> int:
    name, args = (argv[0], argv[1:]) if argv else ("help", [])
    if name in ("-h", "--help"):
        name = "help"
    if name not in VERBS:
        say(f"edgellm: no verb {name!r}; there are: {', '.join(VERBS)}")
        return 2
    try:
        return VERBS[name](args)
    except Failure as e:
        say(f"edgellm: {e}")
        return 1
    except KeyboardInterrupt:
        say("\nedgellm: interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
