"""Tracked files speak of the project alone: no paths of one machine, no ticket numbers, no built files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from policy.source import tracked_files

# Written in pieces, so that this file passes its own check.
FORBIDDEN = {
    "a path of one machine": re.compile(r"(?<![\w.$}~<>*-])/(?:work|home|root|Users|scratch)" + r"/\w"),
    "a drive of one machine": re.compile(r"\b[C-Z]:\\" + r"Users\b"),
    "a ticket number": re.compile(r"\b(?:issue|ticket)\s+#?\d" + r"+\b", re.IGNORECASE),
    "a credential": re.compile(r"\b(?:ghp|hf|github_pat)" + r"_[A-Za-z0-9]{20,}"),
}
BINARY = {".npz", ".npy", ".png", ".xz"}
BUILT = {".so", ".dylib", ".dll", ".o", ".a", ".whl", ".pyc", ".gguf", ".safetensors"}


def findings(name: str, text: str) -> list[str]:
    """Every forbidden thing in a text, with its line."""
    return [
        f"{name}:{number}: {what}: {match.group()!r}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in FORBIDDEN.items()
        if (match := pattern.search(line))
    ]


def test_no_forbidden_words(repository: Path) -> None:
    found = []
    for path in tracked_files(repository):
        if path.suffix not in BINARY:
            found += findings(path.relative_to(repository).as_posix(), path.read_text(encoding="utf-8"))
    assert found == []


def test_nothing_built_is_tracked(repository: Path) -> None:
    assert [str(p) for p in tracked_files(repository) if p.suffix in BUILT] == []


@pytest.mark.parametrize(
    "text",
    [
        "open('/work" + "/main/x')",
        "see issue" + " 12",
        "(Issue" + " #3)",
        "/home" + "/ann/models",
        "cd /root" + "/x",
    ],
)
def test_the_check_finds(text: str) -> None:
    assert len(findings("x", "fine\n" + text)) == 1


@pytest.mark.parametrize("text", ["https://example.org/home/page", "a/work/b", "the issue is 3 bytes", "~/.cache"])
def test_the_check_passes(text: str) -> None:
    assert findings("x", text) == []
