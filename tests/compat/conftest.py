"""`open_llama`: the tiny model of the serving tests under llama-cpp-python's class, over a scripted backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving.tiny import install, saying, write_tiny

from edgellm.backends.fake import FakeBackend
from edgellm.compat import Llama

OpenLlama = Callable[..., Llama]


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("compat") / "tiny.gguf")


@pytest.fixture
def open_llama(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenLlama]:
    """open_llama(answer, ..., path=..., **options): answers are said in turn, byte by byte; none: random logits."""
    opened: list[Llama] = []

    def open_it(*answers: str, path: Path | None = None, **options: Any) -> Llama:
        install(monkeypatch, FakeBackend(saying(*answers)) if answers else FakeBackend())
        llama = Llama(str(path or tiny_path), **{"n_ctx": 0, **options})
        opened.append(llama)
        return llama

    yield open_it
    for llama in opened:
        llama.close()
