"""Every environment variable that edgellm reads, in one table; nothing else here touches os.environ.

    env.THREADS.get()        # int, or None when unset
    env.ISA.get()            # "avx2", or None
    env.VARIABLES            # the table, for `edgellm doctor` and the documentation

Values are read at the call, never cached, so that a test or a notebook may set them late. An unset or empty
variable gives its default. A value that cannot be honoured raises ConfigError, which names the variable, what
was found and what was expected.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

from edgellm.core.errors import ConfigError
from edgellm.core.record import dataclass

T_co = TypeVar("T_co", covariant=True)

ISA_LEVELS = (
    "scalar",
    "avx2",
    "avx_vnni",
    "avx512",
    "avx512_vnni",
    "neon",
    "neon_dotprod",
    "neon_i8mm",
)
"""Names that EDGELLM_ISA and `isa=` take, in ascending order within each processor family."""

MAX_THREADS = 1024
"""Largest EDGELLM_THREADS: far above any machine, low enough that a typing error cannot exhaust one."""

LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class Variable(Generic[T_co]):
    """One variable: its name, how its text becomes a value, the value when unset, and a line for people.

    parse: from non-empty text to the value; raises ValueError with what was expected.
    default: called when the variable is unset or empty.
    secret: the value is never printed.
    """

    name: str
    help: str
    parse: Callable[[str], T_co]
    default: Callable[[], T_co]
    secret: bool = False

    def text(self) -> str | None:
        """The variable's text without surrounding blanks, None when unset or empty."""
        return os.environ.get(self.name, "").strip() or None

    def get(self) -> T_co:
        """The value, or the default. Raises ConfigError when the text cannot be honoured."""
        text = self.text()
        if text is None:
            return self.default()
        try:
            return self.parse(text)
        except ValueError as e:
            self._refuse(text, str(e))

    def _refuse(self, text: str, expected: str) -> NoReturn:
        shown = "a value" if self.secret else repr(text)
        raise ConfigError(
            f"{self.name} is set to {shown}, expected {expected}. Correct it, or unset it for the default."
        ) from None


def _none() -> None:
    return None


def _text(text: str) -> str:
    return text


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError("a path without ~, since this account has no home folder") from None


def _choice(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in names:
            raise ValueError("one of " + ", ".join(names))
        return text.lower()

    return parse


def _threads(text: str) -> int:
    expected = f"a number of threads from 1 to {MAX_THREADS}"
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= MAX_THREADS):
        raise ValueError(expected)
    return int(text)


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("1, true, yes, on or 0, false, no, off")


def _url(text: str) -> str:
    if not text.startswith(("https://", "http://")):
        raise ValueError("a URL that begins with https:// or http://")
    return text.rstrip("/")


def _user_cache(variable: str) -> Path:
    """The folder of the user's caches: $XDG_CACHE_HOME, else ~/.cache; `variable` can be set instead."""
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if xdg:
        return Path(xdg)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        raise ConfigError(
            f"{variable} is not set and this account has no home folder for its default. Set it to a folder."
        ) from None


def _default_cache() -> Path:
    local = os.environ.get("LOCALAPPDATA", "")
    base = Path(local) if os.name == "nt" and local else _user_cache("EDGELLM_CACHE")
    return base / "edgellm"


def _default_hf_home() -> Path:
    # The Hugging Face libraries use ~/.cache on every system, Windows too.
    return _user_cache("HF_HOME") / "huggingface"


def _default_state() -> Path:
    """Windows has one folder for all of a program's files; elsewhere what XDG says."""
    if os.name == "nt":
        return _default_cache()
    xdg = os.environ.get("XDG_STATE_HOME", "")
    if xdg:
        return Path(xdg) / "edgellm"
    try:
        return Path.home() / ".local" / "state" / "edgellm"
    except RuntimeError:
        raise ConfigError(
            "EDGELLM_STATE is not set and this account has no home folder for its default. Set it to a folder."
        ) from None


ISA: Variable[str | None] = Variable(
    "EDGELLM_ISA",
    "Highest instruction level: scalar, avx2, avx_vnni, avx512, avx512_vnni, neon, neon_dotprod or neon_i8mm.",
    _choice(*ISA_LEVELS),
    _none,
)
THREADS: Variable[int | None] = Variable(
    "EDGELLM_THREADS",
    "Threads that compute; default: physical performance cores within the affinity mask and CPU quota.",
    _threads,
    _none,
)
LIBRARY: Variable[Path | None] = Variable(
    "EDGELLM_LIBRARY",
    "Path of the native shared library; default: the one inside the package.",
    _path,
    _none,
)
CACHE: Variable[Path] = Variable(
    "EDGELLM_CACHE",
    "Folder for downloaded models and tile caches; default: edgellm in the user's cache folder (~/.cache/edgellm).",
    _path,
    _default_cache,
)
STATE: Variable[Path] = Variable(
    "EDGELLM_STATE",
    "Folder of the chat's history and sessions; default: edgellm in the state folder (~/.local/state/edgellm).",
    _path,
    _default_state,
)
TEST_MODELS: Variable[Path | None] = Variable(
    "EDGELLM_TEST_MODELS",
    "Folder with the starter models' GGUF files, for the tests; default: the model cache.",
    _path,
    _none,
)
LOG: Variable[str | None] = Variable(
    "EDGELLM_LOG",
    "Log level of the command line: debug, info, warning or error; default: warning.",
    _choice(*LOG_LEVELS),
    _none,
)
API_KEY: Variable[str | None] = Variable(
    "EDGELLM_API_KEY",
    "Keys of `edgellm serve`, separated by commas, where --api-key is not given; `chat --url` sends the first one.",
    _text,
    _none,
    secret=True,
)
HF_HOME: Variable[Path] = Variable(
    "HF_HOME",
    "Folder of the Hugging Face libraries, searched for models; default: ~/.cache/huggingface.",
    _path,
    _default_hf_home,
)
HF_HUB_CACHE: Variable[Path] = Variable(
    "HF_HUB_CACHE",
    "The model cache itself, when it lies elsewhere; default: hub in HF_HOME.",
    _path,
    lambda: HF_HOME.get() / "hub",
)
HF_TOKEN: Variable[str | None] = Variable(
    "HF_TOKEN",
    "Access token for models that need one.",
    _text,
    _none,
    secret=True,
)
HF_ENDPOINT: Variable[str] = Variable(
    "HF_ENDPOINT",
    "Address of the Hugging Face hub or a mirror of it; default: https://huggingface.co.",
    _url,
    lambda: "https://huggingface.co",
)
HF_HUB_OFFLINE: Variable[bool] = Variable(
    "HF_HUB_OFFLINE",
    "1: never use the network, like --offline; default: 0.",
    _flag,
    lambda: False,
)

# What pip and uv obey, so that a machine set up for a mirror needs no other setting. They may hold a password.
PIP_INDEX_URL: Variable[str | None] = Variable(
    "PIP_INDEX_URL",
    "Package index that pip uses, and from which starter models come.",
    _text,
    _none,
    secret=True,
)
UV_DEFAULT_INDEX: Variable[str | None] = Variable(
    "UV_DEFAULT_INDEX",
    "The same for uv: NAME=URL or URL.",
    lambda text: text.rpartition("=")[2],
    _none,
    secret=True,
)
UV_INDEX_URL: Variable[str | None] = Variable(
    "UV_INDEX_URL",
    "The same for older versions of uv.",
    _text,
    _none,
    secret=True,
)

# Where other programs keep models that edgellm can run in place.
OLLAMA_MODELS: Variable[Path | None] = Variable(
    "OLLAMA_MODELS",
    "Ollama's model folder; default: ~/.ollama/models.",
    _path,
    _none,
)
LLAMA_CACHE: Variable[Path | None] = Variable(
    "LLAMA_CACHE",
    "llama.cpp's download folder; default: llama.cpp in the user's cache folder.",
    _path,
    _none,
)

# What terminals say of themselves and of their users' taste.
NO_COLOR: Variable[bool] = Variable(
    "NO_COLOR",
    "Set to anything: no colours.",
    lambda text: True,
    lambda: False,
)
TERM: Variable[str] = Variable(
    "TERM",
    "The kind of terminal; dumb: no escape sequences are sent.",
    _text,
    lambda: "",
)


def argument(name: str) -> tuple[str, str] | None:
    """(variable, text) of an option of `edgellm serve` in the environment: EDGELLM_ARG_<name>, else LLAMA_ARG_<name>.

    None where neither is set, or it is empty.
    """
    for variable in (f"EDGELLM_ARG_{name}", f"LLAMA_ARG_{name}"):
        text = os.environ.get(variable, "").strip()
        if text:
            return variable, text
    return None


VARIABLES: tuple[Variable[object], ...] = (
    ISA,
    THREADS,
    LIBRARY,
    CACHE,
    STATE,
    TEST_MODELS,
    LOG,
    API_KEY,
    HF_HOME,
    HF_HUB_CACHE,
    HF_TOKEN,
    HF_ENDPOINT,
    HF_HUB_OFFLINE,
    PIP_INDEX_URL,
    UV_DEFAULT_INDEX,
    UV_INDEX_URL,
    OLLAMA_MODELS,
    LLAMA_CACHE,
    NO_COLOR,
    TERM,
)
"""The table, in the order in which it is printed."""
