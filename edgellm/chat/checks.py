"""Tests of chat templates (`x is y`): those of Jinja, on the sandbox's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2.runtime import Macro, Undefined
from jinja2.utils import Namespace, pass_context

from edgellm.chat.meter import RenderContext
from edgellm.chat.methods import Method, compare, text_method

Test = Callable[..., Any]

TESTS: dict[str, Test] = {}


def _test(*names: str) -> Callable[[Test], Test]:
    def register(function: Test) -> Test:
        TESTS.update(dict.fromkeys(names, pass_context(function)))
        return function

    return register


def _plain_test(check: Callable[[Any], bool], *names: str) -> None:
    _test(*names)(lambda context, value: check(value))


_plain_test(lambda v: not isinstance(v, Undefined), "defined")
_plain_test(lambda v: isinstance(v, Undefined), "undefined")
_plain_test(lambda v: v is None, "none")
_plain_test(lambda v: isinstance(v, bool), "boolean")
_plain_test(lambda v: v is True, "true")
_plain_test(lambda v: v is False, "false")
_plain_test(lambda v: isinstance(v, int) and not isinstance(v, bool), "integer")
_plain_test(lambda v: isinstance(v, float), "float")
_plain_test(lambda v: isinstance(v, int | float), "number")
_plain_test(lambda v: isinstance(v, str), "string")
_plain_test(lambda v: isinstance(v, dict), "mapping")
_plain_test(lambda v: isinstance(v, str | list | tuple | dict | range | Undefined), "sequence", "iterable")
_plain_test(lambda v: isinstance(v, Method | Macro), "callable")
_plain_test(lambda v: isinstance(v, Namespace), "namespace")


def _cased(name: str) -> Test:
    def run(context: RenderContext, value: Any) -> Any:
        return text_method(context, f"is{name}", context.meter.text(value))

    return run


_test("lower")(_cased("lower"))
_test("upper")(_cased("upper"))


@_test("sameas")
def _sameas(context: RenderContext, value: Any, other: Any) -> bool:
    return value is other


@_test("divisibleby")
def _divisibleby(context: RenderContext, value: Any, number: Any) -> bool:
    return bool(context.environment.call_binop(context, "%", _number(value), number) == 0)


@_test("even")
def _even(context: RenderContext, value: Any) -> bool:
    return bool(_number(value) % 2 == 0)


@_test("odd")
def _odd(context: RenderContext, value: Any) -> bool:
    return bool(_number(value) % 2 == 1)


def _number(value: Any) -> Any:
    if not isinstance(value, int | float):
        raise TypeError(f"a number is needed, found {type(value).__name__}")
    return value


@_test("test")
def _is_test(context: RenderContext, value: Any) -> bool:
    return isinstance(value, str) and value in TESTS


def _comparing(op: str) -> Test:
    return lambda context, value, other: compare(context.meter, value, op, other)


for _op, _names in {
    "in": ("in",),
    "eq": ("eq", "==", "equalto"),
    "ne": ("ne", "!="),
    "lt": ("lt", "<", "lessthan"),
    "lteq": ("le", "<="),
    "gt": ("gt", ">", "greaterthan"),
    "gteq": ("ge", ">="),
}.items():
    _test(*_names)(_comparing(_op))
