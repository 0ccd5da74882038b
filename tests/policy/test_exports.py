"""Public names are listed once: `__all__` says what is there, and the error tree is in it."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest
from policy.source import REPOSITORY, module_name, python_files

CONTRACT = ["LLM", "AsyncLLM", "SamplingParams", "Tokenizer", "GGUFFile", "__version__", "numerics_version"]
MODULES = sorted(
    name.removesuffix(".__init__")
    for name in (module_name(file, REPOSITORY) for file in python_files(REPOSITORY))
    if not name.endswith(".__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_all_names_what_is_there(name: str) -> None:
    """Any module can be imported; one that has __all__ defines every name in it, once."""
    module = importlib.import_module(name)
    listed = list(getattr(module, "__all__", ()))
    assert len(listed) == len(set(listed))
    assert [n for n in listed if not hasattr(module, n)] == []


def test_the_public_names_are_all_listed() -> None:
    edgellm = importlib.import_module("edgellm")
    assert [name for name in CONTRACT if name not in edgellm.__all__] == []
    public = {
        name
        for name, value in vars(edgellm).items()
        if not name.startswith("_") and str(getattr(value, "__module__", "")).startswith("edgellm")
    }
    assert public - set(edgellm.__all__) == set()


def test_every_error_is_public() -> None:
    edgellm = importlib.import_module("edgellm")
    errors = importlib.import_module("edgellm.core.errors")
    tree = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.EdgeLLMError)
    }
    assert len(tree) > 10
    assert tree - set(edgellm.__all__) == set()


def test_importing_edgellm_is_quiet_and_leaves_the_terminal_libraries_out() -> None:
    """`import edgellm` in a server or a script must not pay for the command line."""
    code = "import sys, edgellm; print(sorted({'rich', 'prompt_toolkit', 'gguf'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")
