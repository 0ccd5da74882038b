"""Taking models out of the cache. Nothing outside the cache is ever deleted."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from edgellm.core import env
from edgellm.core.errors import ModelError, ModelNotFound
from edgellm.core.record import replace
from edgellm.gguf import digest
from edgellm.hub import catalogue, notes, quants, spelling
from edgellm.hub.catalogue import CatalogEntry
from edgellm.hub.inventory import files_of, find, find_hf, list_local, part_file, repo_folder, repo_lock
from edgellm.hub.local import DOWNLOADS, entry_path, lock_path, models_dir
from edgellm.hub.lock import file_lock
from edgellm.hub.places import LocalModel
from edgellm.hub.spelling import HFName
from edgellm.hub.tiles import tiles_dir

_REMOVE_WITH = {
    "Hugging Face": "`hf cache rm` (huggingface_hub's command) or the program that downloaded it",
    "LM Studio": "LM Studio (My Models)",
    "llama.cpp": "the program that downloaded it, or delete the file yourself",
    "Ollama": "`ollama rm`",
}


def remove(name: str) -> int:
    """Deletes a model from the cache, with the remains of its downloads. Returns the bytes that were freed.

    Only what lies in the cache can be removed. ModelNotFound if nothing of that name is there; ModelError if it
    is another program's, or the system does not allow it.
    """
    name = name.strip()
    entry = catalogue.find(name)
    try:
        if entry is not None:
            with file_lock(lock_path(entry.folder)):
                return _remove_folder(entry)
        model = find(name) if name else None
        spelt = spelling.parse(name, env.HF_ENDPOINT.get())
        if model is None and spelt is not None:
            model = find_hf(spelt)
        if model is not None and model.origin != "edgellm":
            raise ModelError(
                f"{model.name} belongs to {model.origin} ({model.path}) and was not deleted: edgellm deletes only "
                f"what is in its own cache. Remove it with {_REMOVE_WITH[model.origin]}."
            )
        if model is not None and model.repo is not None:
            spelt = HFName(model.repo, model.revision, None, model.file)
        elif model is not None:
            return _remove_files(model)
        if spelt is not None and (freed := _remove_from_repo(spelt)):
            return freed
    except OSError as e:
        if isinstance(e, ModelError):
            raise
        raise ModelError(f"{name} cannot be removed: {e}; close the programs that use it") from e
    listed = ", ".join(m.name for m in list_local() if m.origin == "edgellm") or "none"
    raise ModelNotFound(f"{name} is not in the model cache {models_dir()}; models there: {listed}")


def remove_all() -> int:
    """Empties the cache: every model, the remains of downloads, every tile cache, the list of known hashes. Returns the
    bytes that were freed.

    Files of other programs stay, tile caches beside models outside the cache, and lock files (empty; others may be
    waiting on them). ModelError where the system does not allow it.
    """
    freed = 0
    try:
        for top in (models_dir(), tiles_dir()):
            if top.is_dir():
                freed += sum(p.lstat().st_size for p in top.rglob("*") if not p.is_dir())
                shutil.rmtree(top)
        freed += digest.forget()
    except OSError as e:
        raise ModelError(f"the model cache cannot be emptied: {e}; close the programs that use it") from e
    return freed


def _remove_files(model: LocalModel) -> int:
    """Removes a model that was put into the cache by hand."""
    for path in files_of(model):
        path.unlink()
    _remove_empty(model.path.parent, models_dir())
    return model.size


def _remove_from_repo(name: HFName) -> int:
    """Removes what the cache has of a model of a repository, finished or not; the bytes that were freed."""
    folder = repo_folder(name.repo, name.revision)
    if not folder.is_dir():
        return 0
    with file_lock(repo_lock(name.repo, name.revision)):
        known = notes.load(folder)
        there = [p.relative_to(folder) for p in folder.rglob("*.gguf") if DOWNLOADS not in p.parts]
        finished = {p.as_posix(): [folder / p] for p in there}
        parts: dict[str, list[Path]] = {}
        for part in (folder / DOWNLOADS).glob("*.part"):
            parts.setdefault(part_file(part), []).append(part)
        candidates = quants.models([*finished, *parts])
        if name.file is not None:
            chosen = quants.inside(candidates, name.file)
        else:
            chosen = quants.matching(candidates, name.tag or known.default or quants.DEFAULT)
        gone = {f for candidate in chosen for f in candidate.files}
        freed = 0
        for file in gone:
            for path in finished.get(file, []) + parts.get(file, []):
                freed += path.stat().st_size
                path.unlink()
                _remove_empty(path.parent, folder)
        if gone.issuperset(finished.keys() | parts.keys()):
            shutil.rmtree(folder)
            _remove_empty(folder.parent, models_dir())
        elif gone & known.files.keys():
            notes.save(folder, replace(known, files={f: n for f, n in known.files.items() if f not in gone}))
    return freed


def _remove_empty(folder: Path, top: Path) -> None:
    """Removes a folder and those above it, below `top`, as far as they are empty."""
    with contextlib.suppress(OSError):
        while folder != top and top in folder.parents:
            folder.rmdir()
            folder = folder.parent


def _remove_folder(entry: CatalogEntry) -> int:
    folder = entry_path(entry).parent
    sizes = [p.stat().st_size for p in folder.rglob("*") if p.is_file()] if folder.is_dir() else []
    if not sizes:
        raise ModelNotFound(f"{entry.name} is not in the model cache {models_dir()}; nothing to remove")
    shutil.rmtree(folder)
    return sum(sizes)
