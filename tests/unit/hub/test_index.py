"""Which package index is used, and the two forms of its pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.core import env
from edgellm.hub import index
from edgellm.hub.web import SourceError, split_auth


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No setting at all, no configuration file."""
    for variable in (env.PIP_INDEX_URL, env.UV_DEFAULT_INDEX, env.UV_INDEX_URL):
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setattr(index, "_pip_conf_files", list)
    return monkeypatch


def test_which_index(plain: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert index.index_url() == "https://pypi.org/simple"
    weak, strong = tmp_path / "weak.conf", tmp_path / "strong.conf"
    weak.write_text("[global]\nindex-url = https://weak/simple/\ntimeout = 60\n")
    plain.setattr(index, "_pip_conf_files", lambda: [weak, tmp_path / "missing.conf", strong])
    assert index.index_url() == "https://weak/simple"
    strong.write_text("[global]\nindex-url = https://%40:x@strong/simple\n[install]\nuser = true")
    assert index.index_url() == "https://%40:x@strong/simple"
    strong.write_text("this is not a configuration file")
    assert index.index_url() == "https://weak/simple"
    plain.setenv("UV_INDEX_URL", "https://old-uv/simple/")
    assert index.index_url() == "https://old-uv/simple"
    plain.setenv("UV_DEFAULT_INDEX", "corp=https://uv/simple")
    assert index.index_url() == "https://uv/simple"
    plain.setenv("PIP_INDEX_URL", "https://pip/simple/")
    assert index.index_url() == "https://pip/simple"


def test_pip_conf_files_are_those_of_this_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    files = index._pip_conf_files()
    assert any(f.is_relative_to(tmp_path) for f in files)
    assert all(f.suffix in (".conf", ".ini") for f in files)


@pytest.mark.parametrize(
    ("url", "bare", "header"),
    [
        ("https://host/simple", "https://host/simple", None),
        ("https://user:pass@host:8/simple?x=1", "https://host:8/simple?x=1", "Basic dXNlcjpwYXNz"),
        ("https://token@host/", "https://host/", "Basic dG9rZW46"),
        ("https://us%40er:p%3Aw@host/", "https://host/", "Basic dXNAZXI6cDp3"),
    ],
)
def test_passwords_in_urls(url: str, bare: str, header: str | None) -> None:
    assert split_auth(url) == (bare, header)
    assert index.shown(url) == bare


@given(st.binary(max_size=200))
def test_any_html_is_parsed_or_empty(body: bytes) -> None:
    for name, address, sha256 in index._parse_html(body):
        assert isinstance(name, str)
        assert isinstance(address, str)
        assert sha256 is None or len(sha256) == 64


@given(
    st.one_of(
        st.binary(max_size=50),
        st.recursive(
            st.one_of(st.none(), st.integers(), st.text(max_size=5)),
            lambda x: st.one_of(
                st.lists(x, max_size=3),
                st.dictionaries(st.sampled_from(["files", "filename", "url", "hashes", "sha256"]), x, max_size=4),
            ),
            max_leaves=10,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_any_json_is_parsed_or_a_source_error(body: bytes) -> None:
    try:
        files = index._parse_json("http://x/", body)
    except SourceError:
        return
    assert all(isinstance(name, str) and isinstance(url, str) for name, url, _ in files)


def test_html_links() -> None:
    page = (
        f'<a href="../../packages/ab/pkg-1.0-py3-none-any.whl#sha256={"a" * 64}" data-x>pkg</a>'
        '<A HREF="https://files/pkg%2B1-1.0.tar.gz">x</A><a>none</a><a href="#">empty</a>'
    )
    assert index._parse_html(page.encode()) == [
        ("pkg-1.0-py3-none-any.whl", "../../packages/ab/pkg-1.0-py3-none-any.whl", "a" * 64),
        ("pkg+1-1.0.tar.gz", "https://files/pkg%2B1-1.0.tar.gz", None),
        ("", "", None),
    ]
