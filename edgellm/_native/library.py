"""Loads the native library and checks that it is the one this package was written for.

    available()      # can it be used?
    why_not()        # "" or the reason, for people
    lib()            # the library, a cffi handle; raises NativeError
    ffi              # the cffi FFI that knows the header

The declarations are the part of edgellm.h between its cdef marks, compiled by scripts/gen_ffi.py into declarations.py
(cffi's ABI mode, out of line: parsing the header at every start cost 100 ms). ABI version and struct sizes are compared
before anything else is called.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from edgellm._native.declarations import ffi as _ffi
from edgellm.core import env
from edgellm.core.errors import NativeError

ABI_VERSION = 6
NAMES = {"darwin": "libedgellm.dylib", "win32": "libedgellm.dll"}
STRUCTS = (
    "el_error el_view el_op el_buffer el_weight el_vector el_rope el_cache_layer el_model el_config el_batch "
    "el_output el_edits el_pick el_run_spec el_info el_phase_time el_cores"
).split()

ffi: Any = _ffi
_lock = threading.Lock()
_loaded: dict[Path, Any] = {}


def library_path() -> Path:
    """EDGELLM_LIBRARY, or the library inside the package."""
    return env.LIBRARY.get() or Path(__file__).with_name(NAMES.get(sys.platform, "libedgellm.so"))


def lib() -> Any:
    """The loaded library: lib().el_step(...). Raises NativeError where it is missing, broken or another version."""
    path = library_path()
    with _lock:
        if path not in _loaded:
            _loaded[path] = _load(path)
        return _loaded[path]


def available() -> bool:
    """Whether lib() works."""
    return not why_not()


def why_not() -> str:
    """Why the native library cannot be used; "" when it can."""
    try:
        lib()
    except NativeError as e:
        return str(e)
    return ""


def _load(path: Path) -> Any:
    if not path.is_file():
        raise NativeError(
            f"there is no native library at {path}. In a checkout run `make build`. Installed: `pip install "
            f"--force-reinstall edgellm` takes the wheel with a library, where there is one for this system; "
            f'backend="reference" computes without, slowly. EDGELLM_LIBRARY names a library elsewhere.'
        )
    try:
        handle = ffi.dlopen(str(path.resolve()))
        version = handle.el_abi_version()
    except (OSError, AttributeError, ffi.error) as e:
        raise NativeError(
            f"{path} cannot be loaded as edgellm's native library: {e}. Reinstall edgellm, or run `make build`."
        ) from e
    if version != ABI_VERSION:
        raise NativeError(
            f"{path} has interface version {version}, expected {ABI_VERSION}: it belongs to another release of "
            f"edgellm. Reinstall edgellm, or run `make build`."
        )
    for name in STRUCTS:
        theirs, ours = handle.el_struct_size(name.encode()), ffi.sizeof(name)
        if theirs != ours:
            raise NativeError(
                f"{path}: struct {name} has {theirs} bytes, expected {ours}: library and header do not belong "
                f"together. Reinstall edgellm, or run `make build`."
            )
    return handle
