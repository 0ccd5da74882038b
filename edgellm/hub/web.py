"""HTTP for the hub, with the standard library: small pages, and files that resume and are hashed on the way."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from edgellm.core.errors import DownloadError
from edgellm.core.version import __version__

TIMEOUT = 30.0  # seconds without a byte
_PIECE = 1 << 18
_PAGE_LIMIT = 32 << 20
_FEW = 1 << 20  # an attempt that brought less than this counts as failed
_ATTEMPTS = 5
_BACKOFF = 0.25  # seconds; doubles with every failure in a row


class SourceError(Exception):
    """One way of getting a file failed; another may work. The text says how, for people."""


def split_auth(url: str) -> tuple[str, str | None]:
    """Takes `user:password@` out of a URL: (URL without it, value for an Authorization header or None)."""
    parts = urllib.parse.urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    user, _, password = userinfo.partition(":")
    pair = f"{urllib.parse.unquote(user)}:{urllib.parse.unquote(password)}"
    token = base64.b64encode(pair.encode()).decode("ascii")
    return parts._replace(netloc=host).geturl(), f"Basic {token}"


def _open(url: str, headers: dict[str, str], auth: str | None) -> http.client.HTTPResponse:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise SourceError(f"{url} is not an http or https address")
    headers = {"User-Agent": f"edgellm/{__version__}", "Accept-Encoding": "identity", **headers}
    try:
        request = urllib.request.Request(url, headers=headers)
        if auth is not None:
            request.add_unredirected_header("Authorization", auth)  # never sent on to another host
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except ValueError as e:
        raise SourceError(f"{url}: {e}") from e
    if not isinstance(response, http.client.HTTPResponse):
        raise SourceError(f"{url} led to something other than HTTP")
    return response


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__


def get_page(url: str, accept: str, auth: str | None) -> tuple[str, bytes, str]:
    """A page of at most 32 MiB: (its content type, its bytes, the address it came from). SourceError."""
    try:
        with _open(url, {"Accept": accept}, auth) as response:
            body = response.read(_PAGE_LIMIT + 1)
            kind, where = response.headers.get_content_type(), response.url
    except (OSError, http.client.HTTPException) as e:
        raise SourceError(f"{url}: {_reason(e)}") from e
    if len(body) > _PAGE_LIMIT:
        raise SourceError(f"{url}: the page is larger than {_PAGE_LIMIT} bytes")
    return kind, body, where


class Writer:
    """Appends to a file, hashing; OSErrors become DownloadError, so that they are not taken for the network's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.count = 0
        self._hash = hashlib.sha256()
        self._file: BinaryIO | None = None

    def __enter__(self) -> Writer:
        try:
            self._file = open(self._path, "a+b")
            self._file.seek(0)
            while piece := self._file.read(_PIECE):
                self._hash.update(piece)
                self.count += len(piece)
        except OSError as e:
            raise self._error(e) from e
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as e:  # the last buffered bytes
                raise self._error(e) from e

    def write(self, piece: bytes) -> None:
        if self._file is None:
            raise DownloadError(f"{self._path} is not open")
        try:
            self._file.write(piece)
        except OSError as e:
            raise self._error(e) from e
        self._hash.update(piece)
        self.count += len(piece)

    def restart(self) -> None:
        """Forgets what is there."""
        if self._file is not None:
            try:
                self._file.truncate(0)
            except OSError as e:
                raise self._error(e) from e
        self.count, self._hash = 0, hashlib.sha256()

    def sha256(self) -> str:
        return self._hash.hexdigest()

    def _error(self, e: OSError) -> DownloadError:
        return DownloadError(f"{self._path} cannot be written: {e.strerror or e}. Free space, or set EDGELLM_CACHE.")


def download(
    url: str,
    part: Path,
    *,
    size: int,
    sha256: str,
    auth: str | None = None,
    progress: Callable[[int], None],
) -> None:
    """Brings the file `url` of known size and hash to `part`, going on from the bytes that `part` already has.

    progress: called with the bytes of this file that are there. Interruptions are retried from where they
    happened; a wrong hash after going on from older bytes is retried once from the start. When it fails for
    good, `part` keeps its bytes for the next try, unless they were wrong. Raises SourceError for the network
    and wrong contents, DownloadError for the disk.
    """
    restarted = False
    failures = 0
    with Writer(part) as out:
        if out.count > size:
            out.restart()
        older = out.count
        while True:
            progress(out.count)
            before, problem = out.count, ""
            if out.count < size:
                try:
                    _receive(url, out, size, auth, progress)
                except (OSError, http.client.HTTPException) as e:
                    if isinstance(e, DownloadError):
                        raise
                    if not _worth_retrying(e, out.count > before or failures > 0):
                        raise SourceError(f"{url}: {_reason(e)}") from e
                    problem = _reason(e)
                    if isinstance(e, urllib.error.HTTPError) and e.code == 416:
                        out.restart()  # the server has fewer bytes than we do
            if out.count == size:
                if out.sha256() == sha256:
                    return
                found = out.sha256()
                out.restart()
                if restarted or not older:
                    raise SourceError(f"{url}: sha256 is {found}, expected {sha256}; the bytes were discarded")
                restarted = True
                continue
            failures = 0 if out.count - before >= _FEW else failures + 1
            if failures >= _ATTEMPTS:
                problem = problem or f"the connection ends after {out.count} of {size} bytes"
                raise SourceError(f"{url}: {problem} ({failures} attempts)")
            time.sleep(min(_BACKOFF * 2**failures, 4.0))


def _receive(url: str, out: Writer, size: int, auth: str | None, progress: Callable[[int], None]) -> None:
    """One request: appends what comes to `out`, from its end on if the server can."""
    headers = {"Range": f"bytes={out.count}-"} if out.count else {}
    with contextlib.closing(_open(url, headers, auth)) as response:
        if out.count and not _continues(response, out.count, size):
            out.restart()
        while piece := response.read(_PIECE):
            if out.count + len(piece) > size:
                out.restart()
                raise SourceError(f"{url}: the server sends more than the {size} bytes expected")
            out.write(piece)
            progress(out.count)


def _continues(response: http.client.HTTPResponse, offset: int, size: int) -> bool:
    """Whether a response to a range request begins at `offset` of a file of `size` bytes."""
    if response.status != 206:
        return False
    span, _, total = response.headers.get("Content-Range", "").partition("/")
    return span.startswith(f"bytes {offset}-") and total in (str(size), "*")


def _worth_retrying(error: BaseException, had_contact: bool) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 416, 429) or error.code >= 500
    # A host that cannot be reached at all is not tried again: the next source may know a proxy.
    return had_contact
