"""Records behave as the standard library's frozen and mutable data classes do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any

import pytest

from edgellm.core.record import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Point:
    """A record."""

    x: int
    y: float = 2.0
    names: list[str] = field(default_factory=list)

    @property
    def both(self) -> float:
        """A method that stays."""
        return self.x + self.y


@dataclass(slots=True)
class Counter:
    """One that changes, with a field that is set afterwards."""

    n: int = 0
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.n


@dataclass(slots=True, eq=False)
class Thing:
    """One that is itself only."""

    n: int = 0


def test_fields_come_by_position_name_or_default() -> None:
    assert (Point(1).y, Point(1).names, Point(1, names=["a"]).names) == (2.0, [], ["a"])
    assert Point(1).names is not Point(1).names
    assert Point(1, 3.0).both == 4.0
    with pytest.raises(TypeError, match=r"missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Point(1, z=2)  # type: ignore[call-arg]


def test_a_frozen_record_stays_as_it_is() -> None:
    point: Any = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="'x'"):
        del point.x
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.other = 2
    assert not hasattr(point, "__dict__")


def test_equality_hash_and_repr() -> None:
    @dataclass(frozen=True, slots=True)
    class Twin:
        x: int
        y: float = 2.0

    assert Point(1, 2.0) == Point(1)
    assert Point(1) != Point(2)
    others: list[object] = [(1, 2.0, []), Twin(1)]
    assert Point(1) not in others
    assert hash(Twin(1)) == hash(Twin(1, 2.0))
    assert len({Twin(1), Twin(1), Twin(2)}) == 2
    assert repr(Point(1)) == "Point(x=1, y=2.0, names=[])"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Counter())
    assert Thing() != Thing()
    assert len({Thing(), Thing()}) == 2


def test_a_record_that_changes() -> None:
    counter = Counter(3)
    assert counter.twice == 6
    counter.n = 4
    assert (counter.n, replace(counter)) == (4, Counter(4))
    with pytest.raises(AttributeError):
        counter.other = 1  # type: ignore[attr-defined]


def test_the_standard_functions_know_records() -> None:
    point = Point(1, names=["a"])
    assert [f.name for f in dataclasses.fields(Point)] == ["x", "y", "names"]
    assert dataclasses.is_dataclass(Counter)
    assert dataclasses.asdict(point) == {"x": 1, "y": 2.0, "names": ["a"]}
    assert dataclasses.replace(point, x=5) == replace(point, x=5) == Point(5, names=["a"])
    assert pickle.loads(pickle.dumps(point)) == point
    assert copy.deepcopy(point) == point
    assert copy.deepcopy(point).names is not point.names
    match point:
        case Point(x, y):
            assert (x, y) == (1, 2.0)


@pytest.mark.parametrize("made", [False, True])
def test_the_signature_is_known_before_and_after_the_first_object(made: bool) -> None:
    @dataclass(frozen=True, slots=True)
    class Fresh:
        x: int
        y: list[int] = field(default_factory=list)
        z: str = "z"

    if made:
        Fresh(1)
    signature = inspect.signature(Fresh)
    assert list(signature.parameters) == ["x", "y", "z"]
    assert signature.parameters["z"].default == "z"
    assert signature.parameters["x"].default is inspect.Parameter.empty


def test_only_with_slots() -> None:
    with pytest.raises(TypeError, match="slots=True"):

        @dataclass(frozen=True)
        class Loose:
            x: int
