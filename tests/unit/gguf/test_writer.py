"""Writing: whatever is written reads back equal, here and in the gguf package."""

from __future__ import annotations

from pathlib import Path

import gguf as oracle
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.core.errors import GGUFError
from edgellm.gguf import GGUFFile, QType, StringArray, ValueType
from edgellm.gguf.values import DTYPES
from edgellm.gguf.writer import Tensor, Typed, header_bytes, write

INTS = [t for t, d in DTYPES.items() if d.kind in "iu"]


def of_type(kind: ValueType) -> st.SearchStrategy[object]:
    if kind is ValueType.STRING:
        return st.text(max_size=20)
    if kind is ValueType.BOOL:
        return st.booleans()
    if kind in INTS:
        info = np.iinfo(DTYPES[kind])
        return st.integers(int(info.min), int(info.max))
    return st.floats(width=32 if kind is ValueType.F32 else 64, allow_nan=False)


@st.composite
def typed(draw: st.DrawFn) -> Typed:
    kind = draw(st.sampled_from(list(ValueType)))
    if kind is not ValueType.ARRAY:
        return Typed(draw(of_type(kind)), kind)
    element = draw(st.sampled_from([t for t in ValueType if t is not ValueType.ARRAY]))
    return Typed(draw(st.lists(of_type(element), max_size=300)), kind, element)


keys = st.text(st.characters(codec="utf-8", min_codepoint=32), min_size=1, max_size=20).filter(
    lambda k: k != "general.alignment" and not k.startswith("split.")
)
shapes = st.lists(st.integers(1, 4), max_size=3)


@settings(max_examples=200)
@given(
    metadata=st.dictionaries(keys, typed(), max_size=8),
    alignment=st.sampled_from([1, 4, 32, 256]),
    kinds=st.lists(st.tuples(st.sampled_from(list(QType)), shapes), max_size=5),
    seed=st.integers(0, 1000),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    metadata: dict[str, Typed],
    alignment: int,
    kinds: list[tuple[QType, list[int]]],
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    tensors = []
    for i, (qtype, outer) in enumerate(kinds):
        shape = (*outer, qtype.block * 2)
        n = qtype.n_bytes(int(np.prod(shape)))
        tensors.append(Tensor(f"t{i}", shape, qtype, rng.integers(0, 256, n, dtype=np.uint8)))
    path = tmp_path_factory.getbasetemp() / "round.gguf"
    write(path, {**metadata, "general.alignment": alignment}, tensors)
    with GGUFFile(path) as f:
        assert list(f.metadata) == [*metadata, "general.alignment"]
        for key, expected in metadata.items():
            value = f.metadata[key]
            assert f.kv_types[key].type is expected.type
            assert f.kv_types[key].element is expected.element
            if isinstance(value, StringArray):
                assert value.to_list() == expected.value
            elif isinstance(value, np.ndarray):
                assert expected.element is not None
                assert value.dtype == DTYPES[expected.element]
                assert value.tolist() == expected.value
            else:
                assert value == expected.value
        for t in tensors:
            assert f.tensors[t.name].shape == t.shape
            assert f.data(t.name).tobytes() == np.asarray(t.data).tobytes()


def test_types_from_python_values(tmp_path: Path) -> None:
    meta = {
        "bool": True,
        "u32": 7,
        "i32": -7,
        "u64": 1 << 32,
        "i64": -(1 << 31) - 1,
        "f32": 1.5,
        "string": "x",
        "ints": [1, -2],
        "wide": [1, -(1 << 40)],
        "big": [1, 1 << 33],
        "bools": (True, False),
        "np": np.array([1, 2], np.int16),
    }
    with GGUFFile(write(tmp_path / "m.gguf", meta)) as f:
        kinds = {k: str(v) for k, v in f.kv_types.items()}
        strings = f.metadata["string"]
    assert strings == "x"
    assert kinds == {
        **{k: k for k in ("bool", "u32", "i32", "u64", "i64", "f32", "string")},
        "ints": "array[i32, 2]",
        "wide": "array[i64, 2]",
        "big": "array[u64, 2]",
        "bools": "array[bool, 2]",
        "np": "array[i16, 2]",
    }


def test_metadata_of_a_file_can_be_written_again(tmp_path: Path, model_file: Path) -> None:
    with GGUFFile(model_file) as f:
        kept = {
            k: v if isinstance(v, StringArray | np.ndarray) else Typed(v, f.kv_types[k].type)
            for k, v in f.metadata.items()
        }
        again = write(tmp_path / "m.gguf", kept)
        with GGUFFile(again) as g:
            assert g.kv_types == f.kv_types


def test_the_gguf_package_reads_it(tmp_path: Path, make_tensor) -> None:
    t = make_tensor("w", (3, 64), QType.Q8_0)
    path = write(tmp_path / "m.gguf", {"general.alignment": 64, "a": ["x", "yy"], "b": 2.5}, [t])
    reader = oracle.GGUFReader(path)
    assert reader.alignment == 64
    assert reader.fields["a"].contents() == ["x", "yy"]
    assert reader.fields["b"].contents() == 2.5
    assert reader.tensors[0].data.tobytes() == np.asarray(t.data).tobytes()


def test_data_may_come_in_pieces(tmp_path: Path) -> None:
    raw = np.arange(40, dtype=np.float32)
    t = Tensor("w", (40,), QType.F32, lambda: (raw[i : i + 8] for i in range(0, 40, 8)))
    with GGUFFile(write(tmp_path / "m.gguf", {}, [t])) as f:
        assert f.data("w").tobytes() == raw.tobytes()


def test_bad_input_is_a_typed_error_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(GGUFError, match=r"tensor 'w': 12 bytes given, but shape \(4,\) in F32 needs 16"):
        write(path, {}, [Tensor("w", (4,), QType.F32, bytes(12))])
    with pytest.raises(GGUFError, match="no rows of whole Q4_0 blocks"):
        write(path, {}, [Tensor("w", (2, 16), QType.Q4_0, bytes(18))])
    with pytest.raises(GGUFError, match="cannot hold a dict"):
        write(path, {"a": {}})
    with pytest.raises(GGUFError, match="must have one type"):
        write(path, {"a": [1, "x"]})
    with pytest.raises(GGUFError, match="must have one type"):
        write(path, {"a": []})
    with pytest.raises(GGUFError, match="300 does not fit u8"):
        write(path, {"a": Typed(300, ValueType.U8)})
    with pytest.raises(GGUFError, match="cannot hold an array complex128"):
        write(path, {"a": np.zeros(2, np.complex128)})
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_survives_a_failed_write(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"a": 1})
    with pytest.raises(GGUFError):
        write(path, {"a": 2}, [Tensor("w", (4,), QType.F32, bytes(12))])
    assert GGUFFile(path).metadata["a"] == 1


def test_header_bytes_is_the_start_of_the_file(tmp_path: Path, make_tensor) -> None:
    t = make_tensor("w", (3, 64), QType.Q8_0)
    head = header_bytes({"a": 1}, [t])
    assert write(tmp_path / "m.gguf", {"a": 1}, [t]).read_bytes().startswith(head)
