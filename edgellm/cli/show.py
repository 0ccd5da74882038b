"""What `/show` prints in the chat."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgellm.cli import sampling
from edgellm.core.config import DEFAULTS, GGUF_SAMPLING_KEYS
from edgellm.core.errors import ConfigError

if TYPE_CHECKING:
    from edgellm.cli.repl import Repl
    from edgellm.engine.info import LLMInfo


def info(chat: Repl) -> None:
    """What was opened and how it runs."""
    from edgellm.cli.remote import Remote

    if isinstance(chat.llm, Remote):
        i = chat.llm.info
        rows = {
            "model": chat.model,
            "server": i.path,
            "context": f"{i.n_ctx or '?'} tokens",
            "fingerprint": i.fingerprint or "?",
        }
    else:
        rows = _facts(chat, chat.llm.info)
    for name, value in rows.items():
        chat.say(f"  {name:<13} {value}")


def _facts(chat: Repl, i: LLMInfo) -> dict[str, str]:
    """What is known of a model in this process."""
    used = chat.used()
    return {
        "model": chat.model,
        "architecture": i.architecture,
        "parameters": f"{i.n_params / 1e6:.0f} M, {i.bits_per_weight:.2f} bits per weight",
        "context": f"{i.n_ctx} tokens (trained for {i.n_ctx_train})" + ("" if used is None else f", {used} used"),
        "KV cache": f"{i.kv_type}, up to {i.kv_bytes / 2**20:.0f} MiB",
        "weights": f"{i.weight_bytes / 1e6:.0f} MB, {i.weights}",
        "computed by": f"{i.backend}, {i.isa}, {i.n_threads} threads",
        "file": i.path,
        "fingerprint": i.fingerprint,
    }


def license_(chat: Repl) -> None:
    """The model's own licence, as far as its file says."""
    data = chat.metadata()
    rows = [str(data[k]) for k in ("general.license", "general.license.name", "general.license.link") if data.get(k)]
    chat.say("\n".join(f"  {row}" for row in rows) or "the file does not name a licence")


def parameters(chat: Repl, only: str | None = None) -> None:
    """Every sampling parameter, its value, and whose choice that is."""
    chosen = sampling.given_fields(sampling.build(chat.parameters))
    try:
        metadata = chat.metadata()
    except ConfigError:  # on a server, whose defaults are its own
        metadata = {}
    own = {field: metadata.get(key) for key, field in GGUF_SAMPLING_KEYS.items()}
    for option in sampling.OPTIONS:
        field = option.field
        if only not in (None, field):
            continue
        value, whose = chosen.get(field), "set"
        if value is None:
            value, whose = own.get(field), "the model's default"
        if value is None:
            value, whose = DEFAULTS.get(field), "default"
        text = "not set" if value is None else f"{_text(value)}  ({whose})"
        chat.say(f"  {field:<22} {text}")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False, default=str)


def system(chat: Repl) -> None:
    """The system message."""
    chat.say(chat.system or "no system message is set")


def template(chat: Repl) -> None:
    """The model's chat template, in Jinja."""
    chat.say(str(chat.metadata().get("tokenizer.chat_template") or "the model has no chat template"))


def modelfile(chat: Repl) -> None:
    """The model, system message and parameters in Ollama's notation."""
    lines = [f"FROM {chat.llm.info.path}"]
    if chat.system:
        lines.append(f'SYSTEM """{chat.system}"""')
    for name, value in sampling.given_fields(sampling.build(chat.parameters)).items():
        spelt = {"max_tokens": "num_predict"}.get(name, name)
        lines += [f"PARAMETER {spelt} {_text(v)}" for v in (value if isinstance(value, list) else [value])]
    chat.say("\n".join(lines))


def messages(chat: Repl) -> None:
    """The conversation."""
    for message in chat.messages:
        first, *more = message["content"].split("\n")
        chat.say(f"{'>>> ' if message['role'] == 'user' else '    '}{first}")
        for line in more:
            chat.say(f"{'... ' if message['role'] == 'user' else '    '}{line}")
    if not chat.messages:
        chat.say("nothing was said yet")


TOPICS: dict[str, Callable[[Repl], None]] = {
    "info": info,
    "license": license_,
    "messages": messages,
    "modelfile": modelfile,
    "parameters": parameters,
    "system": system,
    "template": template,
}
