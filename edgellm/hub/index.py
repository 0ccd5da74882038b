"""The Python package index's simple API: which index is set up here, and where it has a file.

JSON (PEP 691) is asked for; the HTML form (PEP 503) that many mirrors serve is understood too.
"""

from __future__ import annotations

import configparser
import json
import re
import sys
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

from edgellm.core import env
from edgellm.core.record import dataclass
from edgellm.hub.web import SourceError, get_page, split_auth

DEFAULT_INDEX = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
_ACCEPT = f"{_JSON}, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of an index: its address, the sha256 that the index states (or None), an Authorization header."""

    url: str
    sha256: str | None
    auth: str | None


def index_url() -> str:
    """The index to use: PIP_INDEX_URL, UV_DEFAULT_INDEX, UV_INDEX_URL, pip's configuration files, or PyPI."""
    for variable in (env.PIP_INDEX_URL, env.UV_DEFAULT_INDEX, env.UV_INDEX_URL):
        value = variable.get()
        if value:
            return value.rstrip("/")
    return (_from_pip_conf(_pip_conf_files()) or DEFAULT_INDEX).rstrip("/")


def shown(url: str) -> str:
    """A URL for people: without user and password."""
    return split_auth(url)[0]


def _pip_conf_files() -> list[Path]:
    """pip's configuration files that matter here, the strongest last."""
    try:
        home = Path.home()
    except RuntimeError:
        return [Path(sys.prefix) / "pip.conf"]
    if sys.platform == "win32":
        return [home / "pip" / "pip.ini", home / "AppData/Roaming/pip/pip.ini", Path(sys.prefix) / "pip.ini"]
    files = [Path("/etc/pip.conf"), Path("/etc/xdg/pip/pip.conf"), home / ".pip/pip.conf"]
    if sys.platform == "darwin":
        files.append(home / "Library/Application Support/pip/pip.conf")
    return [*files, home / ".config/pip/pip.conf", Path(sys.prefix) / "pip.conf"]


def _from_pip_conf(files: list[Path]) -> str | None:
    parser = configparser.RawConfigParser()
    for file in files:
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself will complain about it
    value = parser.get("global", "index-url", fallback="").strip()
    return value or None


def find_file(index: str, project: str, filename: str) -> IndexFile:
    """Where `index` has the file `filename` of `project`. SourceError if it cannot be asked or has no such file."""
    base, auth = split_auth(index)
    url = f"{base.rstrip('/')}/{re.sub(r'[-_.]+', '-', project).lower()}/"
    kind, body, where = get_page(url, _ACCEPT, auth)
    files = _parse_json(url, body) if kind == _JSON else _parse_html(body)
    for name, address, sha256 in files:
        if name == filename:
            address = urllib.parse.urljoin(where, address)
            own = _origin(address) == _origin(base)
            address, its_auth = split_auth(address)
            return IndexFile(address, sha256, its_auth or (auth if own else None))
    raise SourceError(f"{url} does not list {filename}")


def _origin(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2]


def _parse_json(url: str, body: bytes) -> list[tuple[str, str, str | None]]:
    try:
        found = []
        for file in json.loads(body)["files"]:
            sha256 = file.get("hashes", {}).get("sha256")
            found.append((str(file["filename"]), str(file["url"]), str(sha256) if sha256 else None))
        return found
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
        raise SourceError(f"{url}: the answer is not a package index page ({type(e).__name__}: {e})") from e


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs += [value for name, value in attrs if name == "href" and value]


def _parse_html(body: bytes) -> list[tuple[str, str, str | None]]:
    links = _Links()
    links.feed(body.decode("utf-8", "replace"))
    found = []
    for href in links.hrefs:
        address, _, fragment = href.partition("#")
        name = urllib.parse.unquote(urllib.parse.urlsplit(address).path.rpartition("/")[2])
        match = re.fullmatch(r"sha256=([0-9a-f]{64})", fragment)
        found.append((name, address, match[1] if match else None))
    return found
