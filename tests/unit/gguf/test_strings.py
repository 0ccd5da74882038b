"""Arrays of strings: the fast scan and the fast decode equal the plain ones on any content."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limits import seconds

from edgellm.core.errors import GGUFError
from edgellm.gguf import GGUFFile
from edgellm.gguf.values import StringArray, scan_strings
from edgellm.gguf.writer import write


def blob(strings: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(struct.pack("<Q", len(s)) + s for s in strings), np.uint8)


def plain_scan(strings: list[bytes]) -> list[int]:
    bounds = [0]
    for s in strings:
        bounds.append(bounds[-1] + 8 + len(s))
    return bounds


# Short, empty, long (over 255 bytes) strings, with NULs and with bytes that look like length prefixes.
pieces = st.one_of(
    st.binary(max_size=12),
    st.just(b""),
    st.just(b"\x05" + bytes(7)),
    st.just(bytes(30)),
    st.integers(250, 700).map(lambda n: b"x" * n),
    st.text(max_size=8).map(str.encode),
)


@settings(max_examples=60)
@given(st.lists(pieces, max_size=40), st.integers(1, 60), st.integers(0, 20))
def test_scan_equals_the_plain_loop(some: list[bytes], times: int, offset: int) -> None:
    strings = some * times
    data = np.concatenate([np.full(offset, 7, np.uint8), blob(strings), np.full(9, 3, np.uint8)])
    found = scan_strings(data, offset, len(strings))
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [b + offset for b in plain_scan(strings)]


@settings(max_examples=100)
@given(st.lists(pieces, min_size=1, max_size=20), st.integers(1, 60), st.data())
def test_scan_names_the_string_that_does_not_fit(some: list[bytes], times: int, data: st.DataObject) -> None:
    strings = some * times
    whole = blob(strings)
    cut = data.draw(st.integers(0, len(whole) - 1))
    expected = next(i for i, end in enumerate(plain_scan(strings)[1:]) if end > cut)
    assert scan_strings(whole[:cut], 0, len(strings)) == expected


@pytest.mark.parametrize("at", [0, 1, 300, 999])
@pytest.mark.parametrize("length", [1 << 20, 1 << 62, (1 << 64) - 8, (1 << 64) - 1])
def test_scan_of_an_absurd_length(at: int, length: int) -> None:
    strings = [b"abc"] * 1000
    data = blob(strings).copy()
    data[at * 11 : at * 11 + 8] = np.frombuffer(struct.pack("<Q", length), np.uint8)
    assert scan_strings(data, 0, 1000) == at


@settings(max_examples=100)
@given(st.lists(st.one_of(st.text(max_size=10), st.just("\0"), st.just("")), max_size=50))
def test_decoding_equals_one_by_one(strings: list[str]) -> None:
    raw = [s.encode() for s in strings]
    array = StringArray("k", blob(raw), np.array(plain_scan(raw), np.int64))
    assert array.to_list() == strings
    assert [array.raw(i) for i in range(len(array))] == raw
    assert list(array) == strings
    assert array.lengths().tolist() == [len(r) for r in raw]
    if strings:
        assert array[-1] == strings[-1]
        assert array[1:] == strings[1:]


@settings(max_examples=100)
@given(st.lists(st.binary(max_size=6), max_size=30), st.sampled_from(["replace", "surrogateescape"]))
def test_lenient_decoding_equals_one_by_one(raw: list[bytes], errors: str) -> None:
    array = StringArray("k", blob(raw), np.array(plain_scan(raw), np.int64))
    assert array.to_list(errors) == [r.decode("utf-8", errors) for r in raw]


def test_bad_utf8_names_the_element() -> None:
    raw = [b"fine"] * 5 + [b"b\xe9d"]
    array = StringArray("tokens", blob(raw), np.array(plain_scan(raw), np.int64))
    with pytest.raises(GGUFError, match=r"'tokens': string 5 is not valid UTF-8"):
        array.to_list()
    with pytest.raises(GGUFError, match="string 5"):
        array[5]
    assert array[4] == "fine"
    with pytest.raises(IndexError):
        array[6]
    with pytest.raises(IndexError):
        array[-7]


@pytest.mark.timing
def test_a_large_vocabulary_opens_quickly(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = ["▁" * int(n) + f"tok{i}" for i, n in enumerate(rng.integers(0, 6, 262_144))]
    path = write(tmp_path / "m.gguf", {"tokenizer.ggml.tokens": tokens})
    times = []
    for _ in range(5):
        start = time.process_time()
        f = GGUFFile(path)
        times.append(time.process_time() - start)
        f.close()
    strings = f.metadata["tokenizer.ggml.tokens"]
    assert isinstance(strings, StringArray)
    assert strings.to_list() == tokens
    assert min(times) < seconds(0.05), f"262144 strings took {min(times) * 1e3:.0f} ms"


@pytest.mark.timing
@pytest.mark.parametrize("filler", [b"", bytes(8), b"\x01" + bytes(7), b"y" * 256])
def test_hostile_content_stays_linear(filler: bytes) -> None:
    """Strings made to break every chain cost no more than the plain loop would."""
    n = 100_000
    data = blob([filler] * n)
    start = time.process_time()
    found = scan_strings(data, 0, n)
    assert isinstance(found, np.ndarray)
    assert found[-1] == len(data)
    assert time.process_time() - start < seconds(1.0)
