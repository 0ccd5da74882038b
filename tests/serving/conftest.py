"""LLM over the fake backend: `open_llm` opens the tiny model and closes it when the test ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving.tiny import install, write_tiny

from edgellm.backends.fake import FakeBackend
from edgellm.llm import LLM

OpenLLM = Callable[..., LLM]


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model: 273 tokens, context 256, a ChatML template."""
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def open_llm(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenLLM]:
    """open_llm(fake, path=..., **options): an LLM over `fake`, with the page ledger checked after every step."""
    opened: list[LLM] = []
    before = threading.enumerate()

    def open_it(fake: FakeBackend | None = None, *, path: Path | None = None, **options: Any) -> LLM:
        install(monkeypatch, fake or FakeBackend(parts=3))
        llm = LLM(path or tiny_path, **options)
        object.__setattr__(llm._loaded.engine.spec, "check", True)
        opened.append(llm)
        return llm

    yield open_it
    for llm in opened:
        llm.close()
    assert [t.name for t in threading.enumerate() if t not in before and t.name == "edgellm-engine"] == []


@pytest.fixture
def llm(open_llm: OpenLLM) -> LLM:
    """The tiny model over the unscripted fake: pseudo-random logits, a function of the history alone."""
    return open_llm()
