"""Variables that only the command line reads, and where it keeps what belongs to the user."""

from __future__ import annotations

import os
from pathlib import Path

from edgellm.core import env
from edgellm.core.env import Variable
from edgellm.core.errors import ConfigError


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("a path without ~, since this account has no home folder") from None


def _default_state() -> Path:
    """Windows has one folder for all of a program's files; elsewhere what XDG says."""
    if os.name == "nt":
        return env.CACHE.get()
    base = XDG_STATE_HOME.get()
    if base is not None:
        return base / "edgellm"
    try:
        return Path.home() / ".local" / "state" / "edgellm"
    except RuntimeError:
        raise ConfigError(
            "EDGELLM_STATE is not set and this account has no home folder for its default. Set it to a folder."
        ) from None


XDG_STATE_HOME: Variable[Path | None] = Variable(
    "XDG_STATE_HOME", "Folder of programs' state; default: ~/.local/state.", _path, lambda: None
)
STATE: Variable[Path] = Variable(
    "EDGELLM_STATE",
    "Folder of the chat's history and saved sessions; default: edgellm in the user's state folder "
    "(~/.local/state/edgellm).",
    _path,
    _default_state,
)
NO_COLOR: Variable[bool] = Variable("NO_COLOR", "Set to anything: no colours.", lambda text: True, lambda: False)
TERM: Variable[str] = Variable(
    "TERM", "The kind of terminal; dumb: no escape sequences are sent.", lambda text: text, lambda: ""
)

VARIABLES: tuple[Variable[object], ...] = (STATE, NO_COLOR, TERM)
"""For the documentation, after those of the core."""
