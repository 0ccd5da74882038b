"""Saved conversations and the history file: whole, bounded, and trusted by nobody."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.cli import history, session
from edgellm.cli.history import MAX_ENTRIES, MAX_ENTRY, FileHistory
from edgellm.cli.session import Session
from edgellm.core.errors import ConfigError

WHOLE = Session(
    "smollm2:135m",
    "Be kind.",
    {"temperature": 0.2, "stop": ["a b", "ß"], "logit_bias": [[3, "-inf"], [5, 1.5]]},
    [{"role": "user", "content": "Grüße\n🙂"}, {"role": "assistant", "content": "Hello."}],
    "el1-abc-f16",
)


def test_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "s.json"
    session.save(WHOLE, path)
    assert session.load(path) == WHOLE
    document = json.loads(path.read_text(), parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    assert (document["format"], document["version"], document["model"]) == ("edgellm session", 1, "smollm2:135m")
    assert "Grüße" in path.read_text(encoding="utf-8"), "people can read it"
    assert [p.name for p in path.parent.iterdir()] == ["s.json"], "nothing temporary is left"
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@given(st.text(), st.text(max_size=50), st.sampled_from([None, "", "s"]))
def test_any_text(tmp_path_factory: pytest.TempPathFactory, said: str, answer: str, system: str | None) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    messages = [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
    session.save(Session("m", system, {}, messages), path)
    assert session.load(path).messages == messages


def test_a_session_that_cannot_be_saved_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot save to"):
        session.save(WHOLE, tmp_path / "file" / "s.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match="cannot save to"):
        session.save(WHOLE, tmp_path / "folder.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.json"]


GOOD: dict[str, Any] = {"format": "edgellm session", "version": 1, "model": "m", "messages": []}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": None}, "is no session"),
        ({"version": 2}, "has version 2"),
        ({"model": None}, "must be text"),
        ({"model": 3}, "must be text"),
        ({"system": ["x"]}, "must be text"),
        ({"fingerprint": 5}, "must be text"),
        ({"messages": {}}, "messages must be a list"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\] must be"),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"messages\[0\] must be"),
        ({"messages": [{"role": "user", "content": "x"}, 5]}, r"messages\[1\] must be"),
        ({"parameters": []}, "parameters must be sampling parameters"),
        ({"parameters": {"frobnicate": 1}}, "found .*frobnicate"),
        ({"parameters": {"temperature": "hot"}}, "temperature must be a number"),
        ({"parameters": {"temperature": -1}}, "temperature must be a number"),
        ({"parameters": {"logit_bias": 5}}, "logit_bias"),
        ({"parameters": {"logit_bias": [[1]]}}, "parameters:"),
        ({"parameters": {"logit_bias": [["x", "y"]]}}, "parameters:"),
        ({"parameters": {"stop": [5]}}, "stop must hold strings"),
    ],
)
def test_what_is_no_session(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(GOOD))
    assert session.load(path) == Session("m")
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(ConfigError, match=words):
        session.load(path)


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'"x"', b"nan"])
def test_bytes_that_are_no_session(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match="is no session"):
        session.load(path)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        session.load(tmp_path / "missing.json")
    with pytest.raises(ConfigError, match="not a regular file" if os.name == "posix" else "cannot read"):
        session.load(tmp_path)
    monkeypatch.setattr(session, "MAX_BYTES", 10)
    (tmp_path / "s.json").write_text(json.dumps(GOOD))
    with pytest.raises(ConfigError, match=r"^\S+ is larger than"):
        session.load(tmp_path / "s.json")


def test_names(tmp_path: Path) -> None:
    assert session.names() == []
    assert session.path_of("a trip") == session.folder() / "a trip.json"
    assert session.path_of("x.json") == Path("x.json")
    assert session.path_of("~/x.json") == Path.home() / "x.json"
    assert session.path_of("a/../x.json") == Path("a/../x.json")
    for name in ("", ".hidden", "a:b", "x" * 101, "a\nb", "-x", "..", "a\0b", "a/b", "~/x"):
        with pytest.raises(ConfigError, match="cannot be the name of a session"):
            session.path_of(name)
    for name in ("b", "a"):
        session.save(WHOLE, session.path_of(name))
    (session.folder() / "note.txt").write_text("x")
    assert session.names() == ["a", "b"]


# -- history ---------------------------------------------------------------------------------------------------


def test_history_is_kept_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history.jsonl"
    first = FileHistory(path)
    assert list(first.load_history_strings()) == []
    for entry in ("one", "two\nlines", "three\u2028 ß"):
        first.store_string(entry)
    assert list(FileHistory(path).load_history_strings()) == ["three\u2028 ß", "two\nlines", "one"]
    assert len(path.read_text().splitlines()) == 3
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert first.why_not == ""


def test_what_is_not_stored(tmp_path: Path) -> None:
    h = FileHistory(tmp_path / "h")
    h.store_string(" secret")
    h.store_string("")
    h.store_string("x" * (MAX_ENTRY + 1))
    h.enabled = False
    h.store_string("hidden")
    assert not (tmp_path / "h").exists()
    h.enabled = True
    h.store_string("x" * MAX_ENTRY)
    assert len(list(h.load_history_strings())) == 1


def test_history_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "h"
    h = FileHistory(path)
    path.write_text("".join(f'"{i}"\n' for i in range(2 * MAX_ENTRIES + 1)))
    entries = list(h.load_history_strings())
    assert (len(entries), entries[0], entries[-1]) == (MAX_ENTRIES, str(2 * MAX_ENTRIES), str(MAX_ENTRIES + 1))
    assert len(path.read_text().splitlines()) == MAX_ENTRIES, "the file was cut"
    assert [p.name for p in tmp_path.iterdir()] == ["h"]


def test_a_huge_history_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_BYTES", 1000)
    path = tmp_path / "h"
    path.write_text('"' + "x" * 5000 + '"\n"last"\n')
    assert list(FileHistory(path).load_history_strings()) == ["last"]
    assert path.stat().st_size < 1000


def test_lines_of_others_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "h"
    path.write_bytes(b'"one"\nnot json\n{"a": 1}\n5\n\n""\n\xff\xfe\n"two"\n"cut')
    assert list(FileHistory(path).load_history_strings()) == ["two", "one"]


@pytest.mark.skipif(sys.platform == "win32" or not hasattr(os, "mkfifo"), reason="POSIX files")
def test_a_history_that_cannot_be_kept_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    h = FileHistory(tmp_path / "file" / "h")
    h.store_string("one")
    assert "cannot be written" in h.why_not
    folder = FileHistory(tmp_path)
    assert list(folder.load_history_strings()) == []
    assert "cannot be read" in folder.why_not
