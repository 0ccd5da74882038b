"""The layouts of weights in memory that a user may ask for."""

from __future__ import annotations

WEIGHTS = ("auto", "mmap", "tiles", "cache")
"""Also "cache:FILE", which `is_layout` knows."""


def is_layout(value: object) -> bool:
    """Whether `value` names a layout: one of WEIGHTS, or "cache:" and a file."""
    return value in WEIGHTS or (
        isinstance(value, str) and value[:6] == "cache:" and bool(value[6:].strip()) and "\0" not in value
    )
