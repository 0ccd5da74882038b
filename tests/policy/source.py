"""Reading the project's own source: which modules there are, what they import, what git tracks."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module: `module` is absolute, `name` is what a `from` statement takes out of it, or ""."""

    file: Path
    line: int
    module: str
    name: str

    @property
    def top(self) -> str:
        return self.module.split(".", 1)[0]


def module_name(file: Path, root: Path) -> str:
    """edgellm/models/plan.py -> edgellm.models.plan; a package's own file ends in .__init__."""
    return ".".join(file.relative_to(root).with_suffix("").parts)


def python_files(root: Path, folder: str = "edgellm") -> list[Path]:
    return sorted((root / folder).rglob("*.py"))


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def imports(file: Path, root: Path) -> Iterator[Import]:
    """Every import of a file: at the top, in functions, under TYPE_CHECKING, by name at run time."""
    package = module_name(file, root).split(".")[:-1]
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name, "")
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(file, node.lineno, module, alias.name)
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0]
            if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
                yield Import(file, node.lineno, str(first.value), "")


def tracked_files(root: Path = REPOSITORY) -> list[Path]:
    """Files that git tracks and that are there; skips the test outside a checkout."""
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        pytest.skip(f"not a git checkout: {e}")
    return [p for name in done.stdout.split("\0") if name and (p := root / name).is_file()]
