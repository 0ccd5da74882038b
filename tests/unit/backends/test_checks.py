"""Configurations and batches that do not fit are refused with the field's name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parity.driver import config

from edgellm.backends.checks import check_batch, check_config, first_visible
from edgellm.backends.fake import fake_plan
from edgellm.core.errors import ConfigError
from edgellm.core.types import NO_PAGE, Adjust, Batch

PLAN = fake_plan(100, 256, [("full", 0), ("window", 40), ("state", 0)])
CONFIG = config(PLAN, max_seqs=2, max_rows=8, max_tokens=64, n_pages=(16, 16, 4))


def i32(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


def good() -> Batch:
    """Sequence 0 at positions 72..74 (window pages 0 gone), sequence 1 at 0..1."""
    return Batch(
        tokens=i32(1, 2, 3, 4, 5),
        positions=i32(72, 73, 74, 0, 1),
        seq_start=i32(0, 3, 5),
        pages=(i32([0, 1, 2], [3, NO_PAGE, NO_PAGE]), i32([NO_PAGE, 5, 6], [7, NO_PAGE, NO_PAGE]), i32([0], [1])),
        rows=i32(2, 4),
        top_k=3,
        adjust=Adjust(i32(0, 1), i32(5, 6), np.ones(2, np.float32), np.zeros(2, np.float32)),
    )


def test_good_batch() -> None:
    check_config(PLAN, CONFIG)
    check_batch(PLAN, CONFIG, good())


def pages(c: int, value: Any) -> Callable[[Batch], dict[str, Any]]:
    return lambda b: {"pages": (*b.pages[:c], value, *b.pages[c + 1 :])}


def edits(**changes: Any) -> Callable[[Batch], dict[str, Any]]:
    return lambda b: {"adjust": dataclasses.replace(b.adjust, **changes)}  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": i32(1, 2, 3, 4, 100)}, "tokens has values from 1 to 100, expected 0..99"),
        ({"tokens": i32(1, 2, -3, 4, 5)}, "tokens has values from -3"),
        ({"tokens": np.arange(5)}, "tokens has type int64"),
        ({"tokens": i32(1, 2, 3, 4)}, "positions has type int32 and shape"),
        ({"positions": i32(72, 73, 75, 0, 1)}, "positions of sequence 0 are not consecutive"),
        ({"positions": i32(254, 255, 256, 0, 1)}, "positions has values from 0 to 256, expected 0..255"),
        ({"seq_start": i32(0, 3, 4)}, "seq_start must ascend from 0 to 5"),
        ({"seq_start": i32(0, 0, 5)}, "seq_start must ascend"),
        ({"seq_start": i32(0)}, "number of sequences is 0"),
        ({"seq_start": i32(0, 1, 3, 5)}, "number of sequences is 3, expected 1..2"),
        ({"rows": i32(2, 2)}, "rows must ascend"),
        ({"rows": i32(4, 5)}, "rows has values from 4 to 5, expected 0..4"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": 101}, "top_k is 101, expected 0..100"),
        ({"pages": ()}, "there are 0 block tables, expected 3"),
        (pages(0, i32([0, 1, 2])), r"pages\[0\] has type int32 and shape"),
        (pages(0, i32(0, 1)), r"pages\[0\] has 1 dimensions"),
        (pages(0, i32([0, 1, 16], [3, 4, 5])), r"pages\[0\] has values from 0 to 16, expected -1..15"),
        (pages(0, i32([0, 1], [3, 4])), r"pages\[0\] has 2 entries, sequence 0 needs 3"),
        (pages(0, i32([NO_PAGE, 1, 2], [3, 4, 5])), r"pages\[0\]: a page that sequence 0 reads or writes"),
        (pages(1, i32([0, NO_PAGE, 6], [7, 8, 9])), r"pages\[1\]: a page that sequence 0 reads or writes"),
        (pages(0, i32([0, 1, 2], [2, 4, 5])), r"pages\[0\]: sequence 1 writes a page that another sequence writes"),
        (pages(2, i32([0], [0])), r"pages\[2\]: sequence 1 writes a page"),
        (pages(2, i32([NO_PAGE], [0])), r"pages\[2\]: a page that sequence 0"),
        (edits(row=i32(1, 0)), r"adjust.row must ascend"),
        (edits(row=i32(0, 2)), r"adjust.row has values from 0 to 2, expected 0..1"),
        (edits(token=i32(0, 100)), r"adjust.token has values from 0 to 100"),
        (edits(rep=np.ones(3, np.float32)), r"adjust.rep has type float32 and shape"),
        (edits(add=np.ones(2)), r"adjust.add has type float64"),
    ],
)
def test_malformed_batches(change: Any, message: str) -> None:
    batch = good()
    batch = dataclasses.replace(batch, **(change(batch) if callable(change) else change))
    with pytest.raises(ValueError, match=message):
        check_batch(PLAN, CONFIG, batch)


def test_sizes_of_a_batch_are_limited() -> None:
    n = 65
    wide = Batch(i32(*range(n)), i32(*range(n)), i32(0, n), (i32([0, 1, 2]), i32([0, 1, 2]), i32([0])), i32(0))
    with pytest.raises(ValueError, match=r"number of tokens is 65, expected 1..64"):
        check_batch(PLAN, CONFIG, wide)
    narrow = dataclasses.replace(wide, tokens=wide.tokens[:9], positions=wide.positions[:9], seq_start=i32(0, 9))
    with pytest.raises(ValueError, match=r"number of rows is 9, expected 0..8"):
        check_batch(PLAN, CONFIG, dataclasses.replace(narrow, rows=i32(*range(9))))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_ctx": 0}, "n_ctx is 0"),
        ({"max_tokens": 2**31}, "max_tokens is 2147483648"),
        ({"n_pages": (4,)}, "expected 3 positive numbers"),
        ({"n_pages": (4, 0, 4)}, "expected 3 positive numbers"),
        ({"k_type": "q5_1"}, "k_type is 'q5_1', expected one of f16, bf16, q8_0, q4_0, fp8_e4m3, fp8_e5m2, f32"),
        ({"v_type": "fp8"}, "v_type is 'fp8'"),
        ({"weights": "auto"}, "weights is 'auto', expected one of mmap, tiles"),
    ],
)
def test_configurations(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(PLAN, dataclasses.replace(CONFIG, **change))


def test_first_visible_position() -> None:
    assert [first_visible(PLAN, 0, p) for p in (0, 70)] == [0, 0]
    assert [first_visible(PLAN, 1, p) for p in (0, 39, 40, 70)] == [0, 0, 1, 31]
