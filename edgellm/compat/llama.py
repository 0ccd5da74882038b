"""`Llama`: llama-cpp-python's class over `edgellm.LLM`."""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgellm.compat import arguments
from edgellm.compat.formats import template_of
from edgellm.compat.pretrained import model_name
from edgellm.compat.responses import Reply, Response
from edgellm.compat.state import LlamaState
from edgellm.core.config import as_integer
from edgellm.core.errors import ConfigError, ContextOverflow, RequestError
from edgellm.core.log import logger
from edgellm.core.results import Completion, TokenLogprob
from edgellm.core.types import F32
from edgellm.gguf import GGUFFile
from edgellm.llm import LLM

_log = logger(__name__)

_SAMPLING = frozenset(
    "max_tokens temperature top_p min_p typical_p frequency_penalty presence_penalty repeat_penalty top_k seed "
    "mirostat_mode mirostat_tau mirostat_eta stop logit_bias logprobs top_logprobs".split()
)
"""Arguments of the calls that `_sampling` takes."""


class Llama:
    """A model with llama-cpp-python's calls, their arguments, defaults and results.

    model_path: as there, or anything else that edgellm.LLM opens. options: the constructor's keyword arguments there;
    `edgellm.compat.arguments.CONSTRUCTOR` says what becomes of each.

    llm: the edgellm.LLM that does the work; both can be used side by side. Safe to use from several threads, except
    for `eval`, `sample`, `generate(reset=False)`, `reset` and `load_state`, which share one list of tokens.

    Raises ConfigError for an option that is refused, TypeError for an unknown one, and what edgellm.LLM raises.
    """

    def __init__(self, model_path: str, **options: Any) -> None:
        ignored = arguments.check(arguments.CONSTRUCTOR, options, ConfigError)
        self._options = options
        chosen = {name: a.default for name, a in arguments.CONSTRUCTOR.items()} | options
        self.model_path = os.fspath(model_path)
        self.verbose = bool(chosen["verbose"])
        self.chat_format: str | None = chosen["chat_format"]
        self.chat_handler: Callable[..., Any] | None = chosen["chat_handler"]
        self.last_n_tokens_size = chosen["last_n_tokens_size"]
        self._logits_all = bool(chosen["logits_all"])
        self._spm_infill = bool(chosen["spm_infill"])
        self._pooling = arguments.pooling(chosen["pooling_type"])
        self._tokens: list[int] = []
        self.set_seed(chosen["seed"])
        template_of(self.chat_format, "", "")  # a name that is none is said before the model is loaded
        self._say(ignored)
        batches = [chosen[name] for name in ("n_batch", "n_ubatch") if chosen[name] is not None]
        self.llm = LLM(
            self.model_path,
            n_ctx=chosen["n_ctx"] or None,
            n_threads=chosen["n_threads"] or None,
            kv_type=(arguments.kv_type(chosen["type_k"]), arguments.kv_type(chosen["type_v"])),
            weights="auto" if chosen["use_mmap"] in (True, None) else "tiles",
            n_batch=min(batches, default=512),
            draft=None if chosen["draft_model"] is None else "prompt",
        )
        self._tokenizer = self.llm.tokenizer
        self._template = template_of(
            self.chat_format, self._special_text(self._tokenizer.bos_id), self._special_text(self._tokenizer.eos_id)
        )

    @classmethod
    def from_pretrained(cls, repo_id: str, filename: str | None, **options: Any) -> Llama:
        """Open a model of Hugging Face, from this machine where it is here. filename: may be a pattern (* ? [).

        Raises ModelNotFound unless exactly one model matches, DownloadError, and what the constructor raises.
        """
        given = {name: options.pop(name) for name in arguments.FROM_PRETRAINED if name in options}
        ignored = arguments.check(arguments.FROM_PRETRAINED, given, ConfigError)
        llama = cls(model_name(repo_id, filename), **options)
        llama._say(ignored)
        return llama

    # -- text ------------------------------------------------------------------------------------------------------

    def create_completion(
        self,
        prompt: str | list[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | list[str] | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: Any = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: dict[int, float] | None = None,
    ) -> Any:
        """Continue a text: a dict in the shape of OpenAI's text completions; with stream=True an iterator of them.

        prompt: text, in which control tokens count, or token ids. suffix: what is to follow the text that is asked
        for; the model must have tokens to fill in the middle. max_tokens: None, 0 or less is no limit but the context.
        Raises RequestError (a ValueError), ContextOverflow when the prompt does not fit.
        """
        given = locals()
        _refuse(tfs_z=tfs_z, stopping_criteria=stopping_criteria, logits_processor=logits_processor, grammar=grammar)
        if not isinstance(prompt, str | list):
            raise TypeError(f"prompt must be text or a list of token ids, found {type(prompt).__name__}")
        ids = self._prompt_ids(prompt, suffix)
        if not ids:
            raise RequestError("the prompt has no tokens: give at least one")
        sampling = self._sampling({name: value for name, value in given.items() if name in _SAMPLING})
        text = prompt if isinstance(prompt, str) else self.llm.detokenize(prompt)
        reply = self._reply(model, text if echo else "", len(text))
        if stream:
            return reply.text_chunks(self.llm.generate(ids, stream=True, on_error="raise", **sampling))
        if echo and logprobs is not None:
            sampling["prompt_logprobs"] = logprobs
        completion = self.llm.generate(ids, on_error="raise", **sampling)
        return reply.text(completion, self._scored_prompt(ids, completion) if echo else [])

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: list[dict[str, Any]],
        functions: Any = None,
        function_call: Any = None,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | list[str] | None = None,
        seed: int | None = None,
        response_format: dict[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: dict[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
    ) -> Any:
        """Answer a conversation: a dict in the shape of OpenAI's chat completions; with stream=True an iterator.

        Text in messages is never read as control tokens. Raises RequestError, TemplateError for a model without a
        chat template (name a chat_format then), ContextOverflow.
        """
        given = {k: v for k, v in locals().items() if k != "self"}
        if self.chat_handler is not None:
            return self.chat_handler(llama=self, **given)
        _refuse(
            tfs_z=tfs_z,
            logits_processor=logits_processor,
            grammar=grammar,
            functions=functions,
            function_call=function_call,
        )
        if tool_choice not in (None, "auto", "none"):
            raise RequestError(f'tool_choice must be "auto" or "none" in this release, found {tool_choice!r:.80}')
        if response_format is not None and response_format.get("type") == "text":
            response_format = None
        sampling = self._sampling({name: value for name, value in given.items() if name in _SAMPLING})
        tools = None if tool_choice == "none" else tools
        reply = self._reply(model)
        if self._template is None:
            ask: dict[str, Any] = {
                "messages": messages,
                "tools": tools,
                "response_format": response_format,
                "on_error": "raise",
            }
            if stream:
                return reply.chat_chunks(self.llm.chat(stream=True, **ask, **sampling))
            return reply.chat(self.llm.chat(**ask, **sampling))
        if response_format is not None:
            raise RequestError("response_format needs the model file's own template: leave chat_format out")
        ids = self.chat_tokens(messages, tools=tools)
        if stream:
            return reply.chat_chunks(self.llm.generate(ids, stream=True, on_error="raise", **sampling))
        return reply.chat(self.llm.generate(ids, on_error="raise", **sampling))

    def chat_tokens(self, messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None) -> list[int]:
        """Token ids of a conversation in this object's chat_format, ready for the answer."""
        if self._template is None:
            return self.llm.chat_tokens(messages, tools=tools)
        return self._tokenizer.encode_segments(self._template.apply(messages, tools=tools).segments)

    # -- tokens ----------------------------------------------------------------------------------------------------

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of UTF-8 text. add_bos: BOS (and EOS) where the model wants them; special: read control tokens."""
        if not isinstance(text, bytes | bytearray):
            raise RequestError(f"text must be bytes, found {type(text).__name__}: write text.encode()")
        try:
            decoded = bytes(text).decode("utf-8")
        except UnicodeDecodeError as e:
            raise RequestError(f"text is not UTF-8 at byte {e.start}") from None
        return self.llm.tokenize(decoded, add_special=add_bos, parse_special=special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of token ids, which need not be whole characters; special: also write control tokens.

        The space that a SentencePiece model writes before its first word is left out behind a BOS only.
        """
        ids = list(tokens)
        data = b"".join(self._piece(i, special) for i in ids)
        return data[1:] if ids and ids[0] == self._tokenizer.bos_id and data[:1] == b" " else data

    def generate(self, tokens: Sequence[int], *, reset: bool = True, **sampling: Any) -> Iterator[int]:
        """Token ids that follow others, one by one, up to and including one that ends the answer.

        sampling: temp, top_k, top_p, min_p, typical_p, the penalties and mirostat_*, as in create_completion. Nothing
        can be sent into the iterator. reset=False: the tokens come behind those that `eval` was given.
        """
        ids = [*([] if reset else self._tokens), *tokens]
        chunks = self.llm.generate(ids, stream=True, on_error="raise", **self._step_sampling(sampling))

        def follow() -> Iterator[int]:
            with closing(chunks):  # leaving this iterator stops the work
                for chunk in chunks:
                    yield from chunk.token_ids

        return follow()

    # -- step by step ----------------------------------------------------------------------------------------------

    def eval(self, tokens: Sequence[int]) -> None:
        """Put tokens behind those that are there. They are computed when `sample` or `scores` need them."""
        ids = [*self._tokens, *tokens]
        if len(ids) > self.n_ctx():
            raise ContextOverflow(len(ids), self.n_ctx())
        self.llm.detokenize(ids)  # refuses what is no token
        self._tokens = [int(i) for i in ids]

    def sample(self, **sampling: Any) -> int:
        """The next token behind those that `eval` was given; it is not added to them. sampling: see `generate`."""
        if not self._tokens:
            raise RequestError("there is nothing to continue: call eval() first")
        options = self._step_sampling(sampling)
        if options["seed"] is not None:  # one draw a position: else every step would use the same random number
            mixed = hashlib.sha256(f"{options['seed']} {len(self._tokens)}".encode()).digest()
            options["seed"] = int.from_bytes(mixed[:8], "little")
        completion = self.llm.generate(self._tokens, on_error="raise", **options | {"max_tokens": 1})
        token: int = completion.token_ids[0]
        return token

    def reset(self) -> None:
        """Forget the tokens that `eval` was given."""
        self._tokens = []

    def save_state(self) -> LlamaState:
        """The tokens that `eval` was given, and the seed."""
        return LlamaState(self.input_ids, self.n_tokens, self._seed)

    def load_state(self, state: LlamaState) -> None:
        """Go back to a saved state."""
        self._tokens, self._seed = [int(i) for i in state.input_ids], state.seed

    @property
    def n_tokens(self) -> int:
        """How many tokens `eval` was given."""
        return len(self._tokens)

    @property
    def input_ids(self) -> NDArray[np.int32]:
        """The tokens that `eval` was given, int32 [n_tokens]."""
        return np.array(self._tokens, np.int32)

    @property
    def eval_tokens(self) -> deque[int]:
        """The same as a deque."""
        return deque(self._tokens, maxlen=self.n_ctx())

    @property
    def scores(self) -> F32:
        """Logits behind the tokens, float32 [n_tokens, V]; of the last token alone, [1, V], without logits_all."""
        return self.llm.logits(self._tokens, None if self._logits_all else "last")

    @property
    def eval_logits(self) -> deque[list[float]]:
        """`scores` as a deque of lists."""
        return deque(self.scores.tolist(), maxlen=self.n_ctx() if self._logits_all else 1)

    # -- embeddings ------------------------------------------------------------------------------------------------

    def create_embedding(self, input: str | list[str], model: str | None = None) -> Response:
        """One vector a text, in the shape of OpenAI's embeddings. Not normalised, as there."""
        texts = [input] if isinstance(input, str) else input
        vectors, count = self.embed(texts, return_count=True)
        data = [{"object": "embedding", "embedding": vector, "index": i} for i, vector in enumerate(vectors)]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": self.model_path if model is None else model, "usage": usage}

    def embed(
        self,
        input: str | list[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """A vector for a text, a list of them for a list; return_count: and how many tokens there were.

        truncate: what a text has beyond the context is left out; False: ContextOverflow.
        """
        texts = [input] if isinstance(input, str) else input
        ids = [self.llm.tokenize(text)[: self.n_ctx() if truncate else None] for text in texts]
        vectors = self.llm.embed(ids, pooling=self._pooling, normalize=normalize).tolist() if ids else []
        found = vectors[0] if isinstance(input, str) else vectors
        return (found, sum(map(len, ids))) if return_count else found

    # -- what was opened -------------------------------------------------------------------------------------------

    def n_ctx(self) -> int:
        """Tokens the context holds."""
        return self.llm.info.n_ctx

    def n_vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self.llm.info.n_vocab

    def n_embd(self) -> int:
        """Width of the model."""
        return int(self.metadata[f"{self.llm.info.architecture}.embedding_length"])

    def token_eos(self) -> int:
        """The token that ends a text, -1 where there is none."""
        return _or_none(self._tokenizer.eos_id)

    def token_bos(self) -> int:
        """The token that begins a text, -1 where there is none."""
        return _or_none(self._tokenizer.bos_id)

    def token_nl(self) -> int:
        """The token of a line end."""
        return self.llm.tokenize("\n", add_special=False)[-1]

    @cached_property
    def metadata(self) -> dict[str, str]:
        """The file's metadata as text, arrays left out."""
        with GGUFFile(self.llm.info.path) as file:
            values = dict(file.metadata)
            return {key: _text(value) for key, value in values.items() if isinstance(value, bool | int | float | str)}

    def set_seed(self, seed: int | None) -> None:
        """The seed of calls without one; -1, 2^32-1 and None: another one each call."""
        self._seed = None if seed in arguments.RANDOM_SEEDS else seed

    def set_cache(self, cache: Any) -> None:
        """Accepted and not needed: what requests have in common is the engine's business."""

    def close(self) -> None:
        """Stop all work and free everything. Idempotent."""
        self.llm.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"model_path": self.model_path, **self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @staticmethod
    def logits_to_logprobs(logits: NDArray[np.float32] | list[float], axis: int = -1) -> NDArray[np.float32]:
        """Natural logarithms of the softmax of logits."""
        values = np.asarray(logits, np.float32)
        values = values - values.max(axis=axis, keepdims=True)
        return np.asarray(values - np.log(np.exp(values).sum(axis=axis, keepdims=True)), np.float32)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _prompt_ids(self, prompt: str | list[int], suffix: str | None) -> list[int]:
        """Token ids of a prompt; with a suffix, what asks the model for the text between the two."""
        if suffix is not None:
            return self._infill_ids(prompt, suffix)
        if not isinstance(prompt, str):
            return prompt
        ids, bos = self.llm.tokenize(prompt, parse_special=True), self._tokenizer.bos_id
        if bos is None:
            return ids
        if self._tokenizer.add_bos and ids[:2] == [bos, bos]:
            del ids[0]  # the text spells one out
        return ids or [bos]

    def _infill_ids(self, prompt: str | list[int], suffix: str) -> list[int]:
        fim = self._tokenizer.fim_ids
        if not {"pre", "suf", "mid"} <= fim.keys():
            raise RequestError("suffix= needs a model with tokens to fill in the middle, which this one has not")
        before = self.llm.tokenize(prompt, add_special=False) if isinstance(prompt, str) else list(prompt)
        after = self.llm.tokenize(suffix, add_special=False)
        bos = [self._tokenizer.bos_id] if self._tokenizer.add_bos and self._tokenizer.bos_id is not None else []
        prefix, rest = [fim["pre"], *before], [fim["suf"], *after]
        return [*bos, *(rest + prefix if self._spm_infill else prefix + rest), fim["mid"]]

    def _scored_prompt(self, ids: list[int], completion: Completion) -> list[TokenLogprob]:
        """The prompt's tokens with their log-probabilities, a BOS left out; that of the first one means nothing."""
        _, *scored = completion.prompt_logprobs or [None]
        known = [t for t in scored if t is not None]
        if not known or ids[0] == self._tokenizer.bos_id:
            return known
        data = self._tokenizer.token_bytes(ids[0])
        return [TokenLogprob(ids[0], data.decode("utf-8", "replace"), data, 0.0), *known]

    def _sampling(self, options: dict[str, Any]) -> dict[str, Any]:
        """Options of a call in edgellm's terms."""
        options["mirostat"] = options.pop("mirostat_mode")
        max_tokens, top_k = (as_integer(options.get(name)) for name in ("max_tokens", "top_k"))
        if max_tokens is not None and max_tokens <= 0:
            options["max_tokens"] = None
        if top_k is not None:
            options["top_k"] = max(top_k, 0)
        if isinstance(options.get("logit_bias"), dict):  # the keys may be text, as JSON has them
            options["logit_bias"] = {_number(token): bias for token, bias in options["logit_bias"].items()}
        if options.get("mirostat") and options.get("temperature"):
            options["temperature"] = 1.0  # there, mirostat replaces the temperature too
        seed = options.get("seed")
        options["seed"] = self._seed if seed is None else None if seed in arguments.RANDOM_SEEDS else seed
        return options | {"repeat_last_n": self.last_n_tokens_size}

    def _step_sampling(self, given: dict[str, Any]) -> dict[str, Any]:
        """Options of `generate` and `sample`, with their defaults."""
        defaults = {
            "temp": 0.8,
            "top_k": 40,
            "top_p": 0.95,
            "min_p": 0.05,
            "typical_p": 1.0,
            "repeat_penalty": 1.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "mirostat_mode": 0,
            "mirostat_tau": 5.0,
            "mirostat_eta": 0.1,
        }
        _refuse(**{name: value for name, value in given.items() if name not in defaults})
        options = defaults | {name: value for name, value in given.items() if name in defaults}
        options["temperature"] = options.pop("temp")
        return self._sampling(options)

    def _say(self, ignored: list[str]) -> None:
        for text in ignored if self.verbose else ():
            _log.warning("%s", text)

    def _reply(self, model: str | None, prompt: str = "", offset: int = 0) -> Reply:
        return Reply(self.model_path if model is None else model, self._tokenizer.eog_ids, prompt, offset)

    def _piece(self, token: int, special: bool) -> bytes:
        data = self._tokenizer.token_bytes(token)
        return self._tokenizer.decode([token], special=True).encode() if special and not data else data

    def _special_text(self, token: int | None) -> str:
        return "" if token is None or not self._tokenizer.usable else self._tokenizer.token_text(token)


def _refuse(**given: Any) -> None:
    """RequestError for an argument of a call that is refused, TypeError for an unknown one."""
    arguments.check(arguments.CALL, given, RequestError)


def _number(token: object) -> object:
    return int(token) if isinstance(token, str) and re.fullmatch(r"[0-9]{1,10}", token) else token


def _or_none(token: int | None) -> int:
    return -1 if token is None else token


def _text(value: bool | int | float | str) -> str:
    """A value as llama.cpp writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:f}" if isinstance(value, float) else str(value)
