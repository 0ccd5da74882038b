"""Compiling kernels with Numba, and where compiled code is kept: CACHE/numba/HASH, one folder for each state of this
package's sources and of the compiler. Code that cannot be kept there, or read again, is compiled in every process."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.caching import FunctionCache

from edgellm.core import env
from edgellm.core.errors import ConfigError

log = logging.getLogger(__name__)

UNUSED_SECONDS = 30 * 24 * 3600
"""Folders of other versions that nothing has used for so long are removed."""


@cache
def folder() -> Path | None:
    """Where compiled code is kept; None where nothing can be written."""
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    try:
        path = env.CACHE.get() / "numba" / digest.hexdigest()[:16]
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):  # which dates the folder, too
            pass
        for other in path.parent.iterdir():
            if time.time() - other.stat().st_mtime > UNUSED_SECONDS:
                shutil.rmtree(other, ignore_errors=True)
    except (OSError, ConfigError) as e:
        log.info("compiled code cannot be kept, so that every start compiles: %s", e)
        return None
    return path


def kernel(function: Callable[..., Any]) -> Any:
    """A function that Numba compiles when it is first asked for with arguments of new types, without the GIL.

    Arguments are numbers and flat contiguous arrays. No bounds are checked, and division by zero is IEEE's. Compiled
    code and tables (calls.py) call it; Python cannot.
    """
    return _declared(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def function(function: Callable[..., Any]) -> Any:
    """A kernel that Python calls, too."""
    return _declared(function, no_cfunc_wrapper=True)


class Kept(FunctionCache):  # type: ignore[misc]  # Numba has no types
    """Code in `folder`. A full disk or a damaged file costs compiling again, no more."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Code for these types; None where there is none that can be read. Damaged files are begun anew."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as e:
            log.info("compiled code cannot be read and is compiled again: %r", e)
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep code for these types, where that is possible."""
        try:
            super().save_overload(sig, data)
        except OSError as e:
            log.info("compiled code cannot be kept: %s", e)


def _declared(function: Callable[..., Any], **options: bool) -> Any:
    declared = numba.njit(nogil=True, error_model="numpy", boundscheck=False, **options)(function)
    if folder() is not None:
        with _keeping():
            declared._cache = Kept(function)
    return declared


@contextlib.contextmanager
def _keeping() -> Iterator[None]:
    """Numba keeps what is declared meanwhile in `folder`; it reads the setting as a function is declared."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder() or "")
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before
