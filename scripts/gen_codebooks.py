#!/usr/bin/env python3
"""Write the code books of edgellm/gguf/grids.py as C: native/kernels/codebooks.inl.

python scripts/gen_codebooks.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "native" / "kernels" / "codebooks.inl"
sys.path.insert(0, str(ROOT))

from edgellm.gguf.grids import codebook  # noqa: E402

HEAD = """\
/* The code books of the IQ types, written by scripts/gen_codebooks.py: do not edit.
 *
 * An entry is 16 bits of four nibbles. IQ1 and IQ2: an entry has 8 weights; nibble j holds the number of weight j in
 * its low two bits, that of weight j + 4 in its high ones. IQ3: an entry has 4 weights; nibble j holds the number of
 * weight j in three bits. What the numbers stand for: EL_IQ1_VALUES and those that follow it in qblocks.h. IQ1_M has
 * the book of IQ1_S. A 0 follows the last entry, since vector loads read 32 bits.
 */
"""
BOOKS = ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
WIDTH = 110


def entries(name: str) -> list[int]:
    """The entries of a book as 16 bits each."""
    book = codebook(name)
    number = np.searchsorted(np.unique(book), book)
    nibbles = number if number.shape[1] == 4 else number[:, :4] | number[:, 4:] << 2
    return [int(e) for e in (nibbles << np.arange(0, 16, 4)).sum(axis=1)]


def generate() -> str:
    """The file's text."""
    lines = [HEAD + "/* clang-format off */"]
    for name in BOOKS:
        found = entries(name)
        lines.append(f"static const uint16_t {name}_BOOK[{len(found)} + 1] = {{")
        line = "   "
        for entry in [*found, 0]:
            cell = f" {entry:#x},"
            if len(line + cell) > WIDTH:
                lines.append(line)
                line = "   "
            line += cell
        lines += [line, "};"]
    return "\n".join([*lines, "/* clang-format on */", ""])


def main(args: list[str]) -> int:
    """Write the file, or with --check say whether it is current."""
    text = generate()
    if args == ["--check"]:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            print(f"{TARGET.relative_to(ROOT)} is not what edgellm/gguf/grids.py says: run scripts/gen_codebooks.py")
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
