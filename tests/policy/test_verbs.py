"""The Makefile is a thin alias of scripts/dev.py, and the version is written once."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path


def dev(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / "scripts" / "dev.py"), *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True)


def test_make_and_dev_have_the_same_verbs(repository: Path) -> None:
    listed = dev(repository, "help")
    assert listed.returncode == 0
    described = re.findall(r"^  (\w+) +\S", listed.stdout, re.MULTILINE)
    line = re.search(r"^VERBS := (.*)$", (repository / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    assert sorted(line.group(1).split()) == sorted(described)
    assert {"help", "chat", "test", "check", "bench", "wheel"} <= set(described)


def test_no_verb_is_help(repository: Path) -> None:
    assert dev(repository).stdout == dev(repository, "help").stdout


def test_an_unknown_verb_is_a_usage_error_that_lists_the_verbs(repository: Path) -> None:
    done = dev(repository, "tset")
    assert done.returncode == 2
    assert "'tset'" in done.stderr
    assert "test" in done.stderr


def test_one_version(repository: Path) -> None:
    text = (repository / "edgellm" / "core" / "version.py").read_text()
    written = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert written is not None
    version = written.group(1)
    assert importlib.metadata.version("edgellm") == version
    others = [
        name
        for name in ("pyproject.toml", "CMakeLists.txt", "native/CMakeLists.txt")
        if re.search(rf"(?<![\d.]){re.escape(version)}(?![\d.])", (repository / name).read_text())
    ]
    assert others == []
