"""edgellm: run GGUF language models on the CPU, with the same bits always.

import edgellm
with edgellm.LLM("smollm2:135m") as llm:
    print(llm.chat("Name three colors.", temperature=0))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgellm.async_llm import AsyncLLM
    from edgellm.core.config import SamplingParams
    from edgellm.core.errors import (
        CacheError,
        CapacityError,
        ConfigError,
        ContextOverflow,
        DownloadError,
        EdgeLLMError,
        EngineError,
        GGUFError,
        ModelError,
        ModelNotFound,
        NativeError,
        NumericsError,
        RequestError,
        TemplateError,
        TokenizerError,
        UnsupportedModel,
    )
    from edgellm.core.results import Choice, Chunk, Completion, Logprobs, Score, Timings, TokenLogprob, Usage
    from edgellm.core.version import NUMERICS_VERSION as numerics_version
    from edgellm.core.version import __version__
    from edgellm.gguf.reader import GGUFFile
    from edgellm.llm import LLM
    from edgellm.tokenizer import Tokenizer

_MODULES = {
    "edgellm.async_llm": "AsyncLLM",
    "edgellm.core.config": "SamplingParams",
    "edgellm.core.errors": "CacheError CapacityError ConfigError ContextOverflow DownloadError EdgeLLMError "
    "EngineError GGUFError ModelError ModelNotFound NativeError NumericsError RequestError TemplateError "
    "TokenizerError UnsupportedModel",
    "edgellm.core.results": "Choice Chunk Completion Logprobs Score Timings TokenLogprob Usage",
    "edgellm.core.version": "NUMERICS_VERSION __version__",
    "edgellm.gguf.reader": "GGUFFile",
    "edgellm.llm": "LLM",
    "edgellm.tokenizer": "Tokenizer",
}
"""Where the public names are. They are imported when first used: the command line needs few of them to begin."""

_WHERE = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    inside = "NUMERICS_VERSION" if name == "numerics_version" else name
    if name in __all__ and inside in _WHERE:
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_WHERE[inside]), inside)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "LLM",
    "AsyncLLM",
    "CacheError",
    "CapacityError",
    "Choice",
    "Chunk",
    "Completion",
    "ConfigError",
    "ContextOverflow",
    "DownloadError",
    "EdgeLLMError",
    "EngineError",
    "GGUFError",
    "GGUFFile",
    "Logprobs",
    "ModelError",
    "ModelNotFound",
    "NativeError",
    "NumericsError",
    "RequestError",
    "SamplingParams",
    "Score",
    "TemplateError",
    "Timings",
    "TokenLogprob",
    "Tokenizer",
    "TokenizerError",
    "UnsupportedModel",
    "Usage",
    "__version__",
    "numerics_version",
]
