"""Rules of the C core that no compiler checks: layers, no libm, no printing, system calls in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from policy.source import REPOSITORY

NATIVE = REPOSITORY / "native"

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
CALL = re.compile(r"(?<![\w.>])([a-z_][a-z0-9_]*)\s*\(")
COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)

LIBM = {
    name + suffix
    for suffix in ("", "f", "l")
    for name in (
        "exp exp2 expm1 log log2 log10 log1p pow cbrt hypot sin cos tan asin acos atan atan2 sinh cosh tanh "
        "asinh acosh atanh erf erfc tgamma lgamma"
    ).split()
}
"""Their last bit differs from one libm to another. sqrt, fma, rint, floor, fabs are exact: allowed."""

FORBIDDEN_CALLS = {
    "abort", "exit", "_Exit", "assert", "printf", "fprintf", "puts", "fputs", "perror", "getenv", "setenv",
    "gets", "strcpy", "strcat", "sprintf", "alloca", "system", "signal", "rand", "srand", "longjmp", "setjmp",
}  # fmt: skip

PORTABLE_HEADERS = {
    "assert.h", "fenv.h", "float.h", "inttypes.h", "limits.h", "math.h", "stdalign.h", "stdarg.h",
    "stdatomic.h", "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h",
}  # fmt: skip
PROCESSOR_HEADERS = {"immintrin.h", "cpuid.h", "arm_neon.h", "xmmintrin.h", "emmintrin.h"}


def code(text: str) -> str:
    """C text without comments and strings, on the same lines."""
    return COMMENT.sub(lambda m: '""' if m.group().startswith('"') else "\n" * m.group().count("\n"), text)


def findings(relative: str, text: str) -> list[str]:
    """What breaks a rule in native/<relative>."""
    found = []
    is_system = re.fullmatch(r"core/os_\w+\.[ch]", relative) is not None
    for match in INCLUDE.finditer(text):
        kind, header = match.groups()
        if kind == "<" and not header.startswith("simde/"):
            allowed = header in PORTABLE_HEADERS | PROCESSOR_HEADERS
            if not allowed and not is_system:
                found.append(f"{relative}: includes <{header}>; only core/os_*.c talk to the system")
        elif relative.startswith("kernels/") and (header.startswith(("core/", "../core/", "../../core/"))):
            found.append(f"{relative}: a kernel includes {header}: core is above kernels")
        elif relative.startswith("core/") and "isa/" in header:
            found.append(f"{relative}: core includes {header}: it sees kernels.h only")
    stripped = code(text)
    for match in CALL.finditer(stripped):
        name = match.group(1)
        line = stripped.count("\n", 0, match.start()) + 1
        if name in LIBM:
            found.append(f"{relative}:{line}: calls {name}: libm results differ between systems")
        elif name in FORBIDDEN_CALLS:
            found.append(f"{relative}:{line}: calls {name}")
    return found


def native_files() -> list[Path]:
    folders = ("include", "core", "kernels")
    return sorted(p for d in folders for p in (NATIVE / d).rglob("*") if p.suffix in (".c", ".h", ".inl"))


def test_the_c_core_keeps_its_rules() -> None:
    files = native_files()
    assert len(files) >= 2
    found = [f for p in files for f in findings(p.relative_to(NATIVE).as_posix(), p.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize(
    ("relative", "text"),
    [
        ("kernels/scalar.c", "float f(float x) { return expf(x); }"),
        ("kernels/scalar.c", '#include "core/plan.h"'),
        ("kernels/scalar.c", '#include "../core/plan.h"'),
        ("core/plan.c", "#include <pthread.h>"),
        ("core/plan.c", "void f(void) { fprintf(stderr, 1); }"),
        ("core/plan.c", 'void f(void) { /* why */ x = getenv("A"); }'),
        ("core/pool.c", "#include <unistd.h>"),
    ],
)
def test_the_check_finds(relative: str, text: str) -> None:
    assert len(findings(relative, text)) == 1


@pytest.mark.parametrize(
    ("relative", "text"),
    [
        ("core/os_linux.c", "#include <pthread.h>\n#include <sys/mman.h>"),
        (
            "core/plan.c",
            '#include "os.h"\n#include <math.h>\nfloat f(float x) { return sqrtf(fmaf(x, x, x)); }',
        ),
        ("kernels/scalar.c", "/* exp(x) is ours */ float f(float x) { return el_exp(x); } // log(x)"),
        ("core/plan.c", 'void f(void) { el_fail(e, "exp(x)"); }'),
    ],
)
def test_the_check_passes(relative: str, text: str) -> None:
    assert findings(relative, text) == []
