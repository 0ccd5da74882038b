"""Answer one prompt and exit. Piped input is joined to the prompt; without either, on a terminal, the chat opens."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from edgellm.cli import options
from edgellm.core.errors import ConfigError
from edgellm.core.results import Chunk, Completion


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm run`."""
    options.add_model(parser)
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="the prompt (with -m: all arguments)")
    parser.add_argument("-p", "--prompt", dest="prompt_flag", metavar="TEXT", help="the same, as an option")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file")
    parser.add_argument("-sys", "--system-prompt", metavar="TEXT", help="system message")
    parser.add_argument("--raw", action="store_true", help="continue the text itself, without the chat template")
    parser.add_argument("--json", action="store_true", help="print the completion as JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="print timings to stderr")
    options.add_engine(parser)
    options.add_sampling(parser)


def read_prompt(args: argparse.Namespace) -> str | None:
    """Arguments, file and piped input, joined by blank lines; None when there is nothing."""
    words = list(args.prompt)
    if args.model_flag is not None and args.model is not None:
        words.insert(0, args.model)  # `run -m MODEL PROMPT`: the first positional belongs to the prompt
        args.model = None
    parts = [" ".join(words)] if words else []
    if args.prompt_flag is not None:
        parts.append(args.prompt_flag)
    if args.file is not None:
        try:
            with open(args.file, encoding="utf-8") as f:
                parts.append(f.read())
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"cannot read the prompt file {args.file}: {e}") from None
    if not sys.stdin.isatty():
        piped = sys.stdin.read()
        if piped.strip():
            parts.append(piped.rstrip("\n"))
    return "\n\n".join(parts) if parts else None


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    prompt = read_prompt(args)
    if prompt is None:
        if sys.stdin.isatty():
            from edgellm.cli import chat

            return chat.run(args)
        raise ConfigError("there is no prompt: pass it as an argument or pipe it in")
    with options.open_llm(args) as llm:
        sampling = options.sampling_kwargs(args)
        if not args.raw and llm.is_base:
            return options.refuse_base(options.model_name(args))
        if args.raw:
            chunks = llm.generate(prompt, stream=True, on_error="raise", **sampling)
        else:
            messages = [{"role": "system", "content": args.system_prompt}] if args.system_prompt else []
            messages.append({"role": "user", "content": prompt})
            chunks = llm.chat(messages, stream=True, on_error="raise", **sampling)
        last: Chunk | None = None
        try:
            for chunk in chunks:
                last = chunk
                if not args.json:
                    sys.stdout.write(chunk.text)
                    sys.stdout.flush()
        finally:
            if not args.json:
                sys.stdout.write("\n")
                sys.stdout.flush()
        done = last.completion if last is not None else None
        if done is not None:
            if args.json:
                print(json.dumps(to_json(done), ensure_ascii=False))
            if args.verbose:
                print(stats_line(done), file=sys.stderr)
    return 0


def to_json(c: Completion) -> dict[str, object]:
    """A Completion for machines."""
    return {
        "text": c.text,
        "token_ids": c.token_ids,
        "finish_reason": c.finish_reason,
        "usage": {**asdict(c.usage), "total_tokens": c.usage.total_tokens},
        "timings": asdict(c.timings),
        "seed": c.seed,
        "fingerprint": c.fingerprint,
    }


def stats_line(c: Completion) -> str:
    """One line of figures about a completion."""
    u, t = c.usage, c.timings
    decode = (u.completion_tokens - 1) / t.decode if t.decode > 0 and u.completion_tokens > 1 else 0.0
    prefill = u.prompt_tokens / t.prefill if t.prefill > 0 else 0.0
    return (
        f"[prompt {u.prompt_tokens} tokens, {prefill:.0f} t/s · answer {u.completion_tokens} tokens, {decode:.0f} t/s"
        f" · first token {t.first_token * 1e3:.0f} ms · seed {c.seed} · {c.finish_reason}]"
    )
