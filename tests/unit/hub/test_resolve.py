"""What a user may write for a model, and what they are told when it means nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from unit.hub.fake_index import World

from edgellm import hub
from edgellm.core.errors import ModelNotFound
from edgellm.gguf.writer import write, write_split


@pytest.fixture
def here(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder; the machine has the catalogue one:small, two:base and no network use."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


def test_paths(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(here / "My Model.gguf", {})
    for spelling in ("My Model.gguf", "./My Model.gguf", str(file), " My Model.gguf "):
        found = hub.resolve(spelling)
        assert found.path.samefile(file)
        assert (found.name, found.entry, found.base) == ("My Model", None, False)
    monkeypatch.setenv("HOME", str(here))
    monkeypatch.setenv("USERPROFILE", str(here))
    assert hub.resolve("~/My Model.gguf").path == file


def test_folders(here: Path) -> None:
    (here / "sub").mkdir()
    paths = write_split(here / "sub" / "model", {}, [[], []])
    assert hub.resolve("sub").path.samefile(paths[0])
    write(here / "sub" / "other.gguf", {})
    with pytest.raises(ModelNotFound, match=r"2 models; name one of them: model-00001-of-00002\.gguf, other\.gguf"):
        hub.resolve("sub")


def test_catalogue_names(world: World) -> None:
    assert hub.resolve("ONE:small").path == world.path_one
    found = hub.resolve("one")
    assert (found.name, found.base) == ("one:small", False)
    assert found.entry == hub.catalog()[0]


def test_a_file_of_the_catalogue_is_recognised_by_its_path(world: World, tmp_path: Path) -> None:
    copy = tmp_path / "two.gguf"
    copy.write_bytes(world.two)
    found = hub.resolve(str(copy))
    assert (found.path, found.name, found.base) == (copy, "two:base", True)
    copy.write_bytes(world.two + b"x")
    found = hub.resolve(str(copy))
    assert (found.name, found.base) == ("two", False)


def test_the_catalogue_goes_before_folders_of_the_same_name(world: World, here: Path) -> None:
    (here / "one").mkdir()
    write(here / "one" / "other.gguf", {})
    world.path_one.parent.mkdir(parents=True)
    world.path_one.write_bytes(world.one)
    assert hub.resolve("one").path == world.path_one
    assert hub.resolve("./one").path.name == "other.gguf"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            "",
            [
                "no model was named",
                "Give the path of a .gguf file, a model on Hugging Face",
                "or one of: one:small, two",
            ],
        ),
        ("one:smal", ["no model is called 'one:smal'. Did you mean one:small?"]),
        ("two", ["no model is called 'two'. Did you mean two:base?"]),
        ("qwen3:0.6b", ["no model is called 'qwen3:0.6b'.", "one of: one:small, two:base"]),
        ("missing.gguf", ["missing.gguf: no such file."]),
        ("./missing", ["./missing: no such file."]),
        ("/nowhere/at/all.gguf", ["/nowhere/at/all.gguf: no such file."]),
        ("folder/missing.gguf", ["folder/missing.gguf: no such file."]),
        ("C:\\models\\m", ["no such file"]),
        ("~nobody-here/m.gguf", ["no such file"]),
        ("bad\0name", ["no model is called 'bad\\x00name'"]),
        ("hf:gpt2", ["names no repository on Hugging Face"]),
        ("models/llama/missing.gguf", ["no such file.", "on Hugging Face, write hf:models/llama/missing.gguf."]),
        (
            "https://m.org/u/r/resolve/main/m.gguf",
            ["If that is a mirror of Hugging Face, set HF_ENDPOINT=https://m.org."],
        ),
        ("https://example.com/m.gguf", ["is an address; edgellm does not fetch from it"]),
        ("ollama://x", ["is an address"]),
    ],
)
def test_what_means_nothing(here: Path, model: str, words: list[str]) -> None:
    with pytest.raises(ModelNotFound) as caught:
        hub.resolve(model)
    text = str(caught.value)
    for piece in words:
        assert piece in text
    assert "one:small" in text or "USER/REPOSITORY" in text  # always what would work


def test_near_files_are_named(here: Path) -> None:
    write(here / "Qwen3-0.6B-Q8_0.gguf", {})
    with pytest.raises(ModelNotFound, match=r"no such file\. In that folder: Qwen3-0\.6B-Q8_0\.gguf\."):
        hub.resolve("./Qwen3-0.6B-Q4_K_M.gguf")


def test_not_found_is_a_file_not_found_error(here: Path) -> None:
    with pytest.raises(FileNotFoundError):
        hub.resolve("nothing")


def test_models_put_into_the_cache_by_hand(world: World, here: Path) -> None:
    file = world.cache / "models" / "mine" / "m-Q8_0.gguf"
    file.parent.mkdir(parents=True)
    write(file, {})
    assert [m.name for m in hub.list_local()] == ["mine/m-Q8_0"]
    found = hub.resolve("mine/m-Q8_0")
    assert (found.path, found.name, found.entry) == (file, "mine/m-Q8_0", None)


def test_list(world: World) -> None:
    assert hub.list_local() == []
    hub.pull("one:small")
    hub.pull("two:base")
    extra = world.cache / "models"
    write_split(extra / "big", {}, [[], [], []])
    write(extra / "zz.gguf", {"x": "y" * 1000})
    (extra / "one-small" / ".download").mkdir()
    write(extra / "one-small" / ".download" / "part.gguf", {})
    os.utime(world.path_one, (1_700_000_000, 1_700_000_000))
    listed = hub.list_local()
    assert [m.name for m in listed] == ["big-00001-of-00003", "one:small", "two:base", "zz"]
    one = listed[1]
    assert (one.path, one.size) == (world.path_one, len(world.one))
    assert one.modified.isoformat() == "2023-11-14T22:13:20+00:00"
    assert listed[0].size == sum(p.stat().st_size for p in extra.glob("big-*"))


def test_remove(world: World) -> None:
    hub.pull("one:small")
    work = world.path_one.parent / ".download"
    work.mkdir()
    (work / "rest.part").write_bytes(bytes(1000))
    assert hub.remove("ONE:small") == len(world.one) + 1000
    assert not world.path_one.parent.exists()
    with pytest.raises(ModelNotFound, match=r"one:small is not in the model cache .*nothing to remove"):
        hub.remove("one:small")
    folder = world.cache / "models" / "mine"
    folder.mkdir()
    paths = write_split(folder / "m", {}, [[], []])
    other = write(folder / "other.gguf", {})
    assert hub.remove("mine/m-00001-of-00002") > 0
    assert [p.exists() for p in paths] == [False, False]
    assert other.exists()
    hub.remove("mine/other")
    assert not folder.exists()


@pytest.mark.parametrize("name", ["../outside", "..", "", ".", "/etc/passwd", "mine/../../outside", "nothing"])
def test_remove_stays_inside_the_cache(world: World, name: str) -> None:
    outside = world.cache / "outside.gguf"
    (world.cache / "models" / "mine").mkdir(parents=True)
    write(outside, {})
    with pytest.raises(ModelNotFound, match=r"is not in the model cache .*models there: none"):
        hub.remove(name)
    assert outside.exists()
