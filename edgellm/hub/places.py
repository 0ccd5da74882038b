"""Models that other programs downloaded: where those keep them, read-only. Nothing here writes or deletes.

Hugging Face   HF_HUB_CACHE/models--u--r/snapshots/COMMIT/file.gguf -> ../../blobs/SHA256; refs/main names a commit
LM Studio      HOME/models/u/r/file.gguf, or the folder set in its settings.json
llama.cpp      LLAMA_CACHE/u_r_file.gguf (older), or laid out like the Hugging Face cache (newer)
Ollama         OLLAMA_MODELS/manifests/HOST/NAMESPACE/NAME/TAG, a JSON file that names blobs/sha256-HEX

Unfinished downloads are not listed: each program keeps them under names of their own, or the sizes do not fit.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

from edgellm.core import env
from edgellm.core.errors import ConfigError
from edgellm.core.record import dataclass, replace
from edgellm.hub import quants

OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of Ollama's system service on Linux
_MANIFEST_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model on this machine.

    Attributes:
        name: what `resolve` takes for it.
        path: its (first) file. size: bytes, all files of a split model. modified: UTC.
        origin: whose it is: "edgellm", "Hugging Face", "LM Studio", "llama.cpp" or "Ollama".
        repo: "user/repository" on Hugging Face, where that is known; revision: other than main.
        label: its quantisation, "" if unknown; file: the path of the first file in the repository.
        sha256: of the file, where its place says so; license: where that is known.
    """

    name: str
    path: Path
    size: int
    modified: datetime
    origin: str = "edgellm"
    repo: str | None = None
    revision: str | None = None
    label: str = ""
    file: str = ""
    sha256: str | None = None
    license: str = ""


def others() -> Iterator[LocalModel]:
    """Models of other programs, place by place, each place in the order of names. Names may occur twice."""
    places = [(root, "Hugging Face") for root in _existing([_hf_cache_root()])]
    places += [(root, "llama.cpp") for root in _existing([_llama_cache()]) if root not in [p for p, _ in places]]
    for root, origin in places:
        yield from _sorted(hf_cache(root, origin))
        if origin == "llama.cpp":
            yield from _sorted(llama_cpp(root))
    for root in _existing(_lm_studio_roots()):
        yield from _sorted(lm_studio(root))
    for root in _existing(_ollama_roots()):
        yield from _sorted(ollama(root))


def _sorted(models: Iterator[LocalModel]) -> list[LocalModel]:
    return sorted(models, key=lambda m: m.name.lower())


def _existing(paths: list[Path | None]) -> list[Path]:
    found: dict[Path, None] = {}
    for path in paths:
        try:
            if path is not None and path.is_dir():
                found[path.resolve()] = None
        except OSError:  # not allowed to look
            continue
    return list(found)


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None


def _hf_cache_root() -> Path | None:
    try:
        return env.HF_HUB_CACHE.get()
    except ConfigError:  # no home
        return None


def _llama_cache() -> Path | None:
    """llama.cpp's own cache folder: where our own would lie by default, but on macOS."""
    set_by_user = env.LLAMA_CACHE.get()
    if set_by_user is not None:
        return set_by_user
    home = _home()
    if sys.platform == "darwin":
        return home / "Library/Caches/llama.cpp" if home else None
    try:
        return env.CACHE.default().parent / "llama.cpp"
    except ConfigError:  # no home
        return None


def _lm_studio_roots() -> list[Path | None]:
    home = _home()
    if home is None:
        return []
    base = home / ".lmstudio"
    pointer = _text(home / ".lmstudio-home-pointer").strip()
    if pointer:
        base = Path(pointer)
    roots: list[Path | None] = [base / "models", home / ".cache/lm-studio/models"]
    try:
        chosen = json.loads(_text(base / "settings.json") or "{}").get("downloadsFolder")
    except (ValueError, AttributeError, RecursionError):
        chosen = None
    return [Path(chosen), *roots] if isinstance(chosen, str) and chosen else roots


def _ollama_roots() -> list[Path | None]:
    set_by_user = env.OLLAMA_MODELS.get()
    if set_by_user is not None:
        return [set_by_user]
    home = _home()
    roots: list[Path | None] = [home / ".ollama" / "models"] if home else []
    return [*roots, OLLAMA_SERVICE] if sys.platform == "linux" else roots


def _text(path: Path) -> str:
    """A small text file, "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_MANIFEST_LIMIT).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def in_folder(root: Path, origin: str, repo: str | None, revision: str | None = None) -> Iterator[LocalModel]:
    """The complete models below a folder; hidden files and folders are left out. Names as in `_described`."""
    paths = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        inside = Path(folder).relative_to(root)
        paths += [(inside / f).as_posix() for f in files if not f.startswith(".")]
    return _described(root, paths, origin, repo, revision)


def _described(
    root: Path, paths: list[str], origin: str, repo: str | None, revision: str | None = None
) -> Iterator[LocalModel]:
    """The models that the files `paths` (inside `root`) make up.

    Named repo:QUANT, or repo:FILE where the quantisation does not say which; without a repository by their path
    without suffix. Sets that are not complete and links that lead nowhere are left out.
    """
    found = []
    for candidate in quants.models(paths):
        if candidate.missing:
            continue
        try:
            stats = [(root / f).stat() for f in candidate.files]
        except OSError:
            continue
        if all(s.st_size for s in stats):
            found.append((candidate, sum(s.st_size for s in stats), max(s.st_mtime for s in stats)))
    among = [candidate for candidate, _, _ in found]
    for candidate, size, mtime in found:
        name = Path(candidate.files[0]).with_suffix("").as_posix()
        if repo is not None:
            at = f"@{revision}" if revision else ""
            name = f"{repo}{at}:{quants.tag_of(candidate, among)}"
        path, when = root / candidate.files[0], datetime.fromtimestamp(mtime, tz=timezone.utc)
        yield LocalModel(name, path, size, when, origin, repo, revision, candidate.label, candidate.files[0])


def hf_cache(root: Path, origin: str = "Hugging Face") -> Iterator[LocalModel]:
    """Models in a cache of huggingface_hub: those of the newest snapshot, and older ones that it lacks."""
    for folder in _children(root):
        match = re.fullmatch(r"models--([^-].*?)--(.+)", folder.name)
        if match is None:
            continue
        main = _text(folder / "refs" / "main").strip()
        snapshots = _children(folder / "snapshots")
        snapshots.sort(key=lambda s: (s.name == main, _mtime(s)), reverse=True)
        seen: set[str] = set()
        for snapshot in snapshots:
            for model in in_folder(snapshot, origin, f"{match[1]}/{match[2]}"):
                if model.name not in seen:
                    seen.add(model.name)
                    yield _with_blob_hash(model)


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _with_blob_hash(model: LocalModel) -> LocalModel:
    """The cache names the blob of a large file by its sha256."""
    target = model.path.resolve().name
    return replace(model, sha256=target) if re.fullmatch(r"[0-9a-f]{64}", target) else model


def lm_studio(root: Path) -> Iterator[LocalModel]:
    """Models in LM Studio's folder: publisher/repository/files."""
    for publisher in _children(root):
        for repository in _children(publisher):
            yield from in_folder(repository, "LM Studio", f"{publisher.name}/{repository.name}")


def llama_cpp(root: Path) -> Iterator[LocalModel]:
    """Models that older llama.cpp downloaded: user_repository_file.gguf side by side."""
    groups: dict[str | None, list[str]] = {}
    for path in _children(root, folders=False):
        match = re.fullmatch(r"([^_]+)_(.+?-GGUF)_.+", path.name, re.IGNORECASE)
        groups.setdefault(f"{match[1]}/{match[2]}" if match else None, []).append(path.name)
    for repo, files in groups.items():
        for model in _described(root, files, "llama.cpp", repo):
            start = len(repo) + 1 if repo else 0
            yield replace(model, file=model.file[start:])


def ollama(root: Path) -> Iterator[LocalModel]:
    """Models of an Ollama store whose weights are one GGUF file, under Ollama's names."""
    manifests = root / "manifests"
    for host in _children(manifests):
        for namespace in _children(host):
            for model in _children(namespace):
                for manifest in _children(model, folders=False):
                    found = _of_manifest(root, manifest, host.name, namespace.name, model.name)
                    if found is not None:
                        yield found


def _of_manifest(root: Path, manifest: Path, host: str, namespace: str, model: str) -> LocalModel | None:
    try:
        layers = json.loads(_text(manifest))["layers"]
        weights = [x for x in layers if x["mediaType"] == "application/vnd.ollama.image.model"]
        if len(weights) != 1:
            return None
        match = re.fullmatch(r"sha256[:-]([0-9a-f]{64})", weights[0]["digest"])
        size = weights[0]["size"]
        if match is None or not isinstance(size, int):
            return None
        path = root / "blobs" / f"sha256-{match[1]}"
        stat = path.stat()
        if stat.st_size != size or not size:
            return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    tag = manifest.name
    name, repo, label = f"{model}:{tag}", None, ""
    if host != "registry.ollama.ai":
        name = f"{host}/{namespace}/{name}"
    elif namespace != "library":
        name = f"{namespace}/{name}"
    if host in ("hf.co", "huggingface.co"):
        repo, label = f"{namespace}/{model}", quants.label_of(f"{tag}.gguf")
    when = datetime.fromtimestamp(stat.st_mtime, tz=timezone.utc)
    return LocalModel(name, path, size, when, "Ollama", repo, None, label, "", match[1])


def _children(folder: Path, *, folders: bool = True) -> list[Path]:
    """The folders (or the files) in a folder, sorted; hidden ones and what cannot be read are left out."""
    try:
        found = sorted(folder.iterdir())
        return [p for p in found if not p.name.startswith(".") and (p.is_dir() if folders else p.is_file())]
    except OSError:
        return []
