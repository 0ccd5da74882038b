"""The fake backend answers by history alone, and finds every way to hand it wrong pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from parity.driver import Pages, Timeline, batch, config

from edgellm.backends.fake import FakeBackend, FakeExecutable, PageError, chain_logits, chain_of, fake_plan
from edgellm.core.types import NO_PAGE

CLASSES = [
    [("full", 0)],
    [("full", 0), ("window", 40)],
    [("window", 40)],
    [("latent", 0), ("state", 0)],
    [("state", 0)],
]


def fake(classes: Sequence[tuple[str, int]] = (("full", 0),), **options: object) -> tuple[FakeExecutable, Pages]:
    plan = fake_plan(97, 256, classes)
    c = config(plan)
    return FakeBackend(**options).compile(plan, None, c), Pages(plan, c.n_pages)  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("sizes", [[150], [1] * 40, [31, 33, 1, 64, 2]])
def test_logits_are_those_of_the_history(classes: list[tuple[str, int]], sizes: list[int]) -> None:
    executable, pages = fake(classes)
    a, b = Timeline(pages), Timeline(pages)
    past_a: list[int] = []
    past_b: list[int] = []
    for size in sizes:
        new_a = [(len(past_a) + 7 * i) % 97 for i in range(size)]
        new_b = [(3 * len(past_b) + i) % 97 for i in range(2)]
        step = executable.run(batch(pages.plan, [(a, new_a), (b, new_b)], rows=[size - 1, size + 1]))
        past_a, past_b = past_a + new_a, past_b + new_b
        assert step.logits is not None
        assert (step.logits[0] == chain_logits(chain_of(past_a), 97)).all()
        assert (step.logits[1] == chain_logits(chain_of(past_b), 97)).all()
    assert executable.n_steps == len(sizes)


def test_script_sees_the_whole_history() -> None:
    seen = []

    def script(history: Sequence[int]) -> int:
        seen.append(list(history))
        return (history[-1] + 1) % 97

    executable, pages = fake((("full", 0), ("window", 33)), script=script)
    line = Timeline(pages)
    out = executable.run(batch(pages.plan, [(line, [5, 6])], rows=[1], top_k=1))
    assert out.top_ids.tolist() == [[7]]
    out = executable.run(batch(pages.plan, [(line, [7])], top_k=2))
    assert out.top_ids.tolist() == [[8, 0]]
    assert seen == [[5, 6], [5, 6, 7]]


def test_failing_marks_one_sequence() -> None:
    executable, pages = fake(failing=lambda history: 13 in history)
    a, b = Timeline(pages), Timeline(pages)
    work = [(a, [1, 13]), (b, [1, 2])]
    assert executable.run(batch(pages.plan, work)).status.tolist() == [1, 0]
    assert executable.run(batch(pages.plan, [(a, [1]), (b, [1])])).status.tolist() == [1, 0]


def test_copied_page_is_a_past() -> None:
    executable, pages = fake()
    a = Timeline(pages)
    executable.run(batch(pages.plan, [(a, [1, 2, 3])]))
    fork = Timeline(pages)
    fork.n, fork.tables = a.n, [[pages.free[0].pop()]]
    executable.copy_page(0, a.tables[0][0], fork.tables[0][0])
    out = executable.run(batch(pages.plan, [(a, [4]), (fork, [9])]))
    assert out.logits is not None
    assert (out.logits[1] == chain_logits(chain_of([1, 2, 3, 9]), 97)).all()


def broken(
    classes: list[tuple[str, int]], cls: int, prefix: int = 70
) -> tuple[FakeExecutable, Pages, Timeline, Timeline]:
    executable, pages = fake(classes)
    a, b = Timeline(pages), Timeline(pages)
    executable.run(batch(pages.plan, [(a, list(range(prefix))), (b, list(range(prefix, 0, -1)))]))
    return executable, pages, a, b


@pytest.mark.parametrize(("classes", "cls"), [(CLASSES[0], 0), (CLASSES[1], 1), (CLASSES[2], 0), (CLASSES[3], 0)])
def test_page_of_another_sequence(classes: list[tuple[str, int]], cls: int) -> None:
    executable, pages, a, b = broken(classes, cls)
    a.tables[cls][1] = b.tables[cls][1]
    with pytest.raises(PageError, match=rf"cache class {cls}: page {b.tables[cls][1]} does not hold"):
        executable.run(batch(pages.plan, [(a, [1])]))


def test_page_that_was_never_written() -> None:
    executable, pages, a, _ = broken(CLASSES[0], 0)
    a.tables[0][2] = pages.free[0].pop()
    with pytest.raises(PageError, match="own position 64"):
        executable.run(batch(pages.plan, [(a, [1])]))


def test_shared_page_written_without_a_copy() -> None:
    executable, pages, a, _ = broken(CLASSES[0], 0)
    fork = Timeline(pages)
    fork.n, fork.tables = 70, [list(a.tables[0])]
    executable.run(batch(pages.plan, [(fork, [91, 93])]))
    executable.run(batch(pages.plan, [(a, [92])]))
    with pytest.raises(PageError, match="own position 71"):
        executable.run(batch(pages.plan, [(fork, [94])]))


def test_state_slot_that_moved_on() -> None:
    executable, pages, a, b = broken(CLASSES[3], 1)
    executable.run(batch(pages.plan, [(b, [1])]))
    a.tables[1] = b.tables[1]
    with pytest.raises(PageError, match="has taken in 71 tokens, expected 70"):
        executable.run(batch(pages.plan, [(a, [1])]))


def test_classes_that_disagree() -> None:
    executable, pages, a, b = broken(CLASSES[3], 1)
    a.tables[1] = b.tables[1]
    with pytest.raises(PageError, match="different pasts"):
        executable.run(batch(pages.plan, [(a, [1])]))


def test_missing_page_is_a_malformed_batch() -> None:
    executable, pages, a, _ = broken(CLASSES[0], 0)
    a.tables[0][0] = NO_PAGE
    with pytest.raises(ValueError, match="not resident"):
        executable.run(batch(pages.plan, [(a, [1])]))


def test_window_reads_nothing_that_left_it() -> None:
    executable, pages = fake((("full", 0), ("window", 40)))
    line = Timeline(pages)
    for i in range(200):
        executable.run(batch(pages.plan, [(line, [i % 97])]))
    assert line.tables[1][:4] == [NO_PAGE] * 4
    assert line.tables[1][-1] != NO_PAGE


def test_results_have_the_shapes_asked_for() -> None:
    executable, pages = fake()
    out = executable.run(batch(pages.plan, [(Timeline(pages), [1, 2, 3])], rows=[], top_k=4))
    assert out.top_ids.shape == (0, 4)
    out = executable.run(batch(pages.plan, [(Timeline(pages), [1, 2, 3])], want_logits=False, want_lse=True, top_k=4))
    assert out.logits is None
    assert out.lse is not None
    assert out.lse.shape == (3,)
    assert out.top_logits.dtype == np.float32
