"""Choosing a backend by name; "auto" is the native core, and says why where it cannot be loaded."""

from __future__ import annotations

from collections.abc import Callable

from edgellm.backends.base import Backend
from edgellm.core.errors import ConfigError


def _native() -> Backend:
    from edgellm.backends.native import NativeBackend

    return NativeBackend()


def _reference() -> Backend:
    from edgellm.backends.reference import ReferenceBackend

    return ReferenceBackend()


BACKENDS: dict[str, Callable[[], Backend]] = {"native": _native, "reference": _reference}
"""Every backend a user may name; the modules are imported when chosen."""


def select_backend(name: str) -> Backend:
    """The backend called `name`; "auto" = native. Raises ConfigError for an unknown name, NativeError if unusable."""
    if name == "auto":
        name = "native"
    if name not in BACKENDS:
        raise ConfigError(f"backend must be auto, {' or '.join(BACKENDS)}, found {name!r}")
    return BACKENDS[name]()
