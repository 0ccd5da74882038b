"""Logging: the standard library's, one tree under `edgellm`, silent until the application asks.

A library must not print. Modules take `logger(__name__)`; a program that wants to see something configures
the logging module as it always does, or, for a terminal, calls `show` (the command line does).
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

ROOT = "edgellm"

logging.getLogger(ROOT).addHandler(logging.NullHandler())


def logger(name: str) -> logging.Logger:
    """The logger of a module: pass `__name__`. Names outside the tree are put under it."""
    inside = name == ROOT or name.startswith(ROOT + ".")
    return logging.getLogger(name if inside else f"{ROOT}.{name}")


class _Show(logging.StreamHandler[TextIO]):
    """The handler that `show` installs; its own type, so that a second call finds the first one's."""


def show(level: str = "warning", stream: TextIO | None = None) -> None:
    """Print the tree's records of `level` (debug, info, warning, error) and above, one line each.

    stream: standard error when None; standard output belongs to tokens. A second call replaces the first.
    """
    root = logging.getLogger(ROOT)
    for old in [h for h in root.handlers if isinstance(h, _Show)]:
        root.removeHandler(old)
    handler = _Show(stream if stream is not None else sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(level.upper())
