"""Split models: any file of the set opens it; missing, swapped and foreign files are named."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from edgellm.core.errors import GGUFError, ModelNotFound
from edgellm.gguf import GGUFFile, QType
from edgellm.gguf.writer import Tensor, write, write_split

META = {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "b"]}


@pytest.fixture
def shards(make_tensor) -> list[list[Tensor]]:
    names = [["a", "b"], ["c"], ["d", "e"]]
    return [[make_tensor(n, (4, 64), QType.Q8_0, seed=ord(n)) for n in group] for group in names]


@pytest.fixture
def paths(tmp_path: Path, shards: list[list[Tensor]]) -> list[Path]:
    return write_split(tmp_path / "model", META, shards)


def test_any_shard_opens_the_set(paths: list[Path], shards: list[list[Tensor]]) -> None:
    assert [p.name for p in paths] == [f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    prints = set()
    for path in [*paths, paths[0].parent]:
        with GGUFFile(path) as f:
            assert f.path == paths[0]
            assert f.paths == tuple(paths)
            assert f.n_bytes == sum(p.stat().st_size for p in paths)
            assert f.metadata["general.architecture"] == "llama"
            assert list(f.tensors) == ["a", "b", "c", "d", "e"]
            for i, group in enumerate(shards):
                for t in group:
                    assert f.tensors[t.name].shard == i
                    assert f.data(t.name).tobytes() == np.asarray(t.data).tobytes()
                    f.drop_pages(t.name)
            prints.add(f.fingerprint())
    assert len(prints) == 1


def test_fingerprint_covers_every_shard(paths: list[Path]) -> None:
    before = GGUFFile(paths[0]).fingerprint()
    raw = bytearray(paths[2].read_bytes())
    raw[-40] ^= 1
    paths[2].write_bytes(raw)
    assert GGUFFile(paths[0]).fingerprint() != before


def test_alignment_reaches_every_shard(tmp_path: Path, shards: list[list[Tensor]]) -> None:
    paths = write_split(tmp_path / "m", {**META, "general.alignment": 128}, shards)
    with GGUFFile(paths[1]) as f:
        assert all(t.offset % 128 == 0 for t in f.tensors.values())
        assert f.data("e").tobytes() == np.asarray(shards[2][1].data).tobytes()


def test_missing_shards_are_named(paths: list[Path]) -> None:
    paths[1].unlink()
    with pytest.raises(GGUFError, match=r"1 of the 3 parts .* missing .*: model-00002-of-00003\.gguf"):
        GGUFFile(paths[2])
    paths[0].unlink()
    with pytest.raises(GGUFError, match=r"model-00001-of-00003\.gguf, model-00002-of-00003\.gguf"):
        GGUFFile(paths[2])


def test_a_folder_with_a_part_missing(paths: list[Path]) -> None:
    for gone in paths[:2]:
        gone.unlink()
        with pytest.raises(GGUFError, match=rf"missing in .*: .*{gone.name}"):
            GGUFFile(paths[0].parent)


def test_swapped_shards_are_named(paths: list[Path]) -> None:
    other = paths[1].with_name("x")
    paths[1].rename(other)
    paths[2].rename(paths[1])
    other.rename(paths[2])
    with pytest.raises(GGUFError, match=r"model-00002-of.*name says part 2 of 3, .*says it is part 3: .*swapped"):
        GGUFFile(paths[0])


def test_a_shard_of_another_model(paths: list[Path], shards: list[list[Tensor]], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    two = write_split(tmp_path / "other" / "model", META, shards[:2])
    shutil.copy(two[1], paths[1])
    with pytest.raises(GGUFError, match=r"model-00002-of-00003\.gguf: split\.count is 2, expected 3"):
        GGUFFile(paths[0])
    single = write(tmp_path / "other" / "single.gguf", META, shards[0])
    shutil.copy(single, paths[1])
    with pytest.raises(GGUFError, match=r"split\.count is None, expected 3"):
        GGUFFile(paths[0])


def test_tensors_must_add_up(tmp_path: Path, shards: list[list[Tensor]], make_tensor) -> None:
    paths = write_split(tmp_path / "model", META, shards)
    (tmp_path / "o").mkdir()
    extra = make_tensor("extra", (4, 64), QType.Q8_0)
    other = write_split(tmp_path / "o" / "model", META, [shards[0], [*shards[1], extra], shards[2]])
    shutil.copy(other[1], paths[1])
    with pytest.raises(GGUFError, match=r"split\.tensors\.count is 5, but the 3 parts have 6 tensors"):
        GGUFFile(paths[0])
    twice = write_split(tmp_path / "o" / "model", META, [shards[0], shards[0], shards[2]])
    shutil.copy(twice[1], paths[1])
    with pytest.raises(GGUFError, match=r"tensor 'a' is also in model-00001-of-00003\.gguf"):
        GGUFFile(paths[0])


def test_a_renamed_shard_cannot_find_its_set(paths: list[Path]) -> None:
    renamed = paths[0].rename(paths[0].with_name("renamed.gguf"))
    with pytest.raises(GGUFError, match=r"one of 3 parts .* its name is not like NAME-00001-of-00003\.gguf"):
        GGUFFile(renamed)


def test_truncated_shard_is_named(paths: list[Path]) -> None:
    paths[2].write_bytes(paths[2].read_bytes()[:-100])
    with pytest.raises(GGUFError, match=r"model-00003-of-00003\.gguf: the file is truncated"):
        GGUFFile(paths[0])


def test_a_set_of_one_file(tmp_path: Path, shards: list[list[Tensor]]) -> None:
    paths = write_split(tmp_path / "model", META, shards[:1])
    assert list(GGUFFile(paths[0]).tensors) == ["a", "b"]
    renamed = paths[0].rename(tmp_path / "free-name.gguf")
    assert list(GGUFFile(renamed).tensors) == ["a", "b"]


def test_hostile_split_counts(tmp_path: Path) -> None:
    for value in (70000, -3, 1.5, "many"):
        path = write(tmp_path / "m-00001-of-00002.gguf", {"split.count": value})
        with pytest.raises(GGUFError, match=r"split\.count is"):
            GGUFFile(path)


def test_directories(tmp_path: Path, shards: list[list[Tensor]]) -> None:
    write(tmp_path / "one.GGUF", META, shards[0])
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "folder.gguf").mkdir()
    assert GGUFFile(tmp_path).path.name == "one.GGUF"
    write(tmp_path / "mmproj-one.gguf", META)
    assert GGUFFile(tmp_path).path.name == "one.GGUF"
    write_split(tmp_path / "two", META, shards)
    with pytest.raises(ModelNotFound, match=r"2 models; name one of them: one\.GGUF, two-00001-of-00003\.gguf"):
        GGUFFile(tmp_path)
