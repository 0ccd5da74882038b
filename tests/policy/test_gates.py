"""Things that only one place may do: call cffi, read the environment; and what the package may depend on."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
from policy.source import REPOSITORY, imports, parse, python_files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVIRONMENT_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
NAMELESS_FILES = {"utils.py", "util.py", "helpers.py", "helper.py", "common.py", "misc.py"}


def cffi_users(root: Path) -> list[str]:
    """Files outside edgellm/_native that import cffi."""
    return sorted(
        {
            str(file.relative_to(root))
            for file in python_files(root)
            if "_native" not in file.relative_to(root).parts
            and any(item.top in ("cffi", "_cffi_backend", "ctypes") for item in imports(file, root))
        }
    )


def environment_readers(root: Path) -> list[str]:
    """Places outside core/env.py that name os.environ or one of its relatives."""
    found = []
    for file in python_files(root):
        relative = file.relative_to(root)
        if relative.parts[1:] == ("core", "env.py"):
            continue
        for node in ast.walk(parse(file)):
            if isinstance(node, ast.Attribute):
                of_os = isinstance(node.value, ast.Name) and node.value.id == "os"
                names = {node.attr} if of_os else set()
            elif isinstance(node, ast.ImportFrom) and node.module == "os":
                names = {alias.name for alias in node.names}
            else:
                continue
            if names & ENVIRONMENT_NAMES:
                found.append(f"{relative}:{node.lineno}")
    return found


def test_only_native_imports_cffi() -> None:
    assert cffi_users(REPOSITORY) == []


def test_only_env_reads_the_environment() -> None:
    assert environment_readers(REPOSITORY) == []


@pytest.mark.parametrize("text", ["import os\nos.environ['A']", "import os\nos.getenv('A')", "from os import environ"])
def test_the_environment_check_finds(tmp_path: Path, text: str) -> None:
    (tmp_path / "edgellm" / "core").mkdir(parents=True)
    (tmp_path / "edgellm" / "core" / "config.py").write_text(text)
    (tmp_path / "edgellm" / "core" / "env.py").write_text(text)
    assert len(environment_readers(tmp_path)) == 1


@pytest.mark.parametrize("text", ["import cffi", "def f():\n    from cffi import FFI", "import ctypes.util"])
def test_the_cffi_check_finds(tmp_path: Path, text: str) -> None:
    for folder in ("models", "_native"):
        (tmp_path / "edgellm" / folder).mkdir(parents=True)
        (tmp_path / "edgellm" / folder / "x.py").write_text(text)
    assert cffi_users(tmp_path) == [str(Path("edgellm/models/x.py"))]


def test_every_dependency_is_imported_and_every_import_declared() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = project["dependencies"] + project["optional-dependencies"]["numba"]  # the other extras are programs
    names = [re.split(r"[^A-Za-z0-9_-]", text, maxsplit=1)[0] for text in needed]
    declared = {name.replace("-", "_").lower() for name in names}
    used = {item.top for file in python_files(REPOSITORY) for item in imports(file, REPOSITORY)}
    used = {"cffi" if name == "_cffi_backend" else name for name in used}  # what cffi's generated modules import
    used -= {"edgellm", "__future__", "_typeshed"} | set(sys.stdlib_module_names) | {"tomllib"}
    assert used == declared


def test_files_are_named_after_what_they_hold() -> None:
    bad = [str(f.relative_to(REPOSITORY)) for f in python_files(REPOSITORY) if f.name in NAMELESS_FILES]
    assert bad == []
