"""Compile the C declarations of edgellm.h into edgellm/_native/declarations.py (cffi, ABI mode out of line).

python scripts/gen_ffi.py [--check]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "native" / "include" / "edgellm.h"
TARGET = ROOT / "edgellm" / "_native" / "declarations.py"


def generate() -> str:
    """The module's text."""
    ffi = FFI()
    ffi.cdef(HEADER.read_text(encoding="utf-8").partition("/* cdef begin */")[2].partition("/* cdef end */")[0])
    ffi.set_source("edgellm._native.declarations", None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "declarations.py"
        ffi.emit_python_code(str(path))
        return path.read_text(encoding="utf-8")


def main(args: list[str]) -> int:
    """Write the module, or with --check say whether it is current."""
    text = generate()
    if args == ["--check"]:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            print(f"{TARGET.relative_to(ROOT)} is not what {HEADER.relative_to(ROOT)} says: run scripts/gen_ffi.py")
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
