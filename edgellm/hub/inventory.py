"""Models on this machine: in the cache and in other programs' folders, listed and found by what people write."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path

from edgellm.core.record import replace
from edgellm.gguf.split import shard_paths
from edgellm.hub import catalogue, notes, places, quants
from edgellm.hub.local import DOWNLOADS, entry_path, lock_path, models_dir
from edgellm.hub.places import LocalModel
from edgellm.hub.spelling import HFName

PREFIXES = {"Hugging Face": "hf-cache", "LM Studio": "lmstudio", "llama.cpp": "llama.cpp", "Ollama": "ollama"}
"""Origin -> what before a colon always means a model of that program."""


def repo_folder(repo: str, revision: str | None) -> Path:
    """Where models of a repository lie, or will lie."""
    user, _, name = repo.partition("/")
    at = "@" + urllib.parse.quote(revision, safe="") if revision else ""
    return models_dir() / "hf" / user / f"{name}{at}"


def repo_lock(repo: str, revision: str | None) -> Path:
    """The lock of a repository's folder."""
    folder = repo_folder(repo, revision)
    return lock_path(f"hf--{folder.parent.name}--{folder.name}")


def part_path(folder: Path, file: str, checksum: str) -> Path:
    """Where a file of a repository grows while it is downloaded; another content gets another place."""
    return folder / DOWNLOADS / f"{urllib.parse.quote(file, safe=' ')}.{checksum[:16]}.part"


def part_file(part: Path) -> str:
    """The file of the repository that a part becomes."""
    return urllib.parse.unquote(part.name.rsplit(".", 2)[0])


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


def of_repo(name: HFName) -> Iterator[LocalModel]:
    """Models here of a repository and revision, the cache's first. Other programs keep no revisions apart."""
    sources = [_own_repos(), places.others()] if name.revision is None else [_own_repos()]
    for model in chain.from_iterable(sources):
        if (model.repo or "").lower() == name.repo.lower() and model.revision == name.revision:
            yield model


def _folder(name: HFName) -> Path:
    """The folder of a name's repository, whatever its capitals."""
    wanted = repo_folder(name.repo, name.revision)
    for folder in (models_dir() / "hf").glob("*/*"):
        if str(folder).lower() == str(wanted).lower():
            return folder
    return wanted


def find_hf(name: HFName) -> LocalModel | None:
    """The model here that a spelling means, or None; then the repository has to be asked.

    Without a quantisation that is Q4_K_M, or what the repository offered instead when it was asked before.
    """
    tag = name.tag
    if tag is None and name.file is None:
        tag = notes.load(_folder(name)).default or quants.DEFAULT
    for _, models in groupby(of_repo(name), lambda m: m.origin):
        here = {quants.Candidate(m.label, (m.file or m.name,)): m for m in models}
        among = list(here)
        if name.file is not None:
            among = quants.inside(among, name.file)
        if tag is not None:
            among = quants.matching(among, tag)
        if len(among) == 1:
            return here[among[0]]
    return None
