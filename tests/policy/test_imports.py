"""Arrows point down: a module imports lower layers only, and siblings in a layer not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy.source import REPOSITORY, imports, module_name, python_files

LAYERS = {
    "core": 0,
    "gguf": 1, "_native": 1,
    "models": 2, "tokenizer": 2, "chat": 2, "sampling": 2, "structured": 2, "kvcache": 2, "hub": 2,
    "backends": 3,
    "engine": 4,
    "session": 4.5,
    "llm": 5, "async_llm": 5,
    "compat": 5.2,  # other packages' interfaces over the façades
    "__init__": 5.5,  # the public names: above the façades, below the programs
    "server": 6,
    "cli": 7,
    "__main__": 8,
}  # fmt: skip


def part_of(module: str) -> str:
    """edgellm.models.plan -> models; edgellm -> __init__."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


def wrong_imports(root: Path) -> list[str]:
    """Every import in root/edgellm that does not point down."""
    wrong = []
    for file in python_files(root):
        own = part_of(module_name(file, root))
        if own not in LAYERS:
            wrong.append(f"{file.relative_to(root)}: {own} has no layer; add it to the table and to the design")
            continue
        for item in imports(file, root):
            if item.top != "edgellm":
                continue
            inner = item.module == "edgellm" and item.name in LAYERS
            target = item.name if inner else part_of(item.module)
            if target not in LAYERS:
                wrong.append(f"{file.relative_to(root)}:{item.line}: unknown part edgellm.{target}")
            elif target != own and LAYERS[target] >= LAYERS[own]:
                way = "sideways" if LAYERS[target] == LAYERS[own] else "up"
                wrong.append(f"{file.relative_to(root)}:{item.line}: {own} imports {target}: {way}")
    return wrong


def private_imports(root: Path) -> list[str]:
    """Names with a leading underscore that one part takes from another."""
    wrong = []
    for file in python_files(root):
        own = part_of(module_name(file, root))
        for item in imports(file, root):
            private = item.name.startswith("_") and not item.name.startswith("__") and item.name not in LAYERS
            if item.top == "edgellm" and private and part_of(item.module) != own:
                wrong.append(f"{file.relative_to(root)}:{item.line}: {item.module}.{item.name}")
    return wrong


def test_imports_point_down() -> None:
    assert wrong_imports(REPOSITORY) == []


def test_private_names_stay_inside_their_package() -> None:
    assert private_imports(REPOSITORY) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("core/errors.py", "import edgellm.gguf"),
        ("core/errors.py", "import edgellm"),
        ("models/plan.py", "from edgellm.backends.base import Backend"),
        ("models/plan.py", "from edgellm import engine"),
        ("models/plan.py", "from edgellm import LLM"),
        ("models/plan.py", "from ..engine import request"),
        ("models/plan.py", "from edgellm.kvcache import pages"),
        ("models/plan.py", "def f():\n    from edgellm.tokenizer import load"),
        ("models/plan.py", "if TYPE_CHECKING:\n    from edgellm.engine.request import Request"),
        ("models/plan.py", "import importlib\nx = importlib.import_module('edgellm.engine')"),
        ("gguf/reader.py", "from edgellm._native import library"),
        ("llm.py", "from edgellm.async_llm import AsyncLLM"),
        ("llm.py", "from . import cli"),
        ("utils.py", "x = 1"),
        ("models/plan.py", "import edgellm.helpers"),
    ],
)
def test_the_check_finds(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / "edgellm" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert len(wrong_imports(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("models/plan.py", "from edgellm.core.errors import ModelError\nfrom edgellm.gguf import reader"),
        ("models/plan.py", "from . import ops\nfrom .ops import Op\nimport edgellm.models.ops"),
        ("cli/chat.py", "import edgellm\nfrom edgellm import LLM\nfrom ..core import env"),
        ("__init__.py", "from edgellm.llm import LLM"),
        ("__main__.py", "from edgellm.cli import main"),
        ("core/log.py", "import logging"),
    ],
)
def test_the_check_passes(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / "edgellm" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    assert wrong_imports(tmp_path) == []


def test_the_private_check_finds(tmp_path: Path) -> None:
    path = tmp_path / "edgellm" / "engine" / "loop.py"
    path.parent.mkdir(parents=True)
    path.write_text("from edgellm.models.plan import _hidden\nfrom edgellm.engine.x import _mine\n")
    assert len(private_imports(tmp_path)) == 1
