"""Models on this machine: the cache folder, other programs' folders, and taking things out of the cache.

CACHE/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf    a finished model of the catalogue
CACHE/models/hf/u/r/m-Q4_K_M.gguf                            one of the repository u/r on Hugging Face
CACHE/models/hf/u/r@REVISION/...                             the same of a revision other than main
CACHE/models/.../.download/                                  a download in progress, or its remains
CACHE/locks/smollm2-135m.lock, CACHE/locks/hf--u--r.lock     held while one process changes that folder

Only what lies in the cache is ever written or deleted; other programs' files are used where they are.
"""

from __future__ import annotations

import contextlib
import shutil
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from edgellm.core import env
from edgellm.core.errors import ModelError, ModelNotFound
from edgellm.gguf.split import shard_paths
from edgellm.hub import catalogue, notes, places, quants, spelling
from edgellm.hub.catalogue import CatalogEntry
from edgellm.hub.lock import file_lock
from edgellm.hub.places import LocalModel
from edgellm.hub.spelling import HFName

DOWNLOADS = ".download"

Progress = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in total, what is being done); a new text begins a new bar."""

PREFIXES = {"Hugging Face": "hf-cache", "LM Studio": "lmstudio", "llama.cpp": "llama.cpp", "Ollama": "ollama"}
"""Origin -> what before a colon always means a model of that program."""

_REMOVE_WITH = {
    "Hugging Face": "`hf cache rm` (huggingface_hub's command) or the program that downloaded it",
    "LM Studio": "LM Studio (My Models)",
    "llama.cpp": "the program that downloaded it, or delete the file yourself",
    "Ollama": "`ollama rm`",
}


def models_dir() -> Path:
    """The folder of the cache that holds models; it may not exist yet."""
    return env.CACHE.get() / "models"


def entry_path(entry: CatalogEntry) -> Path:
    """Where the model of a catalogue entry lies, or will lie."""
    return models_dir() / entry.folder / entry.file


def repo_folder(repo: str, revision: str | None) -> Path:
    """Where models of a repository lie, or will lie."""
    user, _, name = repo.partition("/")
    at = "@" + urllib.parse.quote(revision, safe="") if revision else ""
    return models_dir() / "hf" / user / f"{name}{at}"


def lock_path(folder: str) -> Path:
    """The lock file for a folder of the cache. It is never deleted: others may be waiting on it."""
    return env.CACHE.get() / "locks" / f"{folder}.lock"


def repo_lock(repo: str, revision: str | None) -> Path:
    """The lock of a repository's folder."""
    folder = repo_folder(repo, revision)
    return lock_path(f"hf--{folder.parent.name}--{folder.name}")


def is_present(entry: CatalogEntry) -> bool:
    """Whether the entry's model is in the cache with the right size (its hash was checked when it came)."""
    try:
        return entry_path(entry).stat().st_size == entry.size
    except OSError:
        return False


def list_local() -> list[LocalModel]:
    """Models on this machine: those of the cache by name, then other programs', place by place.

    Catalogue models are listed under their names, those of Hugging Face as u/r:QUANT, Ollama's under Ollama's
    names; GGUF files that were put into the cache by hand under their path within it, without the suffix. A
    name that is taken gets its program's prefix ("ollama:..."). Unfinished and damaged downloads are left out.
    """
    found = sorted(_own(), key=lambda m: m.name)
    taken = {m.name.lower() for m in found} | {e.name for e in catalogue.catalog()}
    for model in places.others():
        name = model.name
        if name.lower() in taken:
            name = f"{PREFIXES[model.origin]}:{name}"
        if name.lower() in taken:
            name = str(model.path)
        taken.add(name.lower())
        found.append(replace(model, name=name))
    return found


def _own() -> list[LocalModel]:
    """Everything complete in the cache."""
    root = models_dir()
    named = {entry_path(e): e for e in catalogue.catalog()}
    found = []
    for model in places.in_folder(root, "edgellm", None):
        entry = named.get(model.path)
        if entry is None and not model.file.startswith("hf/"):
            found.append(model)
        elif entry is not None and model.size == entry.size:
            found.append(replace(model, name=entry.name, license=entry.license, sha256=entry.sha256))
    return found + list(_own_repos())


def _own_repos() -> Iterator[LocalModel]:
    for folder in sorted((models_dir() / "hf").glob("*/*")):
        name, _, revision = folder.name.partition("@")
        known = notes.load(folder)
        repo = f"{folder.parent.name}/{name}"
        for model in places.in_folder(folder, "edgellm", repo, urllib.parse.unquote(revision) or None):
            files = [p.relative_to(folder).as_posix() for p in files_of(model)]
            sizes = [known.files[f].size for f in files if f in known.files]
            if not sizes or (len(sizes) == len(files) and sum(sizes) == model.size):
                yield replace(model, license=known.license)


def files_of(model: LocalModel) -> list[Path]:
    """All files of a model, in order."""
    return shard_paths(model.path) or [model.path]


def find(text: str) -> LocalModel | None:
    """The model that `list_local` lists under this name, in any case, or with its program's prefix before it."""
    spelt = {text.lower(), f"{text}:latest".lower()}
    for model in list_local():
        if model.name.lower() in spelt:
            return model
    prefix, _, rest = text.partition(":")
    for origin, known in PREFIXES.items():
        if prefix.lower() == known:
            spelt = {rest.lower(), f"{rest}:latest".lower()}
            return next((m for m in places.others() if m.origin == origin and m.name.lower() in spelt), None)
    return None


def of_repo(name: HFName) -> list[LocalModel]:
    """Models here of a repository and revision, the cache's first."""
    own = (m for m in _own_repos() if m.revision == name.revision)
    others = (m for m in places.others() if m.repo is not None and name.revision is None)
    return [m for models in (own, others) for m in models if (m.repo or "").lower() == name.repo.lower()]


def find_hf(name: HFName) -> LocalModel | None:
    """The model here that a spelling means, or None; then the repository has to be asked.

    Without a quantisation that is Q4_K_M, or what the repository offered instead when it was asked before.
    """
    models = of_repo(name)
    tag = name.tag
    if tag is None and name.file is None:
        tag = notes.load(repo_folder(name.repo, name.revision)).default or quants.DEFAULT
    for origin in dict.fromkeys(m.origin for m in models):
        here = {quants.Candidate(m.label, (m.file or m.name,)): m for m in models if m.origin == origin}
        among = list(here)
        if name.file is not None:
            among = quants.inside(among, name.file)
        if tag is not None:
            among = quants.matching(among, tag)
        if len(among) == 1:
            return here[among[0]]
    return None


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


def part_path(folder: Path, file: str, checksum: str) -> Path:
    """Where a file of a repository grows while it is downloaded; another content gets another place."""
    return folder / DOWNLOADS / f"{urllib.parse.quote(file, safe=' ')}.{checksum[:16]}.part"


def part_file(part: Path) -> str:
    """The file of the repository that a part becomes."""
    return urllib.parse.unquote(part.name.rsplit(".", 2)[0])


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
