"""A Hugging Face endpoint on 127.0.0.1 that misbehaves on request: the API, and files that it redirects to a CDN."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
from unit.hub.fake_index import send


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


@dataclass
class Repo:
    """One repository: its files, what its card says, who may read it."""

    files: dict[str, bytes] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=lambda: {"license": "apache-2.0"})
    tags: list[str] = field(default_factory=list)
    gated: str | bool = False
    private: bool = False
    small: set[str] = field(default_factory=set)  # files that are not in LFS
    revisions: dict[str, str] = field(default_factory=lambda: {"main": "c" * 40})

    def sibling(self, path: str) -> dict[str, Any]:
        data = self.files[path]
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        about: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": git}
        if path not in self.small:
            about["lfs"] = {"sha256": sha(data), "size": len(data), "pointerSize": 134}
        return about


@dataclass
class Request:
    path: str
    range: str | None
    auth: str | None
    status: int = 0


@dataclass
class Hub:
    """The server's contents and behaviour; change them between requests."""

    repos: dict[str, Repo] = field(default_factory=dict)
    url: str = ""
    token: str = ""  # the one that counts; others are refused
    accepted: bool = True  # its owner accepted the terms of gated repositories
    requests: list[Request] = field(default_factory=list)
    cdn: str = ""  # files are sent on to this server (itself by default); "direct": not sent on
    stored: dict[str, bytes] = field(default_factory=dict)  # sha256 -> what the CDN has, if not the file
    etag: str = ""  # stated instead of the truth
    ranges: bool = True
    shift: int = 0  # bytes by which the answer to a range is off
    cut_after: list[int] = field(default_factory=list)  # bytes to send of each coming CDN response
    cut_header: bool = False  # hang up instead of the next CDN response
    statuses: list[int] = field(default_factory=list)  # of the coming CDN responses, instead of the file
    api_statuses: list[int] = field(default_factory=list)
    retry_after: str = ""
    api_body: bytes | None = None  # instead of the API's answer
    moved: str = ""  # the API sends on to this server
    pace: float = 0.0  # seconds between 64 KiB
    gate: threading.Event | None = None  # files are sent up to byte gate_at, and further once it is set
    gate_at: int = 0
    stalls: int = 0  # coming CDN responses that stop half way and keep the connection
    search: list[str] = field(default_factory=list)  # what a search finds

    def add(self, name: str, files: dict[str, bytes], **more: Any) -> Repo:
        repo = self.repos[name] = Repo(files, **more)
        return repo

    def downloads(self) -> list[Request]:
        return [r for r in self.requests if r.path.startswith("/cdn/")]

    def api(self) -> list[Request]:
        return [r for r in self.requests if r.path.startswith("/api/")]


class HubHandler(BaseHTTPRequestHandler):
    index: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, h = self.index, self.headers
        self.request_ = Request(self.path, h["Range"], h["Authorization"])
        hub.requests.append(self.request_)
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if path.startswith("/cdn/"):
            return self.content(path.removeprefix("/cdn/").partition("/")[0])
        if hub.moved:
            return self.reply(302, Location=f"{hub.moved}{self.path}")
        if path == "/api/models":
            return self.json([{"id": name, "modelId": name} for name in hub.search])
        if path.startswith("/api/models/"):
            if hub.api_statuses and (status := hub.api_statuses.pop(0)) != 200:
                return self.reply(status, **({"Retry_After": hub.retry_after} if hub.retry_after else {}))
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            return self.about(name, revision or "main")
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        return self.file(match[1], match[2], match[3]) if match else self.reply(404)

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.request_.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def json(self, answer: Any) -> None:
        return self.reply(200, json.dumps(answer).encode(), Content_Type="application/json")

    def repo(self, name: str) -> Repo | None:
        """The repository, if who asks may know of it; else the refusal has been sent."""
        hub, auth = self.index, self.headers["Authorization"]
        if auth is not None and auth != f"Bearer {hub.token}":
            self.reply(401, b'{"error":"Invalid credentials in Authorization header"}')
            return None
        repo = next((r for n, r in hub.repos.items() if n.lower() == name.lower()), None)
        if repo is None or (repo.private and auth is None):
            self.reply(404 if auth else 401, b'{"error":"Repository not found"}', X_Error_Code="RepoNotFound")
            return None
        return repo

    def about(self, name: str, revision: str) -> None:
        repo = self.repo(name)
        if repo is None:
            return None
        commit = repo.revisions.get(revision) or (revision if revision in repo.revisions.values() else None)
        if commit is None:
            return self.reply(404, b'{"error":"Invalid rev id"}', X_Error_Code="RevisionNotFound")
        if self.index.api_body is not None:
            return self.reply(200, self.index.api_body, Content_Type="application/json")
        tags = [*repo.tags, "gguf"]
        siblings = [{"rfilename": "README.md", "size": 5, "blobId": "0" * 40}, *map(repo.sibling, repo.files)]
        name = next(n for n, r in self.index.repos.items() if r is repo)
        about = {"id": name, "modelId": name, "sha": commit, "gated": repo.gated, "private": repo.private}
        return self.json({**about, "tags": tags, "cardData": repo.card or None, "siblings": siblings})

    def file(self, name: str, commit: str, path: str) -> None:
        hub = self.index
        repo = self.repo(name)
        if repo is None:
            return None
        if repo.gated and self.headers["Authorization"] is None:
            return self.reply(401, b"gated", X_Error_Code="GatedRepo")
        if repo.gated and not hub.accepted:
            return self.reply(403, b"gated", X_Error_Code="GatedRepo")
        if path not in repo.files or commit not in repo.revisions.values():
            return self.reply(404, b"no such file", X_Error_Code="EntryNotFound")
        data = repo.files[path]
        hub.stored.setdefault(sha(data), data)
        if hub.cdn == "direct":
            return self.content(sha(data))
        etag = f'"{hub.etag or sha(data)}"'
        where = f"{hub.cdn or hub.url}/cdn/{sha(data)}/file?signature=secret"
        return self.reply(302, Location=where, X_Linked_Etag=etag, X_Linked_Size=str(len(data)))

    def content(self, name: str) -> None:
        hub = self.index
        if hub.cut_header:
            hub.cut_header = False
            self.close_connection = True
            return None
        if hub.statuses and (status := hub.statuses.pop(0)) != 200:
            return self.reply(status, **({"Retry_After": hub.retry_after} if hub.retry_after else {}))
        data = hub.stored.get(name)
        if data is None:
            return self.reply(404)
        start = 0
        if hub.ranges and (match := re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")):
            start = int(match[1]) + hub.shift
            if start >= len(data):
                return self.reply(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        body = data[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if hub.cut_after:
            body = body[: hub.cut_after.pop(0)]
            self.close_connection = True
        if hub.stalls:
            hub.stalls -= 1
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.connection.settimeout(60)
            self.connection.recv(1)  # until the client gives up
            self.close_connection = True
            return None
        send(self, body, start)
        return None


@dataclass
class HubWorld:
    """One test's machine with its endpoint; `model` is what u/r holds as Q4_K_M."""

    hub: Hub
    cache: Path
    home: Path
    model: bytes

    @property
    def folder(self) -> Path:
        return self.cache / "models" / "hf" / "u" / "r-GGUF"

    @property
    def path(self) -> Path:
        return self.folder / "r-Q4_K_M.gguf"

    @property
    def part(self) -> Path:
        return self.folder / ".download" / f"r-Q4_K_M.gguf.{sha(self.model)[:16]}.part"


class Bars:
    """Collects progress calls; checks each as it comes."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[tuple[int, int, str]] = []
        self.stop_at = stop_at

    def __call__(self, done: int, total: int, label: str) -> None:
        assert 0 <= done <= total
        self.calls.append((done, total, label))
        if self.stop_at is not None and "downloading" in label and done >= self.stop_at:
            raise KeyboardInterrupt

    def labels(self) -> list[str]:
        return list(dict.fromkeys(label for _, _, label in self.calls))


def finished(world: HubWorld) -> list[str]:
    """Files that are in place, whatever else lies around."""
    models = world.cache / "models"
    return sorted(p.relative_to(models).as_posix() for p in models.rglob("*.gguf") if ".download" not in p.parts)
