"""Public names are listed once: `__all__` says what is there, and the error tree is in it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import edgellm
from edgellm.core import errors

CONTRACT = ["LLM", "SamplingParams", "Tokenizer", "GGUFFile", "__version__", "numerics_version"]


def packages() -> list[str]:
    return [
        m.name for m in pkgutil.walk_packages(edgellm.__path__, "edgellm.") if m.name != "edgellm.__main__"
    ]


@pytest.mark.parametrize("name", ["edgellm", *packages()])
def test_all_names_what_is_there(name: str) -> None:
    """A module that has __all__ defines every name in it, once; importing any module works by itself."""
    module: ModuleType = importlib.import_module(name)
    listed = list(getattr(module, "__all__", ()))
    assert len(listed) == len(set(listed))
    assert [n for n in listed if not hasattr(module, n)] == []


def test_the_public_names_are_all_listed() -> None:
    assert [name for name in CONTRACT if name not in edgellm.__all__] == []
    public = {
        name
        for name, value in vars(edgellm).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "annotations"
    }
    assert public - set(edgellm.__all__) == set()


def test_every_error_is_public() -> None:
    tree = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.EdgeLLMError)
    }
    assert len(tree) > 10
    assert tree - set(edgellm.__all__) == set()
