"""inspect, tokenize: what is in a model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving.tiny import END, N_VOCAB, START, write_tiny
from unit.cli.conftest import CLI

from edgellm.cli import inspect, tokenize
from edgellm.cli.verify import SCALES, count_bad
from edgellm.gguf.dequantize import can_dequantize, dequantize
from edgellm.gguf.qtypes import QType

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
        (["-ctk", "bf16", "-ctv", "fp8"], 256 * (2 + 1) * 32),
        (["--cache-type-k", "q8_0", "--cache-type-v", "q4_0"], 256 * 2 * (34 + 18)),  # two heads of 16: half blocks
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


# -- inspect: memory and --verify --------------------------------------------------------------------------------


def test_memory_says_what_fits(cli: CLI, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = json.loads(cli("inspect", tiny, "--json", "-c", "100").out)["memory"]
    assert memory["needed"] == json.loads(cli("inspect", tiny, "--json").out)["n_params"] * 4 + 128 * 2 * 32 * 2
    assert memory["fits"]
    assert memory["layout"] == "tiles"
    assert memory["largest_ctx"] == 256
    needed = memory["needed"]
    monkeypatch.setattr("edgellm.core.memory.available", lambda: needed - 1)
    memory = json.loads(cli("inspect", tiny, "--json", "-c", "100").out)["memory"]
    assert (memory["fits"], memory["layout"], memory["largest_ctx"]) == (False, "mmap", 96)
    assert "does not fit: a context of 96 tokens would; weights would be run from the file" in cli(
        "inspect", tiny, "-c", "100"
    ).out  # fmt: skip
    monkeypatch.setattr("edgellm.core.memory.available", lambda: 1000)
    assert "available: does not fit; weights" in cli("inspect", tiny).out


def test_verify(cli: CLI, tiny: str, tmp_path: Path) -> None:
    code, out, err = cli("inspect", tiny, "--verify")
    assert (code, err) == (0, "")
    assert "verified: 12 tensors, 0.1 MB read: no scale or value is infinite or undefined" in out
    r = json.loads(cli("inspect", tiny, "--verify", "--json").out)["verify"]
    assert (r["n_tensors"], r["bad"], r["unchecked"]) == (12, [], [])
    raw = bytearray(Path(tiny).read_bytes())
    raw[-4:] = b"\x00\x00\x80\x7f"  # the last number becomes infinite
    raw[-12:-8] = b"\x01\x00\xc0\xff"  # another one nan
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(raw)
    code, out, err = cli("inspect", str(damaged), "--verify")
    assert (code, err) == (1, "")
    assert "verified: 12 tensors, 0.1 MB read: 1 tensors are damaged" in out
    assert "blk.0.ffn_down.weight (F32): 2 blocks with a number that is not finite" in out
    code, out, err = cli("inspect", str(damaged), "--verify", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["verify"]["bad"] == [{"tensor": "blk.0.ffn_down.weight", "type": "F32", "blocks": 2}]
    assert json.loads(cli("inspect", tiny, "--json").out)["verify"] is None


@pytest.mark.parametrize("qtype", [t for t in SCALES if can_dequantize(t)])
def test_where_scales_are(qtype: QType) -> None:
    """Against the readable definition of each format: the bytes of a scale, and only they, make values infinite."""
    for at in range(qtype.block_bytes - 1):
        blocks = np.ones((3, qtype.block_bytes), np.uint8)
        blocks[1, at : at + 2] = (0x00, 0x7C)
        if at in SCALES[qtype]:
            assert count_bad(blocks.reshape(-1), qtype) == 1, at
        finite = np.isfinite(dequantize(blocks.reshape(-1), qtype, (3, qtype.block))).all(axis=1)
        assert count_bad(blocks.reshape(-1), qtype) == int((~finite).sum()), at
    assert count_bad(np.ones(3 * qtype.block_bytes, np.uint8), qtype) == 0


@pytest.mark.parametrize(
    ("qtype", "bad", "good"),
    [
        (QType.F16, b"\x00\x7c", b"\xff\x7b"),
        (QType.F16, b"\x01\xfc", b"\x01\xf8"),
        (QType.BF16, b"\x80\xff", b"\x7f\x7f"),
        (QType.F32, b"\x00\x00\x80\xff", b"\xff\xff\x7f\xff"),
        (QType.F64, b"\x00" * 6 + b"\xf0\x7f", b"\xff" * 6 + b"\xef\x7f"),
        (QType.MXFP4, b"\xff" + bytes(16), b"\xfe" + bytes(16)),
    ],
)
def test_numbers_that_are_not_finite(qtype: QType, bad: bytes, good: bytes) -> None:
    assert count_bad(np.frombuffer(good + bad + good + bad, np.uint8), qtype) == 2
    assert count_bad(np.frombuffer(good, np.uint8), qtype) == 0


def test_what_verify_does_not_look_into() -> None:
    assert count_bad(np.full(56, 255, np.uint8), QType.IQ1_M) is None
    assert count_bad(np.full(8, 255, np.uint8), QType.I64) == 0


@pytest.mark.parametrize("flag", ["--json", "--verify --json"])
def test_json_has_the_documented_keys(cli: CLI, tiny: str, flag: str) -> None:
    assert list(json.loads(cli("inspect", tiny, *flag.split()).out)) == list(inspect.JSON)


# -- tokenize --------------------------------------------------------------------------------------------------


def ids_of(out: str) -> list[int]:
    ids = json.loads(out)
    assert isinstance(ids, list)
    return ids


def test_tokenize(cli: CLI, tiny: str) -> None:
    code, out, err = cli("tokenize", tiny, "hello", "world")
    assert (code, err) == (0, "")
    assert [line.split(None, 1)[1] for line in out.splitlines()] == ["'hello'", "' world'"]
    ids = [int(line.split()[0]) for line in out.splitlines()]
    assert ids_of(cli("tokenize", tiny, "hello world", "--ids").out) == ids
    assert ids_of(cli("tokenize", tiny, "--ids", stdin="hello world\n").out) == ids
    assert ids_of(cli("tokenize", "-m", tiny, "hello", "world", "--ids").out) == ids
    assert ids_of(cli("tokenize", tiny, "-p", "hello world", "--ids").out) == ids


def test_tokenize_json(cli: CLI, tiny: str) -> None:
    code, out, err = cli("tokenize", tiny, "hello worldß", "--json")
    assert (code, err) == (0, "")
    r = json.loads(out)
    assert list(r) == list(tokenize.JSON)
    assert (r["model"], r["count"], r["pieces"]) == (tiny, 4, ["hello", " world", "\ufffd", "\ufffd"])
    assert r["ids"] == ids_of(cli("tokenize", tiny, "hello worldß", "--ids").out)
    assert json.loads(cli("tokenize", tiny, "", "--json").out) == {"model": tiny, "count": 0, "ids": [], "pieces": []}


@pytest.mark.parametrize("flag", ["--count", "--show-count"])
def test_tokenize_counts(cli: CLI, tiny: str, flag: str) -> None:
    assert cli("tokenize", tiny, "hello world", flag) == (0, "2\n", "")


def test_tokenize_whole_files(cli: CLI, tiny: str, tmp_path: Path) -> None:
    """--stdin and -f leave nothing out; a plain pipe leaves out the last line break, as a prompt does."""
    text = "hello\r\nworld\n"
    (tmp_path / "text.txt").write_bytes(text.encode())
    n = len(text) - len("hello") + 1 - len("ld") + 1 - len("or") + 1
    assert cli("tokenize", tiny, "-f", str(tmp_path / "text.txt"), "--count").out == f"{n}\n"
    assert cli("tokenize", tiny, "--stdin", "--count", stdin="hello\n").out == "2\n"
    assert cli("tokenize", tiny, "--count", stdin="hello\n").out == "1\n"
    assert cli("tokenize", tiny, "--stdin", "--count", stdin="").out == "0\n"


@pytest.mark.parametrize("argv", [["x", "--stdin"], ["x", "-f", "y"], ["-p", "x", "--stdin"], ["-f", "y", "--stdin"]])
def test_one_text_at_a_time(cli: CLI, tiny: str, argv: list[str]) -> None:
    code, out, err = cli("tokenize", tiny, *argv)
    assert (code, out) == (2, "")
    assert "give the text once" in err


def test_tokenize_one_shape_at_a_time(cli: CLI, tiny: str) -> None:
    code, out, err = cli("tokenize", tiny, "x", "--ids", "--json")
    assert (code, out) == (2, "")
    assert "not allowed with" in err


def test_tokenize_special_tokens(cli: CLI, tiny: str, tmp_path: Path) -> None:
    text = "<|im_start|>x<|im_end|>"
    assert START not in ids_of(cli("tokenize", tiny, text, "--ids").out)
    ids = ids_of(cli("tokenize", tiny, text, "--ids", "--parse-special").out)
    assert (ids[0], ids[-1], len(ids)) == (START, END, 3)
    assert "'<|im_start|>'" in cli("tokenize", tiny, text, "--parse-special").out
    bos = str(write_tiny(tmp_path / "bos.gguf", **{"tokenizer.ggml.add_bos_token": True}))
    assert ids_of(cli("tokenize", bos, "x", "--ids").out)[0] == START
    assert len(ids_of(cli("tokenize", bos, "x", "--ids", "--no-special").out)) == 1
    assert len(ids_of(cli("tokenize", bos, "x", "--ids", "--no-bos").out)) == 1
