"""Wrong requests by the hundred: none of them is a fault of the server, and none disturbs a well-formed one."""

from __future__ import annotations

import asyncio
import os
import random
import re
from pathlib import Path

import pytest
from policy.source import REPOSITORY
from server import attacks, fuzzing, siege
from serving.tiny import install, saying

from edgellm.backends.fake import FakeBackend


@pytest.mark.parametrize("seed", range(2))
def test_wrong_requests(tiny_model: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    install(monkeypatch, FakeBackend(saying("hello there")))
    statuses, complaints = asyncio.run(fuzzing.run(tiny_model, 400, seed))
    assert complaints == []
    assert {200, 400, 404} <= statuses.keys()
    assert sum(statuses.values()) == 400


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_wrong_requests_over_sockets(tiny_model: Path) -> None:
    """A real process and the real core; `scripts/fuzz.py server` is the long run."""
    report = siege.run(str(tiny_model), 500, 1, n_attackers=8, n_good=2)
    assert report.complaints == []
    assert report.requests >= 500
    assert {200, 400, 404, 501} <= report.statuses.keys()
    assert len(report.kinds) == 9
    assert report.good > 0
    assert report.health


def test_what_the_siege_would_complain_of() -> None:
    """It can fail: answers of each kind that must not come, and requests that are disturbed."""
    attack = attacks.Attack("field", [b""])

    def judged(status: int, body: bytes = b"", kind: str = "application/json", whole: bool = True) -> str | None:
        return siege.judge(siege.Answer(status, kind, body, False, whole), attack)

    error = b'{"error":{"message":"m","type":"%s"}}'
    for status in (0, 500, 502, 503, 504):
        assert judged(status, error % b"server_error")
    assert judged(400, b"Invalid HTTP request received.", "text/plain")
    assert judged(400, b"{}")
    assert judged(501, error % b"server_error")
    assert judged(200, b"{")
    assert judged(200, b"data: {}", "text/event-stream")
    assert judged(200, b'data: {"error":{"type":"server_error"}}\n\n', "text/event-stream")
    assert judged(400, error % b"invalid_request_error") is None
    assert judged(501, error % b"not_supported_error") is None
    assert judged(200, b"{}") is None

    def stream(text: str) -> siege.Answer:
        return siege.Answer(200, "text/event-stream", text.encode(), False, True)

    piece = 'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":%s}]}\n\n'
    whole = piece % ("ab", "null") + piece % ("", '"stop"') + "data: [DONE]\n\n"
    cut = piece % ("a", "null") + piece % ("b", '"stop"') + "data: [DONE]\n\n"
    assert siege.essence(stream(whole)) == siege.essence(stream(cut))
    assert siege.essence(stream(whole)) != siege.essence(stream(whole.replace("ab", "ac")))
    for bad in (
        whole.replace("data: [DONE]\n\n", ""),
        piece % ("a", "null") + 'data: {"error":{}}\n\ndata: [DONE]\n\n',
    ):
        with pytest.raises(ValueError, match="stream"):
            siege.essence(stream(bad))


def test_every_field_that_is_read_is_attacked() -> None:
    read = set[str]()
    for file in (REPOSITORY / "edgellm" / "server").glob("*.py"):
        read |= set(re.findall(r'body\.[a-z_]+\(\s*"([a-z_]+)"', file.read_text()))
    assert len(read) > 60
    assert read - set(fuzzing.FIELDS) == set()


def test_a_place_is_made_in_a_body() -> None:
    body = {"messages": [{"role": "user"}], "stop": "x"}
    assert attacks.put(body, ("messages", 0, "role"), 5) == {"messages": [{"role": 5}], "stop": "x"}
    assert attacks.put(body, ("tools", 0, "function", "name"), [])["tools"] == [{"function": {"name": []}}]
    assert attacks.put(body, ("stop", "a"), 1)["stop"] == {"a": 1}
    assert body == {"messages": [{"role": "user"}], "stop": "x"}
    for path, place in [(p, x) for p in attacks.POST for x in attacks.PLACES]:
        assert attacks.put(attacks.body_of(path), place, 1) != attacks.body_of(path)
    made = attacks.grid(random.Random(0))
    assert all(next(made).kind == "field" for _ in range(100))
