"""Serve models over HTTP, as OpenAI's API and others; a page to chat on is at the same address.

Without a model, every model on this machine is served, and loaded when a request names it. Most options of llama-server
and vLLM are taken; docs/server.md has the routes.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edgellm.cli import drafts, sampling
from edgellm.cli.options import add_cache_types, find, hugging_face, read_text, ubatch
from edgellm.cli.progress import Bars
from edgellm.core import env, log
from edgellm.core.errors import ConfigError
from edgellm.core.kv import KV_NAMES
from edgellm.core.layouts import WEIGHTS, is_layout
from edgellm.server.flags import ACCEPTED, REFUSED, Flag

if TYPE_CHECKING:
    from edgellm.hub import LocalModel
    from edgellm.server.models import Entry
    from edgellm.server.served import ServedLLM
    from edgellm.server.settings import Settings

N_PARALLEL = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm serve`."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a path, a name in the catalogue, or USER/NAME[:QUANT] on Hugging "
        "Face (default: every model on this machine)",
    )  # fmt: skip
    parser.add_argument("-m", "--model", dest="model_flag", metavar="MODEL", help="the model, as an option")
    parser.add_argument(
        "-hf", "-hfr", "--hf-repo", dest="model_flag", type=hugging_face, metavar="REPO", help="USER/NAME[:QUANT]"
    )
    parser.add_argument("-mu", "--model-url", dest="model_flag", metavar="URL", help="an address on Hugging Face")
    parser.add_argument("--offline", action="store_true", help="never use the network")
    parser.add_argument(
        "-a",
        "--alias",
        action="append",
        metavar="NAME[,NAME]",
        help="what clients call the model, and may also call it",
    )
    parser.add_argument(
        "--served-model-name", dest="alias", nargs="+", action="extend", metavar="NAME", help="the same, as words"
    )
    _add_address(parser.add_argument_group("address options"))
    _add_model(parser.add_argument_group("model options"))
    _add_answers(parser.add_argument_group("answer options"))
    _add_log(parser.add_argument_group("log options"))
    sampling.add_arguments(parser)
    for flag in ACCEPTED:
        _add_flag(parser, flag, _Accepted)
    for flag in REFUSED:
        _add_flag(parser, flag, _Refused)
    _take_environment(parser)


def _add_address(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen on (127.0.0.1)")
    group.add_argument("--port", type=int, default=8080, metavar="N", help="port (8080; 0: any that is free)")
    group.add_argument("--uds", metavar="PATH", help="listen on a unix socket instead")
    group.add_argument(
        "--api-key", action="append", metavar="KEY[,KEY]", help="keys, one of which a request must have (none)"
    )
    group.add_argument("--api-key-file", metavar="FILE", help="read keys from a file, one a line")
    group.add_argument(
        "--cors-origins", "--allowed-origins", dest="cors_origins", type=_names, metavar="ORIGIN[,ORIGIN]",
        help="web pages that may call, beside those of this machine (* = any)",
    )  # fmt: skip
    group.add_argument(
        "--cors-credentials", "--allow-credentials", action="store_true", help="those pages may send credentials"
    )
    group.add_argument(
        "--allowed-hosts", type=_commas, metavar="NAME[,NAME]", help="names by which this server is reached (* = any)"
    )
    group.add_argument(
        "--root-path", "--api-prefix", dest="root_path", default="", metavar="PATH", help="a prefix of every path"
    )
    group.add_argument("--ssl-key-file", "--ssl-keyfile", metavar="FILE", help="serve HTTPS with this private key")
    group.add_argument("--ssl-cert-file", "--ssl-certfile", metavar="FILE", help="and this certificate")
    group.add_argument("--no-ui", "--no-webui", dest="page", action="store_false", help="no page to chat on")
    group.add_argument("--ui", "--webui", dest="page", action="store_true", default=True, help="a page at / (default)")
    group.add_argument(
        "--max-queue", type=int, default=512, metavar="N", help="requests that may wait; more get a 503 (512)"
    )
    group.add_argument("--max-body", type=int, default=16, metavar="MB", help="longest request (16)")
    group.add_argument(
        "--sse-ping-interval", type=float, default=15.0, metavar="S", help="seconds of silence before a ping; 0 = none"
    )
    group.add_argument(
        "--drain-timeout", type=float, default=30.0, metavar="S", help="how long answers may go on after SIGTERM (30)"
    )


def _add_model(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-c", "--ctx-size", "--max-model-len", type=_tokens, metavar="N",
        help="context of each request in tokens (0, default: the model's)",
    )  # fmt: skip
    group.add_argument(
        "-np", "--parallel", "--max-num-seqs", type=int, default=N_PARALLEL, metavar="N",
        help=f"requests computed side by side ({N_PARALLEL})",
    )  # fmt: skip
    group.add_argument("-t", "--threads", type=int, metavar="N", help="threads (default: one a performance core)")
    group.add_argument("-ub", "--ubatch-size", type=int, metavar="N", help="most tokens a step computes (512)")
    group.add_argument(
        "-b", "--batch-size", "--max-num-batched-tokens", type=int, metavar="N", help="the same, where -ub is not given"
    )
    add_cache_types(group)
    group.add_argument(
        "--kv-cache-dtype", type=_cache_type, metavar="TYPE", help="both cache types at once; auto = f16"
    )
    group.add_argument("--weights", default="auto", type=_layout, metavar="LAYOUT", help=", ".join(WEIGHTS))
    group.add_argument("--mmap", "-nr", "--no-repack", dest="weights", action="store_const", const="mmap",
                       help="the same as --weights mmap")  # fmt: skip
    group.add_argument("--no-mmap", "--repack", dest="weights", action="store_const", const="tiles",
                       help="the same as --weights tiles")  # fmt: skip
    group.add_argument("--backend", default="auto", choices=["auto", "native", "reference"], help="what computes")
    group.add_argument("--isa", metavar="LEVEL", help="instruction set level (see `edgellm doctor`)")
    group.add_argument("--no-strict", action="store_true", help="open files with unknown metadata, with a warning")
    drafts.add_drafts(group)
    drafts.add_prefix_cache(group)
    group.add_argument(
        "--models-max", type=int, default=2, metavar="N", help="models in memory at once, where several are served (2)"
    )


def _add_answers(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--chat-template-kwargs", "--default-chat-template-kwargs", type=_object, default={}, metavar="JSON",
        help="variables of the chat template",
    )  # fmt: skip
    group.add_argument(
        "-rea", "--reasoning", choices=["on", "off", "auto"], default="auto", help="the template's enable_thinking"
    )
    group.add_argument("--reasoning-effort", metavar="LEVEL", help="the template's reasoning_effort")
    group.add_argument(
        "--reasoning-format", choices=["auto", "deepseek", "none"], default="auto",
        help="none: thoughts stay in the answer (auto: they come as reasoning_content)",
    )  # fmt: skip
    group.add_argument("--pooling", choices=["none", "mean", "cls", "last"], metavar="KIND",
                       help="how texts are pooled to vectors: mean, cls, last, none (as the file says)")  # fmt: skip
    group.add_argument("--prefill-assistant", action="store_true", default=True,
                       help="a last message of the assistant is continued (default)")  # fmt: skip
    group.add_argument("--no-prefill-assistant", dest="prefill_assistant", action="store_false",
                       help="it is a message like others")  # fmt: skip
    group.add_argument("--enable-force-include-usage", action="store_true", help="every stream ends with its counts")


def _add_log(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--log-jsonl", "--log-json", action="store_true", help="requests as lines of JSON")
    group.add_argument("--log-disable", "--disable-log-requests", action="store_true", help="no line for each request")
    group.add_argument("-v", "--verbose", action="store_true", help="all that the program knows")
    group.add_argument(
        "-lv", "--log-verbosity", "--verbosity", type=int, metavar="N", help="0: warnings, 3: everything"
    )
    group.add_argument("--metrics", action="store_true", default=True, help="/metrics is there (default)")
    group.add_argument("--no-metrics", dest="metrics", action="store_false", help="it is not")
    group.add_argument("--metrics-prefix", default="edgellm", metavar="NAME", help="edgellm, or llamacpp")
    group.add_argument("--slots", action="store_true", default=True, help="/slots is there (default)")
    group.add_argument("--no-slots", dest="slots", action="store_false", help="it is not")


ARGUMENTS = {
    "MODEL": "-m", "HF_REPO": "-hf", "ALIAS": "--alias", "HOST": "--host", "PORT": "--port", "CTX_SIZE": "-c",
    "N_PARALLEL": "-np", "THREADS": "-t", "BATCH": "-b", "UBATCH": "-ub", "CACHE_TYPE_K": "-ctk",
    "CACHE_TYPE_V": "-ctv", "N_PREDICT": "-n",
    "API_PREFIX": "--root-path", "REASONING": "--reasoning", "MODELS_MAX": "--models-max",
    "CHAT_TEMPLATE_KWARGS": "--chat-template-kwargs", "SSL_KEY_FILE": "--ssl-key-file",
    "SSL_CERT_FILE": "--ssl-cert-file",
}  # fmt: skip
"""Options that the environment may set, by what follows EDGELLM_ARG_ or LLAMA_ARG_; the command line goes before it."""


def _take_environment(parser: argparse.ArgumentParser) -> None:
    """Make what the environment says the options' defaults. Raises ConfigError."""
    for name, option in ARGUMENTS.items():
        found = env.argument(name)
        if found is None:
            continue
        variable, text = found
        action = parser._option_string_actions[option]
        try:
            value = action.type(text) if callable(action.type) else text
            if action.choices is not None and value not in action.choices:
                raise ValueError
        except (ValueError, argparse.ArgumentTypeError) as e:
            raise ConfigError(f"{variable} is set to {text!r:.80}, which {option} does not take {e}".rstrip()) from None
        for other in parser._actions:
            if other.dest == action.dest:
                other.default = argparse.SUPPRESS  # argparse would convert the text by the type of each of them
        action.default = [value] if isinstance(action, argparse._AppendAction) else value


class _Accepted(argparse.Action):
    """An option that changes nothing; why is said when the server starts."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Remember it."""
        notes = getattr(namespace, "notes", [])
        namespace.notes = [*notes, f"{option_string}: {self.metavar}"]


class _Refused(argparse.Action):
    """An option that cannot be honoured, with what to do instead."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """End with the usage error, unless the value asks for nothing."""
        given = values if isinstance(values, list) else [values]
        if self.const and all(str(v).lower() in self.const for v in given):
            return
        parser.error(f"{option_string}: {self.metavar}")


def _add_flag(parser: argparse.ArgumentParser, flag: Flag, action: type[argparse.Action]) -> None:
    nargs: Any = None if flag.values == 1 else flag.values
    parser.add_argument(
        *flag.names, action=action, nargs=nargs, dest="_", default=argparse.SUPPRESS, const=flag.harmless,
        metavar=flag.text, help=argparse.SUPPRESS,
    )  # fmt: skip


def _commas(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _names(text: str) -> tuple[str, ...]:
    """Comma-separated names, or a JSON list of them (vLLM's spelling)."""
    if text.lstrip().startswith("["):
        found = json.loads(text)
        if not all(isinstance(item, str) for item in found):
            raise ValueError
        return tuple(found)
    return _commas(text)


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError
    return found


def _tokens(text: str) -> int:
    """A number of tokens: 8192, 8k (thousands), 8K (1024s), -1 or auto (the model's)."""
    if text.lower() in ("auto", "-1"):
        return 0
    for suffix, factor in (("k", 1000), ("K", 1024), ("m", 1000_000), ("M", 1 << 20)):
        if text.endswith(suffix):
            return int(float(text[:-1]) * factor)
    return int(text)


def _cache_type(text: str) -> str:
    named = {"auto": "f16", "bfloat16": "bf16", "float16": "f16", "half": "f16"}.get(text, text)
    if named not in KV_NAMES:
        raise argparse.ArgumentTypeError(f"must be auto or one of {', '.join(KV_NAMES)}, found {text!r:.40}")
    return named


def _layout(text: str) -> str:
    if not is_layout(text):
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(WEIGHTS)}, or cache:FILE, found {text!r:.80}")
    return text


def settings_of(args: argparse.Namespace) -> Settings:
    """The server's settings as the command line has them. Raises ConfigError."""
    from edgellm.server.settings import Settings

    keys = [key for text in args.api_key or () for key in _commas(text)]
    if args.api_key_file is not None:
        keys += [line.strip() for line in read_text(args.api_key_file).splitlines() if line.strip()]
    elif not keys and env.API_KEY.get() is not None:
        keys = list(_commas(env.API_KEY.get() or ""))
    if args.api_key is not None and not keys:
        raise ConfigError("--api-key is empty: give a key, or leave it out")
    if not all(key.isascii() and key.isprintable() for key in keys):
        raise ConfigError("API keys must be printable ASCII: they travel in a header")
    for name, value, low, high in (
        ("--port", args.port, 0, 65535),
        ("-np", args.parallel, 1, 4096),
        ("--max-queue", args.max_queue, 0, 1 << 20),
        ("--max-body", args.max_body, 1, 4096),
        ("--models-max", args.models_max, 1, 1024),
    ):
        if not low <= value <= high:
            raise ConfigError(f"{name} must be from {low} to {high}, found {value}")
    if args.cors_credentials and "*" in (args.cors_origins or ()):
        raise ConfigError("--cors-credentials with --cors-origins '*' would let any page act for you: name the pages")
    if (args.ssl_key_file is None) != (args.ssl_cert_file is None):
        raise ConfigError("--ssl-key-file and --ssl-cert-file belong together: give both")
    variables = dict(args.chat_template_kwargs)
    if args.reasoning != "auto":
        variables["enable_thinking"] = args.reasoning == "on"
    if args.reasoning_effort is not None:
        variables["reasoning_effort"] = args.reasoning_effort
    return Settings(
        host=args.host,
        port=args.port,
        uds=args.uds,
        api_keys=tuple(keys),
        cors_origins=args.cors_origins or (),
        cors_credentials=args.cors_credentials,
        allowed_hosts=tuple(name.lower() for name in args.allowed_hosts or ()),
        max_queue=args.max_queue,
        max_body=args.max_body << 20,
        ping_seconds=max(0.0, args.sse_ping_interval),
        drain_seconds=max(0.0, args.drain_timeout),
        defaults=sampling.from_arguments(args),
        template_variables=variables,
        reasoning=args.reasoning_format != "none",
        pooling=args.pooling,
        prefill_assistant=args.prefill_assistant,
        include_usage=args.enable_force_include_usage,
        root_path=args.root_path.rstrip("/"),
        metrics=args.metrics,
        metrics_prefix=args.metrics_prefix,
        slots=args.slots,
        page=args.page,
        log_json=args.log_jsonl,
        log_requests=not args.log_disable,
        ssl_key=args.ssl_key_file,
        ssl_cert=args.ssl_cert_file,
    )


def entries_of(args: argparse.Namespace) -> list[Entry]:
    """What is served: the model that was named, fetched if need be, or everything on this machine."""
    from edgellm import hub
    from edgellm.server.models import Entry

    aliases = [name for text in args.alias or () for name in _commas(text)]
    if args.model is not None or args.model_flag is not None:
        found = find(args)
        path = str(found.path)
        name = aliases[0] if aliases else found.name.rpartition("/")[2].removesuffix(".gguf")
        size = found.path.stat().st_size
        return [Entry(name, path, tuple(aliases[1:]), size, int(found.path.stat().st_mtime))]
    if aliases:
        raise ConfigError("--alias is the name of one model: say which")
    found_here = [
        Entry(m.name, str(m.path), _with_prefix(m), m.size, int(m.modified.timestamp())) for m in hub.list_local()
    ]
    if not found_here:
        raise ConfigError(f"there are no models on this machine: try `edgellm serve {hub.default_model()}`")
    return found_here


def _with_prefix(model: LocalModel) -> tuple[str, ...]:
    """Another program's model may also be named with its prefix, as everywhere ("ollama:NAME")."""
    from edgellm.hub.inventory import PREFIXES

    prefix = PREFIXES.get(model.origin, "")
    return () if not prefix or model.name.startswith((f"{prefix}:", "/")) else (f"{prefix}:{model.name}",)


def opener(args: argparse.Namespace) -> Callable[[Entry, Callable[[str, float], None]], ServedLLM]:
    """What opens a model with the options of the command line."""
    kv_type = (args.kv_cache_dtype,) * 2 if args.kv_cache_dtype else (args.cache_type_k, args.cache_type_v)

    def open_model(entry: Entry, progress: Callable[[str, float], None]) -> ServedLLM:
        from edgellm.server.served import ServedLLM

        llm = ServedLLM(
            entry.source,
            n_ctx=args.ctx_size or None,
            n_threads=args.threads,
            kv_type=kv_type,
            weights=args.weights,
            backend=args.backend,
            isa=args.isa,
            max_seqs=args.parallel,
            strict=not args.no_strict,
            n_batch=ubatch(args),
            draft=args.draft,
            **drafts.prefix_cache(args),
            progress=progress,
        )
        # A model is half a million objects that stay: the collector need not look through them again.
        gc.collect()
        gc.freeze()
        gc.enable()  # see cli.main
        return llm

    return open_model


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    settings = settings_of(args)
    _show_log(args)
    for note in getattr(args, "notes", ()):
        print(f"edgellm: {note}", file=sys.stderr)
    from edgellm.server import serve

    sock = serve.bind(settings)  # before anything is fetched: a port that is taken is the likeliest fault
    try:
        entries = entries_of(args)
        from edgellm.server.app import build

        many = len(entries) > 1
        app, context = build(
            settings,
            entries,
            opener(args),
            n_parallel=args.parallel,
            most_loaded=args.models_max if many else 1,
            wait=many,
        )
        where = serve.address_of(sock, settings)
        names = ", ".join(e.name for e in entries[:8]) + (f" and {len(entries) - 8} more" if len(entries) > 8 else "")
        print(f"edgellm: serving {names} at {where}", file=sys.stderr)
        if not settings.is_local and not settings.api_keys:
            print(
                f"edgellm: everybody who reaches {settings.host}:{settings.port} may use it: --api-key closes it",
                file=sys.stderr,
            )
        with Bars() as bars:
            context.models.on_progress = bars.load
            return serve.run(app, context, sock)
    finally:
        sock.close()


def _show_log(args: argparse.Namespace) -> None:
    level = env.LOG.get() or "info"
    if args.log_verbosity is not None:
        level = ("warning", "info", "info", "debug")[max(0, min(3, args.log_verbosity))]
    log.show("debug" if args.verbose else level)
    access = logging.getLogger("edgellm.server.access")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.handlers, access.propagate = [handler], False
