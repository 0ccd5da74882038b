"""scripts/load.py: the same load for every target, and figures that add up."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
