"""The file of a saved session: its tokens, and the pages that were computed for them.

    edgellm session 1\\n      the version of this format
    {...}\\n                  JSON: fingerprint, tokens, computed, pages: per cache class [[entry, bytes], ...]
    pages                    as a backend of this fingerprint reads and writes them, one behind the other
    SHA-256                  32 bytes, of all before

What the pages mean is fixed by the fingerprint: numerics version, model and KV types.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from edgellm.core.errors import CacheError
from edgellm.engine.pins import Kept

FIRST_LINE = b"edgellm session 1\n"
_DIGEST = 32


def write(path: Path, fingerprint: str, tokens: list[int], kept: Kept) -> None:
    """Write the file in one move: what was at `path` stays until all is there. Raises CacheError."""
    sizes = [[[entry, len(data)] for entry, data in pages] for pages in kept.pages]
    header = {"fingerprint": fingerprint, "tokens": tokens, "computed": kept.n_tokens, "pages": sizes}
    digest = hashlib.sha256()
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            for piece in (FIRST_LINE, json.dumps(header, separators=(",", ":")).encode() + b"\n"):
                digest.update(piece)
                file.write(piece)
            for pages in kept.pages:
                for _, data in pages:
                    digest.update(data)
                    file.write(data)
            file.write(digest.digest())
        os.replace(part, path)
    except OSError as e:
        part.unlink(missing_ok=True)
        raise CacheError(f"{path}: the session could not be saved: {e}") from e


def read(path: Path, fingerprint: str) -> tuple[list[int], Kept]:
    """Tokens and pages. Raises CacheError for a file that is none, damaged, of another version or another model."""
    try:
        data = path.read_bytes()
    except OSError as e:
        raise CacheError(f"{path}: the session could not be read: {e}") from e
    if not data.startswith(FIRST_LINE):
        found = data[: len(FIRST_LINE)].split(b"\n")[0]
        raise CacheError(f"{path}: begins with {found!r}, expected {FIRST_LINE!r}: not a session of this version")
    body = memoryview(data)[:-_DIGEST]
    if hashlib.sha256(body).digest() != data[-_DIGEST:]:
        raise CacheError(f"{path}: the session is damaged or cut short: its checksum is not that of its contents")
    try:
        end = data.index(b"\n", len(FIRST_LINE))
        header: dict[str, Any] = json.loads(data[len(FIRST_LINE) : end])
        other, tokens = header["fingerprint"], header["tokens"]
        kept, at = _pages(header, body, end + 1), len(body)
    except (ValueError, KeyError, TypeError) as e:
        raise CacheError(f"{path}: the session's header is not one: {e}") from e
    if other != fingerprint:
        raise CacheError(
            f"{path}: the session belongs to {other}, the open model is {fingerprint}: open the same file with the "
            f"same kv_type and version, or start from the text"
        )
    if not 0 <= kept.n_tokens <= len(tokens) or at != end + 1 + sum(len(d) for p in kept.pages for _, d in p):
        raise CacheError(f"{path}: the session's header does not fit its contents")
    return tokens, kept


def _pages(header: dict[str, Any], body: memoryview, at: int) -> Kept:
    pages: list[list[tuple[int, bytes]]] = []
    for sizes in header["pages"]:
        pages.append([])
        for entry, size in sizes:
            pages[-1].append((int(entry), bytes(body[at : at + size])))
            at += size
    return Kept(int(header["computed"]), pages)
