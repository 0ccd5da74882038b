"""The disk tier of the prefix cache: what was computed comes back after an eviction and after a restart, never wrong.

The fake backend raises when a page does not hold what its sequence expects there.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from serving.conftest import OpenLLM
from serving.test_prefix_cache import GREEDY, KINDS, Counting, Golden, text

from edgellm.backends.fake import FakeBackend
from edgellm.core.errors import CacheError, ConfigError
from edgellm.engine.request import Done
from edgellm.llm import LLM


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("name", KINDS)
def test_after_a_restart(open_llm: OpenLLM, golden_case: Golden, name: str, tmp_path: Path) -> None:
    path, fake = golden_case(name).path, Counting()
    llm = open_llm(fake, path=path, prefix_cache_dir=tmp_path)
    said = llm.generate(text(100), **GREEDY).token_ids
    turn = [*text(100), *said, *text(5, 1)]
    assert fake.taken() == 104
    llm.close()
    again = open_llm(fake, path=path, prefix_cache_dir=tmp_path)
    second = again.generate(turn, **GREEDY)
    assert second.usage.cached_tokens == 96
    assert fake.taken() == len(turn) - 96 + 4
    assert second.token_ids == open_llm(path=path, prefix_cache=False).generate(turn, **GREEDY).token_ids
    other = open_llm(fake, path=path, prefix_cache_dir=tmp_path, kv_type="q8_0")  # bits of another kind
    assert other.generate(turn, **GREEDY).usage.cached_tokens == 0


@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense"])
def test_evicted_pages_come_back(open_llm: OpenLLM, golden_case: Golden, name: str, tmp_path: Path) -> None:
    path, fake = golden_case(name).path, Counting()
    small = open_llm(path=path, max_seqs=1, prefix_cache=False).info.kv_bytes
    llm = open_llm(fake, path=path, max_seqs=1, kv_memory=small, prefix_cache_dir=tmp_path)
    prompts = [text(100, s) for s in range(8)]
    first = [llm.generate(p, **GREEDY).token_ids for p in prompts]
    fake.taken()
    again = [llm.generate(p, **GREEDY) for p in prompts]
    assert [c.token_ids for c in again] == first
    assert [c.usage.cached_tokens >= 96 for c in again] == [True] * 8
    assert fake.taken() <= 8 * (4 + 4)
    store = llm._loaded.engine._tier.store
    assert store is not None
    assert store.stats.read_pages > 8
    while store._waiting:  # then nothing is counted any more
        time.sleep(0.001)
    seen = llm.stats.disk
    assert seen == store.stats
    assert seen is not store.stats
    assert store.stats.lost_pages == 0


@pytest.mark.parametrize("name", KINDS)
def test_many_users(open_llm: OpenLLM, golden_case: Golden, name: str, tmp_path: Path) -> None:
    """Prompts that begin alike, leaving, preemption, and two engines at once on one directory."""
    rng = random.Random(name)
    path = golden_case(name).path
    alone = open_llm(path=path, prefix_cache=False, max_seqs=1)
    n_ctx = alone.info.n_ctx
    shared = [text(n, 50 + n) for n in (40, 64, 110)]
    prompts = [[*rng.choice(shared), *text(rng.randrange(1, 50), 100 + i)][: n_ctx - 20] for i in range(24)]
    leaving = [rng.choice([0, 0, 1]) for _ in prompts]
    options: dict[str, Any] = {"temperature": 0.9, "max_tokens": 14, "on_error": "raise"}
    expected = [alone.generate(p, seed=i, **options).token_ids for i, p in enumerate(prompts)]
    llms = [
        open_llm(
            FakeBackend(multi_step=k == 0),
            path=path,
            max_seqs=3,
            n_batch=40,
            kv_memory=int(alone.info.kv_bytes * (3.2 if name == "mamba2-dense" else 2.2)),
            n_ctx=n_ctx,
            prefix_cache_dir=tmp_path,
        )
        for k in (0, 1)
    ]
    got: dict[tuple[int, int], Any] = {}

    def user(k: int, i: int) -> None:
        if leaving[i]:
            stream = llms[k].generate(prompts[i], stream=True, seed=i, **options)
            next(stream)
            stream.close()
        got[k, i] = llms[k].generate(prompts[i], seed=i, **options).token_ids

    for _ in range(2):
        threads = [threading.Thread(target=user, args=(k, i)) for i in range(24) for k in (0, 1)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(120)
        assert not any(t.is_alive() for t in threads)
        assert got == {(k, i): expected[i] for k in (0, 1) for i in range(24)}
        got.clear()
    stats = [llm._loaded.engine._tier.store.stats for llm in llms if llm._loaded.engine._tier.store is not None]
    assert sum(s.read_pages for s in stats) > 0
    assert sum(s.damaged_files for s in stats) == 0
    for llm in llms:
        ledger = llm._loaded.engine._state.ledger
        assert not any(ledger.n_in_use(c) for c in range(len(ledger.pools)))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def older(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"edgellm page 1\n", b"edgellm page 0\n"))


def other_tokens(path: Path) -> None:
    data = path.read_bytes()
    at = data.index(b'"tokens":[') + len(b'"tokens":[')
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, cut, older, other_tokens, empty])
def test_damage_is_a_miss(open_llm: OpenLLM, tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    llm = open_llm(prefix_cache_dir=tmp_path)
    said = llm.generate(text(120), **GREEDY).token_ids
    llm.close()
    assert len(files(tmp_path)) == 3
    first = llm._loaded.engine._state.ledger.cache.path("", text(120), 1)[0]
    (page,) = [p for p in files(tmp_path) if p.name.startswith(first.key.hex())]
    damage(page)
    fake = Counting()
    with caplog.at_level(logging.WARNING), open_llm(fake, prefix_cache_dir=tmp_path) as again:
        answer = again.generate(text(120), **GREEDY)
    assert answer.token_ids == said
    assert answer.usage.cached_tokens == 0
    assert fake.taken() == 124
    assert "is removed, and computed again" in caplog.text
    third = open_llm(prefix_cache_dir=tmp_path).generate(text(120), **GREEDY)  # the damaged file was replaced
    assert (third.token_ids, third.usage.cached_tokens) == (said, 96)


def test_one_damaged_page_ends_what_is_found(open_llm: OpenLLM, tmp_path: Path) -> None:
    llm = open_llm(prefix_cache_dir=tmp_path)
    said = llm.generate(text(120), **GREEDY).token_ids
    node = llm._loaded.engine._state.ledger.cache.path("", text(120), 3)[1]
    llm.close()
    (page,) = [p for p in files(tmp_path) if p.name.startswith(node.key.hex())]
    flip(page)
    again = open_llm(prefix_cache_dir=tmp_path).generate(text(120), **GREEDY)
    assert (again.token_ids, again.usage.cached_tokens) == (said, 32)


def test_salts_share_nothing(open_llm: OpenLLM, tmp_path: Path) -> None:
    def cached(llm: LLM, salt: str) -> int:
        request = llm._request(text(80), llm._options(None, dict(GREEDY), 1, "return"), 1)
        request.salt = salt
        llm._loaded.engine.submit(request)
        assert isinstance(request.events, SimpleQueue)
        assert isinstance(request.events.get(timeout=60), Done)
        return request.cached_tokens

    llm = open_llm(prefix_cache_dir=tmp_path)
    assert cached(llm, "a") == 0
    llm.close()
    again = open_llm(prefix_cache_dir=tmp_path)
    assert [cached(again, s) for s in ("b", "", "a")] == [0, 0, 64]


def test_the_limit_is_kept(open_llm: OpenLLM, tmp_path: Path) -> None:
    llm = open_llm(prefix_cache_dir=tmp_path)
    llm.generate(text(70), **GREEDY)
    llm.close()
    size = sum(p.stat().st_size for p in files(tmp_path)) // 2
    llm = open_llm(prefix_cache_dir=tmp_path, prefix_cache_size=10 * size)
    for s in range(12):
        llm.generate(text(70, s), **GREEDY)
    llm.close()
    counted = llm.stats.disk
    assert counted is not None
    assert 0 < counted.removed_pages < counted.written_pages
    assert open_llm().stats.disk is None
    assert 6 * size <= sum(p.stat().st_size for p in files(tmp_path)) <= 10 * size
    again = open_llm(prefix_cache_dir=tmp_path, prefix_cache_size=10 * size)
    assert again.generate(text(70, 11), **GREEDY).usage.cached_tokens == 64  # the latest stay


def test_what_cannot_be(open_llm: OpenLLM, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prefix_cache_dir needs the prefix cache"):
        open_llm(prefix_cache=False, prefix_cache_dir=tmp_path)
    with pytest.raises(ConfigError, match="prefix_cache_size must be"):
        open_llm(prefix_cache_dir=tmp_path, prefix_cache_size=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be used"):
        open_llm(prefix_cache_dir=tmp_path / "file")


def test_a_dead_engine_saves_nothing(open_llm: OpenLLM, tmp_path: Path) -> None:
    """Its pages may be wrong."""

    def on_step(batch: Any) -> None:
        if len(batch.tokens) == 1:
            raise MemoryError("out of memory in a step")

    before = threading.enumerate()
    llm = open_llm(FakeBackend(on_step=on_step), prefix_cache_dir=tmp_path)
    assert llm.generate(text(100), **GREEDY).finish_reason == "error"
    llm.close()
    assert files(tmp_path) == []
    assert [t.name for t in threading.enumerate() if t not in before] == []


@pytest.mark.parametrize("kv_type", ["f16", ("q8_0", "q4_0")], ids=str)
@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense"])
def test_the_bits_of_the_core(golden_case: Golden, name: str, kv_type: str | tuple[str, str], tmp_path: Path) -> None:
    """Log-probabilities, equal to the last bit, behind pages that another process might have written."""
    path = golden_case(name).path
    options: dict[str, Any] = {"max_tokens": 8, "logprobs": 5, "temperature": 0.9, "seed": 1}
    prompts = [text(90), [*text(90)[:70], 101, 8, 9], [*text(90), *text(10, 1)]]
    with LLM(path, backend="native", kv_type=kv_type, prefix_cache=False) as plain:
        expected = [plain.generate(p, **options).logprobs for p in prompts]
    for found in (0, 64):
        with LLM(path, backend="native", kv_type=kv_type, prefix_cache_dir=tmp_path) as llm:
            answers = [llm.generate(p, **options) for p in prompts]
            assert [a.logprobs for a in answers] == expected
            assert answers[0].usage.cached_tokens == found
