"""Typed keys, and the books on what was read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgellm.core.errors import UnsupportedModel
from edgellm.models.keys import Keys, neutral

METADATA: dict[str, Any] = {
    "a.count": 3,
    "a.scale": 0.5,
    "a.on": True,
    "a.name": "x",
    "a.per_layer": np.array([1, 2, 3], np.int32),
    "a.flags": np.array([True, False, True]),
    "a.small": np.uint32(7),
    "b.count": 9,
}


def keys() -> Keys:
    return Keys(METADATA, "a")


def test_readers() -> None:
    k = keys()
    assert k.integer("count") == 3
    assert k.integer("small") == 7
    assert k.integer("absent", 8) == 8
    assert k.number("scale") == 0.5
    assert k.number("count") == 3.0
    assert k.flag("on") is True
    assert k.flag("absent", False) is False
    assert k.text("name") == "x"
    assert k.integers("count", 4) == (3, 3, 3, 3)
    assert k.integers("per_layer", 2) == (1, 2)
    assert k.integers("absent", 2, 5) == (5, 5)
    assert k.flags("flags", 2) == (True, False)
    assert k.flags("absent", 2, (True, True)) == (True, True)
    assert k.has("name")
    assert not k.has("absent")
    assert k.is_array("per_layer")
    assert not k.is_array("count")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda k: k.integer("absent"), "'a.absent' is missing"),
        (lambda k: k.flags("absent", 2), "'a.absent' is missing"),
        (lambda k: k.integer("count", lo=4), "'a.count' is 3, expected a whole number in 4"),
        (lambda k: k.integer("count", hi=2), "expected a whole number in 0..2"),
        (lambda k: k.integer("on"), "'a.on' is True, expected a whole number"),
        (lambda k: k.integer("scale"), "'a.scale' is 0.5, expected a whole number"),
        (lambda k: k.integer("name"), "'a.name' is 'x', expected a whole number"),
        (lambda k: k.integer("per_layer"), r"'a.per_layer' is \[1, 2, 3\], expected a whole number"),
        (lambda k: k.number("name"), "expected a finite number"),
        (lambda k: k.flag("count"), "expected true or false"),
        (lambda k: k.text("count"), "expected a string"),
        (lambda k: k.integers("per_layer", 4), "expected a number or an array of 4"),
        (lambda k: k.integers("per_layer", 3, lo=2), "expected a whole number in 2"),
        (lambda k: k.integers("flags", 2), "is True, expected a whole number"),
        (lambda k: k.flags("flags", 4), "expected an array of 4 flags"),
        (lambda k: k.flags("count", 2), "expected an array of 2 flags"),
    ],
)
def test_wrong_values(read: Any, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read(keys())


def test_unread_keys() -> None:
    k = keys()
    assert list(k.unread({})) == [key for key in METADATA if key.startswith("a.")]
    k.integer("count")
    k.has("scale")
    assert list(k.unread({"on": "reason", "flags": "reason"})) == ["a.scale", "a.name", "a.per_layer", "a.small"]
    assert k.value("a.per_layer") == "[1, 2, 3]"


@pytest.mark.parametrize("value", [0, 0.0, False, -1, -1.0, float("-inf"), "", np.zeros(3), np.zeros(0), []])
def test_neutral(value: Any) -> None:
    assert neutral(value)


@pytest.mark.parametrize("value", [1, 0.5, True, -2, float("inf"), float("nan"), "none", np.array([0.0, 1.0])])
def test_not_neutral(value: Any) -> None:
    assert not neutral(value)
