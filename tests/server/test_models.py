"""A server with several models: loaded when they are asked for, the least recently used makes room."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from server.conftest import Running, Start
from server.test_chat_completions import HI, error_of
from serving.tiny import saying

from edgellm import hub
from edgellm.backends.fake import FakeBackend
from edgellm.cli import command_parser, serve

CHAT = "/v1/chat/completions"


def loaded(s: Running) -> list[str]:
    """Names of the models in memory."""
    return [e.name for e in s.context.models.entries if e.served is not None]


def test_models_are_loaded_when_asked_for_and_make_room(start: Start, tiny_model: Path) -> None:
    s = start(FakeBackend(saying("ok")), paths=dict.fromkeys(("a", "b", "c:latest"), tiny_model), most_loaded=2)
    assert s.http.get("/health").status_code == 200
    assert [m["id"] for m in s.http.get("/v1/models").json()["data"]] == ["a", "b", "c:latest"]
    assert loaded(s) == []
    for name, expected in (("a", ["a"]), ("b", ["a", "b"]), ("a", ["a", "b"]), ("c", ["a", "c:latest"])):
        answer = s.post(CHAT, {**HI, "model": name}).json()
        assert answer["model"].removesuffix(":latest") == name
        assert loaded(s) == expected
    error = error_of(s.post(CHAT, {**HI, "model": "gpt-4o"}), 404)  # G-15
    assert (error["type"], error["param"]) == ("not_found_error", "model")
    assert "model" in error_of(s.post(CHAT, HI), 400)["message"]
    assert s.post("/api/generate", {"model": "a", "keep_alive": 0}).json()["done_reason"] == "unload"
    assert loaded(s) == ["c:latest"]
    assert s.post(CHAT, HI).json()["model"] == "c:latest"  # the only one in memory


def test_a_model_that_cannot_be_loaded_does_not_end_the_server(start: Start, tiny_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    s = start(FakeBackend(saying("ok")), paths={"good": tiny_model, "broken": broken})
    assert "broken" in error_of(s.post(CHAT, {**HI, "model": "broken"}), 503)["message"]
    assert s.post(CHAT, {**HI, "model": "good"}).status_code == 200


def test_other_programs_models_answer_to_their_prefix(
    start: Start, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(timezone.utc)
    here = [hub.LocalModel(n, tiny_model, 1, now, "Ollama") for n in ("mine:latest", "ollama:smollm2:135m")]
    monkeypatch.setattr(hub, "list_local", lambda: here)
    entries = serve.entries_of(command_parser("serve").parse_args([]))
    names = {e.name: e.names for e in entries}
    assert names["mine:latest"] == ("mine:latest", "ollama:mine:latest")
    assert names["ollama:smollm2:135m"] == ("ollama:smollm2:135m",)  # the catalogue has that name
    s = start(FakeBackend(saying("ok")), paths=dict.fromkeys(names, tiny_model), most_loaded=4)
    for entry, other in zip(s.context.models.entries, entries, strict=True):
        entry.aliases = other.aliases
    for name in ("mine", "mine:latest", "ollama:mine", "Ollama:Mine:latest", "ollama:smollm2:135m"):
        assert s.post(CHAT, {**HI, "model": name}).status_code == 200, name
        assert s.post("/api/show", {"model": name}).status_code == 200, name
        assert s.http.get(f"/v1/models/{name}").json()["id"] in names
    for listed in s.http.get("/api/tags").json()["models"]:
        assert s.post("/api/show", {"model": listed["name"]}).status_code == 200, listed
    error_of(s.post(CHAT, {**HI, "model": "smollm2:135m"}), 404)


def test_aliases(start: Start) -> None:
    s = start(FakeBackend(saying("ok")), name="first", aliases=("second",))
    assert s.post(CHAT, {**HI, "model": "second"}).json()["model"] == "first"
    assert s.http.get("/v1/models/second").json()["id"] == "first"
