"""The error tree: one root, the standard bases, the wordings that clients match."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from edgellm.core import errors

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, Exception)]


def test_everything_derives_from_one_root() -> None:
    assert all(issubclass(c, errors.EdgeLLMError) for c in CLASSES)


@pytest.mark.parametrize(
    ("error", "base"),
    [
        (errors.GGUFError, ValueError),
        (errors.ModelNotFound, FileNotFoundError),
        (errors.DownloadError, OSError),
        (errors.ConfigError, ValueError),
        (errors.RequestError, ValueError),
        (errors.EngineError, RuntimeError),
        (errors.NumericsError, ArithmeticError),
        (errors.NativeError, RuntimeError),
    ],
)
def test_standard_bases(error: type, base: type) -> None:
    assert issubclass(error, base)


def test_messages_survive_the_oserror_bases() -> None:
    assert str(errors.ModelNotFound("no model 'x'")) == "no model 'x'"
    assert str(errors.DownloadError("offline")) == "offline"


def test_context_overflow_wording() -> None:
    error = errors.ContextOverflow(5213, 4096)
    assert str(error).startswith(
        "request (5213 tokens) exceeds the available context size (4096 tokens): "
        "this model's maximum context length is 4096 tokens."
    )
    assert (error.n_prompt, error.n_ctx) == (5213, 4096)
    page = Path(__file__).parents[3] / "docs" / "errors.md"
    assert str(error) in page.read_text()


def test_every_error_is_in_the_docs_and_the_tree() -> None:
    page = (Path(__file__).parents[3] / "docs" / "errors.md").read_text()
    for c in CLASSES:
        assert f"`{c.__name__}`" in page or c is errors.EdgeLLMError, c.__name__
        assert c.__name__ in (errors.__doc__ or ""), c.__name__
