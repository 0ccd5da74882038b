"""Ways of getting a wheel: straight from the package index, else through pip or uv, whichever is there.

The direct way comes first: it resumes, shows progress and needs nothing. pip and uv know about proxies,
certificates and private indexes that are set up for them alone. None of them installs anything.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from edgellm.core.errors import DownloadError
from edgellm.hub.catalogue import Wheel
from edgellm.hub.index import find_file, index_url
from edgellm.hub.web import Checksum, SourceError, download

Bytes = Callable[[int], None]  # called with the bytes of the wheel that are there
Source = Callable[[Wheel, Path, Bytes], None]  # brings the wheel to the path; SourceError if it cannot


def from_index(wheel: Wheel, part: Path, progress: Bytes) -> None:
    """Through the index's simple API, streaming into `part`, on from what it already holds."""
    file = find_file(index_url(), wheel.project, wheel.filename)
    if file.sha256 is not None and file.sha256 != wheel.sha256:
        raise SourceError(f"the index has another {wheel.filename}: sha256 {file.sha256}, expected {wheel.sha256}")
    checksum = Checksum(wheel.sha256)
    download(file.url, part, size=wheel.size, checksum=checksum, auth=file.auth, progress=progress)


def from_pip(wheel: Wheel, part: Path, progress: Bytes) -> None:
    """Through `pip download` of this Python."""
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise SourceError("pip is not installed for this Python")
    _run([sys.executable, "-m", "pip"], wheel, part, progress)


def from_uv(wheel: Wheel, part: Path, progress: Bytes) -> None:
    """Through `pip download`, with a pip that uv brings along."""
    uv = shutil.which("uv")
    if uv is None:
        raise SourceError("uv is not installed")
    _run([uv, "tool", "run", "--quiet", "pip"], wheel, part, progress)


SOURCES: tuple[tuple[str, Source], ...] = (("index", from_index), ("pip", from_pip), ("uv", from_uv))


def _run(pip: Sequence[str], wheel: Wheel, part: Path, progress: Bytes) -> None:
    progress(0)
    options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input", "--quiet"]
    with tempfile.TemporaryDirectory(dir=part.parent, prefix="pip-") as folder:
        command = [*pip, "download", *options, "--dest", folder, f"{wheel.project}=={wheel.version}"]
        try:
            # In its own folder: `python -m` would take a pip.py from the current one.
            done = subprocess.run(
                command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
            )
        except OSError as e:
            raise SourceError(f"{pip[0]} cannot be run: {e.strerror}") from e
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise SourceError(next((x for x in reversed(lines) if x.startswith("ERROR")), lines[-1]))
        got = Path(folder) / wheel.filename
        if not got.is_file():
            raise SourceError(f"it brought {', '.join(sorted(os.listdir(folder))) or 'nothing'}")
        found = file_sha256(got)
        if found != wheel.sha256:
            raise SourceError(f"sha256 of {wheel.filename} is {found}, expected {wheel.sha256}")
        try:
            os.replace(got, part)
        except OSError as e:
            raise DownloadError(f"{part} cannot be written: {e.strerror}") from e
    progress(wheel.size)


def file_sha256(path: Path, progress: Bytes | None = None) -> str:
    """The sha256 of a file; `progress` is called with the bytes read so far."""
    return Checksum("").of(path, progress)
