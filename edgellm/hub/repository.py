"""Fetches a model from a repository on Hugging Face into the cache, or finds its files where they already are.

Each file grows as `.download/FILE.HASH.part` and gets its name, by one rename, only when its checksum is right
and its bytes are on the disk. A set of files counts as a model when all of them are there. One process at a
time works on a repository; others wait.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from edgellm.core import log
from edgellm.core.errors import DownloadError, ModelNotFound
from edgellm.core.record import dataclass, replace
from edgellm.hub import inventory, notes, places, quants, remote, web
from edgellm.hub.local import DOWNLOADS, Progress
from edgellm.hub.lock import file_lock
from edgellm.hub.notes import FileNote
from edgellm.hub.places import LocalModel
from edgellm.hub.quants import Candidate
from edgellm.hub.remote import RemoteFile, Repository
from edgellm.hub.spelling import HFName
from edgellm.hub.web import Checksum, SourceError

MARGIN = 32 << 20  # disk space to leave free

_log = log.logger(__name__)


@dataclass(frozen=True, slots=True)
class _Work:
    """What one fetch is about: the files to bring, and what to call them."""

    name: HFName
    repository: Repository
    files: list[RemoteFile]
    title: str
    folder: Path
    report: Progress

    def total(self) -> int:
        return sum(f.size for f in self.files)

    def path(self, file: RemoteFile) -> Path:
        return self.folder / file.path

    def part(self, file: RemoteFile) -> Path:
        return inventory.part_path(self.folder, file.path, _need(file).value)


def fetch(name: HFName, progress: Progress | None = None) -> LocalModel:
    """The model that `name` means on Hugging Face now: what is here is verified, what is not is downloaded.

    Files of another program with the right checksums are used where they are. Raises ModelNotFound and
    DownloadError.
    """
    report = progress if progress is not None else _silent
    repository = remote.look(name)
    name = replace(name, repo=repository.name)
    candidates = quants.models(repository.files)
    chosen = _choose(name, repository, candidates)
    tag = quants.tag_of(chosen, candidates)
    files = [repository.files[f] for f in chosen.files]
    for file in files:
        _need(file)
    folder = inventory.repo_folder(name.repo, name.revision)
    work = _Work(name, repository, files, f"{replace(name, tag=None, file=None)}:{tag}", folder, report)
    asked_for_any = name.tag is None and name.file is None
    try:
        with file_lock(inventory.repo_lock(name.repo, name.revision), lambda: _waiting(work)):
            found = _elsewhere(work) or _bring(work)
            _note(work, tag if asked_for_any else "", found.origin == "edgellm")
    except OSError as e:
        if isinstance(e, DownloadError):
            raise
        raise DownloadError(
            f"{work.title} cannot be stored in {folder}: {e.strerror or e}. "
            f"Free space there, or set EDGELLM_CACHE to another folder."
        ) from e
    return replace(found, name=work.title, license=repository.license)


def damage(model: LocalModel, progress: Progress | None = None) -> str:
    """What is wrong with a model here, by the checksums that are known without the network; "" if nothing is."""
    report = progress if progress is not None else _silent
    known: dict[Path, Checksum] = {}
    if model.sha256 is not None:
        known[model.path] = Checksum(model.sha256)
    if model.origin == "edgellm" and model.repo is not None:
        folder = inventory.repo_folder(model.repo, model.revision)
        for file, note in notes.load(folder).files.items():
            known[folder / file] = Checksum(note.checksum, note.kind)
    paths = inventory.files_of(model)
    for path in paths:
        if path in known:
            size = path.stat().st_size
            label = f"verifying {model.name if len(paths) == 1 else path.name}"

            def progress(done: int, size: int = size, label: str = label) -> None:
                report(done, size, label)

            found = known[path].of(path, progress)
            if found != known[path].value:
                return f"{path}: {known[path].kind} is {found}, expected {known[path].value}"
    return ""


def _silent(done: int, total: int, label: str) -> None:
    return None


def _waiting(work: _Work) -> None:
    work.report(0, work.total(), f"waiting for another process that fetches from {work.repository.name}")


def _need(file: RemoteFile) -> Checksum:
    if file.checksum is None:
        raise DownloadError(
            f"{remote.endpoint()} states no checksum for {file.path}, so it could not be verified; not downloaded. "
            f"Use another HF_ENDPOINT, or download the file yourself and give its path."
        )
    return file.checksum


def _choose(name: HFName, repository: Repository, candidates: list[Candidate]) -> Candidate:
    """The model of the repository that is meant. ModelNotFound lists what there is; a fall-back is said."""
    if not candidates:
        raise ModelNotFound(remote.no_gguf(name.repo))
    among = candidates
    if name.file is not None:
        among = quants.inside(candidates, name.file)
        if not among:
            raise ModelNotFound(_no_file(name, candidates))
    if name.tag is not None:
        found = quants.matching(among, name.tag)
        if not found:
            what = f"file {name.tag}" if name.tag.lower().endswith(".gguf") else name.tag
            listed = remote.choices(name.repo, candidates, candidates)
            raise ModelNotFound(f"{remote.page(name.repo)} has no {what}. There are: {listed}.")
    else:
        found = quants.default(among)
        if len(found) > 1 and found[0].plain != quants.DEFAULT:
            listed = remote.choices(name.repo, found, candidates)
            raise ModelNotFound(
                f"{remote.page(name.repo)} has no {quants.DEFAULT}, which is meant where nothing is named. There are: "
                f"{listed}. Name one of them."
            )
    if len(found) > 1:
        listed = ", ".join(f"hf:{name.repo}/{c.files[0]}" for c in found[:20])
        raise ModelNotFound(f"{name} means {len(found)} models; name one of them: {listed}")
    chosen = found[0]
    if chosen.missing:
        absent = next(f for f in chosen.files if f not in repository.files)
        total = len(chosen.files) - 1 + chosen.missing
        raise ModelNotFound(
            f"{remote.page(name.repo)} lacks {chosen.missing} of the {total} files of this model: {absent}"
            + (", …" if chosen.missing > 1 else "")
        )
    exact = name.tag is not None or (name.file or "").lower().endswith(".gguf")
    if not exact and chosen.plain != quants.DEFAULT:
        only = "the only model" if among is candidates else f"the only model in {name.file}"
        _log.warning("%s has no %s: %s, %s, is used", name.repo, quants.DEFAULT, only, chosen.label or chosen.name)
    return chosen


def _no_file(name: HFName, candidates: list[Candidate]) -> str:
    import difflib

    names = [c.files[0] for c in candidates[:1000]]
    near = difflib.get_close_matches(name.file or "", names, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else f" There are: {', '.join(names[:20])}."
    return f"{remote.page(name.repo)} has no model file {name.file}.{hint}"


def _elsewhere(work: _Work) -> LocalModel | None:
    """The model in another program's folder, if its files are right; None also if the cache has it."""
    if all(work.path(f).is_file() for f in work.files):
        return None
    for model in places.others():
        paths = inventory.files_of(model)
        if (model.repo or "").lower() != work.name.repo.lower() or model.size != work.total():
            continue
        if len(paths) == len(work.files) and all(map(_Check(work).intact, work.files, paths)):
            return model
        _log.warning("%s of %s is not the file of %s and is left alone", model.path, model.origin, work.title)
    return None


class _Check:
    """Verifies files, with one bar over all of them."""

    def __init__(self, work: _Work) -> None:
        self._work, self._before = work, 0

    def intact(self, file: RemoteFile, path: Path) -> bool:
        """Whether the file is there with the right bytes."""
        work, before = self._work, self._before
        self._before += file.size
        try:
            if path.stat().st_size != file.size:
                return False
            checksum = _need(file)
            label = f"verifying {work.title}"
            return checksum.of(path, lambda done: work.report(before + done, work.total(), label)) == checksum.value
        except OSError:
            return False


def _bring(work: _Work) -> LocalModel:
    """Downloads what is not there, or not right, and puts each file into place."""
    (work.folder / DOWNLOADS).mkdir(parents=True, exist_ok=True)
    check = _Check(work)
    missing = [f for f in work.files if not check.intact(f, work.path(f))]
    _check_space(work, missing)
    licence = work.repository.license
    label = f"downloading {work.title}" + (f" (licence: {licence})" if licence else "")
    before = work.total() - sum(f.size for f in missing)
    for file in missing:

        def progress(done: int, offset: int = before) -> None:
            work.report(offset + done, work.total(), label)

        part = work.part(file)
        _download(work, file, part, progress)
        work.path(file).parent.mkdir(parents=True, exist_ok=True)
        os.replace(part, work.path(file))
        before += file.size
    _clean(work)
    first = work.path(work.files[0])
    return next(
        m for m in places.in_folder(work.folder, "edgellm", work.name.repo, work.name.revision) if m.path == first
    )


def _download(work: _Work, file: RemoteFile, part: Path, progress: Callable[[int], None]) -> None:
    url = work.repository.url(file.path)
    try:
        web.download(url, part, size=file.size, checksum=_need(file), auth=remote.authorization(), progress=progress)
    except SourceError as e:
        if e.code == "GatedRepo" or (e.status in (401, 403) and work.repository.gated):
            raise remote.gated(work.name.repo) from e
        raise remote.unreachable(work.name, e) from e


def _check_space(work: _Work, missing: Sequence[RemoteFile]) -> None:
    """DownloadError unless the rest of the files fits."""
    needed = MARGIN
    for file in missing:
        with contextlib.suppress(OSError):
            needed -= min(work.part(file).stat().st_size, file.size)
        needed += file.size
    free = shutil.disk_usage(work.folder).free
    if missing and free < needed:
        raise DownloadError(
            f"{work.title} needs {needed / 1e6:.0f} MB more in {work.folder}, but {free / 1e6:.0f} MB are free. "
            f"Free space there, or set EDGELLM_CACHE to a folder on another disk."
        )


def _clean(work: _Work) -> None:
    """Removes the remains of older downloads of these files, and the folder for them if nothing else is in it."""
    names = {f.path for f in work.files}
    downloads = work.folder / DOWNLOADS
    with contextlib.suppress(OSError):
        for part in downloads.glob("*.part"):
            if inventory.part_file(part) in names:
                part.unlink()
        downloads.rmdir()


def _note(work: _Work, default: str, in_cache: bool) -> None:
    """Keeps what was learnt: which model is the default one, what its files must be, the licence."""
    known = notes.load(work.folder)
    files = dict(known.files)
    for file in work.files if in_cache else ():
        checksum = _need(file)
        files[file.path] = FileNote(file.size, checksum.value, checksum.kind, work.repository.commit)
    notes.save(work.folder, notes.Notes(work.repository.license, default or known.default, files))
