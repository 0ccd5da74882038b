"""The ways in which people write the name of a model on Hugging Face, read into one form.

    u/r                                     u/r:Q8_0                  u/r:file.gguf
    hf:u/r, hf://u/r, hf.co/u/r, huggingface.co/u/r, https://...      the same, with or without :Q8_0
    hf:u/r/file.gguf                        hf:u/r@revision:Q8_0      hf:u/r@revision/folder/file.gguf
    https://huggingface.co/u/r/resolve/main/file.gguf?download=true   also /blob/ and /raw/
    https://huggingface.co/u/r/tree/main/folder                       the models of that folder
    https://huggingface.co/u/r?show_file_info=file.gguf               what the web page's address bar shows

The address set as HF_ENDPOINT is read like huggingface.co. Nothing here touches the network or the disk.
"""

from __future__ import annotations

import re
import urllib.parse

from edgellm.core.errors import ModelNotFound
from edgellm.core.record import dataclass

_PREFIX = re.compile(r"(?:(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/|hf:(?://)?)", re.IGNORECASE)
_BARE = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?:@[\w./-]+)?(?::[^:/\\]+)?", re.ASCII)
_PART = re.compile(r"[A-Za-z0-9_](?:[\w.-]{0,94}[\w-])?", re.ASCII)
_REVISION = re.compile(r"\w[\w./-]{0,199}", re.ASCII)
_VIEWS = ("discussions", "commit", "settings", "activity", "community")  # pages of a repository without a file
_PAGES = ("resolve", "blob", "raw", "tree", "blame", "edit", "commits")
_OTHER_KINDS = ("datasets", "spaces", "buckets", "collections", "docs", "papers", "blog")


@dataclass(frozen=True, slots=True)
class HFName:
    """A model on Hugging Face.

    Attributes:
        repo: "user/repository".
        revision: branch, tag or commit; None for main.
        tag: the quantisation, or the name of a file, in the user's spelling; None for the default.
        file: path inside the repository of a .gguf file, or of a folder; None for anything in it.
        explicit: not a bare u/r, which could have been meant as a path.
    """

    repo: str
    revision: str | None = None
    tag: str | None = None
    file: str | None = None
    explicit: bool = True

    def __str__(self) -> str:
        text = self.repo + (f"@{self.revision}" if self.revision else "")
        if self.file:
            return f"hf:{text}/{self.file}"
        return f"{text}:{self.tag}" if self.tag else text


def parse(text: str, endpoint: str) -> HFName | None:
    """What `text` names on Hugging Face, or None if it is no such spelling.

    endpoint: the address of the hub in use. ModelNotFound for what is one, but names no model.
    """
    text = text.strip()
    rest = _after_prefix(text, endpoint)
    if rest is not None:
        return _read(text, rest)
    if _BARE.fullmatch(text) and (":" in text or not text.lower().endswith(".gguf")):
        found = _read(text, text)
        return HFName(found.repo, found.revision, found.tag, found.file, explicit=False)
    return None


def _after_prefix(text: str, endpoint: str) -> str | None:
    """What follows the hub's address or the scheme, None if there is neither."""
    for prefix in (endpoint, endpoint.partition("://")[2]):
        if prefix and text.lower().startswith(prefix.lower() + "/"):
            return text[len(prefix) + 1 :]
    match = _PREFIX.match(text)
    return text[match.end() :] if match else None


def _read(text: str, rest: str) -> HFName:
    address = urllib.parse.urlsplit("//x/" + rest)
    parts = [urllib.parse.unquote(p) for p in address.path.split("/") if p]
    if parts[:2] == ["api", "models"]:
        parts = parts[2:]
    if parts and parts[0] in _OTHER_KINDS and len(parts) > 1:
        raise ModelNotFound(
            f"{text} is one of Hugging Face's {parts[0]}, not a model; expected USER/REPOSITORY[:QUANT]"
        )
    if len(parts) < 2:
        raise ModelNotFound(f"{text} names no repository on Hugging Face; expected USER/REPOSITORY[:QUANT]")
    tag = None
    if ":" in parts[-1]:
        parts[-1], _, tag = parts[-1].partition(":")
    name, at, revision = parts[1].partition("@")
    file = parts[2:]
    if at and len(file) >= 2 and revision == "refs":  # refs/pr/N
        revision, file = "/".join([revision, *file[:2]]), file[2:]
    elif not at and file and file[0] in _PAGES:
        taken = 4 if file[1:2] == ["refs"] else 2
        revision, file = "/".join(file[1:taken]), file[taken:]
    elif file and file[0] in _VIEWS:
        file = []
    shown = urllib.parse.parse_qs(address.query).get("show_file_info")
    if shown:
        file = shown[0].split("/")
    return _checked(text, f"{parts[0]}/{name}", revision, tag, "/".join(file))


def _checked(text: str, repo: str, revision: str, tag: str | None, file: str) -> HFName:
    for part in repo.split("/"):
        if not _PART.fullmatch(part) or ".." in part or "--" in part:
            raise ModelNotFound(f"{text}: {repo!r} is not the name of a repository; expected USER/REPOSITORY[:QUANT]")
    if revision and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise ModelNotFound(f"{text}: {revision!r} is not the name of a revision; expected a branch, a tag or a commit")
    if file and not safe_path(file):
        raise ModelNotFound(f"{text}: {file!r} is not the path of a file in a repository")
    if tag is not None and tag.lower() in ("", "latest"):
        tag = None
    return HFName(repo, None if revision in ("", "main") else revision, tag, file or None)


def safe_path(path: str) -> bool:
    """Whether a path from elsewhere may become one below a folder of ours, on any system."""
    parts = path.split("/")
    return (
        len(path) <= 500
        and not re.search(r'[\x00-\x1f\x7f-\x9f\\:*?"<>|]', path)
        and all(p and not p.startswith(".") and not p.endswith((".", " ")) for p in parts)
    )


def mirror_hint(text: str) -> str:
    """Advice for an address that looks like one of a mirror of Hugging Face, or ""."""
    match = re.fullmatch(r"(https?://[^/@\s]+)/[^/\s]+/[^/\s]+/(?:resolve|blob|raw|tree)/\S+", text)
    return f" If that is a mirror of Hugging Face, set HF_ENDPOINT={match[1]}." if match else ""
