"""Variants of the golden cases: the same model with keys and tensors added, changed or removed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN
from golden.materialize import materialize

from edgellm.gguf.reader import GGUFFile

FOLDERS = (GOLDEN / "archs", Path(__file__).parents[2] / "parity" / "data")
Variant = Callable[..., GGUFFile]


@pytest.fixture
def variant(tmp_path: Path) -> Iterator[Variant]:
    """variant("llama-dense", metadata={key: [type, value] or None}, tensors={name: shape or None}) -> open file."""
    with ExitStack() as stack:

        def make(name: str, metadata: dict[str, Any] | None = None, tensors: dict[str, Any] | None = None) -> GGUFFile:
            source = next(f / f"{name}.json" for f in FOLDERS if (f / f"{name}.json").exists())
            case = json.loads(source.read_text(encoding="utf-8"))
            for part, changes in (("metadata", metadata), ("tensors", tensors)):
                for key, value in (changes or {}).items():
                    if value is None:
                        del case[part][key]
                    else:
                        case[part][key] = value
            source, path = tmp_path / "case.json", tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"
            source.write_text(json.dumps(case), encoding="utf-8")
            materialize(source, path)
            return stack.enter_context(GGUFFile(path))

        yield make
