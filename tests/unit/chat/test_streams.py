"""A template that misbehaves costs the one who asked: the streams of others go on meanwhile, with the same text."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from serving.tiny import install, write_tiny

from edgellm import LLM, TemplateError
from edgellm.backends.fake import FakeBackend

BOMB = (
    "{% for i in range(25000) %}{% for j in range(25000) %}{{ i + j }}{% endfor %}{% endfor %}",
    "{% for i in range(25000) %}{{ ('a' * 100000).rfind('b' + 'a' * 50) }}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% for i in range(25000) %}{% set x = range(99999) | list %}{% endfor %}",
)
STEP = 0.002


@pytest.fixture(params=range(len(BOMB)))
def llm(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LLM]:
    """A model whose template is a bomb, over a backend whose steps take two milliseconds."""
    install(monkeypatch, FakeBackend(step_seconds=STEP, multi_step=False))
    path = write_tiny(tmp_path / "tiny.gguf", n_ctx=2048, template=BOMB[request.param])
    with LLM(path) as llm:
        yield llm


def test_other_streams_go_on(llm: LLM) -> None:
    quiet = llm.generate([1, 2, 3], max_tokens=300, temperature=0.0, logit_bias={272: -100.0})
    tokens: list[int] = []
    times: list[float] = []

    def read() -> None:
        for chunk in llm.generate(
            [1, 2, 3], max_tokens=300, temperature=0.0, logit_bias={272: -100.0}, stream=True, on_error="raise"
        ):
            tokens.extend(chunk.token_ids)
            times.append(time.monotonic())

    reader = threading.Thread(target=read)
    reader.start()
    while not times:
        time.sleep(0.001)
    n_refused, begun = 0, time.monotonic()
    while reader.is_alive():
        with pytest.raises(TemplateError, match="was stopped"):
            llm.chat("Hello")
        n_refused += 1
    reader.join()
    assert n_refused >= 2
    assert tokens == quiet.token_ids
    during = [t for t in times if t > begun]
    assert len(during) > 150
    assert max(b - a for a, b in pairwise(times)) < 0.4
