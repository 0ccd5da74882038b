"""Answer one prompt and exit. Piped input is joined to the prompt; without either, on a terminal, the chat opens."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Generator
from contextlib import closing

from edgellm.cli import options, sampling
from edgellm.cli.output import answer_to
from edgellm.cli.stats import stats_line
from edgellm.core.errors import ConfigError
from edgellm.core.results import Chunk, Completion, Logprobs, TokenLogprob

JSON = {
    "text": "the answer",
    "token_ids": "its tokens, the one that ended it included",
    "finish_reason": "stop, length, cancelled or error",
    "stop": "the stop string that ended it, or null",
    "usage": "object: prompt_tokens, completion_tokens, cached_tokens, total_tokens",
    "timings": "object, in seconds: queue, prefill, decode, first_token",
    "notes": "list: what was changed in the messages to suit the model's chat template",
    "logprobs": "with --logprobs, as in OpenAI's chat completions: content (list of token, bytes, logprob, "
    "top_logprobs); null without",
    "prompt_logprobs": "with --prompt-logprobs: a list of the same entries, the first one null; null without",
    "seed": "gives the same answer again, together with the fingerprint",
    "fingerprint": "numerics version, hash of the model, type of the KV cache",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm run`."""
    options.add_model(parser)
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="the prompt (with -m MODEL: all arguments)")
    parser.add_argument("-p", "--prompt", dest="prompt_flag", metavar="TEXT", help="the prompt, as an option")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file")
    options.add_system(parser)
    parser.add_argument("--raw", action="store_true", help="continue the text itself, without the chat template")
    parser.add_argument("--json", action="store_true", help="print the whole result as JSON")
    options.add_display(parser)
    options.add_engine(parser)
    sampling.add_arguments(parser)


def read_prompt(args: argparse.Namespace) -> str | None:
    """Arguments, file and piped input, joined by blank lines; None when there is nothing."""
    words = options.split_words(args, args.prompt)
    parts = [" ".join(words)] if words else []
    if args.prompt_flag is not None:
        parts.append(args.prompt_flag)
    if args.file is not None:
        parts.append(options.read_text(args.file))
    if not sys.stdin.isatty():
        piped = options.read_stdin()
        if piped.strip():
            parts.append(piped)
    return "\n\n".join(parts) if parts else None


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    params, system = sampling.from_arguments(args), options.system_prompt(args)
    if not args.json and (params.logprobs is not None or params.prompt_logprobs is not None):
        raise ConfigError("log-probabilities are part of the whole result: add --json")
    if args.raw and system:
        raise ConfigError("--raw uses no chat template, and so no system message: leave out -sys")
    _refuse_prompt_as_model(args)
    prompt = read_prompt(args)
    if prompt is None:
        if options.on_terminal() and not args.raw and not args.json:
            from edgellm.cli import chat

            return chat.run_here(args)
        raise ConfigError("there is no prompt: give one as an argument, with -p or -f, or pipe it in")
    with options.open_llm(args) as llm:
        if not args.raw and llm.is_base:
            return options.refuse_base(options.model_name(args))
        if args.raw:
            chunks = llm.generate(prompt, params, stream=True, on_error="raise")
        else:
            messages = [{"role": "system", "content": system}] if system else []
            messages.append({"role": "user", "content": prompt})
            chunks = llm.chat(messages, params, stream=True, on_error="raise")
        completion = _print(chunks, args)
        n_ctx = llm.info.n_ctx
    if completion is not None and completion.finish_reason == "length" and completion.usage.total_tokens >= n_ctx:
        print(f"edgellm: the answer ends because the context of {n_ctx} tokens is full: -c sets it", file=sys.stderr)
    if completion is not None and args.json:
        print(json.dumps(to_json(completion)))
    if completion is not None and args.verbose:
        for line in (*completion.notes, stats_line(completion)):
            print(line, file=sys.stderr)
    return 0


def _print(chunks: Generator[Chunk, None, None], args: argparse.Namespace) -> Completion | None:
    """The answer to stdout as it comes, unless it is wanted as JSON."""
    answer = None
    last: Chunk | None = None
    with closing(chunks):
        try:
            for chunk in chunks:
                last = chunk
                if not args.json:
                    if answer is None:
                        markdown = not (args.raw or args.no_markdown)
                        answer = answer_to(
                            sys.stdout, markdown=markdown, wrap=not args.no_wordwrap, plain=args.simple_io
                        )
                    answer.write(chunk.text)
        finally:
            if answer is not None:
                answer.close()
    return last.completion if last is not None else None


def to_json(c: Completion) -> dict[str, object]:
    """A Completion for machines."""
    from dataclasses import asdict

    return {
        "text": c.text,
        "token_ids": c.token_ids,
        "finish_reason": c.finish_reason,
        "stop": c.choices[0].stop,
        "usage": {**asdict(c.usage), "total_tokens": c.usage.total_tokens},
        "timings": asdict(c.timings),
        "notes": list(c.notes),
        "logprobs": None if c.logprobs is None else c.logprobs.chat(),
        "prompt_logprobs": None if c.prompt_logprobs is None else [_entry(t) for t in c.prompt_logprobs],
        "seed": c.seed,
        "fingerprint": c.fingerprint,
    }


def _entry(token: TokenLogprob | None) -> dict[str, object] | None:
    return None if token is None else dict(Logprobs([token]).chat()["content"][0])


def _refuse_prompt_as_model(args: argparse.Namespace) -> None:
    """`edgellm run "Name three colors."` has a prompt where the model belongs."""
    first = args.model
    if args.model_flag is None and first is not None and " " in first.strip() and not os.path.exists(first):
        raise ConfigError(
            f"{first!r:.80} is where the model belongs: the prompt comes second, as in\n"
            f"  edgellm run {options.default_model()} {first!r:.60}"
        )
