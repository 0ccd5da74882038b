"""What the documentation says about the code is what the code says; its links lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = ["README.md", "CHANGELOG.md", "docs/models.md", "models/README.md", "tests/golden/README.md"]
PAGES += [f"docs/migrate/{name}.md" for name in ("llama.cpp", "ollama", "llama-cpp-python", "vllm")]


def test_generated_pages_are_up_to_date(repository: Path) -> None:
    command = [sys.executable, str(repository / "scripts" / "gen_docs.py"), "--check"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_code_books_in_c_are_those_of_python(repository: Path) -> None:
    command = [sys.executable, str(repository / "scripts" / "gen_codebooks.py"), "--check"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_the_compiled_declarations_are_the_headers(repository: Path) -> None:
    command = [sys.executable, str(repository / "scripts" / "gen_ffi.py"), "--check"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_the_check_finds(repository: Path, tmp_path: Path) -> None:
    """A README whose table was edited by hand, in a copy of what the script reads."""
    for folder in ("edgellm", "scripts", "tests", "docs", "models"):
        skip = shutil.ignore_patterns("__pycache__", "*.so", "real")
        shutil.copytree(repository / folder, tmp_path / folder, ignore=skip)
    text = (repository / "README.md").read_text(encoding="utf-8")
    (tmp_path / "README.md").write_text(text.replace("| `llama` |", "| `lama` |"), encoding="utf-8")
    command = [sys.executable, str(tmp_path / "scripts" / "gen_docs.py"), "--check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "README.md is out of date: run python scripts/gen_docs.py\n")


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(repository: Path, name: str) -> None:
    page = repository / name
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_command_in_the_readme_exists(repository: Path) -> None:
    from edgellm.cli import ALIASES, COMMANDS

    text = (repository / "README.md").read_text(encoding="utf-8")
    used = set(re.findall(r"^edgellm (\w+)", text, re.MULTILINE)) | set(re.findall(r"`edgellm (\w+)", text))
    assert used
    assert used <= {*COMMANDS, *ALIASES}


def test_the_python_of_the_readme_is_python(repository: Path) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        compile(block, "README.md", "exec")
