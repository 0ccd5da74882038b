"""The Jinja environment of chat templates: what they may use, and how much of it.

A template comes with the model file, so it is untrusted. It is compiled without evaluating anything, and everything
it does with values goes through the environment below: values are JSON and a handful of the sandbox's own, of which
only listed attributes and methods can be reached. Work and text are counted (see meter.py): a template that wants
too much stops, no matter how fast the machine is, and what a single operation makes is bounded before it is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NoReturn, TypeVar

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.exceptions import SecurityError
from jinja2.lexer import Lexer
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.utils import Namespace, pass_context

from edgellm.chat import methods
from edgellm.chat.checks import TESTS
from edgellm.chat.lists import FILTERS
from edgellm.chat.meter import MAX_BITS, MAX_CALLS, Exhausted, Meter, RenderContext, check_bits, check_key
from edgellm.chat.methods import Method
from edgellm.chat.rewrite import CHARGE, COMPARE, CONCAT, KEY, SLICE, rewrite
from edgellm.core.errors import TemplateError

MAX_SOURCE = 256 * 1024
"""Longest template, in characters."""

MAX_NESTING = 250
"""Deepest syntax tree. A level takes two to three of Python's calls; it allows 1,000 unless a program changes that."""

MAX_TOKENS = 10_000
"""Most words and signs inside the braces of a template; published ones have up to about 4,000."""

MAX_RANGE = 100_000
"""Most numbers a range in a template may have."""

_MAX_DIGITS = 300
_MAX_MESSAGE = 1_000
_LOOP_VALUES = frozenset("index index0 revindex revindex0 first last length previtem nextitem depth depth0".split())
_DIGITS = re.compile("[0-9A-Fa-f_]{2000}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_IGNORED = ("whitespace", "comment", "comment_begin", "comment_end", "data")


T = TypeVar("T")


class Refused(Exception):
    """The template called raise_exception; the argument is its message."""


class _Generation(jinja2.ext.Extension):
    """{% generation %}: marks the assistant's text for training; here its body is all that matters."""

    tags = {"generation"}  # noqa: RUF012  (Jinja wants a plain set)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Lexer(Lexer):
    """Jinja's, which stops where a template gets too long."""

    def tokeniter(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> Iterator[tuple[int, str, str]]:
        n = 0
        for token in super().tokeniter(source, name, filename, state):
            n += token[1] not in _IGNORED
            if n > MAX_TOKENS:
                raise Exhausted(f"its source has more than {MAX_TOKENS} words and signs")
            if token[1] in ("integer", "float") and len(token[2]) > _MAX_DIGITS:
                raise Exhausted("it has a number of too many digits")
            yield token


class Environment(jinja2.sandbox.SandboxedEnvironment):
    """See the module. Holds no state of a rendering: any number may run at once."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))
    context_class = RenderContext

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            optimized=False,
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        self.filters = {**FILTERS, **_INTERNAL}
        self.tests = dict(TESTS)
        self.globals = dict(_GLOBALS)
        self._lexer = _Lexer(self)

    @property
    def lexer(self) -> Lexer:
        """Used by the parser."""
        return self._lexer

    def getattr(self, obj: Any, attribute: str) -> Any:
        """obj.attribute: methods first, then items, as in Jinja."""
        kind = type(obj)
        if kind is dict:
            if attribute in methods.DICT_METHODS:
                return methods.find(obj, attribute)
            return obj[attribute] if attribute in obj else self._missing(obj, attribute)
        if isinstance(obj, Undefined):
            if attribute.startswith("_"):
                raise SecurityError(f"access to {attribute!r} of an undefined value")
            return obj._fail_with_undefined_error()
        if kind is Namespace and not attribute.startswith("_"):
            try:
                return Namespace.__getattribute__(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        if kind is LoopContext:
            if attribute in _LOOP_VALUES:
                return getattr(obj, attribute)
            if attribute in ("cycle", "changed"):
                return Method(attribute, _loop_cycle if attribute == "cycle" else _loop_changed, obj)
        if kind is _Cycler and attribute in _CYCLER:
            return obj.current if attribute == "current" else Method(attribute, _CYCLER[attribute], obj)
        if kind is Macro and attribute in ("name", "arguments"):
            return getattr(obj, attribute)
        return self._missing(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """obj[argument]: items first, then methods, as in Jinja. Slices go another way."""
        kind = type(obj)
        if kind is dict:
            check_key(argument)
            if argument in obj:
                return obj[argument]
        elif kind in (list, tuple, str, range):
            if isinstance(argument, int):
                return obj[argument] if -len(obj) <= argument < len(obj) else self._undefined(obj, argument)
        elif isinstance(argument, str):
            return self.getattr(obj, argument)
        return self._missing(obj, argument) if isinstance(argument, str) else self._undefined(obj, argument)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """obj(...): macros, and what the sandbox itself has made."""
        if not isinstance(context, RenderContext):
            raise SecurityError("a call outside a rendering")
        kwargs.pop("_loop_vars", None)  # from the compiler, for functions that want the whole context
        kwargs.pop("_block_vars", None)
        meter = context.meter
        kind = type(obj)
        meter.step(1 + (len(args) >> 3) + len(kwargs))
        if kind is Method:
            return obj.invoke(context, args, kwargs)
        if kind is Macro or kind is LoopContext:
            if meter.calls >= MAX_CALLS:
                raise Exhausted(f"it nests more than {MAX_CALLS} calls")
            meter.calls += 1
            try:
                return obj(*args, **kwargs)
            finally:
                meter.calls -= 1
        if isinstance(obj, Undefined):
            return obj._fail_with_undefined_error()
        raise SecurityError(f"a call of a {kind.__name__}")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """left operator right, bounded before it is computed."""
        if not isinstance(context, RenderContext):
            raise SecurityError("an operation outside a rendering")
        meter = context.meter
        if operator == "+":
            if type(left) is type(right):
                if type(left) is str:
                    meter.make(len(left) + len(right))
                    return meter.made(left + right)
                elif type(left) in (list, tuple):
                    meter.make_list(len(left) + len(right))
        elif operator == "*":
            for one, times in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(times, int):
                    n = len(one) * max(0, times)
                    if isinstance(one, str):
                        meter.make(n)
                    else:
                        meter.make_list(n)
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_BITS:
                _too_long()
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MAX_BITS:
                _too_long()
        elif operator == "%" and isinstance(left, str):
            return methods.percent(context, left, right)
        return check_bits(self.binop_table[operator](left, right))

    def _missing(self, obj: Any, name: str) -> Any:
        """A method, or undefined. SecurityError for names that mean something in Python."""
        method = methods.find(obj, name)
        return self._undefined(obj, name) if method is None else method

    def _undefined(self, obj: Any, name: Any) -> Undefined:
        return self.undefined(obj=obj, name=name if isinstance(name, str) else f"{name!r:.40}")


def parse(environment: Environment, source: str) -> jinja2.nodes.Template:
    """The template's syntax tree. Raises TemplateError when it is not valid or too long."""
    if len(source) > MAX_SOURCE:
        raise TemplateError(
            f"the model's chat template is too long: {len(source)} characters, at most {MAX_SOURCE} are read"
        )
    if _DIGITS.search(source):  # the lexer would need hundreds of bytes for each
        raise TemplateError("the model's chat template was not compiled: it has a number of too many digits")
    return guarded(lambda: _bounded(environment.parse(source)))


def _bounded(tree: jinja2.nodes.Template) -> jinja2.nodes.Template:
    """The tree, if it is not deep: compiling takes the square of the depth, up to the process's recursion limit."""
    level: list[jinja2.nodes.Node] = [tree]
    for _ in range(MAX_NESTING):
        level = [child for node in level for child in node.iter_child_nodes()]
        if not level:
            return tree
    raise RecursionError


def compile_tree(environment: Environment, tree: jinja2.nodes.Template) -> jinja2.Template:
    """A template that can run, from a tree that is then used up. Raises TemplateError for what is not allowed."""

    def build() -> jinja2.Template:
        rewrite(tree)
        return jinja2.Template.from_code(environment, environment.compile(tree), environment.globals)

    return guarded(build)


def guarded(work: Callable[[], T]) -> T:
    """Work on a template's source, whose every failure is a TemplateError without the frames it came from."""
    try:
        return work()
    except Exhausted as e:
        message = f"the model's chat template was not compiled: {e}"
    except SecurityError as e:
        message = f"the model's chat template has something that is not allowed: {_brief(e)}"
    except jinja2.TemplateSyntaxError as e:
        message = f"the model's chat template is not valid in line {e.lineno}: {_brief(e)}"
    except RecursionError:
        message = "the model's chat template is not valid: it is nested too deeply"
    except Exception as e:  # whatever the parser and Python's compiler can run into
        message = f"the model's chat template is not valid: {_brief(e)} ({type(e).__name__})"
    raise TemplateError(message)


def run(template: jinja2.Template, variables: dict[str, Any], meter: Meter) -> str:
    """Renders. Raises TemplateError with the template's own words when it refuses, fails, or wants too much."""
    context = template.new_context(variables)
    if not isinstance(context, RenderContext):
        raise TypeError("the template belongs to another environment")
    context.meter = meter
    try:
        parts = list(template.root_render_func(context))
        meter.make(sum(map(len, parts)) + 2 * len(parts))
        text = "".join(parts)
        if not text.isascii() and _SURROGATE.search(text):
            raise ValueError("it writes a lone surrogate, which is not text")
        return text
    except Exhausted as e:
        error: TemplateError = TemplateLimit(f"the chat template was stopped: {e}")
    except Refused as e:
        error = TemplateRefusal(f"the chat template refused the messages: {_brief(e)}")
    except SecurityError as e:
        error = TemplateLimit(f"the chat template tried something that is not allowed: {_brief(e)}")
    except RecursionError:
        error = TemplateLimit("the chat template was stopped: it is nested too deeply (RecursionError)")
    except Exception as e:  # whatever a template's code can run into
        error = TemplateError(f"the chat template failed: {_brief(e) or type(e).__name__} ({type(e).__name__})")
    raise error


class TemplateLimit(TemplateError):
    """The template wanted too much, or what it may not have."""


class TemplateRefusal(TemplateError):
    """The template itself refused the messages."""


def clock(now: datetime) -> Method:
    """strftime_now for one rendering: the time stands still."""

    def strftime_now(context: RenderContext, _: None, format: str) -> str:
        if not isinstance(format, str) or len(format) > 256 or re.search(r"%[-_0^#]*\d", format):
            raise SecurityError(f"a time format without end: {str(format)[:40]!r}")
        return now.strftime(format)

    return Method("strftime_now", strftime_now)


def _brief(error: BaseException) -> str:
    text = str(error)
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "..."


def _too_long() -> NoReturn:
    raise Exhausted(f"it computes a whole number of more than {MAX_BITS} bits")


# -- what templates can call -----------------------------------------------------------------------------------------


class _Cycler:
    """Goes round its items."""

    __slots__ = ("at", "items")

    def __init__(self, items: tuple[Any, ...]) -> None:
        if not items:
            raise TypeError("cycler needs at least one item")
        self.items, self.at = items, 0

    @property
    def current(self) -> Any:
        """The item whose turn it is."""
        return self.items[self.at]


def _cycler(context: RenderContext, _: None, /, *items: Any) -> _Cycler:
    return _Cycler(items)


def _cycler_next(context: RenderContext, cycler: _Cycler) -> Any:
    item = cycler.current
    cycler.at = (cycler.at + 1) % len(cycler.items)
    return item


def _cycler_reset(context: RenderContext, cycler: _Cycler) -> None:
    cycler.at = 0


_CYCLER: dict[str, Callable[..., Any]] = {"current": _cycler_next, "next": _cycler_next, "reset": _cycler_reset}


def _joiner(context: RenderContext, _: None, sep: Any = ", ") -> Method:
    """A function that gives nothing at first and then `sep`."""
    state = {"text": ""}

    def join(context: RenderContext, _: None) -> Any:
        text, state["text"] = state["text"], sep
        return text

    return Method("joiner", join)


def _range(context: RenderContext, _: None, *args: int) -> range:
    numbers = range(*args)
    try:
        n = len(numbers)
    except OverflowError:
        n = -1
    if not 0 <= n <= MAX_RANGE:
        raise SecurityError(f"a range of {n if n >= 0 else 'too many'} numbers, at most {MAX_RANGE}")
    return numbers


def _namespace(context: RenderContext, _: None, /, *args: Any, **kwargs: Any) -> Namespace:
    return Namespace(_dict(context, None, *args, **kwargs))


def _dict(context: RenderContext, _: None, /, *args: Any, **kwargs: Any) -> dict[Any, Any]:
    for given in args:
        context.meter.weigh(given)
        if type(given) not in (dict, list, tuple):
            raise TypeError(f"an object is made from an object or pairs, found {type(given).__name__}")
        context.meter.make_list(len(given), 32)
    return dict(*args, **kwargs)


def _raise_exception(context: RenderContext, _: None, message: Any = "") -> NoReturn:
    raise Refused(context.meter.text(message))


def _loop_cycle(context: RenderContext, loop: LoopContext, *items: Any) -> Any:
    return loop.cycle(*items)


def _loop_changed(context: RenderContext, loop: LoopContext, *values: Any) -> bool:
    context.meter.weigh(values)
    return loop.changed(*values)


_GLOBALS = {
    "cycler": Method("cycler", _cycler),
    "dict": Method("dict", _dict),
    "joiner": Method("joiner", _joiner),
    "namespace": Method("namespace", _namespace),
    "raise_exception": Method("raise_exception", _raise_exception),
    "range": Method("range", _range),
}


# -- what the rewritten tree calls -------------------------------------------------------------------------------------


@pass_context
def _finalize(context: Context, value: Any) -> str:
    return context.meter.text(value)  # type: ignore[attr-defined, no-any-return]


@pass_context
def _charge(context: RenderContext, steps: int, chars: int) -> bool:
    context.meter.step(steps)
    if chars:
        context.meter.make(chars)
    return True


@pass_context
def _concat(context: RenderContext, *values: Any) -> str:
    text = context.meter.text
    return context.meter.made("".join([text(value) for value in values]))


@pass_context
def _compare(context: RenderContext, left: Any, op: str, right: Any) -> bool:
    return methods.compare(context.meter, left, op, right)


@pass_context
def _slice(context: RenderContext, value: Any, start: Any, stop: Any, step: Any) -> Any:
    if isinstance(value, Undefined):
        return value._fail_with_undefined_error()
    if type(value) not in (str, list, tuple, range):
        raise TypeError(f"a {type(value).__name__} cannot be sliced")
    if isinstance(value, str | range):
        context.meter.make(len(range(*slice(start, stop, step).indices(len(value)))))
    else:
        context.meter.make_list(len(range(*slice(start, stop, step).indices(len(value)))))
    return value[start:stop:step]


@pass_context
def _key(context: RenderContext, value: Any) -> Any:
    return check_key(value)


_INTERNAL = {CHARGE: _charge, COMPARE: _compare, CONCAT: _concat, KEY: _key, SLICE: _slice}
