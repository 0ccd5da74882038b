"""Every command and every Python block of docs/migrate runs, and those of the README's first screen.

A page is run in a folder with `model.gguf` and `notes.txt`, by an account whose caches hold the same model: the
catalogue's, Ollama's under the name smollm2, and Hugging Face's as user/repository-GGUF:Q4_1. There is no network.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgellm import hub
from edgellm.core import env
from edgellm.hub.local import entry_path

PAGES = [
    "docs/migrate/llama.cpp.md",
    "docs/migrate/ollama.md",
    "docs/migrate/llama-cpp-python.md",
    "docs/migrate/vllm.md",
]
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
REPOSITORY_NAME = "models--user--repository-GGUF"


@dataclass(frozen=True)
class Account:
    """A folder to work in, and the environment of the commands that are run there."""

    folder: Path
    environment: dict[str, str]

    def run(self, command: str | list[str], typed: str = "") -> str:
        """What a command prints; it must succeed. typed: its standard input."""
        done = subprocess.run(
            command,
            shell=isinstance(command, str),
            cwd=self.folder,
            env=self.environment,
            input=typed,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def put(source: Path, target: Path) -> Path:
    """A second name of a file, or a copy: some commands delete what they are given."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target


def fill_ollama(model: Path, root: Path) -> None:
    """Ollama's store with the model as smollm2:latest."""
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    put(model, root / "blobs" / f"sha256-{digest}")
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest = root / "manifests" / "registry.ollama.ai" / "library" / "smollm2" / "latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [{**layer, "size": model.stat().st_size}]}))


def fill_hugging_face(model: Path, root: Path) -> None:
    """The Hugging Face cache with the model as user/repository-GGUF:Q4_1."""
    commit = "c" * 40
    put(model, root / REPOSITORY_NAME / "snapshots" / commit / "repository-Q4_1.gguf")
    (root / REPOSITORY_NAME / "refs").mkdir()
    (root / REPOSITORY_NAME / "refs" / "main").write_text(commit)


@pytest.fixture
def account(smollm2_path: Path, tmp_path: Path, clean_environment: pytest.MonkeyPatch) -> Account:
    home, folder, cache = tmp_path / "home", tmp_path / "here", tmp_path / "cache"
    clean_environment.setenv("EDGELLM_CACHE", str(cache))
    (entry,) = [e for e in hub.catalog() if e.name == "smollm2:135m"]
    put(smollm2_path, entry_path(entry))
    put(smollm2_path, folder / "model.gguf")
    (folder / "notes.txt").write_text("The meeting is on Monday.\n")
    fill_ollama(smollm2_path, home / ".ollama" / "models")
    fill_hugging_face(smollm2_path, home / ".cache" / "huggingface" / "hub")
    given = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "OLLAMA_MODELS", "LLAMA_CACHE")}
    places = {"HOME": str(home), "USERPROFILE": str(home), "EDGELLM_STATE": str(tmp_path / "state")}
    path = os.pathsep.join([str(Path(sys.executable).parent), given["PATH"]])
    return Account(folder, {**given, **places, "PATH": path, "HF_HUB_OFFLINE": "1"})


def commands(text: str) -> list[str]:
    """The commands of a page: the second cell of each row of a table, where it begins like one."""
    cells = [re.split(r"(?<!\\)\|", line)[2].strip() for line in text.splitlines() if re.match(r"\| .* \| ", line)]
    spans = [m[1].replace("\\|", "|") for cell in cells for m in re.finditer(r"`([^`]+)`", cell)]
    return [s for s in spans if re.match(r"(cat notes\.txt \| )?edgellm ", s)]


def python_blocks(text: str) -> list[str]:
    return [m[2] for m in BLOCK.finditer(text) if m[1] == "python"]


def test_commands_are_found() -> None:
    page = '| a | b |\n| --- | --- |\n| `x` | `edgellm run m "a"` |\n| `y \\| x` | `cat notes.txt \\| edgellm run` |\n'
    assert commands(page) == ['edgellm run m "a"', "cat notes.txt | edgellm run"]
    assert commands("| option | `edgellm doctor` | more |\nedgellm run\n") == ["edgellm doctor"]


def test_every_page_is_listed(repository: Path) -> None:
    assert sorted(p.relative_to(repository).as_posix() for p in (repository / "docs/migrate").iterdir()) == sorted(
        PAGES
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the commands are written for a POSIX shell")
@pytest.mark.parametrize("page", PAGES)
def test_a_page(repository: Path, account: Account, page: str) -> None:
    text = (repository / page).read_text(encoding="utf-8")
    blocks, found = python_blocks(text), commands(text)
    assert blocks or found
    assert {m[1] for m in BLOCK.finditer(text)} <= {"python"}  # no other kind of block that nobody runs
    for block in blocks:
        assert account.run([sys.executable, "-W", "error", "-c", block]) != ""
    deleting = [c for c in found if c.startswith("edgellm rm")]
    for command in [c for c in found if c not in deleting] + deleting:
        typed = "Hi\n" if command.startswith("edgellm chat") else ""
        assert account.run(command, typed) != "" or command in deleting, command


@pytest.mark.skipif(os.name == "nt", reason="the commands are written for a POSIX shell")
def test_the_first_screen(repository: Path, account: Account) -> None:
    """What the README shows first is what comes out: by the same-bits rule, on every machine."""
    text = (repository / "README.md").read_text(encoding="utf-8")
    shown = [m[2] for m in BLOCK.finditer(text) if m[1] == "console"]
    assert shown
    for block in shown:
        command, _, output = block.removeprefix("$ ").partition("\n")
        assert account.run(command) == output
    assert account.run([sys.executable, "-W", "error", "-c", python_blocks(text)[0]]).startswith(
        shown[0].split("\n", 1)[1]
    )


@pytest.mark.slow
def test_the_other_python_of_the_readme(repository: Path, account: Account, gemma3_path: Path) -> None:
    (entry,) = [e for e in hub.catalog() if e.name == "gemma3:270m-base"]
    put(gemma3_path, entry_path(entry))
    assert env.CACHE.get() == account.folder.parent / "cache"
    for block in python_blocks((repository / "README.md").read_text(encoding="utf-8"))[1:]:
        assert account.run([sys.executable, "-W", "error", "-c", block]) != ""
