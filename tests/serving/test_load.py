"""scripts/load.py: the same load for every target, and figures that add up."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from serving.tiny import install

from edgellm.backends.fake import FakeBackend


@pytest.fixture
def load(repository: Path) -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("load_script", repository / "scripts" / "load.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["load_script"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["load_script"]


SMALL = "--users 6 --requests 20 --think 0.01 --system-words 8 --prompt-words 6 --answer-tokens 12 --n-ctx 256".split()


@pytest.mark.parametrize("more", [[], ["--static", "4"], ["--draft", "prompt"]], ids=["continuous", "static", "draft"])
def test_in_this_process(
    load: Any, tiny_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    install(monkeypatch, FakeBackend())
    args = [str(tiny_path), *SMALL, *more]
    assert load.main([*args, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    asked = [job for jobs in load.plan(load.arguments().parse_args(args)) for job in jobs]
    assert (result["requests"], result["failed"], result["errors"]) == (20, 0, [])
    assert round(result["tokens_per_second"] * result["seconds"]) == sum(job.max_tokens for job in asked)
    assert 0 < result["ttft_seconds"]["p50"] <= result["ttft_seconds"]["p95"] <= result["ttft_seconds"]["p99"]
    assert 0 <= result["cache_hit_rate"] < 1
    assert load.main(args) == 0
    assert "tokens_per_second" in capsys.readouterr().out


def test_over_http(load: Any) -> None:
    """A server that streams three tokens and their usage, and one that refuses."""
    asked: list[dict[str, Any]] = []
    events: list[Any] = [{"choices": [{"text": t}]} for t in "abc"]
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 6}}
    events.append({"choices": [], "usage": usage})

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
        asked.append(json.loads(await reader.readexactly(length)))
        if asked[-1]["model"] == "none":
            writer.write(b"HTTP/1.1 404 Not Found\r\n\r\nno such model")
        else:
            lines = [*(json.dumps(e) for e in events), "[DONE]"]
            body = "".join(f"{len(line) + 8:x}\r\ndata: {line}\n\n\r\n" for line in lines) + "0\r\n\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body.encode())
        writer.close()

    async def run(model: str) -> dict[str, Any]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            result: dict[str, Any] = await load.run(load.arguments().parse_args([model, *SMALL, "--url", url]))
        return result

    result = asyncio.run(run("m"))
    assert (result["requests"], result["failed"]) == (20, 0)
    assert round(result["tokens_per_second"] * result["seconds"]) == 60
    assert result["cache_hit_rate"] == pytest.approx(6 / 9)
    assert {len(a["prompt"]) > 10 and a["stream"] for a in asked} == {True}
    refused = asyncio.run(run("none"))
    assert refused["failed"] == 20
    assert "404" in refused["errors"][0]


def test_percentiles(load: Any) -> None:
    assert load.percentiles(list(range(1, 101))) == {"p50": 50, "p95": 95, "p99": 99}
    assert load.percentiles([7.0]) == {"p50": 7.0, "p95": 7.0, "p99": 7.0}


def test_goodput_counts_what_kept_both_limits(load: Any) -> None:
    def outcome(first: float, gap: float) -> Any:
        return load.Outcome(0.0, [(first, 1), (first + gap, 1), (first + 2 * gap, 1)], 10, 5)

    got = load.report([outcome(0.1, 0.01), outcome(3.0, 0.01), outcome(0.1, 0.5)], 2.0, 1.0, 0.1)
    assert got["goodput_requests_per_second"] == 0.5
    assert got["tokens_per_second"] == 4.5
    assert got["cache_hit_rate"] == 0.5
    assert got["itl_seconds"]["p50"] == pytest.approx(0.01)


def test_transformers_are_left_out_with_the_reason(
    load: Any, tiny_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert load.main([str(tiny_path), *SMALL, "--transformers", "--json"]) == 0
    assert "pip install torch transformers gguf" in json.loads(capsys.readouterr().out)["skipped"]


def test_transformers(
    load: Any, tiny_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Through stand-ins that keep to the interface: a prompt is put, then a token at a time."""
    asked: list[int] = []

    class Model:
        def eval(self) -> Model:
            return self

        def generate(self, input_ids: Any, max_new_tokens: int, min_new_tokens: int, streamer: Any, **_: Any) -> None:
            assert max_new_tokens == min_new_tokens
            asked.append(max_new_tokens)
            streamer.put(input_ids)
            for i in range(max_new_tokens):
                streamer.put(i)
            streamer.end()

    def tokenizer(text: str, return_tensors: str) -> dict[str, Any]:
        assert return_tensors == "pt"
        return {"input_ids": np.zeros((1, len(text.split())), np.int64)}

    def opened(what: Any) -> Any:
        def from_pretrained(folder: str, gguf_file: str, **_: Any) -> Any:
            assert Path(folder, gguf_file) == tiny_path
            return what

        return SimpleNamespace(from_pretrained=from_pretrained)

    torch = SimpleNamespace(manual_seed=lambda _: None, set_num_threads=lambda _: None)
    monkeypatch.setitem(sys.modules, "torch", torch)
    transformers = SimpleNamespace(AutoTokenizer=opened(tokenizer), AutoModelForCausalLM=opened(Model()))
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    args = [str(tiny_path), *SMALL, "--transformers"]
    assert load.main([*args, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    wanted = [job.max_tokens for jobs in load.plan(load.arguments().parse_args(args)) for job in jobs]
    assert sorted(asked) == sorted(wanted)
    assert (result["requests"], result["failed"], result["errors"]) == (20, 0, [])
    assert round(result["tokens_per_second"] * result["seconds"]) == sum(wanted)
