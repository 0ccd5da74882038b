"""Damaged and hostile files: each kind has its own message, and nothing but GGUFError ever escapes."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from limits import seconds

from edgellm.core.errors import GGUFError, ModelNotFound
from edgellm.gguf import GGUFFile, StringArray
from edgellm.gguf.header import parse_header
from edgellm.gguf.qtypes import IK_LLAMA, REMOVED


def s(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def kv(key: str | bytes, kind: int, value: bytes) -> bytes:
    return s(key) + struct.pack("<I", kind) + value


def array(key: str, element: int, count: int, value: bytes = b"") -> bytes:
    return kv(key, 9, struct.pack("<IQ", element, count) + value)


def entry(name: str | bytes, ne: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return s(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, kind, offset)


def gguf(
    keys: list[bytes] | bytes = b"",
    tensors: list[bytes] | bytes = b"",
    data: int = 0,
    *,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    version: int = 3,
) -> bytes:
    """A whole file: header from the given pieces, padding to 32, `data` zero bytes."""
    keys, tensors = list(keys) if keys else [], list(tensors) if tensors else []
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    head += b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


def refuse(tmp_path: Path, raw: bytes, name: str = "bad.gguf") -> str:
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(GGUFError) as caught:
        GGUFFile(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    return text[len(str(path)) :]


def test_the_builder_makes_sound_files(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf([kv("a", 4, struct.pack("<I", 5))], [entry("t", (4, 2))], 32))
    with GGUFFile(path) as f:
        assert f.metadata["a"] == 5
        assert f.tensors["t"].shape == (2, 4)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"", "the file is empty (0 bytes)"),
        (b"<!DOCTYPE html><html>", "a web page (HTML)"),
        (b"\n  <html lang='en'>", "a web page (HTML)"),
        (b"<?xml version='1.0'?>", "a web page (HTML)"),
        (b"lmgg" + bytes(20), "a model in the GGML format"),
        (b"fmgg" + bytes(20), "a model in the GGMF format"),
        (b"tjgg" + bytes(20), "a model in the GGJT format"),
        (b"algg" + bytes(20), "a model in the GGLA format"),
        (b"ggml" + bytes(20), "a model in the GGML format"),
        (b"ggmf" + bytes(20), "a model in the GGMF format"),
        (b"ggjt" + bytes(20), "a model in the GGJT format"),
        (b"FUGG" + bytes(20), "from a big-endian machine"),
        (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"\x1f\x8b\x08\x00", "a compressed file"),
        (struct.pack("<Q", 2) + b"{}", "a safetensors file"),
        (b'{"error": "not found"}', "JSON text"),
        (bytes(600), "zeros, as an interrupted download leaves them"),
        (b"ELF or whatever", "It seems to be something else"),
        (b"GGU", "not a GGUF file: it begins with b'GGU'"),
    ],
)
def test_what_is_not_gguf(tmp_path: Path, head: bytes, words: str) -> None:
    text = refuse(tmp_path, head)
    assert words in text
    if head:
        assert repr(head[:16]) in text
        assert "expected b'GGUF'" in text


def test_versions(tmp_path: Path) -> None:
    assert "version 1 is not supported" in refuse(tmp_path, gguf(version=1))
    assert "version 0 is not supported" in refuse(tmp_path, gguf(version=0))
    text = refuse(tmp_path, gguf(version=4))
    assert "version 4 is not supported (supported: 2 and 3)" in text
    assert "newer" in text
    big = b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(32)
    assert "the file is big-endian (version 3 with its bytes swapped)" in refuse(tmp_path, big)


def test_paths(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        GGUFFile(tmp_path / "nothing.gguf")
    with pytest.raises(ModelNotFound, match=r"a folder without a \.gguf file"):
        GGUFFile(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelNotFound, match="no such file"):
        GGUFFile(tmp_path / "file" / "m.gguf")
    with pytest.raises(ModelNotFound, match="not a usable path"):
        GGUFFile("bad\0name")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        with pytest.raises(GGUFError, match="a device, pipe or socket"):
            GGUFFile(tmp_path / "pipe.gguf")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf())
    path.chmod(0)
    with pytest.raises(GGUFError, match="cannot be opened: Permission denied"):
        GGUFFile(path)


U32 = struct.pack("<I", 1)
HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        # counts
        (gguf(n_keys=HUGE), "the number of metadata keys is 18446744073709551615; more than 65536"),
        (gguf(n_keys=5, data=32), "the number of metadata keys is 5, which needs 70 bytes"),
        (gguf(n_tensors=HUGE), "the number of tensors is 18446744073709551615; more than 131072"),
        (gguf(n_tensors=3), "the number of tensors is 3, which needs 99 bytes"),
        (gguf(n_tensors=1 << 63), "the number of tensors is"),
        # keys
        (gguf([kv("", 4, U32)], data=32), "the name of metadata key 1 of 1 is empty"),
        (gguf([kv(b"\xff\xfe", 4, U32)]), "metadata key 1 of 1 is not valid UTF-8"),
        (gguf([kv("a\x1b[2J", 4, U32)]), "has control characters: 'a\\x1b[2J'"),
        (gguf([kv("x" * 70000, 4, U32)]), "has a length of 70000 bytes; at most 65535"),
        (gguf([struct.pack("<Q", HUGE) + bytes(20)]), "has a length of 18446744073709551615 bytes"),
        (gguf([struct.pack("<Q", 5000) + bytes(20)]), "needs 5000 bytes at byte 32, but the file ends at byte"),
        (gguf([kv("a", 4, U32), kv("b", 4, U32), kv("a", 4, U32)]), "metadata key 'a' appears twice"),
        # values
        (gguf([kv("a", 13, U32)], data=8), "metadata key 'a': value type 13 is unknown (known: 0 to 12)"),
        (gguf([kv("a", HUGE >> 32, U32)], data=8), "value type 4294967295 is unknown"),
        (gguf([kv("a", 7, b"\x02")]), "metadata key 'a' is a bool but has the value 2"),
        (gguf([kv("a", 8, struct.pack("<Q", HUGE))]), "needs 18446744073709551615 bytes"),
        (gguf([kv("a", 8, s(b"\xff"))]), "metadata key 'a' is not valid UTF-8"),
        # arrays
        (gguf([array("a", 9, 1, bytes(40))]), "metadata key 'a' is an array of arrays"),
        (gguf([array("a", 77, 1, bytes(40))]), "elements of metadata key 'a': value type 77 is unknown"),
        (gguf([array("a", 4, HUGE)]), "the element count of metadata key 'a' is 18446744073709551615"),
        (gguf([array("a", 4, 30, bytes(100))]), "has 30 elements of 4 bytes, which needs 120 bytes"),
        (gguf([array("a", 12, 1 << 61, bytes(100))]), "the element count of metadata key 'a' is"),
        (gguf([array("a", 8, 30, bytes(100))]), "has 30 strings, which needs 240 bytes"),
        (gguf([array("a", 8, 1 << 40, bytes(99))]), "more than 16777216 is not plausible"),
        (gguf([array("a", 8, 2, s("x") + struct.pack("<Q", 999))]), "string 1 of 2 goes past the end"),
        (gguf([array("a", 7, 3, b"\0\1\7")]), "is an array of bools but has the value 7"),
        # alignment
        (gguf([kv("general.alignment", 4, bytes(4))]), "general.alignment is 0; expected a power of two"),
        (gguf([kv("general.alignment", 4, struct.pack("<I", 48))]), "general.alignment is 48"),
        (gguf([kv("general.alignment", 4, struct.pack("<I", 1 << 21))]), "general.alignment is 2097152"),
        (gguf([kv("general.alignment", 10, struct.pack("<Q", 32))]), "has type u64; expected u32"),
        (gguf([kv("general.alignment", 8, s("32"))]), "general.alignment has type string; expected u32"),
        # tensor entries
        (gguf([], [entry("", (4,)), entry("", (4,))], 64), "the name of tensor 1 of 2 is empty"),
        (gguf([], [entry("n" * 2000, (4,))], 32), "the name of tensor 1 of 1 has a length of 2000 bytes"),
        (gguf([], [entry(b"\xc3", (4,))], 32), "the name of tensor 1 of 1 is not valid UTF-8"),
        (gguf([], [entry("t", (4,)), entry("t", (4,), offset=32)], 64), "tensor 't' appears twice"),
        (gguf([], [entry("t", ())], 32), "tensor 't' has 0 dims; expected 1 to 4"),
        (gguf([], [entry("t", (1,) * 5)], 32), "tensor 't' has 5 dims; expected 1 to 4"),
        (gguf([], [s("t") + struct.pack("<I", HUGE >> 32) + bytes(64)]), "tensor 't' has 4294967295 dims"),
        (gguf([], [entry("t", (4, 0))], 32), "tensor 't' has a dim of zero: [4, 0]"),
        (gguf([], [entry("t", (0, HUGE))], 32), "tensor 't' has a dim of zero"),
        (gguf([], [entry("t", (1 << 32, 1 << 32))], 32), "more than 281474976710656 elements"),
        (gguf([], [entry("t", (HUGE, HUGE, HUGE, HUGE))], 32), "elements are not plausible"),
        (gguf([], [entry("t", (1 << 47, 1))], 32), "truncated by"),
        (gguf([], [entry("t", (33,), 8)], 64), "rows of 33 elements; Q8_0 needs a multiple of 32"),
        (gguf([], [entry("t", (128, 2), 12)], 512), "rows of 128 elements; Q4_K needs a multiple of 256"),
        (gguf([], [entry("t", (32,), 4)], 64), "tensor 't': type id 4 (Q4_2) was removed"),
        (gguf([], [entry("t", (32,), 133)], 64), "type id 133 (Q6_0) exists only in ik_llama.cpp"),
        (gguf([], [entry("t", (32,), 43)], 64), "type id 43 is unknown (known ids: 0 to 42)"),
        (gguf([], [entry("t", (4,), offset=16)], 64), "has offset 16, which is not a multiple of 32"),
        (gguf([], [entry("a", (16,)), entry("b", (4,), offset=32)], 64), "'a' and 'b' overlap at byte 128"),
        (gguf([], [entry("a", (4,)), entry("b", (4,))], 64), "overlap"),
        (gguf([], [entry("t", (4,), offset=1 << 20)], 32), "all tensors together end at byte 96"),
        (gguf([], [entry("t", (4,), offset=HUGE - 31)], 32), "the file is damaged"),
    ],
)
def test_hostile_headers(tmp_path: Path, raw: bytes, words: str) -> None:
    assert words in refuse(tmp_path, raw)


@pytest.mark.parametrize("type_id", sorted(REMOVED | IK_LLAMA))
def test_types_without_support_are_refused_by_name(tmp_path: Path, type_id: int) -> None:
    text = refuse(tmp_path, gguf([], [entry("t", (256,), type_id)], 1024))
    assert (REMOVED | IK_LLAMA)[type_id] in text
    assert "Q4_K" in text  # what to do


def test_truncation_says_by_how_much(tmp_path: Path) -> None:
    whole = gguf([], [entry("first", (8,)), entry("second", (64,), offset=32)], 32 + 256)
    text = refuse(tmp_path, whole[:-1])
    assert "the file is truncated by 1 bytes" in text
    assert "tensor 'second' needs bytes" in text
    assert "1 of 2 tensors are cut off" in text
    text = refuse(tmp_path, whole[:-270])
    assert "truncated by 270 bytes" in text
    assert "tensor 'first'" in text
    text = refuse(tmp_path, whole[:-270], "model.gguf.part1of2")
    assert "one piece of a file" in text


def test_every_truncation_is_refused(tmp_path: Path, model_file: Path, tensors) -> None:
    whole = model_file.read_bytes()
    with GGUFFile(model_file) as f:
        needed = max(t.offset + t.n_bytes for t in f.tensors.values())
        start = min(t.offset for t in f.tensors.values())
    data = np.frombuffer(whole, np.uint8)
    for n in [*range(start + 1), *range(start, needed, 97), needed - 1]:
        with pytest.raises(GGUFError):
            parse_header(data[:n], "x")
    parse_header(data[:needed], "x")


def test_nothing_large_is_allocated_for_a_lie(tmp_path: Path) -> None:
    lies = [
        gguf(n_keys=65536),
        gguf(n_tensors=131072),
        gguf([array("a", 4, 1 << 30)]),
        gguf([array("a", 8, 1 << 24, bytes(64))]),
        gguf([kv("a", 8, struct.pack("<Q", 1 << 34))]),
    ]
    for raw in lies:
        path = tmp_path / "bad.gguf"
        path.write_bytes(raw)
        tracemalloc.start()
        with pytest.raises(GGUFError):
            GGUFFile(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


@pytest.mark.skipif(os.name == "nt", reason="such files take their whole size there")
@pytest.mark.parametrize(
    "raw",
    [
        gguf([kv("a", 8, struct.pack("<Q", 1 << 30))]),
        gguf([array("a", 4, 1 << 28)]),
        gguf([array("a", 0, 1 << 33)]),
        gguf([array("a", 8, 1 << 24, struct.pack("<Q", 1 << 30))]),
        gguf(
            [array("a", 8, 9, b"".join(struct.pack("<Q", 5) + b"zeros" for _ in range(8)) + struct.pack("<Q", 1 << 31))]
        ),
        gguf(n_keys=3),
        gguf(n_tensors=2),
    ],
)
def test_a_file_of_holes_fills_no_memory(tmp_path: Path, raw: bytes) -> None:
    """Gigabytes that take no room on the disk make room for any length that a header may claim."""
    path = tmp_path / "bad.gguf"
    path.write_bytes(raw)
    with open(path, "r+b") as f:
        f.truncate(1 << 35)
    tracemalloc.start()
    start = time.process_time()
    try:
        with pytest.raises(GGUFError, match=r"header has more than 32 MiB|empty|plausible|dims"):
            GGUFFile(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < seconds(1.0)
    assert peak < 64 << 20


def read_everything(path: Path) -> None:
    """Opens and reads all of it, or checks the complaint: a GGUFError that begins with the path."""
    try:
        f = GGUFFile(path)
    except GGUFError as e:
        if not str(e).startswith(str(path)):
            raise
        return
    with f:
        for value in f.metadata.values():
            if isinstance(value, StringArray):
                value.to_list("replace")
        for name, info in f.tensors.items():
            assert f.data(name).nbytes == info.n_bytes
            f.drop_pages(name)
        f.fingerprint()


Mutate = Callable[[bytearray], bytearray]

INTERESTING = [0, 1, 2, 3, 9, 13, 31, 127, 128, 255, 1 << 15, (1 << 16) - 1, (1 << 31) - 1, 1 << 31]
INTERESTING += [(1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, HUGE - 7, HUGE]


@st.composite
def mutations(draw: st.DrawFn, size: int) -> list[tuple[str, int, int]]:
    one = st.tuples(
        st.sampled_from(["byte", "u32", "u64", "cut", "insert", "delete"]),
        st.integers(0, size - 1),
        st.one_of(st.sampled_from(INTERESTING), st.integers(0, HUGE)),
    )
    return draw(st.lists(one, min_size=1, max_size=4))


def mutate(raw: bytes, steps: list[tuple[str, int, int]]) -> bytes:
    out = bytearray(raw)
    for kind, at, value in steps:
        at = min(at, max(len(out) - 1, 0))
        if kind == "cut":
            del out[at:]
        elif kind == "insert":
            out[at:at] = struct.pack("<Q", value)[: 1 + value % 8]
        elif kind == "delete":
            del out[at : at + 1 + value % 16]
        else:
            n = {"byte": 1, "u32": 4, "u64": 8}[kind]
            out[at : at + n] = struct.pack("<Q", value)[:n]
    return bytes(out)


HEADER_BYTES = 1400  # the fixture's header: about where mutations are worth most


@settings(max_examples=1000)
@given(steps=mutations(HEADER_BYTES))
@example(steps=[("u64", 8, HUGE)])
@example(steps=[("u64", 16, 1 << 16)])
def test_mutated_files_raise_gguf_errors_only(
    tmp_path_factory: pytest.TempPathFactory, model_file: Path, steps: list[tuple[str, int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(mutate(model_file.read_bytes(), steps))
    read_everything(path)


@settings(max_examples=500)
@given(tail=st.binary(max_size=200), n_keys=st.integers(0, 6), n_tensors=st.integers(0, 3))
def test_random_headers_raise_gguf_errors_only(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes, n_keys: int, n_tensors: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.gguf"
    path.write_bytes(gguf([tail], n_keys=n_keys, n_tensors=n_tensors))
    read_everything(path)
