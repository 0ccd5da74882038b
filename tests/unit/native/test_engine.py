"""The engine through cffi: what it computes, and how it says no."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgellm import _native
from edgellm._native import BufferSpec, Engine, EngineConfig
from edgellm.core.errors import CapacityError, EngineError, NativeError, UnsupportedModel
from edgellm.core.types import Adjust, Batch

MakeBatch = Callable[..., Batch]
TOKENS = [int(t) for t in np.random.default_rng(2).integers(0, 50, 60)]


def test_it_computes_what_numpy_computes(tiny: Any, engine: Engine, make_batch: MakeBatch) -> None:
    out = engine.step(make_batch((TOKENS, 0, [4, 2]), top_k=3, want_lse=True))
    expected = tiny.logits(TOKENS)
    assert out.logits is not None
    assert out.lse is not None
    np.testing.assert_allclose(out.logits, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())
    np.testing.assert_allclose(out.lse, np.log(np.exp(expected).sum(1)), rtol=1e-5)
    order = np.argsort(-out.logits, axis=1, kind="stable")[:, :3]
    assert (out.top_ids == order).all()
    assert (out.top_logits == np.take_along_axis(out.logits, order, 1)).all()
    assert out.status.tolist() == [0]


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_bits_do_not_depend_on_how(
    tiny: Any, engine: Engine, config: EngineConfig, make_batch: MakeBatch, pack: bool, n_threads: int
) -> None:
    whole = engine.step(make_batch((TOKENS, 0, [4, 2]))).logits
    other = Engine(tiny.model(pack), replace(config, n_threads=n_threads, isa="scalar"))
    parts = []
    for a, b in ((0, 7), (7, 8), (8, 45), (45, 60)):
        mate = (TOKENS[a:b], a, [6, 7])
        out = other.step(make_batch(mate, (TOKENS[a:b], a, [1, 3]), rows=list(range(b - a, 2 * (b - a)))))
        parts.append(out.logits)
    assert whole is not None
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    other.close()


def test_edits_of_the_logits(engine: Engine, make_batch: MakeBatch) -> None:
    batch = make_batch((TOKENS[:5], 0, [0]), rows=[1, 4], top_k=50)
    plain = engine.step(batch)
    edits = Adjust(
        row=np.array([0, 1, 1], np.int32),
        token=np.array([7, 7, 8], np.int32),
        rep=np.array([2, 1, 1], np.float32),
        add=np.array([0, -np.inf, 1], np.float32),
    )
    edited = engine.step(replace(batch, adjust=edits))
    assert plain.logits is not None
    assert edited.logits is not None
    expected = plain.logits.copy()
    expected[0, 7] = expected[0, 7] / 2 if expected[0, 7] > 0 else expected[0, 7] * 2
    expected[1, 7] = -np.inf
    expected[1, 8] += 1
    assert edited.logits.tobytes() == expected.tobytes()
    assert edited.top_ids[1, -1] == 7
    assert plain.logits[1, 7] > -np.inf, "the first result belongs to the caller"


def test_no_rows_and_more_candidates_than_words(engine: Engine, make_batch: MakeBatch) -> None:
    out = engine.step(make_batch((TOKENS[:5], 0, [0]), rows=[], top_k=8))
    assert out.top_ids.shape == (0, 8)
    assert out.logits is not None
    assert out.logits.shape == (0, 50)
    out = engine.step(make_batch(([1], 5, [0]), top_k=60))
    assert sorted(out.top_ids[0, :50].tolist()) == list(range(50))
    assert (out.top_ids[0, 50:] == -1).all()
    assert (out.top_logits[0, 50:] == -np.inf).all()


def test_copied_and_released_pages(engine: Engine, make_batch: MakeBatch) -> None:
    engine.step(make_batch((TOKENS[:20], 0, [3])))
    engine.copy_page(0, 3, 8)
    first = engine.step(make_batch(([9], 20, [3]))).logits
    engine.release_pages(0, np.array([3], np.int32))
    second = engine.step(make_batch(([9], 20, [8]))).logits
    assert first is not None
    assert second is not None
    assert first.tobytes() == second.tobytes()
    with pytest.raises(NativeError, match="page 9 of cache class 0, expected 0 to 8"):
        engine.copy_page(0, 0, 9)
    with pytest.raises(NativeError, match="cache class 1"):
        engine.release_pages(1, np.array([0], np.int32))


def test_a_non_finite_sequence_fails_alone(tiny: Any, config: EngineConfig, make_batch: MakeBatch) -> None:
    broken = replace(tiny, embedding=tiny.embedding.copy())
    broken.embedding[3] = np.inf
    engine = Engine(broken.model(), config)
    out = engine.step(make_batch(([1, 2], 0, [0]), ([3], 0, [1]), ([4], 0, [2]), top_k=2))
    assert out.status.tolist() == [0, 1, 0]
    assert out.top_ids[2].tolist() == [-1, -1]
    engine.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [1, 50]}, r"tokens\[1\] is 50, expected 0 to 49"),
        ({"positions": [0, 2]}, r"positions\[1\] is 2, expected 1"),
        ({"positions": [95, 96]}, "expected positions 0 to 95"),
        ({"seq_start": [0, 1]}, "seq_start goes from 0 to 1"),
        ({"seq_start": [0, 2, 2]}, "pages"),
        ({"rows": [1, 1]}, r"rows\[1\] is 1, expected 2 to 1"),
        ({"rows": [2]}, r"rows\[0\] is 2"),
    ],
)
def test_malformed_batches(engine: Engine, make_batch: MakeBatch, change: dict[str, list[int]], message: str) -> None:
    batch = make_batch(([1, 2], 0, [0]))
    with pytest.raises((NativeError, ValueError), match=message):
        engine.step(replace(batch, **{k: np.array(v, np.int32) for k, v in change.items()}))
    assert engine.step(batch).status.tolist() == [0]


def test_arrays_of_another_kind(engine: Engine, make_batch: MakeBatch) -> None:
    batch = make_batch(([1, 2], 0, [0]))
    with pytest.raises(ValueError, match=r"tokens is int64\[2\], expected int32"):
        engine.step(replace(batch, tokens=batch.tokens.astype(np.int64)))
    with pytest.raises(ValueError, match=r"positions is int32\[1\], expected int32 with 2"):
        engine.step(replace(batch, positions=batch.positions[:1]))
    with pytest.raises(ValueError, match=r"pages\[0\] has shape \(2, 1\), expected \(1, pages\)"):
        engine.step(replace(batch, pages=(np.zeros((2, 1), np.int32),)))
    with pytest.raises(ValueError, match="0 block tables, expected 1"):
        engine.step(replace(batch, pages=()))
    with pytest.raises(ValueError, match="contiguous"):
        engine.step(replace(batch, tokens=np.zeros(4, np.int32)[::2]))
    with pytest.raises(ValueError, match="top_k 2000"):
        engine.step(replace(batch, top_k=2000))
    with pytest.raises(NativeError, match=r"pages\[0\]\[0, 0\] is -1, expected 0 to 8"):
        engine.step(replace(batch, pages=(np.array([[-1]], np.int32),)))


def test_malformed_models(tiny: Any, config: EngineConfig) -> None:
    model = tiny.model()
    ops = model.ops.copy()
    ops["w"][2, 0] = 77
    with pytest.raises(NativeError, match=r"op 2 \(LINEAR\) w0: 77, expected a matrix, 0 to 5") as caught:
        Engine(replace(model, ops=ops), config)
    assert caught.value.code == 1
    ops = model.ops.copy()
    ops["code"][2] = 99
    with pytest.raises(UnsupportedModel, match="op 2: code 99"):
        Engine(replace(model, ops=ops), config)
    with pytest.raises(UnsupportedModel, match=r"weights\[0\]: no kernels for weight type \? \(24\)"):
        Engine(replace(model, matrices=[replace(model.matrices[0], qtype=24), *model.matrices[1:]]), config)
    short = replace(model.matrices[5], data=model.matrices[5].data.reshape(-1)[:-1])
    with pytest.raises(NativeError, match=r"weights\[5\]: 6396 bytes"):
        Engine(replace(model, matrices=[*model.matrices[:5], short]), config)
    with pytest.raises(UnsupportedModel, match='isa is "mmx"'):
        Engine(model, replace(config, isa="mmx"))
    wide: dict[str, Any] = {"ops": model.ops[:1], "buffers": [*model.buffers, BufferSpec(1 << 24, 1)], "logits": 6}
    with pytest.raises(CapacityError, match=r"out of memory: \d+ bytes of scratch"):
        Engine(replace(model, n_vocab=1 << 24, **wide), replace(config, max_rows=1 << 20))
    with pytest.raises(ValueError, match="n_pages has 2 entries"):
        Engine(model, replace(config, n_pages=[1, 2]))
    with pytest.raises(ValueError, match="kv type 'q8'"):
        Engine(model, replace(config, k_type="q8"))


def test_info(engine: Engine) -> None:
    assert engine.info.n_threads == 2
    assert engine.info.isa in [name for name, usable, _ in _native.isa_levels() if usable]
    assert engine.info.weight_bytes > 0
    assert engine.info.cache_bytes >= 9 * 2 * 32 * 16 * 4


def test_closing(tiny: Any, config: EngineConfig, make_batch: MakeBatch) -> None:
    engine = Engine(tiny.model(), config)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.step(make_batch(([1], 0, [0])))


def test_threads_and_memory_go_with_the_object(tiny: Any, config: EngineConfig) -> None:
    def threads() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    if not os.path.isdir("/proc/self/task"):
        pytest.skip("counts threads in /proc")
    gc.collect()
    before = threads()  # some of them may be ending
    engine = Engine(tiny.model(), replace(config, n_threads=5))
    new = threads() - before
    assert len(new) == 4
    del engine
    gc.collect()
    deadline = time.monotonic() + 60
    while threads() & new:
        assert time.monotonic() < deadline, "the pool's threads go on"
        time.sleep(0.01)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_gets_an_error_and_ends(tmp_path: Any) -> None:
    """In a child of a fresh process, since forking one with threads of other libraries is not safe."""
    program = """
import os, sys, numpy as np
from edgellm._native import BufferSpec, Engine, EngineConfig, NativeModel, OP_DTYPE
from edgellm.core.errors import EngineError
from edgellm.core.types import Batch
ops = np.zeros(1, OP_DTYPE)
ops["code"], ops["v"], ops["w"], ops["f"] = 9, (0, 0, 1), -1, 1
engine = Engine(NativeModel(ops, [BufferSpec(1, 1)], [], [], [], [], 0, 0, 1, 0), EngineConfig(1, 1, 1, 1, (), 2))
zero = np.zeros(1, np.int32)
batch = Batch(zero, zero, np.array([0, 1], np.int32), (), zero, 1)
engine.step(batch)
child = os.fork()
if child == 0:
    try:
        engine.step(batch)
    except EngineError as e:
        sys.exit(7 if "forked child" in str(e) else 8)
    sys.exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
engine.step(batch)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "7", done.stderr
    assert done.returncode == 0


def test_the_lock_of_the_interpreter_is_free_during_a_step(
    tiny: Any, make_batch: MakeBatch, config: EngineConfig
) -> None:
    engine = Engine(tiny.model(), config)
    batch = make_batch((TOKENS, 0, [4, 2]))
    counter, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            counter[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # whoever has the lock keeps it until it gives it away
    try:
        thread.start()
        at, deadline = counter[0], time.monotonic() + 60
        while counter[0] < at + 10:
            engine.step(batch)
            assert time.monotonic() < deadline, "nobody else comes to run"
        stop.set()
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    engine.close()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads here")
def test_pool_threads_leave_signals_to_python(engine: Engine) -> None:
    """A signal sent to the process is handled although the pool's threads block all signals."""
    seen: list[int] = []
    old = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    os.kill(os.getpid(), signal.SIGUSR1)
    deadline = time.monotonic() + 60
    while not seen and time.monotonic() < deadline:
        time.sleep(0.01)
    signal.signal(signal.SIGUSR1, old)
    assert seen == [signal.SIGUSR1]


def test_hidden_states_are_what_the_head_multiplies(engine: Engine, tiny: Any, make_batch: MakeBatch) -> None:
    """Alone, when the head is left out, and beside logits: the same bits."""
    batch = make_batch(([1, 2, 3], 0, [0]), ([4, 5], 0, [1]), want_hidden=True)
    beside = engine.step(batch)
    alone = engine.step(replace(batch, want_logits=False, top_k=0))
    assert beside.hidden is not None
    assert beside.logits is not None
    assert alone.hidden is not None
    assert np.array_equal(alone.hidden, beside.hidden)
    assert alone.logits is None
    np.testing.assert_allclose(alone.hidden.astype(np.float64) @ tiny.head.T, beside.logits, rtol=1e-4, atol=1e-5)
    assert engine.step(make_batch(([1], 0, [0]))).hidden is None
