"""Wrong requests by the hundred: none of them is a fault of the server, and none disturbs a well-formed one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from server import fuzzing
from serving.tiny import install, saying

from edgellm.backends.fake import FakeBackend


@pytest.mark.parametrize("seed", range(2))
def test_wrong_requests(tiny_model: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    install(monkeypatch, FakeBackend(saying("hello there")))
    statuses, complaints = asyncio.run(fuzzing.run(tiny_model, 400, seed))
    assert complaints == []
    assert {200, 400, 404} <= statuses.keys()
    assert sum(statuses.values()) == 400
