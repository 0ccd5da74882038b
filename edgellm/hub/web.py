"""HTTP for the hub, with the standard library: small pages, and files that resume and are hashed on the way.

An Authorization header goes to the host it was made for, and on to where that host redirects within itself;
a redirect to any other host (scheme, name and port count) drops it for the rest of the chain.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from edgellm.core.errors import DownloadError
from edgellm.core.record import dataclass
from edgellm.core.version import __version__

TIMEOUT = 30.0  # seconds without a byte
LONGEST_WAIT = 60.0  # seconds that a server may ask us to wait (Retry-After) before one attempt
_PIECE = 1 << 18
_PAGE_LIMIT = 32 << 20
_FEW = 1 << 20  # an attempt that brought less than this counts as failed
_ATTEMPTS = 5
_BACKOFF = 0.25  # seconds; doubles with every failure in a row


class SourceError(Exception):
    """One way of getting a file failed; another may work. The text says how, for people.

    status: the HTTP status that was the reason, 0 when it was something else.
    code: the server's own word for it (the header X-Error-Code), or "".
    """

    def __init__(self, text: str, status: int = 0, code: str = "") -> None:
        super().__init__(text)
        self.status, self.code = status, code


class Hash(Protocol):
    """What hashlib makes."""

    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Checksum:
    """What a file must hash to. kind: "sha256", or "git": the sha1 of the git blob. value: hex, lower case."""

    value: str
    kind: str = "sha256"

    def new(self, size: int) -> Hash:
        """A hash for a file of `size` bytes."""
        if self.kind == "git":
            return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        return hashlib.sha256()

    def of(self, path: Path, progress: Callable[[int], None] | None = None) -> str:
        """The hash of this kind of a file; `progress` is called with the bytes read so far."""
        digest, done = self.new(path.stat().st_size), 0
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
                done += len(piece)
                if progress is not None:
                    progress(done)
        return digest.hexdigest()


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


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of a URL: what an Authorization header is for."""
    parts = urllib.parse.urlsplit(url)
    return (
        parts.scheme.lower(),
        (parts.hostname or "").lower(),
        parts.port or {"http": 80, "https": 443}.get(parts.scheme),
    )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, by the rule for Authorization; notes what Hugging Face says about the file on the way."""

    def __init__(self) -> None:
        self.linked = ""  # the hash of the file that the redirect leads to

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request:
        self.linked = self.linked or linked_hash(headers)
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            raise SourceError(f"{req.full_url} leads to something other than HTTP")
        new = urllib.request.Request(
            newurl.replace(" ", "%20"), headers=req.headers, origin_req_host=req.origin_req_host, unverifiable=True
        )
        auth = req.unredirected_hdrs.get("Authorization")
        if auth is not None and origin(newurl) == origin(req.full_url):
            new.add_unredirected_header("Authorization", auth)
        return new

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302  # unknown to Python 3.10


def linked_hash(headers: Message) -> str:
    """The sha256 that a Hugging Face endpoint states for a file, or ""."""
    match = re.fullmatch(r'(?:W/)?"?([0-9a-f]{64})"?', headers.get("X-Linked-Etag", ""))
    return match[1] if match else ""


def _open(
    url: str, headers: dict[str, str], auth: str | None, checksum: Checksum | None = None
) -> http.client.HTTPResponse:
    """The response to a GET. SourceError if the server states another sha256 than `checksum`."""
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise SourceError(f"{url} is not an http or https address")
    headers = {"User-Agent": f"edgellm/{__version__}", "Accept-Encoding": "identity", **headers}
    redirects = _Redirects()
    try:
        request = urllib.request.Request(url, headers=headers)
        if auth is not None:
            request.add_unredirected_header("Authorization", auth)
        response = urllib.request.build_opener(redirects).open(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as e:
        e.close()  # nobody reads its page; status and headers stay
        raise
    except ValueError as e:
        raise SourceError(f"{url}: {e}") from e
    if not isinstance(response, http.client.HTTPResponse):
        raise SourceError(f"{url} led to something other than HTTP")
    stated = redirects.linked or linked_hash(response.headers)
    if checksum is not None and checksum.kind == "sha256" and stated not in ("", checksum.value):
        response.close()
        raise SourceError(f"{url}: the server has another file there: sha256 {stated}, expected {checksum.value}")
    return response


def _reason(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return "".join(c for c in f"HTTP {error.code} {error.reason}" if c.isprintable())  # the server's own words
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__


def _failure(url: str, error: BaseException, more: str = "") -> SourceError:
    if isinstance(error, urllib.error.HTTPError):
        return SourceError(f"{url}: {_reason(error)}{more}", error.code, error.headers.get("X-Error-Code", ""))
    return SourceError(f"{url}: {_reason(error)}{more}")


def _wait(failures: int, error: BaseException | None) -> None:
    """Before the next attempt: as long as the server asks for, else longer with every failure in a row."""
    seconds = min(_BACKOFF * 2**failures, 4.0)
    if isinstance(error, urllib.error.HTTPError):
        asked = error.headers.get("Retry-After", "")
        if asked.isascii() and asked.isdigit():
            seconds = min(max(float(asked), seconds), LONGEST_WAIT)
    time.sleep(seconds)


def get_page(url: str, accept: str, auth: str | None, attempts: int = 1) -> tuple[str, bytes, str]:
    """A page of at most 32 MiB: (its content type, its bytes, the address it came from). SourceError.

    attempts: how often to try when the server is busy or the connection breaks.
    """
    for failures in range(1, attempts + 1):
        try:
            with _open(url, {"Accept": accept}, auth) as response:
                body = response.read(_PAGE_LIMIT + 1)
                kind, where = response.headers.get_content_type(), response.url
            break
        except (OSError, http.client.HTTPException) as e:
            if failures == attempts or not _worth_retrying(e, url, True):
                raise _failure(url, e) from e
            _wait(failures, e)
    if len(body) > _PAGE_LIMIT:
        raise SourceError(f"{url}: the page is larger than {_PAGE_LIMIT} bytes")
    return kind, body, where


class Writer:
    """Appends to a file, hashing; OSErrors become DownloadError, so that they are not taken for the network's."""

    def __init__(self, path: Path, size: int, checksum: Checksum) -> None:
        self._path, self._size, self._checksum = path, size, checksum
        self.count = 0
        self._hash = checksum.new(size)
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
        self.count, self._hash = 0, self._checksum.new(self._size)

    def sync(self) -> None:
        """Everything written is on the disk, not only in the system's memory, before the file gets its name."""
        if self._file is not None:
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as e:
                raise self._error(e) from e

    def digest(self) -> str:
        return self._hash.hexdigest()

    def _error(self, e: OSError) -> DownloadError:
        return DownloadError(f"{self._path} cannot be written: {e.strerror or e}. Free space, or set EDGELLM_CACHE.")


def download(
    url: str,
    part: Path,
    *,
    size: int,
    checksum: Checksum,
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
    with Writer(part, size, checksum) as out:
        if out.count > size:
            out.restart()
        older = out.count
        while True:
            progress(out.count)
            before, problem = out.count, None
            if out.count < size:
                try:
                    _receive(url, out, size, checksum, auth, progress)
                except (OSError, http.client.HTTPException) as e:
                    if isinstance(e, DownloadError):
                        raise
                    if not _worth_retrying(e, url, out.count > before or failures > 0):
                        raise _failure(url, e) from e
                    problem = e
                    if isinstance(e, urllib.error.HTTPError) and e.code == 416:
                        out.restart()  # the server has fewer bytes than we do
            if out.count == size:
                if out.digest() == checksum.value:
                    return out.sync()
                found = out.digest()
                out.restart()
                if restarted or not older:
                    raise SourceError(
                        f"{url}: {checksum.kind} is {found}, expected {checksum.value}; the bytes were discarded"
                    )
                restarted = True
                continue
            failures = 0 if out.count - before >= _FEW else failures + 1
            if failures >= _ATTEMPTS:
                if problem is not None:
                    raise _failure(url, problem, f" ({failures} attempts)") from problem
                raise SourceError(f"{url}: the connection ends after {out.count} of {size} bytes ({failures} attempts)")
            _wait(failures, problem)


def _receive(
    url: str, out: Writer, size: int, checksum: Checksum, auth: str | None, progress: Callable[[int], None]
) -> None:
    """One request: appends what comes to `out`, from its end on if the server can."""
    headers = {"Range": f"bytes={out.count}-"} if out.count else {}
    with contextlib.closing(_open(url, headers, auth, checksum)) as response:
        if out.count and not _continues(response, out.count, size):
            out.restart()
            if response.status == 206:
                return  # another span than the one asked for: the next request asks for all
        while piece := response.read1(_PIECE):  # what has come, so that nothing is lost when no more does
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


def _worth_retrying(error: BaseException, url: str, had_contact: bool) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        # A host that we were redirected to refuses an address that has expired: the next redirect brings a new one.
        expired = error.code == 403 and origin(error.url or url) != origin(url)
        return error.code in (408, 416, 429) or error.code >= 500 or expired
    # A host that cannot be reached at all is not tried again: the next source may know a proxy.
    return had_contact
