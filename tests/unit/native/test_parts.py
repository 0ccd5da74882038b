"""A step that is computed in parts: the results of the same step at once, whatever runs in between."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgellm import _native
from edgellm._native import Engine, EngineConfig
from edgellm.core.errors import EngineError, NativeError
from edgellm.core.types import Adjust, Batch, StepOutput

MakeBatch = Callable[..., Batch]
TOKENS = [int(t) for t in np.random.default_rng(2).integers(0, 50, 60)]
EDITS = Adjust(np.array([1], np.int32), np.array([7], np.int32), np.array([2], np.float32), np.array([1], np.float32))


def ended(engine: Engine, seconds: float = 0.0, between: Callable[[], object] = lambda: None) -> tuple[StepOutput, int]:
    """What comes out, and in how many parts."""
    for n in range(1, 10_000):
        out = engine.advance(seconds)
        if out is not None:
            return out, n
        between()
    raise AssertionError("it does not end")


def same(a: StepOutput, b: StepOutput) -> bool:
    fields = ("top_ids", "top_logits", "status", "lse", "logits", "hidden")
    pairs = [(getattr(a, f), getattr(b, f)) for f in fields]
    return all((x is None) == (y is None) and (x is None or x.tobytes() == y.tobytes()) for x, y in pairs)


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 3, "want_lse": True, "adjust": EDITS},
        {"top_k": 60, "want_logits": False, "rows": [0, 2, 59]},
        {"want_hidden": True, "want_logits": False},
        {"rows": []},
    ],
    ids=["all", "top", "hidden", "no rows"],
)
@pytest.mark.parametrize("n_threads", [1, 3])
def test_it_is_the_step(
    tiny: Any, config: EngineConfig, make_batch: MakeBatch, options: dict[str, Any], n_threads: int
) -> None:
    engine = Engine(tiny.model(), replace(config, n_threads=n_threads))
    try:
        batch = make_batch((TOKENS, 0, [4, 2]), ([5, 6, 7], 0, [1]), **options)
        expected = engine.step(batch)
        other = make_batch((TOKENS[30:], 0, [8]), top_k=2)
        beside = engine.step(other)
        engine.begin(batch)
        batch.tokens[:] = 0  # it was copied
        batch.pages[0][:] = 8
        out, n = ended(engine, between=lambda: same(engine.step(other), beside) or pytest.fail("the other's bits"))
        assert n > 3
        assert same(out, expected)
        assert same(engine.step(other), beside)
    finally:
        engine.close()


def test_all_of_it_at_once(engine: Engine, make_batch: MakeBatch) -> None:
    batch = make_batch((TOKENS, 0, [4, 2]), top_k=3)
    expected = engine.step(batch)
    engine.begin(batch)
    assert ended(engine, math.inf)[1] == 1
    engine.begin(batch)
    out, n = ended(engine, 60)
    assert n == 1
    assert same(out, expected)


def test_the_next_step_reads_what_it_wrote(engine: Engine, make_batch: MakeBatch) -> None:
    whole = engine.step(make_batch((TOKENS, 0, [4, 2]))).logits
    engine.begin(make_batch((TOKENS[:40], 0, [7, 5])))
    ended(engine)
    last = engine.step(make_batch((TOKENS[40:], 40, [7, 5]))).logits
    assert whole is not None
    assert last is not None
    assert last.tobytes() == whole[40:].tobytes()


def test_another_one_takes_its_place(engine: Engine, make_batch: MakeBatch) -> None:
    first, second = make_batch((TOKENS, 0, [4, 2])), make_batch((TOKENS[20:50], 0, [4]), top_k=5)
    expected = engine.step(second)
    engine.begin(first)
    assert engine.advance(0) is None
    engine.begin(second)
    assert same(ended(engine)[0], expected)


def test_a_non_finite_sequence_fails_alone(tiny: Any, config: EngineConfig, make_batch: MakeBatch) -> None:
    broken = replace(tiny, embedding=tiny.embedding.copy())
    broken.embedding[3] = np.inf
    engine = Engine(broken.model(), config)
    engine.begin(make_batch(([1, 2], 0, [0]), ([3], 0, [1]), ([4], 0, [2]), top_k=2))
    between = make_batch(([3, 3], 0, [5]), ([1], 0, [6]))
    out, _ = ended(engine, between=lambda: engine.step(between))
    assert out.status.tolist() == [0, 1, 0]
    assert engine.step(between).status.tolist() == [1, 0]
    engine.close()


def test_what_is_not_begun_cannot_go_on(engine: Engine, make_batch: MakeBatch) -> None:
    batch = make_batch(([1, 2], 0, [0]))
    for _ in range(2):
        with pytest.raises(NativeError, match="no step in parts was begun"):
            engine.advance(0)
        with pytest.raises(NativeError, match=r"tokens\[1\] is 50"):
            engine.begin(replace(batch, tokens=np.array([1, 50], np.int32)))
    engine.begin(batch)
    with pytest.raises(ValueError, match="expected at most"):
        engine.begin(make_batch((TOKENS, 0, [1, 2]), (TOKENS, 0, [3, 4]), (TOKENS, 0, [5, 6])))
    with pytest.raises(NativeError, match="no step in parts was begun"):
        engine.advance(0)
    engine.begin(batch)
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.advance(0)


def test_the_library_checks_for_itself(engine: Engine) -> None:
    lib, err, done = _native.lib(), _native.ffi.new("el_error *"), _native.ffi.new("int32_t *")
    null = _native.ffi.NULL
    assert lib.el_continue(engine._pointer, 0, done, err) == 1
    assert b"no step in parts" in _native.ffi.string(err.message)
    assert lib.el_continue(null, 0, done, err) == 1
    assert lib.el_begin(engine._pointer, null, null, err) == 1


def test_times_of_its_phases(engine: Engine, make_batch: MakeBatch) -> None:
    batch = make_batch((TOKENS, 0, [4, 2]))
    times = engine.time_phases()
    for seconds in (0, math.inf):
        engine.begin(batch)
        ended(engine, seconds)
    assert (times["n_runs"] == 2).all()
    assert (times["busy"] <= times["wall"] * engine.info.n_threads).all()
    assert times["busy"].sum() > 0
