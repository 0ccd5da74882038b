"""The lowering speaks the header's language: op codes, record layout, activations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgellm.backends import lower
from edgellm.models import ops

HEADER = (Path(__file__).parents[3] / "native" / "include" / "edgellm.h").read_text()


def enum(name: str) -> list[str]:
    body = re.search(rf"enum {name} \{{(.*?)\}}", HEADER, re.S)
    assert body is not None
    return re.findall(r"\b(EL_\w+)", re.sub(r"/\*.*?\*/", "", body[1], flags=re.S))


def test_op_codes_are_the_headers() -> None:
    names = [n.removeprefix("EL_OP_") for n in enum("el_opcode")]
    assert {name: i for i, name in enumerate(names, start=1)} == lower.CODES


def test_every_op_has_a_name_in_the_library() -> None:
    source = (Path(__file__).parents[3] / "native" / "core" / "error.c").read_text()
    body = re.search(r"el_op_name.*?\{(.*?)\};", source, re.S)
    assert body is not None
    assert re.findall(r'"([A-Z_]+)"', body[1]) == list(lower.CODES)


def test_activations_are_the_headers() -> None:
    names = [n.removeprefix("EL_ACT_").lower() for n in enum("el_act")]
    assert {name: i for i, name in enumerate(names)} == lower.ACTS
    assert tuple(lower.ACTS) == ops.ACTS


def test_a_record_is_a_struct() -> None:
    assert lower.OP_DTYPE.itemsize == 4 * (1 + 4 * 3 + 8 + 7 + 4)


@pytest.mark.parametrize("name", ["A16", "A256"])
def test_activation_formats_are_the_headers(name: str) -> None:
    formats = [n.removeprefix("EL_ACT_") for n in enum("el_actfmt")]
    assert formats.index(name) == getattr(lower, name)
