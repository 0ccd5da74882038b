"""edgellm: run GGUF language models on the CPU, with the same bits always.

import edgellm
with edgellm.LLM("smollm2:135m") as llm:
    print(llm.chat("Name three colors.", temperature=0))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from edgellm.core.results import Choice, Chunk, Completion, Logprobs, Timings, TokenLogprob, Usage
from edgellm.core.version import NUMERICS_VERSION as numerics_version
from edgellm.core.version import __version__

if TYPE_CHECKING:
    from edgellm.gguf.reader import GGUFFile
    from edgellm.llm import LLM
    from edgellm.tokenizer import Tokenizer

_LAZY = {"LLM": "edgellm.llm", "GGUFFile": "edgellm.gguf.reader", "Tokenizer": "edgellm.tokenizer"}
"""Names imported when first used, so that `import edgellm` stays cheap."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "LLM",
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
