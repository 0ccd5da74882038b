"""Every error edgellm raises, as one tree.

EdgeLLMError
├─ ModelError                      the file or the model in it
│  ├─ GGUFError (ValueError)       not a GGUF, truncated, inconsistent; names the field
│  ├─ ModelNotFound (FileNotFoundError)
│  ├─ UnsupportedModel             well formed, but needs something we do not do; names the key or tensor
│  ├─ DownloadError (OSError)      the network, a checksum, the disk
│  ├─ CacheError (OSError)         a tile cache or a saved session: damaged, another model's, no room for it
│  └─ TokenizerError               the vocabulary cannot be used (text calls only)
├─ ConfigError (ValueError)        an option or an EDGELLM_* variable
├─ RequestError (ValueError)       the caller's fault
│  ├─ ContextOverflow              prompt longer than the context; both numbers
│  └─ TemplateError                the chat template refused or failed
├─ CapacityError                   would fit at another time or in another size
├─ EngineError (RuntimeError)      the engine is closed, dead, or belongs to another process
├─ NumericsError (ArithmeticError) a non-finite activation: the request that had it fails
└─ NativeError (RuntimeError)      the native library: missing, wrong ABI, or an error code
"""

from __future__ import annotations


class EdgeLLMError(Exception):
    """Base of everything edgellm raises on purpose."""


class ModelError(EdgeLLMError):
    """Something is wrong with a model file, its name or its contents."""


class GGUFError(ModelError, ValueError):
    """The file is not a usable GGUF: the message names the field, what was found and what was expected."""


class ModelNotFound(ModelError, FileNotFoundError):
    """No local file, catalogue entry or remote repository answers to this name."""

    def __str__(self) -> str:  # FileNotFoundError would print errno syntax
        return str(self.args[0]) if self.args else ""


class UnsupportedModel(ModelError):
    """The file is sound but needs something edgellm does not do; names the key or tensor and the way out."""


class DownloadError(ModelError, OSError):
    """A download failed: unreachable, wrong checksum, no space. Nothing half-written is left in place."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class CacheError(ModelError, OSError):
    """A tile cache or a saved session cannot be used or written: damaged, another model's, no space.

    Nothing half-written is in place.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class TokenizerError(ModelError):
    """The vocabulary is absent, unknown or broken: token ids still work, text calls raise this."""


class ConfigError(EdgeLLMError, ValueError):
    """An option or an EDGELLM_* variable has a value that cannot be honoured."""


class RequestError(EdgeLLMError, ValueError):
    """The request itself is wrong; retrying it unchanged cannot succeed."""


class ContextOverflow(RequestError):
    """The prompt does not fit the context.

    Attributes:
        n_prompt: tokens in the prompt; a lower bound where counting them all would be wasted work ("at least").
        n_ctx: tokens the context holds.
    """

    def __init__(self, n_prompt: int, n_ctx: int, *, at_least: bool = False) -> None:
        self.n_prompt, self.n_ctx = n_prompt, n_ctx
        count = f"at least {n_prompt}" if at_least else f"{n_prompt}"
        super().__init__(
            f"request ({count} tokens) exceeds the available context size ({n_ctx} tokens): "
            f"this model's maximum context length is {n_ctx} tokens. Shorten the prompt or open the model "
            f"with a larger n_ctx."
        )


class TemplateError(RequestError):
    """The model's chat template refused the messages or failed; carries the template's own words."""


class CapacityError(EdgeLLMError):
    """Memory or queue space is short; the message lists what would fit."""


class EngineError(EdgeLLMError, RuntimeError):
    """The engine is closed, has died, or lives in the parent of this forked process."""


class NumericsError(EdgeLLMError, ArithmeticError):
    """A non-finite activation appeared while computing this request."""


class NativeError(EdgeLLMError, RuntimeError):
    """The native library is missing, has another ABI version, or returned an error code.

    Attributes:
        code: the library's status code, 0 when there is none.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        self.code = code
        super().__init__(message)
