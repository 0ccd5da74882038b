"""What both façades are: an open model, with all that needs no waiting - checks, tokens, requests, descriptions.

LLM, AsyncLLM     wait for events, each in its own way
Front             arguments -> Request;  events -> Chunk, Completion
Engine            runs requests
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgellm.core.config import SamplingParams, as_integer
from edgellm.core.errors import ConfigError, ContextOverflow, EngineError, RequestError, TemplateError
from edgellm.core.record import replace
from edgellm.core.results import Completion, Score
from edgellm.core.types import F32
from edgellm.engine.arguments import Message, all_of, as_messages, is_ids, kv_pair, new_logits, row_range, token_ids
from edgellm.engine.embedding import Pool, pooling_of
from edgellm.engine.info import LLMInfo, LLMStats, count, describe
from edgellm.engine.loader import DISK_BYTES, PROMPT, Loaded, OpenOptions, open_model
from edgellm.engine.report import Chunks, completion_of, scored_tokens
from edgellm.engine.request import Request
from edgellm.hub import resolve
from edgellm.tokenizer import Tokenizer

Prompt = str | list[int]
Texts = Prompt | Sequence[str] | Sequence[list[int]]

MAX_CHOICES = 256

COUNTED_CHARS = 1 << 16
"""Texts up to this length are always tokenised, so that an overflow names the exact count."""

LEAST_AT_ONCE, FULL_STEPS = 64, 4
"""Of a list of prompts, so many are in the engine at a time at least, and so many steps' worth of sequences: the next
ones are there when others end, and the engine's memory does not grow with the list."""


class Front:
    """An open model. LLM documents the constructor."""

    def __init__(
        self,
        model: str | Path,
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        kv_type: str | tuple[str, str] = "f16",
        weights: str = "auto",
        backend: str = "auto",
        isa: str | None = None,
        max_seqs: int | None = None,
        kv_memory: int | None = None,
        draft: str | None = None,
        strict: bool = True,
        n_batch: int = 512,
        prefix_cache: bool = True,
        prefix_cache_dir: str | Path | None = None,
        prefix_cache_size: int = DISK_BYTES,
        warm: bool = True,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        if draft not in (None, PROMPT):
            draft = str(resolve(os.fspath(draft)).path)
        k_type, v_type = kv_pair(kv_type)
        found = resolve(os.fspath(model))
        options = OpenOptions(
            n_ctx=n_ctx,
            n_threads=n_threads,
            k_type=k_type,
            v_type=v_type,
            weights=weights,
            backend=backend,
            isa=isa,
            max_seqs=max_seqs,
            kv_memory=kv_memory,
            n_batch=n_batch,
            strict=strict,
            prefix_cache=prefix_cache,
            prefix_cache_dir=None if prefix_cache_dir is None else os.fspath(prefix_cache_dir),
            prefix_cache_size=prefix_cache_size,
            draft=draft,
            warm=warm,
        )
        self._pid = os.getpid()
        self._loaded: Loaded = open_model(str(found.path), options, progress)
        self._base = found.base or not self._loaded.template.has_template
        self._name = found.name
        self._at_once = max(LEAST_AT_ONCE, FULL_STEPS * self._loaded.engine.spec.budget.seqs)
        self._finalizer = weakref.finalize(self, _close, self._loaded, self._pid)

    @property
    def info(self) -> LLMInfo:
        """What was opened and chosen: model, sizes, context, backend, fingerprint."""
        return describe(self._loaded)

    @property
    def stats(self) -> LLMStats:
        """What the engine is doing now and has done so far: sequences running and waiting, pages, steps, tokens."""
        return count(self._loaded)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer: its special tokens, and the bytes of each token."""
        return self._loaded.tokenizer

    @property
    def is_base(self) -> bool:
        """Whether this model has no chat template or is catalogued as a base model: `generate`, not `chat`."""
        return self._base

    def warm(self) -> None:
        """Begin to build the tokenizer's tables, where that was put off (warm=False); returns at once."""
        self._check_alive()
        self._loaded.warming.start()

    # -- the state of things -----------------------------------------------------------------------------------------

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise EngineError(
                "this LLM was opened in the parent process and its threads do not exist here: "
                "open the model after the fork, or use the spawn start method"
            )

    def _check_alive(self) -> None:
        self._check_process()
        if not self._finalizer.alive:
            raise EngineError("this LLM is closed")

    # -- from arguments to requests ----------------------------------------------------------------------------------

    def _options(
        self, params: SamplingParams | None, sampling: dict[str, Any], n: int, on_error: str
    ) -> SamplingParams:
        """The sampling parameters of a call, when all its options are sound and this LLM is open."""
        self._check_alive()
        chosen = SamplingParams.from_kwargs(params, sampling)
        if on_error not in ("return", "raise"):
            raise ConfigError(f'on_error must be "return" or "raise", found {on_error!r}')
        n_choices = as_integer(n)
        if n_choices is None or not 1 <= n_choices <= MAX_CHOICES:
            raise RequestError(f"n must be an integer from 1 to {MAX_CHOICES}, found {n!r:.80}")
        last = self._loaded.plan.n_vocab - 1
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            token = max(getattr(chosen, name) or (0,))
            if token > last:
                raise RequestError(f"{name} names token {token}, the vocabulary ends at {last}")
        if chosen.dry_multiplier and chosen.dry_sequence_breakers != () and not self._loaded.tokenizer.usable:
            raise RequestError(
                "dry_sequence_breakers need a vocabulary, which this file lacks: pass dry_sequence_breakers=()"
            )
        return chosen

    def _one_prompt(self, prompts: object) -> bool:
        """Whether this is one prompt; else it is a list of them. TypeError where it is neither."""
        if isinstance(prompts, str) or (is_ids(prompts) and len(prompts)):
            return True
        if not isinstance(prompts, list | tuple):
            raise TypeError(f"prompts must be text, token ids or a list of them, found {type(prompts).__name__}")
        return False

    def _prompts(self, prompts: Sequence[object], argument: str = "prompts") -> list[list[int]]:
        """The token ids of a list of prompts, all of them checked. argument: what errors call it."""
        checked: list[list[int]] = []
        wrong: list[RequestError | TypeError] = []
        for i, p in enumerate(prompts):
            name = f"{argument}[{i}]"
            try:
                checked.append(self._prompt_ids(p, name))
            except (RequestError, TypeError) as e:
                if not str(e).startswith(name):
                    e.args = (f"{name}: {e}",)
                wrong.append(e)
        if wrong:
            raise all_of(wrong, len(prompts), argument)
        return checked

    def _check_chat(self, response_format: object) -> None:
        """RequestError for what chat cannot do, TemplateError for a model that was not made for it."""
        if response_format is not None:
            raise RequestError("response_format is not supported in this release: leave it out")
        if self._base:
            raise TemplateError(
                f"{self._name} is a base model: it continues text and was not trained to answer. Use generate() or "
                f"`edgellm run --raw` with the beginning of a text, or choose an instruct model"
            )

    def _scoring(self, tokens: object, rows: slice | str | None) -> tuple[Request, F32]:
        """The request for logits of tokens, and the array that they come into, float32 [rows, V]."""
        self._check_alive()
        ids = self._prompt_ids(token_ids(tokens, "tokens"), "tokens")
        first, stop = row_range(rows, len(ids))
        greedy = SamplingParams(temperature=0.0).resolved({})
        request = Request(ids[:stop], greedy, seed=0, logit_rows=(first, stop))
        logits = request.logits = new_logits(stop - first, self._loaded.plan.n_vocab)
        return request, logits

    def _embeddings(self, texts: object, pooling: str | None) -> tuple[list[Pool], Iterator[Request]]:
        """Where the vectors of texts will be found, and the requests that compute them, made as they are needed."""
        self._check_alive()
        if isinstance(texts, str) or (is_ids(texts) and len(texts)):
            texts = [texts]
        if not isinstance(texts, list | tuple):
            raise TypeError(f"texts must be text, token ids or a list of them, found {type(texts).__name__}")
        kind = pooling_of(self._loaded.file.metadata, self._loaded.plan.arch, pooling)
        prompts = self._prompts(texts, "texts")
        pools = [Pool(kind, len(ids)) for ids in prompts]
        greedy = SamplingParams(temperature=0.0).resolved({})
        requests = (
            Request(ids[: pool.rows[1]], greedy, seed=0, logit_rows=pool.rows, pool=pool)
            for ids, pool in zip(prompts, pools, strict=True)
        )
        return pools, requests

    def _vectors(self, pools: list[Pool], normalize: bool) -> F32:
        """What `embed` returns, float32 [N, D]."""
        out = np.empty((len(pools), self._loaded.plan.hidden.width), np.float32)
        for row, pool in zip(out, pools, strict=True):
            row[:] = pool.vector(normalize)
        return out

    def _scores(self, prompt: object, continuation: Any, one: bool) -> list[Request]:
        """The requests that score continuations of a prompt."""
        self._check_alive()
        names = ["the continuation"] if one else [f"continuation[{i}]" for i in range(len(continuation))]
        params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0).resolved({})
        requests = []
        for name, text in zip(names, [continuation] if one else continuation, strict=True):
            ids, first = self._joined(prompt, text, name)
            requests.append(Request(ids, params, seed=0, scored_from=first))
        return requests

    def _joined(self, prompt: object, continuation: object, name: str) -> tuple[list[int], int]:
        """The token ids of a prompt with its continuation, and where the continuation's begin."""
        if isinstance(prompt, str) and isinstance(continuation, str):
            head = self._loaded.tokenizer.encode(prompt)
            ids = self._prompt_ids(prompt + continuation, name)
            first = next((i for i, (a, b) in enumerate(zip(head, ids, strict=False)) if a != b), len(head))
        elif isinstance(prompt, str) or isinstance(continuation, str):
            raise TypeError(f"the prompt and {name} must both be text or both be token ids")
        else:
            head = token_ids(prompt, "the prompt")
            ids, first = self._prompt_ids(head + token_ids(continuation, name), name), len(head)
        if first < 1:
            raise RequestError("the prompt has no tokens: give at least one, such as the beginning-of-text token's id")
        if first >= len(ids):
            raise RequestError(f"{name} has no tokens: give at least one")
        return ids, first

    def _score(self, request: Request) -> Score:
        tokens = scored_tokens(request, self._loaded.tokenizer)
        return Score(math.fsum(t.logprob for t in tokens), tokens)

    def _chat_prompt(
        self, messages: str | list[Message], tools: list[dict[str, Any]] | None
    ) -> tuple[list[int], tuple[str, ...]]:
        """Token ids of a conversation, and what was done to messages that the template cannot express."""
        self._check_alive()
        rendered = self._loaded.template.apply(as_messages(messages), tools=tools)
        self._refuse_endless(rendered.text)
        return self._loaded.tokenizer.encode_segments(rendered.segments), rendered.notes

    def _prompt_ids(self, prompt: object, name: str = "") -> list[int]:
        """The token ids of a prompt, a new list. name: which of several it is, for errors."""
        if isinstance(prompt, str):
            self._refuse_endless(prompt)
            ids = self._loaded.tokenizer.encode(prompt)
        elif is_ids(prompt):
            ids = [int(i) for i in prompt]
        else:
            raise TypeError(f"{name or 'the prompt'} must be text or token ids, found {type(prompt).__name__}")
        if not ids:
            raise RequestError(f"{name or 'the prompt'} has no tokens: give at least one")
        n_vocab = self._loaded.plan.n_vocab
        low, high = min(ids), max(ids)
        if low < 0 or high >= n_vocab:
            wrong = low if low < 0 else high
            where = f"{name}: " if name else ""
            raise RequestError(f"{where}token id {wrong} is outside the vocabulary (0 .. {n_vocab - 1})")
        if len(ids) > self._loaded.n_ctx:
            raise ContextOverflow(len(ids), self._loaded.n_ctx)
        return ids

    def _refuse_endless(self, text: str) -> None:
        """ContextOverflow for a text that cannot fit whatever its tokens are, before time goes into tokenising it."""
        if len(text) > COUNTED_CHARS:
            least = self._loaded.tokenizer.least_tokens(text)
            if least > self._loaded.n_ctx:
                raise ContextOverflow(least, self._loaded.n_ctx, at_least=True)

    def _request(
        self, ids: list[int], params: SamplingParams, n: int, stream: bool = False, notes: tuple[str, ...] = ()
    ) -> Request:
        """The request that continues token ids, checked but for the length of a chat's."""
        if len(ids) > self._loaded.n_ctx:  # of a chat; other prompts have been checked
            raise ContextOverflow(len(ids), self._loaded.n_ctx)
        resolved = params.resolved(self._loaded.sampling_defaults)
        suppressed = self._loaded.tokenizer.suppressed_ids
        if suppressed:  # the file's own list; a bias that the caller gives for one of them stands
            resolved = replace(resolved, logit_bias={**dict.fromkeys(suppressed, -math.inf), **resolved.logit_bias})
        return Request(
            prompt=ids,
            params=resolved,
            seed=int.from_bytes(os.urandom(8), "little") >> 1 if params.seed is None else params.seed,
            n=int(n),
            stream=stream,
            notes=notes,
            eog_ids=self._loaded.tokenizer.eog_ids,
        )

    # -- from events to results --------------------------------------------------------------------------------------

    def _completion(self, request: Request) -> Completion:
        return completion_of(request, self._loaded.tokenizer, self._loaded.fingerprint)

    def _chunks(self, request: Request) -> Chunks:
        return Chunks(request, self._loaded.tokenizer, self._loaded.fingerprint)


def _close(loaded: Loaded, pid: int) -> None:
    if os.getpid() != pid:  # a forked child has no engine thread to stop and must not touch the parent's
        return
    if loaded.engine.is_current_thread:  # the garbage collector happened to run there; it cannot wait for itself
        threading.Thread(target=_free, args=(loaded,), name="edgellm-close").start()
    else:
        _free(loaded)


def _free(loaded: Loaded) -> None:
    loaded.engine.close()
    loaded.warming.join()
    loaded.file.close()
