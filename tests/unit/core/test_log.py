"""Logging: one silent tree; `show` prints it once, to standard error."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest

from edgellm.core import log


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    root = logging.getLogger("edgellm")
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_the_tree_is_silent_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert any(isinstance(h, logging.NullHandler) for h in logging.getLogger("edgellm").handlers)
    logging.getLogger("edgellm").propagate = False
    try:
        log.logger("edgellm.gguf").error("unheard")
    finally:
        logging.getLogger("edgellm").propagate = True
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "full"),
    [("edgellm", "edgellm"), ("edgellm.gguf", "edgellm.gguf"), ("edgellmx", "edgellm.edgellmx")],
)
def test_names_stay_in_the_tree(name: str, full: str) -> None:
    assert log.logger(name).name == full


def test_show_prints_one_line_per_record_and_replaces_itself() -> None:
    first, second = io.StringIO(), io.StringIO()
    log.show("info", first)
    log.show("warning", second)
    log.logger("edgellm.engine").warning("threads: %d", 2)
    log.logger("edgellm.engine").info("too quiet")
    assert first.getvalue() == ""
    assert second.getvalue() == "edgellm.engine: threads: 2\n"


def test_show_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    log.show("debug")
    log.logger("edgellm").debug("hello")
    assert capsys.readouterr() == ("", "edgellm: hello\n")
