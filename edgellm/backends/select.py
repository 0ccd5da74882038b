"""Choosing a backend by name; "auto" is the native core, and where that cannot be loaded the best of what is there."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable

from edgellm import _native
from edgellm.backends.base import Backend
from edgellm.core.errors import ConfigError

log = logging.getLogger(__name__)

INSTALL = 'pip install "edgellm[numba]"'


def _native_backend() -> Backend:
    from edgellm.backends.native import NativeBackend

    return NativeBackend()


def _numba() -> Backend:
    why = numba_why_not()
    if why:
        raise ConfigError(f'backend="numba" needs Numba, which cannot be used here: {why}')
    from edgellm.backends.numba import NumbaBackend

    return NumbaBackend()


def _reference() -> Backend:
    from edgellm.backends.reference import ReferenceBackend

    return ReferenceBackend()


BACKENDS: dict[str, Callable[[], Backend]] = {"native": _native_backend, "numba": _numba, "reference": _reference}
"""Every backend a user may name; the modules are imported when chosen."""


def select_backend(name: str) -> Backend:
    """The backend called `name`. Raises ConfigError for an unknown name, or for "numba" without Numba.

    "auto" is the first of native, numba and reference that can be used here; one warning says so if it is not native.
    """
    if name == "auto":
        name, why = automatic()
        if why:
            log.warning("%s", why)
    if name not in BACKENDS:
        raise ConfigError(f"backend must be auto, {' or '.join(BACKENDS)}, found {name!r}")
    return BACKENDS[name]()


def automatic() -> tuple[str, str]:
    """The backend that "auto" is here, and why it is not the native one ("" if it is)."""
    reason = _native.why_not()
    if not reason:
        return "native", ""
    if not numba_why_not():
        return "numba", f"computing with Numba, the same answers at a fraction of the speed: {reason}"
    return "reference", f"computing with NumPy alone, very slowly ({INSTALL} makes it much faster): {reason}"


def numba_why_not() -> str:
    """Why Numba cannot be used, and what to do; "" when it can. The first call imports it."""
    try:
        numba = importlib.import_module("numba")
    except Exception as e:  # missing, or of another Python's or NumPy's version
        return f"{e} ({INSTALL})"
    return "NUMBA_DISABLE_JIT is set: unset it" if numba.config.DISABLE_JIT else ""
