"""The fingerprint: what trusts it is refused one bit further on, and nothing is read for it before somebody asks."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from serving.conftest import OpenLLM
from serving.test_prefix_cache import GREEDY, text
from serving.tiny import write_tiny

from edgellm.core.errors import CacheError, GGUFError
from edgellm.gguf import digest
from edgellm.gguf.reader import GGUFFile
from edgellm.llm import LLM


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A tiny model of the test's own."""
    return write_tiny(tmp_path / "tiny.gguf")


@pytest.fixture
def one_bit(tiny: Path) -> Path:
    """Another one, with the last bit of the last weight changed, and the same time of modification."""
    data = bytearray(tiny.read_bytes())
    with GGUFFile(tiny) as file:
        last = max(file.tensors.values(), key=lambda t: t.offset)
    data[last.offset + last.n_bytes - 1] ^= 1
    other = tiny.with_name("other.gguf")
    other.write_bytes(data)
    status = tiny.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    return other


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """One entry for each time that a model is read for its hash; none is known."""
    monkeypatch.setenv("EDGELLM_CACHE", str(tmp_path / "cache"))
    found: list[int] = []
    real = digest.digest

    def counted(files: Any, n_threads: int = 0) -> str:
        found.append(len(files))
        return real(files, n_threads)

    monkeypatch.setattr(digest, "digest", counted)
    return found


def test_a_session_of_a_model_one_bit_off(open_llm: OpenLLM, tiny: Path, one_bit: Path, tmp_path: Path) -> None:
    open_llm(path=tiny).session(text(40)).save(tmp_path / "s")
    with pytest.raises(CacheError, match=r"belongs to el1-\w{12}-f16, the open model is el1-\w{12}-f16"):
        open_llm(path=one_bit).session().load(tmp_path / "s")
    assert len(open_llm(path=tiny).session().load(tmp_path / "s").tokens) == 40


def test_a_session_of_another_backend(tiny: Path, tmp_path: Path) -> None:
    with LLM(tiny, backend="reference") as llm:
        llm.session(text(40)).save(tmp_path / "s")
        assert len(llm.session().load(tmp_path / "s").tokens) == 40
    with LLM(tiny) as llm, pytest.raises(CacheError, match=r"belongs to el1-\w{12}-f16-reference, the open model is"):
        llm.session().load(tmp_path / "s")


def test_pages_of_a_model_one_bit_off(open_llm: OpenLLM, tiny: Path, one_bit: Path, tmp_path: Path) -> None:
    cached = []
    for path in (tiny, one_bit, one_bit, tiny):
        llm = open_llm(path=path, prefix_cache_dir=tmp_path / "pages")
        cached.append(llm.generate(text(100), **GREEDY).usage.cached_tokens)
        llm.close()
    assert cached == [0, 0, 96, 96]


def test_nothing_is_read_before_it_is_asked_for(open_llm: OpenLLM, tiny: Path, reads: list[int]) -> None:
    llm = open_llm(path=tiny)
    info, done = llm.info, llm.generate(text(10), **GREEDY)
    assert [c.text for c in llm.generate(text(10), stream=True, **GREEDY)]
    assert info.n_ctx == 256
    assert reads == []
    assert done.fingerprint == info.fingerprint == llm.info.fingerprint
    assert done.fingerprint.startswith("el1-")
    assert reads == [1]


def test_a_completion_outlives_its_model(open_llm: OpenLLM, tiny: Path, reads: list[int]) -> None:
    llm = open_llm(path=tiny)
    first, second = llm.generate([text(10), text(10)], **GREEDY)
    llm.close()
    assert reads == []
    assert pickle.loads(pickle.dumps(first)) == first
    assert copy.deepcopy(first) == first
    assert dataclasses.asdict(first)["fingerprint"] == dataclasses.replace(second, seed=5).fingerprint
    assert second.fingerprint in repr(second)
    assert reads == [1]


def test_a_file_that_has_changed(open_llm: OpenLLM, tiny: Path) -> None:
    llm = open_llm(path=tiny)
    done = llm.generate(text(10), **GREEDY)
    tiny.write_bytes(tiny.read_bytes())
    os.utime(tiny, ns=(1, 1))
    with pytest.raises(GGUFError, match="has changed since it was opened"):
        _ = done.fingerprint
    with pytest.raises(GGUFError, match="has changed since it was opened"):
        _ = llm.info.fingerprint
    assert done.text is not None
