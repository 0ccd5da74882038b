"""Opening sound files: metadata, tensors, views, lifetime, fingerprint; the same facts as the gguf package."""

from __future__ import annotations

import gc
import os
import pickle
import sys
from pathlib import Path

import gguf as oracle
import numpy as np
import pytest

from edgellm.core.errors import GGUFError
from edgellm.gguf import GGUFFile, QType, StringArray, ValueType
from edgellm.gguf.dequantize import dequantize
from edgellm.gguf.writer import Tensor, Typed, write


def plain(value: object) -> object:
    if isinstance(value, Typed):
        return value.value
    return value


def test_metadata_of_every_type(model_file: Path, metadata: dict[str, object]) -> None:
    with GGUFFile(model_file) as f:
        assert list(f.metadata) == list(metadata)
        for key, expected in metadata.items():
            value, expected = f.metadata[key], plain(expected)
            if isinstance(value, StringArray):
                assert value.to_list() == expected
            elif isinstance(value, np.ndarray):
                assert not value.flags.writeable
                assert value.tolist() == np.asarray(expected).tolist()
                if isinstance(expected, np.ndarray):
                    assert value.dtype == expected.dtype
            else:
                assert value == expected
                assert type(value) is type(expected)


def test_declared_types(model_file: Path) -> None:
    with GGUFFile(model_file) as f:
        shown = {key: str(kind) for key, kind in f.kv_types.items()}
        assert shown["a.u8"] == "u8"
        assert shown["a.i64"] == "i64"
        assert shown["a.f64"] == "f64"
        assert shown["general.name"] == "string"
        assert shown["array.strings"] == "array[string, 4]"
        assert shown["array.bool"] == "array[bool, 3]"
        assert f.kv_types["array.none"].element is ValueType.STRING
        assert f.kv_types["array.none"].count == 0


def test_tensors(model_file: Path, tensors: list[Tensor]) -> None:
    with GGUFFile(model_file) as f:
        assert list(f.tensors) == [t.name for t in tensors]
        for t in tensors:
            info = f.tensors[t.name]
            assert (info.name, info.shape, info.qtype, info.n_bytes) == (t.name, t.shape, t.qtype, t.n_bytes)
            assert info.ne == t.shape[::-1]
            assert info.n_elements == np.prod(t.shape)
            assert info.shard == 0
            data = f.data(t.name)
            assert data.dtype == np.uint8
            assert data.shape == (t.n_bytes,)
            assert data.tobytes() == np.asarray(t.data).tobytes()
            assert model_file.read_bytes()[info.offset : info.offset + info.n_bytes] == data.tobytes()


def test_the_gguf_package_reads_the_same(model_file: Path) -> None:
    reader = oracle.GGUFReader(model_file)
    with GGUFFile(model_file) as f:
        for t in reader.tensors:
            info = f.tensors[t.name]
            assert info.ne == tuple(int(n) for n in t.shape)
            assert info.offset == t.data_offset
            assert int(info.qtype) == int(t.tensor_type)
            assert f.data(t.name).tobytes() == t.data.tobytes()
        names = [k for k in reader.fields if not k.startswith("GGUF.")]
        assert names == list(f.metadata)


def test_views_are_read_only_and_share_the_map(model_file: Path) -> None:
    with GGUFFile(model_file) as f:
        a, b = f.data("blk.0.q.weight"), f.data("blk.0.q.weight")
        assert a.ctypes.data == b.ctypes.data
        with pytest.raises(ValueError, match="read-only"):
            a[0] = 1


def test_infos_are_immutable(model_file: Path) -> None:
    with GGUFFile(model_file) as f:
        with pytest.raises(AttributeError):
            f.tensors["blk.0.q.weight"].offset = 0  # type: ignore[misc]
        with pytest.raises(TypeError):
            f.tensors["x"] = f.tensors["blk.0.q.weight"]  # type: ignore[index]
        with pytest.raises(TypeError):
            f.metadata["x"] = 1  # type: ignore[index]
        assert pickle.loads(pickle.dumps(f.tensors["blk.0.q.weight"])) == f.tensors["blk.0.q.weight"]


def test_unknown_tensor_is_a_key_error(model_file: Path) -> None:
    with GGUFFile(model_file) as f, pytest.raises(KeyError):
        f.data("nothing")


def test_what_was_handed_out_outlives_close(model_file: Path, tensors: list[Tensor]) -> None:
    f = GGUFFile(model_file)
    view = f.data("blk.0.q.weight")
    strings = f.metadata["array.strings"]
    f.close()
    f.close()
    assert view.tobytes() == np.asarray(tensors[2].data).tobytes()
    assert isinstance(strings, StringArray)
    assert strings[3] == "日本"
    assert f.metadata["a.u8"] == 200
    with pytest.raises(GGUFError, match="closed"):
        f.data("blk.0.q.weight")
    assert f.fingerprint() == GGUFFile(model_file).fingerprint()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc to count descriptors")
def test_close_gives_the_descriptor_and_the_map_back(model_file: Path) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(str(model_file))

    gc.collect()
    before = len(os.listdir("/proc/self/fd")), mapped()
    for _ in range(20):
        with GGUFFile(model_file) as f:
            assert mapped() == before[1] + 1
            f.data("blk.0.q.weight").sum()
            strings = f.metadata["array.strings"]
    assert (len(os.listdir("/proc/self/fd")), mapped()) == before
    assert len(strings) == 4  # type: ignore[arg-type]
    bad = model_file.with_name("bad.gguf")
    bad.write_bytes(model_file.read_bytes()[:-3000])
    for _ in range(20):
        with pytest.raises(GGUFError):
            GGUFFile(bad)
    gc.collect()
    assert (len(os.listdir("/proc/self/fd")), mapped()) == before


def test_drop_pages_keeps_the_bytes(tmp_path: Path) -> None:
    values = np.arange(1 << 18, dtype=np.float32)
    path = write(tmp_path / "m.gguf", {}, [Tensor("w", values.shape, QType.F32, values)])
    with GGUFFile(path) as f:
        data = f.data("w")
        assert np.array_equal(dequantize(data, QType.F32, values.shape), values)

        def resident() -> int:
            text = Path("/proc/self/smaps").read_text()
            block = text[text.index(str(path)) :]
            return int(block[block.index("Rss:") :].split()[1])

        if sys.platform == "linux":
            assert resident() >= 1000
        f.drop_pages("w")
        if sys.platform == "linux":
            assert resident() <= 16
        assert np.array_equal(dequantize(data, QType.F32, values.shape), values)


def test_opening_leaves_header_pages_out_of_memory(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("needs /proc/self/smaps")
    path = write(tmp_path / "m.gguf", {"s": ["x" * 100] * 20000})
    with GGUFFile(path):
        text = Path("/proc/self/smaps").read_text()
        block = text[text.index(str(path)) :]
        assert int(block[block.index("Rss:") :].split()[1]) < 64


def test_fingerprint(tmp_path: Path, model_file: Path, metadata: dict[str, object], tensors: list[Tensor]) -> None:
    with GGUFFile(model_file) as f:
        first = f.fingerprint()
        assert first == f.fingerprint()
        f.close()
        assert first == f.fingerprint()  # remembered
    assert len(bytes.fromhex(first)) == 32
    copy = tmp_path / "another-name.gguf"
    copy.write_bytes(model_file.read_bytes())
    assert GGUFFile(copy).fingerprint() == first
    write(copy, {**metadata, "a.i32": -8}, tensors)
    assert GGUFFile(copy).fingerprint() != first
    raw = bytearray(model_file.read_bytes())
    with GGUFFile(model_file) as f:
        at = f.tensors["token_embd.weight"].offset
    raw[at] ^= 1
    copy.write_bytes(raw)
    assert GGUFFile(copy).fingerprint() != first
    copy.write_bytes(model_file.read_bytes() + b"\0")
    assert GGUFFile(copy).fingerprint() != first


def test_version_2_and_alignments(tmp_path: Path, make_tensor) -> None:
    for alignment in (1, 8, 64, 4096, 1 << 20):
        meta = {"general.alignment": alignment}
        tensors = [make_tensor("a", (3, 32), QType.Q8_0), make_tensor("b", (5,), QType.F32)]
        path = write(tmp_path / f"{alignment}.gguf", meta, tensors, version=2)
        with GGUFFile(path) as f:
            assert f.version == 2
            assert all(t.offset % alignment == 0 for t in f.tensors.values())
            assert f.data("b").tobytes() == np.asarray(tensors[1].data).tobytes()


def test_vocabulary_only(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab.gguf", {"tokenizer.ggml.tokens": ["a", "b"]})
    with GGUFFile(path) as f:
        assert len(f.tensors) == 0
        assert f.n_bytes == path.stat().st_size
        assert len(f.fingerprint()) == 64


def test_the_last_tensor_needs_no_padding(tmp_path: Path, make_tensor) -> None:
    t = make_tensor("b", (5,), QType.F32)
    path = write(tmp_path / "m.gguf", {}, [t])
    with GGUFFile(path) as f:
        end = f.tensors["b"].offset + 20
    path.write_bytes(path.read_bytes()[:end])
    with GGUFFile(path) as f:
        assert f.data("b").tobytes() == np.asarray(t.data).tobytes()


def test_bad_utf8_in_a_description_is_shown_not_fatal(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"general.description": b"caf\xe9"})
    with GGUFFile(path) as f:
        assert f.metadata["general.description"] == "caf\ufffd"
    path = write(tmp_path / "m.gguf", {"tokenizer.chat_template": b"caf\xe9"})
    with pytest.raises(GGUFError, match=r"'tokenizer\.chat_template' is not valid UTF-8"):
        GGUFFile(path)
