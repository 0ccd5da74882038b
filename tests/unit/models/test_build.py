"""The builder's books: buffers by name, tensors taken once, what is left."""

from __future__ import annotations

from typing import Any

import pytest

from edgellm.core.errors import UnsupportedModel
from edgellm.models import ops as o
from edgellm.models.build import Builder
from edgellm.models.plan import CacheLayer, PlanError, RopeTable


@pytest.fixture
def b(variant: Any) -> Builder:
    tensors = {"stack.weight": [2, 96, 32], "stack.bias": [2, 96], "row.weight": [32], "single": [1], "pair": [2]}
    return Builder(variant("llama-dense", tensors=tensors), "llama")


def test_buffers_are_shared_by_name_and_width(b: Builder) -> None:
    x = b.buffer("x", 64)
    assert b.buffer("x", 64) == x
    assert b.buffer("x", 32) != x
    assert b.buffer("x", 64, "R") != x
    assert x.columns(8, 16) == o.View(x.buf, 8, 16)
    assert x.columns(8, 16).columns(4, 2) == o.View(x.buf, 12, 2)
    assert [(v.name, v.width, v.axis) for v in b.buffers] == [("x", 64, "T"), ("x", 32, "T"), ("x", 64, "R")]


def test_a_tensor_is_taken_once(b: Builder) -> None:
    b.matrix("output.weight")
    for again in (lambda: b.matrix("output.weight"), lambda: b.rows("output.weight", 0, 1)):
        with pytest.raises(PlanError, match=r"'output.weight' is used twice by the llama family"):
            again()
    assert b.weights[b.tied("output.weight")].role == "matrix"


def test_rows_may_be_taken_apart(b: Builder) -> None:
    b.rows("stack.weight", 0, 64)
    with pytest.raises(PlanError, match="used twice"):
        b.rows("stack.weight", 63, 2)
    assert "rows 64..95 of tensor 'stack.weight'" in list(b.leftovers({}))
    w = b.weights[b.rows("stack.weight", 64, 32)]
    assert (w.shape, w.row0) == ((2, 32, 32), 64)
    assert not any("stack.weight" in t for t in b.leftovers({}))
    with pytest.raises(PlanError, match=r"rows 0..128 are needed"):
        b.rows("output.weight", 0, 129)
    with pytest.raises(PlanError, match=r"rows 0..0 are needed"):
        b.rows("row.weight", 0, 1)


def test_leftovers_know_endings(b: Builder) -> None:
    left = list(b.leftovers({".input_scale": "reason", ".weight": "reason"}))
    assert "tensor 'single'" in left
    assert not any(t.endswith((".input_scale'", ".weight'")) for t in left)


def test_shapes_may_be_rearranged_but_not_resized(b: Builder) -> None:
    assert b.weights[b.vector("stack.bias", (192,))].shape == (192,)
    with pytest.raises(PlanError, match=r"row.weight has shape \[32\], expected \[2, 8\]"):
        b.vector("row.weight", (2, 8))
    assert b.weights[b.matrix("row.weight", (1, 4, 8))].shape == (1, 4, 8)


def test_scalars_become_numbers(b: Builder) -> None:
    assert -0.125 <= b.scalar("single") <= 0.125
    assert not any("single" in t for t in b.leftovers({}))
    assert b.scale("nothing") == 1.0
    with pytest.raises(PlanError, match=r"pair has shape \[2\], expected one finite number"):
        b.scalar("pair")
    with pytest.raises(PlanError, match="expected a few numbers"):
        b.scalar("output.weight")


def test_missing_tensors(b: Builder) -> None:
    assert b.optional_vector("absent") is None
    with pytest.raises(UnsupportedModel, match="tensor 'absent' is missing"):
        b.vector("absent")
    b.ignore("absent", "reason")
    assert b.ignored == {}


def test_ignored_layers(b: Builder) -> None:
    b.ignore_layers(1, 1, "reason")
    assert set(b.ignored) == {t for t in b.file.tensors if t.startswith("blk.1.")}
    assert not any("blk.1." in t for t in b.leftovers({}))


def test_cache_classes_and_ropes(b: Builder) -> None:
    layer = CacheLayer(2, 64, 64)
    assert b.cache("full", layer) == (0, 0)
    assert b.cache("window", layer, 32) == (1, 0)
    assert b.cache("full", layer) == (0, 1)
    assert b.state(3, 4) == (2, 0)
    assert b.cache("window", layer, 64) == (3, 0)
    assert [(c.kind, c.window, len(c.layers)) for c in b.caches] == [
        ("full", 0, 2), ("window", 32, 1), ("state", 0, 1), ("window", 64, 1),
    ]  # fmt: skip
    assert [b.rope(RopeTable(64, base)) for base in (1e4, 1e6, 1e4)] == [0, 1, 0]


def test_ops_are_checked_when_added(b: Builder) -> None:
    with pytest.raises(PlanError, match="N is 64 from x"):
        b.add(o.Scale(b.buffer("x", 64), b.buffer("y", 32), 1.0))
    assert b.ops == []
