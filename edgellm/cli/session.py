"""A conversation as a file: JSON that people can read, checked in full when it is loaded.

{"format": "edgellm session", "version": 1, "model": ..., "fingerprint": ..., "saved": ..., "system": ...,
 "parameters": {"temperature": 0.2}, "messages": [{"role": "user", "content": ...}, ...]}
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from edgellm.cli import sampling
from edgellm.core.env import STATE
from edgellm.core.errors import ConfigError
from edgellm.core.files import read_regular
from edgellm.core.record import dataclass, field

FORMAT = "edgellm session"
VERSION = 1
MAX_BYTES = 64 << 20
MAX_MESSAGES = 100_000
SUFFIX = ".json"

_NAME = re.compile(r"\w[\w .+-]{0,99}")


@dataclass(frozen=True, slots=True)
class Session:
    """What a chat needs to go on. parameters: fields of SamplingParams that were set, as plain data."""

    model: str
    system: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)
    fingerprint: str = ""


def folder() -> Path:
    """Where sessions lie that are saved by name; it may not exist yet."""
    return STATE.get() / "sessions"


def names() -> list[str]:
    """Names of saved sessions, in order."""
    try:
        return sorted(p.stem for p in folder().iterdir() if p.suffix == SUFFIX)
    except (OSError, ConfigError):
        return []


def path_of(name: str) -> Path:
    """The file that a name means: a path if it ends in SUFFIX, else a file in `folder`. Raises ConfigError."""
    if name.endswith(SUFFIX):
        try:
            return Path(name).expanduser()
        except RuntimeError:
            raise ConfigError(f"{name}: this account has no home folder") from None
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r:.80} cannot be the name of a session: letters, digits, spaces and . _ + - are possible, "
            f"or a path that ends in {SUFFIX}"
        )
    return folder() / f"{name}{SUFFIX}"


def save(session: Session, path: Path) -> None:
    """Write the file whole or not at all; only its owner may read it. Raises ConfigError."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "model": session.model,
        "fingerprint": session.fingerprint,
        "saved": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "system": session.system,
        "parameters": dict(session.parameters),
        "messages": session.messages,
    }
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with open(handle, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as e:
        with suppress(OSError):
            os.unlink(temporary)
        raise ConfigError(f"cannot save to {path}: {e.strerror or e}") from None


def load(path: Path) -> Session:
    """Read a session. ConfigError says what is wrong with the file; nothing in it is taken on trust."""
    try:
        raw = read_regular(path, MAX_BYTES)
    except OSError as e:
        raise ConfigError(f"cannot read {path}: {e.strerror or e}") from None
    except ValueError as e:
        raise ConfigError(f"{path} {e}: it is no session") from None
    try:
        document = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{path} is no session: {e}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(f'{path} is no session: it must be a JSON object with "format": "{FORMAT}"')
    if document.get("version") != VERSION:
        raise ConfigError(f"{path} has version {document.get('version')!r:.40}; this edgellm reads version {VERSION}")
    return _checked(document, path)


def _checked(document: dict[str, Any], path: Path) -> Session:
    model, system, fingerprint = (document.get(key) for key in ("model", "system", "fingerprint"))
    messages, parameters = document.get("messages"), document.get("parameters", {})
    if not isinstance(model, str) or not isinstance(fingerprint or "", str) or not isinstance(system, str | None):
        raise ConfigError(f"{path}: model, fingerprint and system must be text")
    if not isinstance(messages, list) or len(messages) > MAX_MESSAGES:
        raise ConfigError(f"{path}: messages must be a list of at most {MAX_MESSAGES}")
    for i, message in enumerate(messages):
        if not _is_message(message):
            raise ConfigError(
                f'{path}: messages[{i}] must be {{"role": "user" or "assistant", "content": text}}, '
                f"found {message!r:.80}"
            )
    known = {option.field for option in sampling.OPTIONS}
    if not isinstance(parameters, dict) or not parameters.keys() <= known:
        found = sorted(parameters.keys() - known) if isinstance(parameters, dict) else type(parameters).__name__
        raise ConfigError(f"{path}: parameters must be sampling parameters, found {found!r:.80}")
    try:
        sampling.build(parameters)
    except (ConfigError, TypeError, ValueError) as e:
        raise ConfigError(f"{path}: parameters: {e}") from None
    clean = [{"role": m["role"], "content": m["content"]} for m in messages]
    return Session(model, system, parameters, clean, fingerprint or "")


def _is_message(message: object) -> bool:
    return (
        isinstance(message, dict)
        and message.get("role") in ("user", "assistant")
        and isinstance(message.get("content"), str)
    )
