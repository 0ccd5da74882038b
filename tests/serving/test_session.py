"""Sessions: what they say is what the same tokens say as one prompt, and they compute it once."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from serving.conftest import OpenLLM
from serving.test_prefix_cache import KINDS, PLAIN, Counting, Golden, text

from edgellm.backends.fake import FakeBackend
from edgellm.core.errors import CacheError, CapacityError, ContextOverflow, EngineError, RequestError
from edgellm.llm import LLM
from edgellm.session import Session

OPTIONS: list[dict[str, Any]] = [{"temperature": 0, "max_tokens": 12}, {**PLAIN, "seed": 5, "max_tokens": 12}]


def pages(llm: LLM) -> int:
    """Pages that sessions hold, when everything has ended."""
    ledger = llm._loaded.engine._state.ledger
    llm.generate([1], max_tokens=1, temperature=0)  # what was sent to the engine before has been done
    return ledger.n_in_use(0)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("options", OPTIONS, ids=["greedy", "sampled"])
def test_a_conversation(open_llm: OpenLLM, golden_case: Golden, name: str, options: dict[str, Any]) -> None:
    path = golden_case(name).path
    fake = Counting()
    llm, alone = open_llm(fake, path=path), open_llm(path=path, prefix_cache=False)
    session = llm.session(text(50))
    assert fake.taken() == 50
    prompt = text(50)
    for turn in range(3):
        new = text(7, turn)
        said = session.generate(new, **options).token_ids
        prompt += new
        assert fake.taken() == 7 + (turn > 0) + 11  # the last token of the answer before
        assert said == alone.generate(prompt, **options).token_ids
        prompt += said
        assert session.tokens == prompt
    session.close()


@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense", "deepseek2-moe"])
def test_forks_share_what_they_have_in_common(open_llm: OpenLLM, golden_case: Golden, name: str) -> None:
    path = golden_case(name).path
    fake = Counting()
    llm, alone = open_llm(fake, path=path, max_seqs=16), open_llm(path=path, prefix_cache=False)
    session = llm.session(text(75))
    assert fake.taken() == 75
    before = pages(llm)
    fake.taken()
    forks = [session.fork() for _ in range(16)]
    assert pages(llm) == before
    fake.taken()
    for i, fork in enumerate(forks):
        said = fork.generate([i, 101], temperature=0, max_tokens=4).token_ids
        assert said == alone.generate([*text(75), i, 101], temperature=0, max_tokens=4).token_ids
        assert fake.taken() == 2 + 3
    assert pages(llm) == before + 16
    assert session.tokens == text(75)
    for s in (*forks, session):
        s.close()
    assert pages(llm) == 0


@pytest.mark.parametrize("name", KINDS)
def test_taking_back(open_llm: OpenLLM, golden_case: Golden, name: str) -> None:
    path = golden_case(name).path
    fake = Counting()
    llm, alone = open_llm(fake, path=path), open_llm(path=path, prefix_cache=False)
    session = llm.session(text(90))
    session.rewind(70)
    session.rewind(-6)
    assert session.tokens == text(90)[:64]
    fake.taken()
    said = session.generate([5, 6, 7], temperature=0, max_tokens=5).token_ids
    assert said == alone.generate([*text(90)[:64], 5, 6, 7], temperature=0, max_tokens=5).token_ids
    assert fake.taken() <= 3 + 4 + (0 if name in ("llama-dense", "deepseek2-moe") else 64)
    with pytest.raises(RequestError, match="expected -72 to 72"):
        session.rewind(73)
    session.rewind(0)
    with pytest.raises(RequestError, match="no tokens"):
        session.generate(temperature=0)
    session.close()


def test_pages_stay_while_others_come_and_go(open_llm: OpenLLM) -> None:
    page = open_llm(max_seqs=1).info.kv_bytes // 8
    fake = Counting()
    llm = open_llm(fake, max_seqs=2, kv_memory=14 * page)
    session = llm.session(text(100))
    for i in range(8):
        llm.generate(text(150, i), temperature=0, max_tokens=3)
    fake.taken()
    assert session.append([1, 2]) == 2
    assert fake.taken() == 2
    assert pages(llm) == 4
    del session
    gc.collect()
    assert pages(llm) == 0


def test_pages_of_sessions_are_named_when_nothing_else_fits(open_llm: OpenLLM) -> None:
    page = open_llm(max_seqs=1).info.kv_bytes // 8
    llm = open_llm(max_seqs=2, kv_memory=8 * page)
    session = llm.session(text(140))
    with pytest.raises(CapacityError, match="close sessions, whose pages stay"):
        llm.generate(text(150, 1), temperature=0, on_error="raise")
    session.close()
    assert llm.generate(text(150, 1), temperature=0, max_tokens=3, on_error="raise").finish_reason == "length"


def test_a_stream_and_leaving_it(open_llm: OpenLLM) -> None:
    llm = open_llm()
    alone = llm.generate(text(40), temperature=0, max_tokens=9).token_ids
    session = llm.session(text(40))
    assert [t for c in session.generate(temperature=0, max_tokens=9, stream=True) for t in c.token_ids] == alone
    assert session.tokens == [*text(40), *alone]
    session.rewind(40)
    read: list[int] = []
    for chunk in session.generate(temperature=0, max_tokens=200, stream=True):
        read += chunk.token_ids
        break
    assert session.tokens == [*text(40), *read]
    assert session.generate(temperature=0, max_tokens=3).token_ids == (
        llm.generate([*text(40), *read], temperature=0, max_tokens=3).token_ids
    )
    session.close()
    assert pages(llm) == 0


def test_text_and_what_is_refused(open_llm: OpenLLM) -> None:
    llm = open_llm()
    with llm.session("hello world") as session:
        assert session.append(" the") > 0
        assert llm.detokenize(session.tokens) == "hello world the"
        with pytest.raises(ContextOverflow):
            session.append([1] * 300)
        with pytest.raises(RequestError, match="outside the vocabulary"):
            session.append([10**6])
        assert len(session) == len(session.tokens)
        other = session.fork()
    with pytest.raises(EngineError, match="this session is closed"):
        session.append([1])
    assert other.generate(temperature=0, max_tokens=2).usage.completion_tokens == 2
    llm.close()
    with pytest.raises(EngineError, match="closed"):
        other.fork()
    other.close()
    assert isinstance(other, Session)


@pytest.mark.parametrize("name", KINDS)
def test_saved_and_loaded(open_llm: OpenLLM, golden_case: Golden, name: str, tmp_path: Path) -> None:
    """In another process nothing is computed again, and the answers are the same."""
    path, file = golden_case(name).path, tmp_path / "talk.session"
    llm = open_llm(path=path)
    session = llm.session(text(75))
    session.generate(text(5, 1), temperature=0, max_tokens=6)
    session.save(file)
    expected = session.generate([3, 4], temperature=0, max_tokens=6)
    fake = Counting()
    other = open_llm(fake, path=path).session().load(file)
    assert other.tokens == session.tokens[: 75 + 5 + 6]
    assert fake.taken() == 0
    assert other.generate([3, 4], temperature=0, max_tokens=6).token_ids == expected.token_ids
    assert fake.taken() == 1 + 2 + 5  # the last token of the answer, the new ones, the answer
    assert sorted(p.name for p in tmp_path.iterdir()) == ["talk.session"]


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense"])
def test_pages_of_the_backends_are_saved(golden_case: Golden, backend: str, name: str, tmp_path: Path) -> None:
    case = golden_case(name)
    with LLM(case.path, backend=backend) as llm, LLM(case.path, backend=backend, prefix_cache=False) as plain:
        session = llm.session(text(60))
        session.save(tmp_path / "x")
        expected = plain.generate([*text(60), 3, 4], temperature=0, max_tokens=6)
        with LLM(case.path, backend=backend) as other:
            answer = other.session().load(tmp_path / "x").generate([3, 4], temperature=0, max_tokens=6)
            assert answer.usage.cached_tokens == 60
            assert answer.token_ids == expected.token_ids


def test_files_that_are_refused(open_llm: OpenLLM, golden_case: Golden, tmp_path: Path) -> None:
    llm, file = open_llm(), tmp_path / "s"
    session = llm.session(text(40))
    session.save(file)
    good = file.read_bytes()
    for bad, says in [
        (b"edgellm session 2\n" + good[18:], "not a session of this version"),
        (b"", "not a session of this version"),
        (good[:-40], "damaged or cut short"),
        (good[:100] + bytes([good[100] ^ 1]) + good[101:], "damaged or cut short"),
    ]:
        file.write_bytes(bad)
        with pytest.raises(CacheError, match=says):
            session.load(file)
    with pytest.raises(CacheError, match="could not be read"):
        session.load(tmp_path / "none")
    with pytest.raises(CacheError, match="could not be saved"):
        session.save(tmp_path / "none" / "s")
    file.write_bytes(good)
    for other in (open_llm(kv_type="q8_0"), open_llm(path=golden_case("llama-dense").path)):
        with pytest.raises(CacheError, match=r"belongs to el1-\w+-f16, the open model is el1-"):
            other.session().load(file)
    small = open_llm(n_ctx=32)
    with pytest.raises(ContextOverflow):
        small.session().load(file)
    assert session.tokens == text(40)
    assert session.load(file).generate(temperature=0, max_tokens=2).usage.cached_tokens == 39


@pytest.mark.parametrize("parts", [0, 3])
@pytest.mark.parametrize("what", ["logits", "embed", "prompt_logprobs"])
def test_a_request_for_whom_sessions_leave_no_room_fails_at_once(open_llm: OpenLLM, parts: int, what: str) -> None:
    """They read nothing from the prefix cache: begun, they would be preempted by themselves again and again."""
    one = open_llm(FakeBackend(), max_seqs=1, prefix_cache=False).info.kv_bytes
    llm = open_llm(FakeBackend(lambda past: 65, parts=parts), max_seqs=2, n_batch=64, kv_memory=one)
    session = llm.session()
    session.append([5] * 150)
    session.generate([9], max_tokens=2, temperature=0)  # 5 of 8 pages are its own now
    prompt, errors = [7 + i % 50 for i in range(200)], list[Exception]()

    def ask() -> None:
        try:
            if what == "prompt_logprobs":
                llm.generate(prompt, max_tokens=2, prompt_logprobs=1, on_error="raise")
            else:
                getattr(llm, what)(prompt)
        except Exception as e:
            errors.append(e)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(60)
    assert "close sessions" in str(errors[0])
    assert llm._loaded.engine._state.preemptions == 0
