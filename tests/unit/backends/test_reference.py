"""The reference backend as a backend: batches of any mix, pages, types, output selection, isolation of failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import GoldenCase
from parity.driver import Pages, Timeline, batch, compiled, config, teacher_forced

from edgellm.backends.reference import ReferenceBackend
from edgellm.backends.reference.output import adjust, log_sum_exp, top_k
from edgellm.core.errors import ConfigError, NativeError, UnsupportedModel
from edgellm.core.types import Adjust
from edgellm.gguf.reader import GGUFFile
from edgellm.models import Plan, load_plan

CASES = ["llama-dense", "llama-moe", "gemma3-dense", "qwen35-dense", "mamba2-dense", "deepseek2-moe", "gpt-oss-moe"]


class Model:
    """A golden case, opened and compiled."""

    def __init__(self, case: GoldenCase, **changes: object) -> None:
        self.case, self.file = case, GGUFFile(case.path)
        self.plan: Plan = load_plan(self.file).plan
        self.executable: Any
        self.pages: Pages
        self.executable, self.pages = compiled(ReferenceBackend(), self.plan, self.file, **changes)

    def line(self) -> Timeline:
        return Timeline(self.pages)

    def run(self, *work: Any, **options: Any) -> Any:
        return self.executable.run(batch(self.plan, work, **options))


@pytest.fixture
def model(golden_case: Callable[[str], GoldenCase]) -> Iterator[Callable[..., Model]]:
    opened = []

    def make(name: str, **changes: object) -> Model:
        opened.append(Model(golden_case(name), **changes))
        return opened[-1]

    yield make
    for m in opened:
        m.executable.close()
        m.file.close()


@pytest.mark.parametrize("name", CASES)
def test_any_mix_of_sequences_gives_each_its_own_logits(name: str, model: Any, nmse: Any) -> None:
    """Three sequences enter and leave steps at different times, with long and short pieces side by side."""
    m = model(name)
    texts = [m.case.tokens_long[i : i + 60] for i in (0, 11, 30)]
    alone = [teacher_forced(m.executable, m.plan, t, (256,), m.line()) for t in texts]
    lines = [m.line() for _ in texts]
    pieces = [[20, 1, 1, 37, 1], [0, 33, 1, 1, 25], [7, 7, 7, 0, 39]]
    mixed: list[list[Any]] = [[], [], []]
    for step in range(5):
        order = [i for i in (step % 3, (step + 1) % 3, (step + 2) % 3) if pieces[i][step]]
        work = [(lines[i], texts[i][lines[i].n : lines[i].n + pieces[i][step]]) for i in order]
        out, at = m.run(*work), 0
        assert not out.status.any()
        for i in order:
            mixed[i].append(out.logits[at : at + pieces[i][step]])
            at += pieces[i][step]
    for a, b in zip(alone, mixed, strict=True):
        assert nmse(a, np.concatenate(b)) < 1e-9


def test_only_wanted_rows_come_back(model: Any) -> None:
    m = model("llama-dense")
    whole = m.run((m.line(), m.case.tokens)).logits
    some = m.run((m.line(), m.case.tokens), rows=[3, 23], top_k=5, want_lse=True)
    assert some.logits.shape == (2, 128)
    assert np.allclose(some.logits, whole[[3, 23]], rtol=0, atol=1e-5)
    assert some.top_ids.shape == (2, 5)
    assert some.lse.shape == (2,)
    none = m.run((m.line(), m.case.tokens), rows=[], top_k=5, want_logits=False)
    assert none.top_ids.shape == (0, 5)
    assert none.logits is None
    assert none.lse is None


def test_half_precision_cache(model: Any, nmse: Any) -> None:
    exact = model("llama-dense")
    half = model("llama-dense", k_type="f16", v_type="f16")
    mixed = model("llama-dense", k_type="f32", v_type="f16")
    a, b, c = (teacher_forced(m.executable, m.plan, m.case.tokens, (8,), m.line()) for m in (exact, half, mixed))
    assert 0 < nmse(a, b) < 1e-6
    assert 0 < nmse(a, c) < 1e-6
    assert (b != c).any()


@pytest.mark.parametrize(
    ("kind", "high"), [("bf16", 1e-4), ("q8_0", 1e-4), ("q4_0", 1e-1), ("fp8_e4m3", 1e-2), ("fp8_e5m2", 5e-2)]
)
def test_cache_formats(kind: str, high: float, model: Any, nmse: Any) -> None:
    exact, k, v = model("llama-dense"), model("llama-dense", k_type=kind), model("llama-dense", v_type=kind)
    a, b, c = (teacher_forced(m.executable, m.plan, m.case.tokens, (8,), m.line()) for m in (exact, k, v))
    assert 0 < nmse(a, b) < high
    assert 0 < nmse(a, c) < high


@pytest.mark.parametrize("name", CASES)
def test_a_copied_page_continues_the_sequence(name: str, model: Any) -> None:
    m = model(name)
    line = m.line()
    m.run((line, m.case.tokens[:20]))
    fork = m.line()
    fork.n, fork.tables = line.n, [[free.pop()] for free in m.pages.free]
    for c, (src, dst) in enumerate(zip(line.tables, fork.tables, strict=True)):
        m.executable.copy_page(c, src[0], dst[0])
    out = m.run((line, [5]), (fork, [6]))
    again = m.line()
    expected = m.run((again, [*m.case.tokens[:20], 6]), rows=[20]).logits
    assert np.allclose(out.logits[1], expected[0], rtol=0, atol=1e-5)
    assert not np.allclose(out.logits[0], out.logits[1], rtol=0, atol=1e-3)


def test_pages_are_never_assumed_clean(model: Any) -> None:
    """Unwritten slots of pages, and slots of recurrent state before a sequence starts, may hold anything."""
    for name in ("gemma3-dense", "qwen35-dense"):
        m = model(name)
        clean = teacher_forced(m.executable, m.plan, m.case.tokens, (5,), m.line())
        for layer in m.executable._caches.paged.values():
            layer.k[:], layer.v[:] = np.nan, np.nan
        for entry in m.executable._caches.states.values():
            entry._values[:] = np.nan
        assert (teacher_forced(m.executable, m.plan, m.case.tokens, (5,), m.line()) == clean).all()


def test_a_failed_sequence_leaves_the_others_alone(model: Any) -> None:
    m = model("llama-dense")
    sick, well = m.line(), m.line()
    m.run((sick, m.case.tokens[:4]), (well, m.case.tokens[:4]))
    m.executable._caches.paged[0, 0].v[sick.tables[0][0]] = np.inf
    out = m.run((sick, [1, 2]), (well, [1, 2]))
    assert out.status.tolist() == [1, 0]
    alone = m.run((m.line(), [*m.case.tokens[:4], 1, 2]), rows=[4, 5]).logits
    assert np.allclose(out.logits[2:], alone, rtol=0, atol=1e-5)


def test_buffers_start_undefined(model: Any) -> None:
    """A plan that reads what nothing wrote fails its sequences instead of reading zeros."""
    m = model("llama-dense")
    broken = dataclasses.replace(m.plan, ops=m.plan.ops[1:])
    executable, pages = compiled(ReferenceBackend(), broken, m.file)
    assert executable.run(batch(broken, [(Timeline(pages), [1])])).status.tolist() == [1]


def test_a_plan_of_another_file(model: Any) -> None:
    dense, moe = model("llama-dense"), model("llama-moe")
    with pytest.raises(UnsupportedModel, match=r"needs tensor 'blk.0.ffn_gate.weight', which the file does not have"):
        ReferenceBackend().compile(dense.plan, moe.file, config(dense.plan))
    weights = tuple(
        dataclasses.replace(w, shape=(128, 255)) if w.tensor == "output.weight" else w for w in dense.plan.weights
    )
    with pytest.raises(UnsupportedModel, match="the plan was made for another file"):
        ReferenceBackend().compile(dataclasses.replace(dense.plan, weights=weights), dense.file, config(dense.plan))


def test_levels_do_not_exist_here(model: Any) -> None:
    m = model("llama-dense")
    with pytest.raises(ConfigError, match="has no ISA levels"):
        ReferenceBackend().compile(m.plan, m.file, config(m.plan, isa="avx2"))


def test_closing(model: Any) -> None:
    m = model("llama-dense")
    m.executable.close()
    m.executable.close()
    for use in (lambda: m.run((m.line(), [1])), lambda: m.executable.copy_page(0, 0, 1)):
        with pytest.raises(NativeError, match="closed"):
            use()


@pytest.mark.parametrize("args", [(1, 0, 1), (-1, 0, 1), (0, 64, 1), (0, 0, -1)])
def test_copying_pages_that_do_not_exist(args: tuple[int, int, int], model: Any) -> None:
    m = model("llama-dense")
    with pytest.raises(ValueError, match=r"expected 0..63|does not exist"):
        m.executable.copy_page(*args)


def test_information(model: Any) -> None:
    m = model("llama-dense")
    seen: list[float] = []
    info = ReferenceBackend().compile(m.plan, m.file, config(m.plan), seen.append).info
    assert (info.name, info.isa, info.n_threads) == ("reference", "numpy", 1)
    assert info.weight_bytes > 4 * 128 * 256
    assert info.scratch_bytes == 256 * 4 * sum(b.width for b in m.plan.buffers)
    assert seen == [1.0]


def f32(*values: Any) -> Any:
    return np.array(values, np.float32)


def i32(*values: Any) -> Any:
    return np.array(values, np.int32)


def test_top_k_breaks_ties_by_id() -> None:
    ids, values = top_k(f32([1, 3, 3, -1, 3], [-0.0, 0.0, 1, 0.0, -np.inf]), 4)
    assert ids.tolist() == [[1, 2, 4, 0], [2, 0, 1, 3]]
    assert values.tolist() == [[3, 3, 3, 1], [1, 0, 0, 0]]
    assert ids.dtype == np.int32
    assert top_k(f32([1, 2]), 0)[0].shape == (1, 0)


def test_edits_follow_each_other() -> None:
    logits = f32([2, -2, 0, 5], [1, 1, 1, 1])
    adjust(logits, Adjust(i32(0, 0, 0, 0, 1), i32(0, 1, 2, 0, 3), f32(2, 2, 2, 4, 1), f32(1, 0, 0, 0, -np.inf)))
    assert logits.tolist() == [[0.5, -4, 0, 5], [1, 1, 1, -np.inf]]


def test_log_sum_exp() -> None:
    logits = f32([1000, 1000], [-np.inf, 2])
    assert np.allclose(log_sum_exp(logits), [1000 + np.log(2), 2])


def test_edits_and_candidates_in_a_step(model: Any) -> None:
    m = model("llama-dense")
    plain = m.run((m.line(), m.case.tokens), rows=[23], top_k=2, want_lse=True)
    best, second = plain.top_ids[0].tolist()
    edits = Adjust(i32(0), i32(best), f32(1), f32(-np.inf))
    edited = m.run((m.line(), m.case.tokens), rows=[23], top_k=1, want_lse=True, adjust=edits)
    assert edited.top_ids.tolist() == [[second]]
    assert edited.logits[0, best] == -np.inf
    assert edited.lse[0] < plain.lse[0]
