"""A template that misbehaves costs the one who asked: the streams of others go on meanwhile, with the same text."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from limits import seconds
from serving.tiny import install, write_tiny

from edgellm import LLM, TemplateError
from edgellm.backends.fake import FakeBackend

BOMBS = (
    ("{% for i in range(25000) %}{% for j in range(25000) %}{{ i + j }}{% endfor %}{% endfor %}", 5),
    ("{% for i in range(25000) %}{{ ('a' * 100000).rfind('b' + 'a' * 50) }}{% endfor %}", 0),
    ("{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", 0),
    ("{% for i in range(25000) %}{% set x = range(99999) | list %}{% endfor %}", 2),
)
"""Each with the steps, of two milliseconds each, that others make at least while it lasts: some are refused at once."""
BACKEND = FakeBackend(multi_step=False)
OPTIONS: dict[str, Any] = {"max_tokens": 2000, "temperature": 0.0, "logit_bias": {272: -100.0}}


@pytest.fixture
def open_llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], LLM]]:
    """open_llm(template): a model that has this template."""
    install(monkeypatch, BACKEND)
    opened: list[LLM] = []

    def open_it(template: str) -> LLM:
        opened.append(LLM(write_tiny(tmp_path / "tiny.gguf", n_ctx=2048, template=template)))
        return opened[-1]

    yield open_it
    for llm in opened:
        llm.close()


@pytest.mark.timing
@pytest.mark.parametrize(("template", "least"), BOMBS)
def test_other_streams_go_on(
    open_llm: Callable[[str], LLM], monkeypatch: pytest.MonkeyPatch, template: str, least: int
) -> None:
    llm = open_llm(template)
    quiet = llm.generate([1, 2, 3], **OPTIONS)
    monkeypatch.setattr(BACKEND, "step_seconds", 0.002)
    tokens: list[int] = []
    times: list[float] = []
    enough = threading.Event()

    def read() -> None:
        for chunk in llm.generate([1, 2, 3], **OPTIONS, stream=True, on_error="raise"):
            tokens.extend(chunk.token_ids)
            times.append(time.monotonic())
            if enough.is_set():
                break

    reader = threading.Thread(target=read)
    reader.start()
    while not tokens:
        time.sleep(0.001)
    meanwhile: list[int] = []
    while len(meanwhile) < 2 or (max(meanwhile) < least and len(meanwhile) < 50):
        before = len(tokens)
        with pytest.raises(TemplateError, match="was stopped"):
            llm.chat("Hello")
        meanwhile.append(len(tokens) - before)
    enough.set()
    reader.join()
    assert tokens == quiet.token_ids[: len(tokens)]
    assert max(meanwhile) >= least, meanwhile
    assert max(b - a for a, b in pairwise(times)) < seconds(0.4)
