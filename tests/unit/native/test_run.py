"""Several decode steps in one call: the same tokens as step by step, and when a run ends."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from policy.source import REPOSITORY

from edgellm import _native
from edgellm._native import Engine, EngineConfig
from edgellm._native.handles import _Kept
from edgellm.core.errors import NativeError
from edgellm.core.types import Batch, Edits, Pick, RunOutput
from edgellm.sampling.edits import adjust_for, edits_after
from edgellm.sampling.exp64 import _POWERS
from edgellm.sampling.sampler import rank_of

MakeBatch = Callable[..., Batch]
GREEDY = Pick(0.0, 1, 1.0, 0.0, 0, 0, 0)
PICKS = [GREEDY, Pick(1.5, 20, 0.95, 0.01, 2**64 - 1, 1, 7), Pick(0.7, 40, 1.0, 0.0, 5, 0, 0)]
PROMPTS = [[3, 1, 4], [1, 5], [9, 2, 6, 5]]
N = 24
VOCAB = 50


def edited_picks(prompts: list[list[int]]) -> list[Pick]:
    """PICKS with edits of every kind, which begin after these tokens."""
    edits = [
        Edits(prompts[0], 1.3, 0.5, 0.25, -1, {4: -math.inf, 7: 1.5}),
        Edits(prompts[1], 1.0, 0.0, 0.7, 5, {}, (2, 9), 20),
        Edits(prompts[2], bias={0: 0.125, 49: -0.5}, ends=(1, 3, 60), min_tokens=4),
    ]
    return [p._replace(edits=e) for p, e in zip(PICKS, edits, strict=True)]


def decode_batch(make_batch: MakeBatch, engine: Engine, picks: list[Pick]) -> Batch:
    """The prompts computed, and the batch of the step after them."""
    pages = [[0], [4], [7]]
    starts = [(p, 0, page) for p, page in zip(PROMPTS, pages, strict=True)]
    rows = np.cumsum([len(p) for p in PROMPTS]) - 1
    out = engine.step(make_batch(*starts, rows=rows.tolist(), top_k=40, want_logits=False))
    first = [int(out.top_ids[i, rank_of(p, out.top_logits[i])]) for i, p in enumerate(picks)]
    return make_batch(
        *[([t], len(p), page) for t, p, page in zip(first, PROMPTS, pages, strict=True)], top_k=40, want_logits=False
    )


def steps(run: RunOutput) -> list[list[int]]:
    """The tokens step by step."""
    return [list(step) for step in zip(*run.tokens, strict=True)]


def by_steps(engine: Engine, batch: Batch, picks: list[Pick], n: int) -> list[list[int]]:
    tokens: list[list[int]] = []
    for step in range(n):
        said = [[t[s] for t in tokens] for s in range(len(picks))]
        out = engine.step(replace(batch, adjust=adjust_for(picks, said, VOCAB)))
        ranks = [rank_of(p._replace(n_generated=p.n_generated + step), out.top_logits[i]) for i, p in enumerate(picks)]
        chosen = np.array([out.top_ids[i, r] for i, r in enumerate(ranks)], np.int32)
        tokens.append(chosen.tolist())
        batch = replace(batch, tokens=chosen, positions=batch.positions + np.int32(1))
    return tokens


def test_a_run_is_its_steps(engine: Engine, make_batch: MakeBatch) -> None:
    expected = by_steps(engine, decode_batch(make_batch, engine, PICKS), PICKS, N)
    assert len({t for step in expected for t in step}) > 5
    for lengths in ([N], [1] * N, [5, 1, 18]):
        batch, got = decode_batch(make_batch, engine, PICKS), []
        for n in lengths:
            picks = [p._replace(n_generated=p.n_generated + len(got)) for p in PICKS]
            run = engine.run(batch, picks, n, ())
            assert [len(t) for t in run.tokens] == [n, n, n]
            assert run.status == [0, 0, 0]
            got += steps(run)
            batch = replace(
                batch, tokens=np.array([t[-1] for t in run.tokens], np.int32), positions=batch.positions + np.int32(n)
            )
        assert got == expected


@pytest.mark.parametrize("lengths", [[N], [1] * N, [5, 1, 18]])
def test_a_run_with_edits_is_its_steps(engine: Engine, make_batch: MakeBatch, lengths: list[int]) -> None:
    """Penalties over all and over the last tokens, biases, bans for a while: each step's follow from the last one's."""
    batch = decode_batch(make_batch, engine, PICKS)
    histories = [[*p, int(t)] for p, t in zip(PROMPTS, batch.tokens, strict=True)]
    expected = by_steps(engine, batch, edited_picks(histories), N)
    assert expected != by_steps(engine, decode_batch(make_batch, engine, PICKS), PICKS, N)
    batch, got, picks = decode_batch(make_batch, engine, PICKS), [], edited_picks(histories)
    for n in lengths:
        run = engine.run(batch, [p._replace(n_generated=p.n_generated + len(got)) for p in picks], n, ())
        got += steps(run)
        for history, tokens in zip(histories, run.tokens, strict=True):
            history += tokens
        batch = replace(
            batch, tokens=np.array([t[-1] for t in run.tokens], np.int32), positions=batch.positions + np.int32(n)
        )
    assert got == expected


def test_edits_follow_a_list_that_grew_meanwhile(engine: Engine, make_batch: MakeBatch) -> None:
    """Tokens that came between two runs, or a whole other history, are seen by the second."""
    batch = decode_batch(make_batch, engine, PICKS)
    histories = [[5] * 40 for _ in PICKS]
    picks = [p._replace(edits=Edits(h, 1.0, 2.0, 1.0, 30)) for p, h in zip(PICKS, histories, strict=True)]
    for more in ([], [7, 8, 7], [9] * 1000, None):
        for history in histories:
            if more is None:
                del history[20:]
            else:
                history += more
        fresh = [p._replace(edits=Edits(list(h), 1.0, 2.0, 1.0, 30)) for p, h in zip(PICKS, histories, strict=True)]
        run = engine.run(batch, picks, 5, ())
        assert run == engine.run(batch, fresh, 5, ())
        assert run.tokens != engine.run(batch, PICKS, 5, ()).tokens
        for history, tokens in zip(histories, run.tokens, strict=True):
            history += tokens


def test_a_run_ends_where_every_token_is_banned(engine: Engine, make_batch: MakeBatch) -> None:
    batch = decode_batch(make_batch, engine, PICKS)
    everything = Edits([1], bias={}, ends=tuple(range(VOCAB)), min_tokens=10)
    picks = [PICKS[0], PICKS[1], PICKS[2]._replace(edits=everything, n_generated=4)]
    run = engine.run(batch, picks, N, ())
    assert [t[-1] < 0 for t in run.tokens] == [False, False, True]
    assert [len(t) for t in run.tokens] == [1, 1, 1]
    assert run.status == [0, 0, 0]
    picks[2] = picks[2]._replace(n_generated=10)
    assert [len(t) for t in engine.run(batch, picks, 3, ()).tokens] == [3, 3, 3]


TOKENS = st.integers(0, 30)
PENALTIES = st.floats(-1e6, 1e6) | st.sampled_from([0.0, 0.1, 0.7])


@given(
    st.lists(TOKENS, max_size=60),
    st.sampled_from([1.0, 1.1, 1e-6, 1e6]) | st.floats(1e-6, 1e6),
    PENALTIES,
    PENALTIES,
    st.sampled_from([0, -1, 1, 5, 64]),
    st.dictionaries(TOKENS, st.floats(-1e30, 1e30) | st.just(-math.inf), max_size=12),
    st.lists(TOKENS, max_size=5),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 60),
)
def test_c_edits_as_python(
    tokens: list[int], repeat: float, presence: float, frequency: float, last_n: int, bias: dict[int, float],
    ends: list[int], min_tokens: int, n_generated: int, split: int,
) -> None:  # fmt: skip
    """The same edits bit for bit, however many tokens were there at first and came one by one later."""
    if not _native.available():
        pytest.skip(f"the native library is not here: {_native.why_not()}")
    ffi, lib = _native.ffi, _native.lib()
    first = tokens[:split]
    e = Edits(
        first, repeat, presence, frequency, last_n, dict(sorted(bias.items())), tuple(sorted({*ends})), min_tokens
    )
    kept = _Kept(e)
    for new in [first[kept.n :], *([t] for t in tokens[split:])]:
        assert lib.el_edits_add(kept.c, ffi.new("int32_t[]", new), len(new), ffi.NULL) == 0
    rows, ids, rep, add = (ffi.new(f"{kind}[]", 100) for kind in ("int32_t", "int32_t", "float", "float"))
    n = lib.el_edits_write(kept.c, n_generated, 25, 3, 100, rows, ids, rep, add)
    expected = edits_after(e, tokens, n_generated, 25)
    assert ffi.unpack(rows, n) == [3] * len(expected)
    assert ffi.unpack(ids, n) == [t for t, _, _ in expected]
    for theirs, ours in ((rep, [r for _, r, _ in expected]), (add, [a for _, _, a in expected])):
        assert bytes(ffi.buffer(theirs, 4 * n)) == np.array(ours, np.float32).tobytes()
    if n:
        assert lib.el_edits_write(kept.c, n_generated, 25, 3, n - 1, rows, ids, rep, add) == -1


def test_a_run_ends_after_an_ending_token(engine: Engine, make_batch: MakeBatch) -> None:
    expected = by_steps(engine, decode_batch(make_batch, engine, PICKS), PICKS, N)
    end = expected[9][1]
    first = next(i for i, step in enumerate(expected) if end in step)
    run = engine.run(decode_batch(make_batch, engine, PICKS), PICKS, N, (end, 49_000))
    assert steps(run) == expected[: first + 1]


def test_a_run_ends_when_halted(engine: Engine, make_batch: MakeBatch) -> None:
    batch = decode_batch(make_batch, engine, PICKS)
    engine.halt()
    assert len(steps(engine.run(batch, PICKS, N, ()))) == 1
    engine.halt(False)
    assert len(steps(engine.run(batch, PICKS, N, ()))) == N
    ended = threading.Event()

    def halt_often() -> None:
        while not ended.is_set():
            engine.halt()
            engine.halt(False)

    thread = threading.Thread(target=halt_often)
    thread.start()
    lengths = {len(steps(engine.run(batch, PICKS, N, ()))) for _ in range(50)}
    ended.set()
    thread.join()
    assert lengths <= set(range(1, N + 1))


def test_a_failed_sequence_ends_the_run(tiny: Any, config: EngineConfig, make_batch: MakeBatch) -> None:
    healthy = Engine(tiny.model(), config)
    expected = by_steps(healthy, decode_batch(make_batch, healthy, PICKS), PICKS, N)
    bad = expected[4][2]  # the third sequence's fifth token poisons its sixth step
    at = next(i for i, step in enumerate(expected) if bad in step)
    broken = replace(tiny, embedding=tiny.embedding.copy())
    broken.embedding[bad] = np.inf
    engine = Engine(broken.model(), config)
    run = engine.run(decode_batch(make_batch, engine, PICKS), PICKS, N, ())
    failed = [int(t == bad) for t in expected[at]]
    assert len(steps(run)) == at + 2
    assert steps(run)[: at + 1] == expected[: at + 1]
    assert run.status == failed
    for e in (healthy, engine):
        e.close()


@pytest.mark.parametrize(
    ("change", "picks", "n", "message"),
    [
        ({}, [GREEDY, GREEDY, GREEDY._replace(top_k=41)], 2, r"picks\[2\].top_k is 41, expected 1 to 40"),
        ({}, [GREEDY, GREEDY._replace(temperature=float("nan")), GREEDY], 2, r"picks\[1\].temperature"),
        ({}, [GREEDY._replace(top_p=1.5), GREEDY, GREEDY], 2, r"picks\[0\].top_p is 1.5"),
        ({}, [GREEDY._replace(n_generated=-1), GREEDY, GREEDY], 2, r"picks\[0\].n_generated is -1"),
        ({}, [GREEDY, GREEDY], 2, "2 picks for 3 sequences"),
        ({}, [GREEDY] * 3, 0, "0 steps"),
        ({}, [GREEDY] * 3, 65, "65 steps of at most 64"),
        ({"top_k": 0}, [GREEDY] * 3, 2, "top_k 0"),
        ({"rows": np.array([0, 2], np.int32)}, [GREEDY] * 3, 2, "2 rows"),
        ({}, [GREEDY] * 3, 40, r"pages\[0\] has 1 entries a sequence, expected at least 2"),
    ],
)
def test_malformed_runs(
    engine: Engine, make_batch: MakeBatch, change: dict[str, Any], picks: list[Pick], n: int, message: str
) -> None:
    batch = decode_batch(make_batch, engine, PICKS)
    with pytest.raises((NativeError, ValueError), match=message):
        engine.run(replace(batch, **change), picks, n, ())
    assert len(steps(engine.run(batch, PICKS, 2, ()))) == 2


# ---- one choice ----------------------------------------------------------------------------------------------------

NUMBERS = st.floats(-100, 100, width=32) | st.sampled_from([0.0, -0.0, -1e30, 1e30, -3e38])


@given(
    st.lists(NUMBERS, min_size=1, max_size=90),
    st.sampled_from([0.0, 1.0, 0.8, 3.0, 1e-3, 1e-300, 1e6]),
    st.sampled_from([1.0, 0.95, 0.5, 0.0]) | st.floats(0, 1),
    st.sampled_from([0.0, 0.05, 1.0]) | st.floats(0, 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**40),
    st.integers(1, 100),
)
@example([0.0] * 1024, 1.0, 1.0, 0.0, 1, 0, 0, 1024)
def test_c_chooses_as_python(
    values: list[float], temperature: float, top_p: float, min_p: float, seed: int, choice: int, n: int, top_k: int
) -> None:
    if not _native.available():
        pytest.skip(f"the native library is not here: {_native.why_not()}")
    logits = np.sort(np.array(values, np.float32))[::-1].copy()
    pick = Pick(temperature, top_k, top_p, min_p, seed, choice, n)
    c_pick = _native.ffi.new("el_pick *", {k: v for k, v in pick._asdict().items() if v is not None})
    rank = _native.lib().el_pick_rank(c_pick, _native.ffi.from_buffer("float[]", logits), len(logits))
    assert rank == rank_of(pick, logits)


def test_the_table_of_powers_is_python_s() -> None:
    text = (REPOSITORY / "native/core/pick_powers.inl").read_text()
    assert [float.fromhex(x) for x in re.findall(r"0x1\.[0-9a-f]+p\+0", text)] == _POWERS.tolist()
