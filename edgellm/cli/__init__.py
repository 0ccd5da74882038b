"""The command line: a table of commands, each a small module with `add_arguments(parser)` and `run(args) -> int`.

Tokens and results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from edgellm.core import env, log
from edgellm.core.errors import ConfigError, EdgeLLMError
from edgellm.core.version import __version__


class Command(NamedTuple):
    """A command's module (in this package), its line in `edgellm --help`, and its usage after the name."""

    module: str
    help: str
    usage: str


COMMANDS = {
    "chat": Command("chat", "talk to a model in the terminal", "[MODEL] [options]"),
    "run": Command("run", "answer one prompt (on a terminal without a prompt: chat)", "[MODEL] [PROMPT ...] [options]"),
    "bench": Command("bench", "measure prompt and generation speed", "[MODEL] [options]"),
    "serve": Command("serve", "serve models over HTTP: OpenAI's API, and a page to chat on", "[MODEL] [options]"),
    "ps": Command("ps", "show what a running server has in memory", "[options]"),
    "stop": Command("stop", "take a model out of a running server's memory", "MODEL [options]"),
    "inspect": Command("inspect", "show what a model file holds (also: show)", "[MODEL] [options]"),
    "doctor": Command("doctor", "show what edgellm found on this machine and chose", "[options]"),
    "pull": Command("pull", "download a model of the catalogue or from Hugging Face", "[MODEL ...]"),
    "list": Command("listing", "list the models on this machine and in the catalogue (also: ls)", "[options]"),
    "rm": Command("rm", "delete a downloaded model", "MODEL ..."),
    "pack": Command("pack", "keep a model's weights as tiles, so that it starts at once", "[MODEL] [options]"),
    "tokenize": Command("tokenize", "show the tokens of a text", "[MODEL] [TEXT ...] [options]"),
    "completion": Command("completion", "print what makes a shell complete edgellm's commands", "SHELL"),
}
ALIASES = {"show": "inspect", "ls": "list"}

EXIT_CODES = {
    0: "done",
    1: "failed: the reason is on standard error; of `inspect --verify` and `pack --verify`: something is damaged; of a "
    "chat on a pipe: a message could not be answered",
    2: "wrong usage, a wrong variable in the environment, a base model where a chat model is needed",
    130: "interrupted (Ctrl-C)",
}

HINTS = {
    "models are computed by the CPU in this release: leave it out": "-ngl --gpu-layers --n-gpu-layers -dev --device "
    "-sm --split-mode -ts --tensor-split -mg --main-gpu -nkvo --no-kv-offload",
    "`--weights mmap` runs from the file, `--weights tiles` repacks it": "--mmap --no-mmap --mlock -lm --load-mode "
    "--repack -nr --no-repack",
    "attention never stores its scores: leave it out": "-fa --flash-attn",
    "chat templates are always used, but with `run --raw`: leave it out": "--jinja --no-jinja",
    "`edgellm chat` is the conversation": "-cnv --conversation -i --interactive -if --interactive-first",
    "`edgellm run` answers once; `--raw` leaves out the chat template": "-no-cnv --no-conversation -st --single-turn",
    "write `USER/NAME:QUANT` after -hf": "-hff --hf-file",
    "the token is read from HF_TOKEN": "-hft --hf-token",
    "every answer ends when the process does: leave it out": "--keepalive",
    "answers cannot be constrained in this release": "--format --grammar --grammar-file -j --json-schema",
    "only the answer is printed: leave it out": "--no-display-prompt",
    "`EDGELLM_LOG=debug` shows more": "-lv --log-verbosity --log-file",
}
"""What to do instead of options that people bring along from llama.cpp and Ollama."""


class Parser(argparse.ArgumentParser):
    """Takes options in full only, so that a new option never changes what an old command line means."""

    def __init__(self, prog: str, usage: str, description: str | None, epilog: str | None = None) -> None:
        super().__init__(
            prog=prog,
            usage=f"{prog} {usage}",
            description=description,
            epilog=epilog,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, what may have been meant and where to look; exit with 2."""
        found = message.partition("unrecognized arguments: ")[2]
        unknown = next((word.partition("=")[0] for word in found.split() if word.startswith("-")), "")
        if unknown:
            message += self._instead(unknown)
        self.exit(2, f"{self.prog}: {message}\nSee `{self.prog} --help`.\n")

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """argparse would read "-ngl" as -n with the value "gl": only a number may follow a letter without a blank."""
        found: list[Any] = super()._get_option_tuples(option_string)
        if option_string.startswith("--"):
            return found
        return [t for t in found if t[1] == option_string[:2] and option_string[2:].lstrip("-").isdigit()]

    def _instead(self, unknown: str) -> str:
        """What may be meant by an option that does not exist."""
        for text, options in HINTS.items():
            if unknown in options.split():
                return f"\n{unknown}: {text}"
        from difflib import get_close_matches

        known = [option for option in self._option_string_actions if option.startswith("--")]
        near = get_close_matches(unknown, known, n=1, cutoff=0.6) if len(unknown) > 2 else []
        return f"; did you mean {near[0]}?" if near else ""


def top_parser() -> Parser:
    """The parser of `edgellm` itself: its help is the table of commands."""
    lines = "\n".join(f"  {name:<10} {command.help}" for name, command in COMMANDS.items())
    parser = Parser(
        "edgellm",
        "COMMAND [MODEL] [options]",
        f"Run GGUF language models on this machine.\n\ncommands:\n{lines}",
        "`edgellm COMMAND --help` shows a command's options. Without a model the starter model is used.",
    )
    parser.add_argument("--version", action="version", version=f"edgellm {__version__}")
    return parser


def command_parser(name: str) -> Parser:
    """The parser of one command; imports only that command's module."""
    command = COMMANDS[name]
    module = import_module(f"edgellm.cli.{command.module}")
    parser = Parser(f"edgellm {name}", command.usage, module.__doc__)
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)
    return parser


def _open_closed_streams() -> None:
    """Put the null device where a standard stream was closed (`>&-`): nothing else then gets its descriptor."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def main(argv: list[str] | None = None) -> int:
    """Run the command line (sys.argv by default); returns the exit code, whatever happens."""
    args = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    collects = gc.isenabled()
    gc.disable()  # what is imported stays: looking through it again and again takes a tenth of the start
    try:
        code = _run(args)
        sys.stdout.flush()  # so that a reader who has gone is noticed here, not at exit
        return code
    except SystemExit as e:  # argparse
        return e.code if isinstance(e.code, int) else 0
    except ConfigError as e:
        return _fail(e, 2)
    except EdgeLLMError as e:
        return _fail(e, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more to say, at exit neither
        return 1
    except OSError as e:  # files of ours raise typed errors: this is stdout, full or closed
        print(f"edgellm: cannot write the output: {e.strerror or e}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    finally:
        if collects:
            gc.enable()


def _run(args: list[str]) -> int:
    if args[:1] == ["help"]:
        args = [*args[1:], "--help"]
    name = ALIASES.get(args[0], args[0]) if args else "--help"
    if name not in COMMANDS:
        if not name.startswith("-"):
            top_parser().error(_unknown(name))
        top_parser().parse_args(args or [name])
        return 0
    _prepare_streams()
    log.show(env.LOG.get() or "warning")
    parsed = command_parser(name).parse_intermixed_args(args[1:])
    if name not in ("chat", "run", "bench", "serve"):  # they enable it when the model is open
        gc.enable()
    return int(parsed.run(parsed))


def _unknown(name: str) -> str:
    from difflib import get_close_matches  # not needed for a command that is spelt right

    near = get_close_matches(name, [*COMMANDS, *ALIASES], n=1, cutoff=0.6)
    if near:
        return f"unknown command {name!r}; did you mean {near[0]}?"
    if ":" in name or name.lower().endswith(".gguf") or os.path.exists(name):
        return f"unknown command {name!r}; to talk to that model: edgellm chat {name}"
    return f"unknown command {name!r}; there are {', '.join(COMMANDS)}"


def _prepare_streams() -> None:
    """A character that the terminal's encoding lacks is printed as ?, not a failure in the middle of an answer."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _fail(error: EdgeLLMError, code: int) -> int:
    print(f"edgellm: {error}", file=sys.stderr)
    return code
