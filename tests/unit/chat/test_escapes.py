"""Templates that reach for Python: whatever the way, a TemplateError, and nothing of the interpreter in the text."""

from __future__ import annotations

import pytest

from edgellm.chat import ChatTemplate
from edgellm.core.errors import TemplateError

USER = [{"role": "user", "content": "Hello"}]

THINGS = (
    *("''", "1", "1.5", "none", "true", "[]", "()", "{}", "missing", "messages", "messages[0]", "messages[0].content"),
    *("range", "range(3)", "dict", "namespace", "namespace()", "cycler", "cycler(1)", "joiner", "joiner()", "loop"),
    *("loop.cycle", "raise_exception", "strftime_now", "m", "caller", "''.join", "{}.get", "cycler(1).next"),
    *("'{}'.format", "[1] | map('upper')", "{}.items()", "'x' | safe"),
)
NAMES = (
    *("__class__", "__init__", "__globals__", "__mro__", "__subclasses__", "__dict__", "__getattribute__", "__call__"),
    *("__func__", "__self__", "__code__", "__closure__", "__builtins__", "__module__", "__reduce__", "__doc__"),
    *("gi_frame", "gi_code", "f_globals", "f_builtins", "mro", "func_globals", "im_func", "environment", "eval_ctx"),
    *("_fail_with_undefined_error", "_undefined_exception", "_TemplateReference__context", "_Namespace__attrs"),
    *("_func", "_invoke", "_environment", "owner", "run", "invoke", "_iterable", "_recurse", "_to_iterator"),
)
WAYS = (
    "(THING)[name]",
    "(THING) | attr(name)",
    "[THING] | map(attribute=name) | first",
    "('{0.' ~ name ~ '}').format(THING)",
    "('{0[' ~ name ~ ']}').format(THING)",
    "('{x.' ~ name ~ '}').format_map({'x': THING})",
    "('{:{0.' ~ name ~ '}}').format(THING)",
    "[THING] | selectattr(name) | first",
    "[THING] | sort(attribute=name) | first",
    "[THING] | join('', attribute=name)",
    "[THING] | sum(attribute=name)",
    "[THING] | unique(attribute=name) | list",
    "[THING] | max(attribute=name)",
)
USES = ("{{ EXPRESSION }}", "{{ (EXPRESSION)() }}", "{% for x in EXPRESSION %}{{ x }}{% endfor %}")
AROUND = "{% macro m() %}{% for i in [1] %}USE{% endfor %}{% endmacro %}{% call m() %}{% endcall %}{{ m() }}"
MARKS = ("<class", "<function", "<built-in", "<bound", " object at 0x", "<generator", "<module", "<frame", "edgellm.")


def attempt(template: ChatTemplate, **options: str) -> str:
    try:
        return template.render(USER, **options)
    except TemplateError:
        return ""


@pytest.mark.parametrize("way", WAYS)
def test_no_way_into_python(way: str) -> None:
    """Printed, called and looped over: an error, or something harmless, but never what Python has by that name."""
    for thing in THINGS:
        for use in USES:
            template = ChatTemplate(AROUND.replace("USE", use.replace("EXPRESSION", way.replace("THING", thing))))
            for name in NAMES:
                text = attempt(template, name=name)
                assert not any(mark in text for mark in MARKS), (thing, use, name, text)


@pytest.mark.parametrize("name", NAMES)
def test_no_attribute_into_python(name: str) -> None:
    for thing in THINGS:
        for use in USES:
            source = AROUND.replace("USE", use.replace("EXPRESSION", f"({thing}).{name}"))
            text = attempt(ChatTemplate(source))
            assert text.strip() in ("", "[Undefined]"), (thing, use, text)


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "not allowed: access to '__class__' of a str"),
        ("{{ messages.__init__.__globals__ }}", "not allowed: access to '__init__' of a list"),
        ("{{ '' | attr('__class__') }}", "not allowed: access to '__class__' of a str"),
        ("{{ '' | attr('__cla' ~ 'ss__') }}", "not allowed: access to '__class__' of a str"),
        ("{{ ''['__class__'] }}", "not allowed: access to '__class__' of a str"),
        ("{{ '{0.__class__}'.format('') }}", "not allowed: access to '__class__' of a str"),
        ("{{ '{0.__class__.__mro__}' | format }}{{ ('{x.__class__}').format_map({'x': 1}) }}", "'__class__' of a int"),
        ("{% set f = '{0.__class__}'.format %}{{ f(1) }}", "not allowed: access to '__class__' of a int"),
        ("{{ ['{0.__class__}'.format] | first | string }}", "a method cannot be written as text"),
        ("{{ cycler.__init__.__globals__.os }}", "not allowed: access to '__init__' of a Method"),
        ("{{ joiner.__init__ }}", "not allowed"),
        ("{{ namespace.__init__ }}", "not allowed"),
        ("{{ namespace()._Namespace__attrs }}", "access to '_Namespace__attrs' of a Namespace"),
        ("{{ self }}", "'self' in line 1: a chat template stands alone"),
        ("{{ self._TemplateReference__context }}", "'self' in line 1"),
        ("{% block x %}{{ super() }}{% endblock %}", "{% block %} in line 1"),
        ("{% extends 'x' %}", "{% extends %} in line 1"),
        ("{% import 'os' as os %}", "{% import %} in line 1"),
        ("{% from 'os' import system %}", "{% import %} in line 1"),
        ("{{ missing.__class__ }}", "not allowed: access to '__class__' of an undefined value"),
        ("{{ missing._fail_with_undefined_error }}", "not allowed"),
        ("{{ raise_exception.__globals__ }}", "not allowed"),
        ("{{ range.run }}{{ strftime_now.owner }}", "not allowed: access to 'run' of a Method"),
        ("{% macro m() %}{% endmacro %}{{ m._func }}", "not allowed: access to '_func' of a Macro"),
        ("{% macro m() %}{% endmacro %}{{ m }}", "a macro cannot be written as text"),
        ("{% for x in [1] %}{{ loop._iterable }}{% endfor %}", "not allowed: access to '_iterable' of a LoopContext"),
        ("{% for x in [1] %}{{ loop }}{% endfor %}", "a loopcontext cannot be written as text"),
        ("{% for x in [1] %}{{ loop | string }}{% endfor %}", "a loopcontext cannot be written as text"),
        ("{{ [range] }}", "a method cannot be written as text"),
        ("{{ {'a': range} }}", "a method cannot be written as text"),
        ("{{ range ~ '' }}", "a method cannot be written as text"),
        ("{{ '%s' % range }}", "a method cannot be written as text"),
        ("{{ '%r' % (range,) }}", "a method cannot be written as text"),
        ("{{ '{}'.format(range) }}", "a method cannot be written as text"),
        ("{{ '{!r}'.format(range) }}", "a method cannot be written as text"),
        ("{{ [range] | join }}", "a method cannot be written as text"),
        ("{{ raise_exception(range) }}", "a method cannot be written as text"),
        ("{{ range | tojson }}", "not JSON serializable"),
        ("{{ namespace(x=1) }}", "a namespace cannot be written as text"),
        ("{{ (messages | map('upper')).gi_frame }}", ""),
        ("{{ ['a'] | map('__class__') }}", "there is no filter named '__class__'"),
        ("{{ ['a'] | map('<charge>', -999999999) }}", "there is no filter named '<charge>'"),
        ("{{ ['a'] | select('<concat>') }}", "there is no test named '<concat>'"),
        ("{{ messages.append(1) }}", "not allowed: access to 'append' of a list"),
        ("{{ messages[0].update({'role': 'system'}) }}", "not allowed: access to 'update' of a dict"),
        ("{{ messages[0].pop('role') }}", "not allowed: access to 'pop' of a dict"),
        ("{{ 'x'.encode() }}", "not allowed: access to 'encode' of a str"),
        ("{{ 'x'.translate({}) }}", "not allowed: access to 'translate' of a str"),
        ("{{ (1).to_bytes(10 ** 9, 'big') }}", "not allowed: access to 'to_bytes' of a int"),
        ("{{ dict.fromkeys('ab') }}", "has no attribute 'fromkeys'"),
        ("{{ 'x'() }}", "not allowed: a call of a str"),
        ("{{ messages() }}", "not allowed: a call of a list"),
        ("{{ '{0.x.__class__}'.format(namespace(x=1)) }}", "not allowed: access to '__class__' of a int"),
        ("{{ config }}{{ request.application.__globals__ }}", "undefined"),
        ("{% autoescape true %}{% endautoescape %}", "not valid|not allowed"),
        ("{% do messages.append(1) %}", "not valid"),
        ("{% debug %}", "not valid"),
    ],
)
def test_the_usual_ways(source: str, match: str) -> None:
    if not match:
        assert ChatTemplate(source).render(USER) == ""
        return
    with pytest.raises(TemplateError, match=match):
        ChatTemplate(source).render(USER)


def test_an_error_holds_on_to_nothing() -> None:
    """The frames of a template, with all it made, go when it has failed."""
    with pytest.raises(TemplateError) as caught:
        ChatTemplate("{% set big = 'x' * 3000000 %}{{ big.y.z }}").render(USER)
    error: BaseException | None = caught.value
    assert error is not None
    assert error.__context__ is None
    assert error.__cause__ is None
    with pytest.raises(TemplateError) as caught:
        ChatTemplate("{{ raise_exception('x' * 3000000) }}").render(USER)
    assert len(str(caught.value)) < 1200
