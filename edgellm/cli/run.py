"""Answer one prompt and exit. Piped input is joined to the prompt; without either, on a terminal, the chat opens."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import closing
from dataclasses import asdict

from edgellm import hub
from edgellm.cli import options
from edgellm.core.errors import ConfigError
from edgellm.core.results import Chunk, Completion


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm run`."""
    options.add_model(parser)
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="the prompt (with -m MODEL: all arguments)")
    parser.add_argument("-p", "--prompt", dest="prompt_flag", metavar="TEXT", help="the prompt, as an option")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file")
    parser.add_argument("-sys", "--system-prompt", metavar="TEXT", help="system message")
    parser.add_argument("--raw", action="store_true", help="continue the text itself, without the chat template")
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON")
    parser.add_argument("-v", "--verbose", action="store_true", help="print timings and the seed to stderr")
    options.add_engine(parser)
    options.add_sampling(parser)


def read_prompt(args: argparse.Namespace) -> str | None:
    """Arguments, file and piped input, joined by blank lines; None when there is nothing."""
    words = options.split_words(args, args.prompt)
    parts = [" ".join(words)] if words else []
    if args.prompt_flag is not None:
        parts.append(args.prompt_flag)
    if args.file is not None:
        parts.append(options.read_text(args.file))
    if sys.stdin is not None and not sys.stdin.isatty():
        piped = options.read_stdin()
        if piped.strip():
            parts.append(piped)
    return "\n\n".join(parts) if parts else None


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    params = options.sampling(args)
    if args.raw and args.system_prompt:
        raise ConfigError("--raw uses no chat template, and so no system message: leave out -sys")
    _refuse_prompt_as_model(args)
    prompt = read_prompt(args)
    if prompt is None:
        if options.on_terminal() and not args.raw and not args.json:
            from edgellm.cli import chat

            return chat.run(args)
        raise ConfigError("there is no prompt: give one as an argument, with -p or -f, or pipe it in")
    with options.open_llm(args) as llm:
        if not args.raw and llm.is_base:
            return options.refuse_base(options.model_name(args))
        if args.raw:
            chunks = llm.generate(prompt, params, stream=True, on_error="raise")
        else:
            messages = [{"role": "system", "content": args.system_prompt}] if args.system_prompt else []
            messages.append({"role": "user", "content": prompt})
            chunks = llm.chat(messages, params, stream=True, on_error="raise")
        last: Chunk | None = None
        with closing(chunks):
            try:
                for chunk in chunks:
                    last = chunk
                    if not args.json:
                        sys.stdout.write(chunk.text)
                        sys.stdout.flush()
            finally:
                if not args.json and last is not None:
                    sys.stdout.write("\n")
                    sys.stdout.flush()
        if last is not None and last.completion is not None:
            if args.json:
                print(json.dumps(to_json(last.completion)))
            if args.verbose:
                print(stats_line(last.completion), file=sys.stderr)
    return 0


def to_json(c: Completion) -> dict[str, object]:
    """A Completion for machines."""
    return {
        "text": c.text,
        "token_ids": c.token_ids,
        "finish_reason": c.finish_reason,
        "stop": c.choices[0].stop,
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


def _refuse_prompt_as_model(args: argparse.Namespace) -> None:
    """`edgellm run "Name three colors."` has a prompt where the model belongs."""
    first = args.model
    if args.model_flag is None and first is not None and " " in first.strip() and not os.path.exists(first):
        raise ConfigError(
            f"{first!r:.80} is where the model belongs: the prompt comes second, as in\n"
            f"  edgellm run {hub.default_model()} {first!r:.60}"
        )
