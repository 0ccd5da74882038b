"""`dataclass`, `field` and `replace` for edgellm's records: used like the standard ones, a class costs a twentieth.

The standard decorator writes and compiles five functions for each class when the module is imported. A hundred records
took a fifth of the start of a program, and most of them are never made in it. Here the methods are shared by all
records, except `__init__`, which is compiled when the first object of its class is made. What objects do is the same:
`dataclasses.fields`, `replace` and `asdict`, patterns, pickling, equality and hashing work. Left out is what no record
here uses: ordering, keyword-only fields, inheriting fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace

__all__ = ["dataclass", "field", "late", "later", "replace"]

T = TypeVar("T")
_MISSING = object()


class _Field:
    """How a field gets its value: `default`, or what `factory` returns; init: whether `__init__` takes it."""

    __slots__ = ("default", "factory", "init")

    def __init__(self, default: object = _MISSING, factory: Any = None, init: bool = True) -> None:
        self.default, self.factory, self.init = default, factory, init


if not TYPE_CHECKING:

    def field(*, default_factory: Callable[[], Any] | None = None, init: bool = True) -> Any:
        """A field whose default is made anew for each object, or (init=False) that `__post_init__` sets."""
        return _Field(factory=default_factory, init=init)

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True) -> Callable[[type[T]], type[T]]:
        """Makes a record of a class whose annotations are its fields. slots must be true."""
        if not slots:
            raise TypeError("records have slots: write slots=True")
        return lambda cls: _record(cls, frozen, eq)

    def replace(record: T, /, **changes: Any) -> T:
        """A copy with some fields changed."""
        kept = {name: getattr(record, name) for name in record.__match_args__ if name not in changes}
        return type(record)(**kept, **changes)


def late(name: str) -> Callable[[type[T]], type[T]]:
    """Makes a field of a record one that may be given as `later(function)`."""

    def decorate(cls: type[T]) -> type[T]:
        setattr(cls, name, _Late(getattr(cls, name)))
        return cls

    return decorate


def later(function: Callable[[], T]) -> T:
    """The value of a late field that is found out when it is first read (and again, where that has raised).

    Whoever compares, prints, copies or pickles the record reads it, too.
    """
    return function  # type: ignore[return-value]


class _Late:
    """Stands before the slot of a late field."""

    __slots__ = ("_slot",)

    def __init__(self, slot: Any) -> None:
        self._slot = slot

    def __get__(self, record: object, cls: Any = None) -> Any:
        if record is None:
            return self
        value = self._slot.__get__(record, cls)
        if callable(value):
            value = value()
            self._slot.__set__(record, value)
        return value

    def __set__(self, record: object, value: object) -> None:
        self._slot.__set__(record, value)


def _record(cls: Any, frozen: bool, eq: bool) -> Any:
    """The class, made again with slots and the methods of a record."""
    body = dict(cls.__dict__)
    fields = {name: _as_field(body.pop(name, _MISSING)) for name in body.get("__annotations__", {})}
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    names = tuple(name for name, f in fields.items() if f.init)
    body |= {
        "__slots__": tuple(fields),
        "__match_args__": names,
        "__record_fields__": fields,
        "__dataclass_fields__": _StandardFields(),
        "__init__": _first_init,
        "__signature__": _Signature(),
    }
    body.setdefault("__repr__", _repr)
    if eq:
        body |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
    if frozen:
        body |= {"__setattr__": _refuse, "__delattr__": _refuse, "__getstate__": _getstate, "__setstate__": _setstate}
    return type(cls)(cls.__name__, cls.__bases__, body)


def _as_field(value: object) -> _Field:
    return value if isinstance(value, _Field) else _Field(value)


def _first_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """Stands in for `__init__` until the first object of a class is made."""
    _compile_init(type(self))(self, *args, **kwargs)


def _compile_init(cls: Any) -> Callable[..., None]:
    """Write the class's own `__init__`, put it in its place, and return it."""
    known: dict[str, Any] = {"_MISSING": _MISSING}
    parameters, lines = ["self"], []
    for name, f in cls.__record_fields__.items():
        if not f.init:
            continue
        value, parameter = name, name
        if f.factory is not None:
            known[f"_make_{name}"] = f.factory
            parameter, value = f"{name}=_MISSING", f"_make_{name}() if {name} is _MISSING else {name}"
        elif f.default is not _MISSING:
            known[f"_default_{name}"] = f.default
            parameter = f"{name}=_default_{name}"
        known[f"_set_{name}"] = getattr(cls, name).__set__  # of the slot; a frozen record's setattr refuses
        parameters.append(parameter)
        lines.append(f" _set_{name}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec("\n".join([f"def __init__({', '.join(parameters)}):", *lines]), known)
    init: Callable[..., None] = known["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    cls.__init__ = init
    return init


class _Signature:
    """`inspect.signature` of a record: that of its real `__init__`."""

    def __get__(self, record: object, cls: Any) -> Any:
        import inspect

        init = cls.__init__ if cls.__init__ is not _first_init else _compile_init(cls)
        whole = inspect.signature(init)
        shown = [p for name, p in whole.parameters.items() if name != "self"]
        defaults = cls.__record_fields__
        shown = [p.replace(default=defaults[p.name].factory) if p.default is _MISSING else p for p in shown]
        return whole.replace(parameters=shown)


class _StandardFields:
    """What the functions of the standard module look for in a class, made when one of them asks."""

    def __get__(self, record: object, cls: Any) -> Any:
        import dataclasses

        body: dict[str, Any] = {"__annotations__": cls.__annotations__}
        for name, f in cls.__record_fields__.items():
            if f.factory is not None:
                body[name] = dataclasses.field(default_factory=f.factory, init=f.init)
            elif f.default is not _MISSING:
                body[name] = dataclasses.field(default=f.default, init=f.init)
            else:
                body[name] = dataclasses.field(init=f.init)
        twin: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(type(cls.__name__, (), body))
        cls.__dataclass_fields__ = twin.__dataclass_fields__
        return twin.__dataclass_fields__


def _values(record: Any) -> list[Any]:
    return [getattr(record, name) for name in record.__slots__]


def _repr(self: Any) -> str:
    values = ", ".join(f"{name}={value!r}" for name, value in zip(self.__slots__, _values(self), strict=True))
    return f"{type(self).__qualname__}({values})"


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(tuple(_values(self)))


def _getstate(self: Any) -> list[Any]:
    return _values(self)


def _setstate(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__slots__, state, strict=True):
        object.__setattr__(self, name, value)


def _refuse(self: Any, name: str, value: object = None) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")
