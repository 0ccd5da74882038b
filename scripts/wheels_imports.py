"""What a shared library needs: the names that its ELF, Mach-O or PE file asks the system for, read from its tables."""

from __future__ import annotations

import re
import struct
from pathlib import Path


def imported(path: Path) -> list[str]:
    """The libraries that the file at `path` needs, sorted. ValueError where it is none of the three formats."""
    data = path.read_bytes()
    if data[:4] == b"\x7fELF":
        return sorted(_elf(data))
    if data[:4] == b"\xcf\xfa\xed\xfe":
        return sorted(_macho(data))
    if data[:2] == b"MZ":
        return sorted(_pe(data))
    raise ValueError(f"{path} is no 64-bit little-endian ELF, Mach-O or PE file")


def newest_glibc(path: Path) -> str:
    """The newest version of glibc whose symbols an ELF file asks for, as "2.17"; "" where it asks for none."""
    found = {tuple(map(int, v.split(b"."))) for v in re.findall(rb"\0GLIBC_(\d+(?:\.\d+)+)(?=\0)", path.read_bytes())}
    return ".".join(map(str, max(found))) if found else ""


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _elf(data: bytes) -> set[str]:
    """The NEEDED entries of the dynamic section, whose strings lie in the section it links to."""
    sections, size, count = *struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + i * size) for i in range(count)]
    needed = set()
    for kind, offset, n_bytes, link in ((h[1], h[4], h[5], h[6]) for h in headers):
        if kind == 6:  # SHT_DYNAMIC
            strings = headers[link][4]
            for at in range(offset, offset + n_bytes, 16):
                tag, value = struct.unpack_from("<QQ", data, at)
                if tag == 1:  # DT_NEEDED
                    needed.add(_text(data, strings + value))
    return needed


def _macho(data: bytes) -> set[str]:
    """The dylibs of the load commands, but for the library's own name."""
    count = struct.unpack_from("<I", data, 16)[0]
    at, needed = 32, set()
    for _ in range(count):
        command, size = struct.unpack_from("<II", data, at)
        if command & 0x7FFFFFFF in (0xC, 0x18, 0x1F, 0x23):  # LC_LOAD_DYLIB, weak, re-exported, upward
            needed.add(_text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
        at += size
    return needed


def _pe(data: bytes) -> set[str]:
    """The names in the import directory, and in that of delayed imports."""
    header = struct.unpack_from("<I", data, 60)[0] + 4
    n_sections, optional = struct.unpack_from("<H", data, header + 2)[0], struct.unpack_from("<H", data, header + 16)[0]
    directories = header + 20 + 112
    sections = [struct.unpack_from("<IIII", data, header + 20 + optional + 40 * i + 8) for i in range(n_sections)]

    def place(address: int) -> int:
        for virtual, start, _, offset in sections:
            if start <= address < start + virtual:
                return address - start + offset
        raise ValueError(f"address {address:#x} lies in no section")

    needed = set()
    for index, size, name in ((1, 20, 12), (13, 32, 4)):
        address = struct.unpack_from("<I", data, directories + 8 * index)[0]
        at = place(address) if address else 0
        while address and (text := struct.unpack_from("<I", data, at + name)[0]):
            needed.add(_text(data, place(text)).lower())
            at += size
    return needed
