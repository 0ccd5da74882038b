"""An idle engine gives memory back: that of free pages soon, that of cached ones later; answers stay the same."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from serving.conftest import OpenLLM
from serving.test_prefix_cache import GREEDY, text

from edgellm.backends.fake import FakeBackend, FakeExecutable
from edgellm.engine import calls, tier
from edgellm.llm import LLM


class Watch:
    """Which pages were given back, and when all there is to give back has been."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages: list[list[int]] = []
        self.done = threading.Event()
        release, give_back = FakeExecutable.release_pages, tier.Tier.give_back

        def release_pages(executable: FakeExecutable, cls: int, pages: list[int]) -> None:
            self.pages.append(pages)
            release(executable, cls, pages)

        def watched(self_: tier.Tier, everything: bool, hurry: object) -> None:
            give_back(self_, everything, lambda: False)
            if everything:
                self.done.set()

        monkeypatch.setattr(FakeExecutable, "release_pages", release_pages)
        monkeypatch.setattr(tier.Tier, "give_back", watched)
        monkeypatch.setattr(calls, "IDLE", ((0.001, False), (0.001, True)))

    def wait(self, llm: LLM) -> None:
        """Until the engine has been idle, from now on, for long enough."""
        self.done.clear()
        llm._loaded.engine._send(lambda: None)
        assert self.done.wait(60)


def test_free_pages_then_cached_ones(open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    llm = open_llm(FakeBackend())
    first = llm.generate(text(100), **GREEDY)
    watch.wait(llm)
    assert sorted(page for pages in watch.pages for page in pages) == [0, 1, 2, 3]
    again = llm.generate(text(100), **GREEDY)
    assert (again.token_ids, again.usage.cached_tokens) == (first.token_ids, 0)
    session = llm.session(text(40, 1))  # its pages stay
    llm.generate([1], **GREEDY)
    watch.wait(llm)
    assert session.append([1]) == 1
    session.close()


def test_without_a_cache(open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    llm = open_llm(FakeBackend(), prefix_cache=False)
    llm.generate(text(100), **GREEDY)
    watch.wait(llm)
    assert sorted(page for pages in watch.pages for page in pages) == [0, 1, 2, 3]


def test_cached_pages_are_saved_before(open_llm: OpenLLM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    watch = Watch(monkeypatch)
    llm = open_llm(FakeBackend(), prefix_cache_dir=tmp_path)
    first = llm.generate(text(100), **GREEDY)
    watch.wait(llm)
    again = llm.generate(text(100), **GREEDY)
    assert (again.token_ids, again.usage.cached_tokens) == (first.token_ids, 96)


def test_a_call_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "IDLE", ((0.001, False), (0.001, True)))
    inbox: calls.SimpleQueue[calls.Callable[[], None]] = calls.SimpleQueue()
    said: list[object] = []

    def give_back(everything: bool, hurry: calls.Callable[[], bool]) -> None:
        said.append((everything, hurry()))
        if everything:
            inbox.put(lambda: None)
            said.append(hurry())

    calls.next_call(inbox, give_back)()
    assert said == [(False, False), (True, False), True]
