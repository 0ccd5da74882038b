"""Templates made to hold the interpreter or to eat the memory: each ends in a TemplateError, soon and cheaply."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from limits import seconds

from edgellm.chat import ChatTemplate
from edgellm.chat.meter import STEPS, STEPS_PER_MESSAGE, STEPS_PER_VALUE, STEPS_TO_PROBE, Meter
from edgellm.core.errors import TemplateError

USER = [{"role": "user", "content": "Hello"}]
MAX_SECONDS = 0.5
"""Of this thread's processor time."""
MAX_CALLS = 3_000_000
"""Calls of Python and C functions, parsing and compiling included: the same number on every machine."""
MAX_BYTES = 64_000_000

DOUBLE = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = EXPR %}{% endfor %}"
LISTS = "{% set ns = namespace(x=[1, 2], y=[1, 2]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
LISTS += "{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
DATA = "data " * 5000
TEXT = "{% set t = 'ab ' * 300000 %}"

BOMBS = {
    # loops
    "two loops": "{% for i in range(25000) %}{% for j in range(25000) %}x{% endfor %}{% endfor %}",
    "two loops, silent": "{% for i in range(25000) %}{% for j in range(25000) %}{% endfor %}{% endfor %}",
    "six loops": "{% for a in range(99) %}" * 6 + "{% endfor %}" * 6,
    "a loop in a filter": "{% for i in range(25000) if range(25000) | select('odd') | list %}{% endfor %}",
    "a filtered loop": "{% for i in range(25000) %}{% for j in range(25000) if false %}{% endfor %}{% endfor %}",
    "an endless range": "{% for i in range(10 ** 300) %}{% endfor %}",
    "a long range": "{% for i in range(25000000) %}{% endfor %}",
    "a range with itself": "{{ (range(99999) | list * 99999) | length }}",
    "a loop over text": TEXT + "{% for i in t %}{% for j in t %}{% endfor %}{% endfor %}",
    "a sum of lists": "{{ range(9999) | map('string') | map('list') | sum(start=[]) }}",
    "sums of lists": "{% set x = [range(999) | list] * 9999 %}{{ x | sum(start=[]) | length }}",
    "a loop in a macro": "{% macro m() %}{% for i in range(99999) %}{% endfor %}{% endmacro %}"
    "{% for i in range(99999) %}{{ m() }}{% endfor %}",
    "a loop in a call": "{% macro m() %}{% for i in range(99999) %}{{ caller() }}{% endfor %}{% endmacro %}"
    "{% call m() %}{% for i in range(99999) %}{% endfor %}{% endcall %}",
    "much output": "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    "much data": "{% for i in range(99999) %}" + DATA + "{% endfor %}",
    "much data in a macro": "{% macro m() %}{% for i in range(99999) %}" + DATA + "{% endfor %}{% endmacro %}"
    "{% set x = m() %}",
    "much data in a block": "{% set x %}{% for i in range(99999) %}" + DATA + "{% endfor %}{% endset %}",
    "data in branches": "{% for i in range(99999) %}{% if i %}" + DATA + "{% endif %}{% endfor %}",
    "data otherwise": "{% for i in range(99999) %}{% for j in [] %}{% else %}" + DATA + "{% endfor %}{% endfor %}",
    "data in a filter": "{% for i in range(99999) %}{% filter upper %}" + DATA + "{% endfilter %}{% endfor %}",
    # recursion
    "a macro of itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "a macro of two": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(50) }}",
    "two macros": "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    "a caller of itself": "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}",
    "a recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "a default of itself": "{% macro m(x=m()) %}{% endmacro %}{{ m() }}",
    # numbers
    "a power": "{{ 10 ** 10000000 }}",
    "a power of powers": "{{ 9 ** 9 ** 9 ** 9 }}",
    "a squared number": "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "a doubled number": "{% set ns = namespace(x=3) %}{% for i in range(9999) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "a number to text": "{% set ns = namespace(x=10 ** 300) %}{% for i in range(99) %}{% set ns.x = ns.x * 10 ** 300 %}"
    "{% endfor %}{{ ns.x }}",
    "a long literal": "{{ " + "9" * 260_000 + " }}",
    "a long literal in pieces": "{{ " + "9_" * 130_000 + "9 }}",
    "a long fraction": "{{ 1." + "9" * 260_000 + " }}",
    "a long hexadecimal": "{{ 0x" + "f" * 260_000 + " }}",
    "a long string": "{{ '" + "\\u1234" * 40_000 + " }}",
    "a long space": "{{ " + " " * 260_000,
    "a number from text": "{{ ('9' * 1000000) | int }}",
    "a number from JSON": "{{ ('9' * 1000000) | from_json }}",
    "rounding": "{{ 5 | round(-1000000000) }}{{ 5 | round(1000000000, 'floor') }}",
    # formats
    "a wide format": "{{ '%1000000000d' % 1 }}",
    "a precise format": "{{ '%.1000000000f' % 1 }}",
    "a format as wide as said": "{{ '%*d' % (1000000000, 1) }}",
    "a format as precise as said": "{{ '%.*d' % (1000000000, 1) }}",
    "a format with a nested key": "{{ '%((a))1000000000d' % {'(a)': 1} }}",
    "a format with an odd key": "{{ '%(a(b)1000000000d' % {'a(b': 1} }}",
    "a format in other digits": "{{ '{:١٠٠٠٠٠٠٠٠٠}'.format(1) }}",
    "a format filter": "{{ '%1000000000d' | format(1) }}",
    "a new format": "{{ '{:1000000000}'.format(1) }}",
    "a nested format": "{{ '{:{}}'.format(1, 1000000000) }}",
    "a format of a mapping": "{{ '{x:1000000000}'.format_map({'x': 1}) }}",
    "a format repeated": "{{ ('%s' * 10000) % (('a' * 10000,) * 10000) }}",
    "a mapping repeated": "{{ ('%(a)s' * 10000) % {'a': 'a' * 10000} }}",
    "fields repeated": "{{ ('{0}' * 10000).format('a' * 10000) }}",
    "an odd format": "{{ '%1000000000d' is odd }}",
    "a divisible format": "{{ '%1000000000d' is divisibleby(1) }}",
    "a time format": "{{ strftime_now('%1000000000Y') }}",
    "a long time format": "{{ strftime_now('%c' * 1000000) }}",
    # repetition and padding
    "long text": "{{ 'x' * 10 ** 9 }}",
    "text from the right": "{{ 10 ** 9 * 'x' }}",
    "a long list": "{{ [1] * 10 ** 9 }}",
    "a long tuple": "{{ 10 ** 9 * (1,) }}",
    "center": "{{ 'a' | center(10 ** 9) }}",
    "center as a method": "{{ 'a'.center(10 ** 9) }}",
    "ljust": "{{ 'a'.ljust(10 ** 9) }}",
    "zfill": "{{ 'a'.zfill(10 ** 9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10 ** 9) }}",
    "indent": "{{ 'a' | indent(10 ** 9, true) }}",
    "indent by text": TEXT + "{{ ('\n' * 10000) | indent(t, true, true) }}",
    "replace": "{{ ('a' * 10000) | replace('a', 'b' * 10000) }}",
    "replace as a method": "{{ ('a' * 10000).replace('', 'b' * 10000) }}",
    "join": "{{ range(10000) | join('b' * 10000) }}",
    "join as a method": "{{ ('b' * 10000).join('a' * 10000) }}",
    "join a doubled list": LISTS + "{{ [ns.x] | join }}",
    "truncate": "{{ 'a' | truncate(10 ** 9, false, 'a' * 10 ** 9) }}",
    "batch": "{{ [1] | batch(10 ** 9, 'x') | list }}",
    "slice": "{{ [1] | slice(10 ** 9) | list }}",
    "indented JSON": "{{ [[1]] | tojson(indent=10 ** 9) }}",
    "separated JSON": "{{ [1, 2] | tojson(separators=('a' * 10 ** 9, '')) }}",
    "many pieces": TEXT + "{% for i in range(99) %}{% set x = t.split() %}{% endfor %}",
    "many letters": "{% set ns = namespace(x=[]) %}{% for i in range(999) %}"
    "{% set ns.x = ns.x + ['é' * 9999] %}{% endfor %}",
    # growth in a loop
    "doubling": DOUBLE.replace("EXPR", "ns.x + ns.x"),
    "doubling by joining": DOUBLE.replace("EXPR", "ns.x ~ ns.x"),
    "doubling by format": DOUBLE.replace("EXPR", "'%s%s' % (ns.x, ns.x)"),
    "doubling by fields": DOUBLE.replace("EXPR", "'{0}{0}'.format(ns.x)"),
    "doubling by join": DOUBLE.replace("EXPR", "[ns.x, ns.x] | join"),
    "doubling by replace": DOUBLE.replace("EXPR", "ns.x | replace('a', 'aa')"),
    "doubling by escapes": DOUBLE.replace("EXPR", "(ns.x | e | replace('a', '&&'))"),
    "doubling by JSON": DOUBLE.replace("EXPR", "[ns.x, '\\\\'] | tojson | tojson"),
    "doubling by printing": DOUBLE.replace("EXPR", "[ns.x, ns.x] | string"),
    "doubling by coding": DOUBLE.replace("EXPR", "(ns.x ~ 2) | replace('2', '&&') | urlencode"),
    "doubling in a block": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}"
    "{% endset %}{% set ns.x = y %}{% endfor %}",
    "doubling a list": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling by a macro": "{% macro m(t, n) %}{% if n %}{{ m(t + t, n - 1) }}{% endif %}{% endmacro %}"
    "{{ m('ab', 50) }}",
    # shared parts
    "printing": LISTS + "{{ ns.x }}",
    "printing as JSON": LISTS + "{{ ns.x | tojson }}",
    "comparing": LISTS + "{{ ns.x == ns.y }}",
    "comparing more": LISTS + "{{ ns.x < ns.y }}{{ ns.x is eq(ns.y) }}",
    "looking for": LISTS + "{{ ns.x in [ns.y] }}",
    "counting": LISTS + "{{ [ns.x].count(ns.y) }}",
    "sorting": LISTS + "{{ [ns.x, ns.y] | sort }}",
    "the largest": LISTS + "{{ [ns.x, ns.y] | max }}",
    "hashing": LISTS.replace("[", "(").replace("]", ")") + "{{ {ns.x: 1} }}",
    "an index of tuples": LISTS.replace("[", "(").replace("]", ")") + "{{ {}[ns.x] }}",
    "a set of tuples": LISTS.replace("[", "(").replace("]", ")") + "{{ [ns.x] | unique }}",
    "an object of tuples": LISTS.replace("[", "(").replace("]", ")") + "{{ dict([(ns.x, 1)]) }}",
    "changed": LISTS + "{% for i in [1, 2] %}{{ loop.changed(ns.x) }}{% endfor %}",
    "deep": "{% set ns = namespace(x=[]) %}{% for i in range(50000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
    "deep tuples": "{% set ns = namespace(x=(1,)) %}{% for i in range(50000) %}{% set ns.x = (ns.x,) %}{% endfor %}"
    "{{ ns.x in {} }}",
    "deep comparing": "{% set ns = namespace(x=[], y=[]) %}{% for i in range(20000) %}{% set ns.x = [ns.x] %}"
    "{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    # searching
    "strip": "{{ ('a' * 1000000).strip('b' * 500000 + 'a') }}",
    "find": TEXT + "{% for i in range(99999) %}{{ t.find(t + 'x') }}{% endfor %}",
    "find backwards": "{{ ('a' * 1000000).rfind('b' + 'a' * 500000) }}",
    "split backwards": "{{ ('a' * 1000000).rsplit('b' + 'a' * 500000) }}",
    "in": TEXT + "{% for i in range(99999) %}{{ 'x' in t }}{% endfor %}",
    "in a list": "{% set t = range(99999) | list %}{% for i in range(99999) %}{{ 'x' in t }}{% endfor %}",
    "in a range": "{% for i in range(99999) %}{{ 'x' in range(99999) }}{% endfor %}",
    "upper": TEXT + "{% for i in range(99999) %}{% set x = t.upper() %}{% endfor %}",
    "is upper": TEXT + "{% for i in range(99999) %}{{ t is upper }}{{ t.isupper() }}{% endfor %}",
    "wordwrap": "{{ ('-' * 500000) | wordwrap(1) }}",
    "wordwrap hyphens": "{{ ('a-' * 500000) | wordwrap(5) }}",
    "wordcount": TEXT + "{% for i in range(99999) %}{{ t | wordcount }}{% endfor %}",
    "title": TEXT + "{% for i in range(999) %}{{ t | title | length }}{% endfor %}",
    "slices": TEXT + "{% for i in range(99999) %}{% set x = t[1:] %}{% endfor %}",
    "slices of lists": "{% set t = range(99999) | list %}{% for i in range(99999) %}{% set x = t[::-1] %}{% endfor %}",
    "reversing": TEXT + "{% for i in range(99999) %}{% set x = t | reverse %}{% endfor %}",
    "lengths": "{% for i in range(99999) %}{% for j in range(99999) %}{{ loop.length }}{% endfor %}{% endfor %}",
    "mapping": "{% for i in range(99999) %}{% set x = range(99999) | map('string') %}{% endfor %}",
    "names of filters": "{% for i in range(99999) %}"
    "{% set x = ([{}] * 9999) | map(attribute='a.b.c', default={}) %}{% endfor %}",
    "arguments": "{% macro m() %}{{ varargs }}{% endmacro %}{% for i in range(99999) %}"
    "{{ m(*range(99999)) }}{% endfor %}",
    # the source
    "parentheses": "{{ " + "(" * 100_000,
    "a million parentheses": "{{ " + "(" * 1_000_000,
    "brackets": "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "nots": "{{ " + "not " * 9000 + "1 }}",
    "minuses": "{{ " + "-" * 9000 + "1 }}",
    "sums": "{{ 1" + " + 1" * 4500 + " }}",
    "filters": "{{ 1" + " | string" * 4500 + " }}",
    "attributes": "{{ x" + ".x" * 4500 + " }}",
    "ifs": "{% if 1 %}" * 1500 + "{% endif %}" * 1500,
    "fors": "{% for x in [1] %}" * 1000 + "{% endfor %}" * 1000,
    "a long source": "x" * 100_000_000,
    "many words": "{{ a }}" * 30_000,
    "many names": "{% set a = 1 %}" * 15_000,
    "open comments": "{#" * 100_000,
    "open blocks": "{% " * 80_000,
    # what a compiler might evaluate
    "folding text": "{% set x = 'a' * 10 ** 9 %}",
    "folding a filter": "{{ 'a' | center(10 ** 9) | length }}",
    "folding a chain": "{{ ('%1000000000d' % 1) | length }}",
    "folding a join": "{{ 'a' ~ ('b' | center(1000000000)) }}",
    "folding a slice": "{{ ([0] * 1000000000)[:1] }}",
    "folding in a branch": "{% if ('a' | center(1000000000)) == 'b' %}{% endif %}",
    "folding in an argument": "{{ namespace(x='a' | center(1000000000)) }}",
}  # fmt: skip


@contextmanager
def soon(allowance: float = 1.0) -> Iterator[None]:
    """Fails where the block takes longer than MAX_SECONDS times the allowance."""
    gc.collect()
    gc.freeze()  # the other tests' objects are none of a template's
    start = time.thread_time()
    try:
        yield
        taken = time.thread_time() - start
    finally:
        gc.unfreeze()
    assert taken < seconds(MAX_SECONDS * allowance)


@pytest.mark.timing
@pytest.mark.parametrize("name", BOMBS)
def test_it_ends_soon(name: str) -> None:
    template = ChatTemplate(BOMBS[name])
    with soon(), pytest.raises(TemplateError) as caught:
        template.apply(USER)
    assert len(str(caught.value)) < 1200


def test_they_end_within_so_many_calls() -> None:
    """The bound that no clock is needed for."""
    calls = 0

    def count(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    too_many = {}
    for name, source in BOMBS.items():
        calls = 0
        sys.setprofile(count)
        try:
            ChatTemplate(source).apply(USER)
        except TemplateError:
            pass
        finally:
            sys.setprofile(None)
        if not 0 < calls < MAX_CALLS:
            too_many[name] = calls
    assert too_many == {}


@pytest.mark.timing
@pytest.mark.parametrize("name", ["filters", "nots", "sums", "attributes"])
def test_deep_nesting_where_python_would_allow_it(name: str) -> None:
    """The bound is ours: a program may have raised Python's."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        with soon(), pytest.raises(TemplateError, match="nested too deeply"):
            ChatTemplate(BOMBS[name]).apply(USER)
    finally:
        sys.setrecursionlimit(before)


def test_a_rendering_takes_no_more_steps_than_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step that is taken is counted down before its work is done."""
    taken = 0
    step = Meter.step

    def counted(meter: Meter, n: int = 1) -> None:
        nonlocal taken
        step(meter, n)
        taken += n

    monkeypatch.setattr(Meter, "step", counted)
    limit = STEPS + STEPS_PER_MESSAGE + 100 * STEPS_PER_VALUE + STEPS_TO_PROBE
    beyond = {}
    for name in ("two loops", "a loop in a macro", "a macro of two", "find", "title", "lengths", "deep", "hashing"):
        taken = 0
        with pytest.raises(TemplateError):
            ChatTemplate(BOMBS[name]).apply(USER)
        if not 0 < taken <= limit:
            beyond[name] = taken
    assert beyond == {}


IN_LITTLE_MEMORY = """
import resource, sys
sys.path[:0] = sys.argv[1:]
from test_bombs import BOMBS, MAX_BYTES, USER
from edgellm.chat import ChatTemplate
from edgellm.core.errors import TemplateError
ChatTemplate("{{ messages }}").apply(USER)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + MAX_BYTES, resource.RLIM_INFINITY))
for name, source in BOMBS.items():
    try:
        ChatTemplate(source).apply(USER)
    except TemplateError as e:
        if "Memory" not in str(e):
            continue
    print(name)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the memory of a process by a system call")
def test_they_end_in_little_memory() -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", IN_LITTLE_MEMORY, str(here), str(here.parent.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


PROBED = (
    "{% if messages | length > 1 or enable_thinking is defined or tools %}BOMB{% else %}"
    "{{ messages[0].content }}{% endif %}"
)


@pytest.mark.timing
def test_bombs_that_wait_for_the_probing() -> None:
    """Trying a template out costs no more than one bomb, whatever is tried; its failures are not the request's."""
    bomb = "{% for i in range(25000) %}{% for j in range(25000) %}{% endfor %}{% endfor %}"
    template = ChatTemplate(PROBED.replace("BOMB", bomb))
    with soon():
        can = template.capabilities
    assert can is not None
    assert not can.system_role
    rendered = template.apply([{"role": "system", "content": "Be kind."}, *USER])
    assert rendered.text == "Be kind.\n\nHello"


@pytest.mark.timing
def test_bombs_that_wait_for_tagged_text() -> None:
    bomb = "{% for i in range(25000) %}{% for j in range(25000) %}{% endfor %}{% endfor %}"
    source = "{% if messages[0].content[0] != 'H' %}" + bomb + "{% endif %}{{ messages[0].content }}"
    with soon(2):
        assert ChatTemplate(source).apply(USER).segments == (("Hello", False),)


def test_text_that_nobody_holds_costs_no_room() -> None:
    """Adding to a text turn by turn makes the square of it on the way; keeping every state of it is too much."""
    source = "{% set ns = namespace(x='', all=[]) %}{% for i in range(900) %}{% set ns.x = ns.x + 'word ' * 100 %}"
    source += "KEEP{% endfor %}{{ ns.x }}"
    assert len(ChatTemplate(source.replace("KEEP", "")).render(USER)) == 450_000
    assert len(ChatTemplate(source.replace("KEEP", "").replace("+", "~")).render(USER)) == 450_000
    with pytest.raises(TemplateError, match="too much text"):
        ChatTemplate(source.replace("KEEP", "{% set ns.all = [ns.all, ns.x] %}")).render(USER)


def test_more_is_allowed_for_more_messages() -> None:
    turn = (
        "{% for m in messages %}{% for i in range(500) %}{% set x = i + i %}{% endfor %}{{ m.content }}\n{% endfor %}"
    )
    messages = [{"role": ("user", "assistant")[i % 2], "content": "word " * 100} for i in range(600)]
    assert len(ChatTemplate(turn).render(messages).splitlines()) == 600
    with pytest.raises(TemplateError, match=r"it takes more than [0-9]+ steps"):
        ChatTemplate(turn.replace("500", "50000")).render(messages[:9])
