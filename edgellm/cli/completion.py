"""Print a script that makes a shell complete edgellm's commands, options and model names.

bash: `eval "$(edgellm completion bash)"` in ~/.bashrc. zsh: the same in ~/.zshrc, after compinit. fish:
`edgellm completion fish > ~/.config/fish/completions/edgellm.fish`.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from edgellm.cli import ALIASES, COMMANDS, command_parser
from edgellm.core.errors import ConfigError
from edgellm.core.record import dataclass

FILES, MODELS, NOTHING = "files", "models", ""


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its spellings, its help, and what its value is: FILES, MODELS, NOTHING, or a list of words.

    takes: whether a value follows.
    """

    flags: tuple[str, ...]
    help: str
    takes: bool
    value: str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Words:
    """What can follow a command: options, and the kind of its arguments."""

    name: str
    help: str
    options: tuple[Option, ...]
    arguments: str | tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `edgellm completion`."""
    parser.add_argument("shell", nargs="?", metavar="SHELL", help="bash, zsh or fish")
    parser.add_argument("--models", action="store_true", help="print the names of models instead, one a line")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.models:
        from edgellm import hub

        names = {*(m.name for m in hub.list_local()), *(e.name for e in hub.catalog())}
        print("\n".join(sorted(names)))
        return 0
    if args.shell not in SHELLS:
        found = f", found {args.shell!r:.40}" if args.shell else ""
        raise ConfigError(f"the shell must be one of {', '.join(SHELLS)}{found}")
    print(SHELLS[args.shell]([_words(name) for name in (*COMMANDS, *ALIASES)]), end="")
    return 0


def _words(name: str) -> Words:
    """What the parser of a command says can follow it."""
    target = ALIASES.get(name, name)
    options: list[Option] = []
    arguments: str | tuple[str, ...] = tuple(SHELLS) if target == "completion" else NOTHING
    for action in command_parser(target)._actions:
        if action.help == argparse.SUPPRESS:
            continue
        value: str | tuple[str, ...] = _kind(action)
        if action.option_strings:
            options.append(Option(tuple(action.option_strings), action.help or "", action.nargs != 0, value))
        elif value == MODELS:
            arguments = MODELS
    return Words(name, COMMANDS[target].help, tuple(options), arguments)


def _kind(action: argparse.Action) -> str | tuple[str, ...]:
    if action.choices is not None:
        return tuple(str(choice) for choice in action.choices)
    return {"FILE": FILES, "MODEL": MODELS}.get(str(action.metavar), NOTHING)


# -- bash ------------------------------------------------------------------------------------------------------


def bash(commands: list[Words]) -> str:
    """A script for bash 3.2 and later. Names of models hold colons, at which bash cuts words."""
    cases = []
    for c in commands:
        values = [f"        {'|'.join(o.flags)}) {_bash_value(o.value)}; return ;;" for o in c.options if o.takes]
        options = " ".join(flag for o in c.options for flag in o.flags)
        inner = "\n".join(values)
        cases.append(
            f"    {c.name})\n      case $prev in\n{inner}\n      esac\n"
            f'      if [[ $cur == -* ]]; then _edgellm_words "{options}"; else {_bash_value(c.arguments)}; fi ;;'
        )
    body = "\n".join(cases)
    names = " ".join(c.name for c in commands)
    return f"""\
# bash completion for edgellm
_edgellm_words() {{
  COMPREPLY=($(compgen -W "$1" -- "$cur"))
}}
_edgellm_files() {{
  local IFS=$'\\n'
  compopt -o filenames 2>/dev/null
  COMPREPLY=($(compgen -f -- "$cur"))
}}
_edgellm_models() {{
  _edgellm_files
  local name
  for name in $(edgellm completion --models 2>/dev/null); do
    if [[ $name == "$cur"* ]]; then COMPREPLY+=("${{name#"$cut"}}"); fi
  done
}}
_edgellm() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} cut="" i=$COMP_CWORD
  COMPREPLY=()
  if [[ $COMP_WORDBREAKS == *:* ]]; then  # put a name that was cut at its colon together again
    if [[ $cur == : && $i -gt 1 ]]; then cut="$prev:"; cur=$cut; i=$((i-1))
    elif [[ $prev == : && $i -gt 2 ]]; then cut="${{COMP_WORDS[i-2]}}:"; cur=$cut$cur; i=$((i-2)); fi
    prev=${{COMP_WORDS[i-1]}}
  fi
  if [[ $i -eq 1 ]]; then _edgellm_words "help {names} --help --version"; return; fi
  case ${{COMP_WORDS[1]}} in
    help) _edgellm_words "{names}" ;;
{body}
  esac
}}
complete -F _edgellm edgellm
"""


def _bash_value(value: str | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return f'_edgellm_words "{" ".join(value)}"'
    return {FILES: "_edgellm_files", MODELS: "_edgellm_models"}.get(value, "COMPREPLY=()")


# -- zsh -------------------------------------------------------------------------------------------------------


def zsh(commands: list[Words]) -> str:
    """A script for zsh's completion system."""
    cases = []
    for c in commands:
        specs = [_zsh_option(o) for o in c.options]
        specs.append(_quoted(f"*: :{_zsh_value(c.arguments)}"))
        lines = " \\\n        ".join(specs)
        cases.append(f"    {c.name})\n      _arguments \\\n        {lines} ;;")
    body = "\n".join(cases)
    names = "\n".join(f"    {_quoted(f'{c.name}:{c.help}')}" for c in commands)
    return f"""\
#compdef edgellm
_edgellm_models() {{
  local -a names
  names=(${{(f)"$(edgellm completion --models 2>/dev/null)"}})
  _alternative 'models:model:compadd -a names' 'files:file:_files'
}}
_edgellm() {{
  local -a commands
  commands=(
{names}
    'help:show the help of a command'
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
    help) _describe command commands ;;
{body}
  esac
}}
compdef _edgellm edgellm
"""


def _zsh_option(o: Option) -> str:
    text = re.sub(r"([\[\]:\\])", r"\\\1", o.help)
    value = f": :{_zsh_value(o.value)}" if o.takes else ""
    names = " ".join(o.flags)
    return " ".join(_quoted(f"({names}){flag}[{text}]{value}") for flag in o.flags)


def _zsh_value(value: str | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return f"({' '.join(value)})"
    return {FILES: "_files", MODELS: "_edgellm_models"}.get(value, " ")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# -- fish ------------------------------------------------------------------------------------------------------


def fish(commands: list[Words]) -> str:
    """A script for fish."""
    lines = ["# fish completion for edgellm", "complete -c edgellm -f"]
    first = "test (count (commandline -opc)) -eq 1"
    for c in commands:
        lines.append(f"complete -c edgellm -n {_fish(first)} -a {c.name} -d {_fish(c.help)}")
    for c in commands:
        when = _fish(f"__fish_seen_subcommand_from {c.name}")
        for o in c.options:
            spelt = [_fish_flag(flag) for flag in o.flags]
            value = _fish_value(o.value) if o.takes else ""
            takes = " -x" if o.takes and o.value != FILES else " -r -F" if o.takes else ""
            lines.append(f"complete -c edgellm -n {when} {' '.join(spelt)} -d {_fish(o.help)}{takes}{value}")
        if c.arguments:
            files = " -F" if c.arguments == MODELS else ""
            lines.append(f"complete -c edgellm -n {when}{files}{_fish_value(c.arguments)}")
    return "\n".join(lines) + "\n"


def _fish_flag(flag: str) -> str:
    if flag.startswith("--"):
        return f"-l {flag[2:]}"
    return f"-s {flag[1:]}" if len(flag) == 2 else f"-o {flag[1:]}"


def _fish_value(value: str | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return f" -a {_fish(' '.join(value))}"
    return f" -a {_fish('(edgellm completion --models 2>/dev/null)')}" if value == MODELS else ""


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: dict[str, Callable[[list[Words]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
