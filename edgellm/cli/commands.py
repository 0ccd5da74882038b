"""The slash commands of the chat, as a table: those of llama-cli and those of Ollama."""

from __future__ import annotations

import difflib
import io
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from edgellm.cli import sampling, session, show
from edgellm.cli.reader import QUOTES
from edgellm.core.errors import ConfigError, EdgeLLMError
from edgellm.core.files import read_regular

if TYPE_CHECKING:
    from edgellm.cli.repl import Repl

MAX_READ_BYTES = 16 << 20
"""Bytes of a file that /read takes."""


class Command(NamedTuple):
    """names: the first is listed. usage: what follows the name. run(chat, rest) -> False to leave the chat.

    choices: what Tab offers after the name, for the words before the cursor and the beginning of the one at it.
    """

    names: tuple[str, ...]
    usage: str
    help: str
    run: Callable[[Repl, str], bool | None]
    choices: Callable[[list[str], str], list[str]] = lambda words, begun: []


def find(word: str) -> Command | None:
    """The command of a name, None if there is none."""
    return next((c for c in COMMANDS if word in c.names), None)


def run(chat: Repl, text: str) -> bool:
    """Run a slash command; False to leave. What is wrong with it is said, not raised."""
    word, _, rest = text.partition(" ")
    command = find(word)
    if command is None:
        near = difflib.get_close_matches(word, [name for c in COMMANDS for name in c.names], n=1)
        hint = f"; did you mean {near[0]}?" if near else "; /? lists the commands"
        chat.say(f"unknown command {word:.40}{hint} ({QUOTES} before a message that begins with a slash)")
        return True
    try:
        return command.run(chat, rest.strip()) is not False
    except EdgeLLMError as e:
        chat.say(str(e))
    except KeyboardInterrupt:
        chat.say("[stopped]")
    return True


def complete(before: str) -> list[str]:
    """What a command line could become, for Tab."""
    words = before.split(" ")
    if len(words) == 1:
        return [f"{name} " if c.usage else name for c in COMMANDS for name in c.names if name.startswith(before)]
    command = find(words[0])
    if command is None:
        return []
    stem = before[: len(before) - len(words[-1])]
    return [stem + word for word in command.choices(words[1:-1], words[-1]) if word.startswith(words[-1])]


# -- help ------------------------------------------------------------------------------------------------------

SHORTCUTS = (
    ("Ctrl-C", "stops the answer; at the prompt: clears the line"),
    ("Ctrl-D", "leaves, at an empty prompt"),
    ("Alt-Enter", "begins another line (so does a backslash at the end of one)"),
    ("Ctrl-G", "edits the message in $EDITOR"),
    ("Ctrl-R", "searches the history; Up and Down walk through it"),
    ("Ctrl-A, Ctrl-E", "to the start, to the end of the line"),
    ("Alt-B, Alt-F", "back, forward by a word"),
    ("Ctrl-K, Ctrl-U", "deletes to the end, to the start of the line"),
    ("Ctrl-W", "deletes the word before the cursor"),
    ("Ctrl-L", "clears the screen; the conversation stays"),
    ("Tab", "completes commands, names and files"),
)


def _help(chat: Repl, rest: str) -> None:
    topic = rest.removeprefix("/")
    if topic == "shortcuts":
        chat.say_rows(list(SHORTCUTS))
        return
    command = find(f"/{topic}") if topic else None
    if command is not None and command.names[0] == "/set":
        _list_settings(chat)
    elif command is not None:
        chat.say_rows([(_spelt(command), command.help)])
    elif topic:
        chat.say(f"there is no command /{topic:.40}; /? lists them all")
    else:
        rows = [(_spelt(c), c.help) for c in COMMANDS]
        rows.append((QUOTES, "begins and ends a message of several lines; a backslash continues a line"))
        chat.say_rows([*rows, ("Ctrl-C, Ctrl-D", "stops the answer; leaves")])


def _spelt(command: Command) -> str:
    return ", ".join(command.names) + (f" {command.usage}" if command.usage else "")


# -- the conversation ------------------------------------------------------------------------------------------


def _clear(chat: Repl, rest: str) -> None:
    chat.clear()
    chat.say("the conversation is forgotten")


def _system(chat: Repl, rest: str) -> None:
    text = rest.strip().removeprefix(QUOTES).removesuffix(QUOTES).strip()
    if text:
        chat.system = text
        chat.clear()
        chat.say("system message set; the conversation starts anew")
    else:
        chat.say(chat.system or "no system message is set")


def _regen(chat: Repl, rest: str) -> None:
    if chat.messages and chat.messages[-1]["role"] == "assistant":
        chat.messages.pop()
    if not chat.messages:
        chat.say("there is nothing to answer yet")
    else:
        chat.answer()


def _undo(chat: Repl, rest: str) -> None:
    while chat.messages and chat.messages[-1]["role"] == "assistant":
        chat.messages.pop()
    if not chat.messages:
        chat.say("there is nothing to take back")
        return
    text = chat.messages.pop()["content"]
    chat.say("taken back: the last message and its answer")
    chat.edit(text)


def _read(chat: Repl, rest: str) -> None:
    if not rest:
        chat.say("/read FILE puts a text file before your next message")
        return
    path = _path(rest)
    try:
        raw = read_regular(path, MAX_READ_BYTES)
        text = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8").read()  # line ends are those of every system
    except OSError as e:
        raise ConfigError(f"cannot read {rest}: {e.strerror or e}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{rest} is not text in utf-8") from None
    except ValueError as e:
        raise ConfigError(f"{path} {e}") from None
    chat.attached.append(text.strip("\n"))
    n = chat.count(text)
    chat.say(f"{path.name}: {len(text)} characters{f', {n} tokens' if n else ''}; it goes with your next message")


def _path(text: str) -> Path:
    """A path as it is typed: with quotes or without."""
    try:
        words = shlex.split(text)
        name = words[0] if len(words) == 1 else text
        return Path(name).expanduser()
    except (ValueError, RuntimeError):
        return Path(text)


def _files(words: list[str], begun: str) -> list[str]:
    """Files and folders that the path could become."""
    folder = begun[: begun.rfind("/") + 1]
    try:
        found = list(_path(folder or ".").iterdir())
    except OSError:
        return []
    return sorted(f"{folder}{p.name}{'/' if p.is_dir() else ''}" for p in found if not p.name.startswith("."))


def _sessions(words: list[str], begun: str) -> list[str]:
    return [] if words else session.names()


# -- sessions --------------------------------------------------------------------------------------------------


def _save(chat: Repl, rest: str) -> None:
    name = rest or chat.name
    if not name:
        chat.say("/save NAME keeps the conversation under a name, /save FILE.json in a file")
        return
    path = session.path_of(name)
    there = path.exists()
    session.save(chat.to_session(), path)
    chat.name = name
    chat.say(f"{len(chat.messages)} messages {'saved again' if there else 'saved'} in {path}")


def _load(chat: Repl, rest: str) -> None:
    if not rest:
        known = session.names()
        chat.say(f"saved: {', '.join(known)}" if known else "no session is saved yet")
        chat.say("/load NAME goes on with a session; /load MODEL opens another model and starts anew")
        return
    path = session.path_of(rest) if rest.endswith(session.SUFFIX) or rest in session.names() else None
    if path is None:
        chat.open(rest)
        chat.clear()
        chat.say(f"{chat.model}: the conversation starts anew")
        return
    loaded = session.load(path)
    if loaded.model != chat.model:
        chat.open(loaded.model)
    chat.from_session(loaded)
    chat.name = rest
    chat.say(f"{len(loaded.messages)} messages loaded from {path}; the model is {chat.model}")
    if loaded.fingerprint and loaded.fingerprint != chat.fingerprint:
        chat.say(f"(saved with {loaded.fingerprint}, this is {chat.fingerprint}: answers may differ)")


# -- settings --------------------------------------------------------------------------------------------------


class Setting(NamedTuple):
    """`/set NAME`. usage: what follows the name."""

    name: str
    usage: str
    help: str
    run: Callable[[Repl, str], None]


def _switch(attribute: str, value: object, said: str) -> Callable[[Repl, str], None]:
    def change(chat: Repl, rest: str) -> None:
        setattr(chat, attribute, value)
        chat.say(said)

    return change


def _history(keep: bool) -> Callable[[Repl, str], None]:
    def change(chat: Repl, rest: str) -> None:
        kept = chat.keep_history(keep)
        chat.say("what you type is stored" if kept else "what you type is not stored")

    return change


def _unsupported(what: str) -> Callable[[Repl, str], None]:
    def explain(chat: Repl, rest: str) -> None:
        chat.say(f"{what} in this release")

    return explain


_ENGINE = {"num_ctx": "ctx_size", "ctx_size": "ctx_size", "num_thread": "threads", "threads": "threads"}
"""Parameters of the engine, by the option that they are."""


def _parameter(chat: Repl, rest: str) -> None:
    words = _words(rest)
    if not words:
        show.parameters(chat)
        return
    name, values = words[0].lower().replace("-", "_"), words[1:]
    if name in _ENGINE:
        _engine_parameter(chat, name, values)
        return
    option = sampling.BY_WORD.get(name)
    if option is None:
        near = difflib.get_close_matches(name, [*sampling.BY_WORD, "num_ctx", "num_thread"], n=1)
        hint = f"; did you mean {near[0]}?" if near else "; /show parameters lists them"
        raise ConfigError(f"there is no parameter {name!r:.40}{hint}")
    if not values:
        show.parameters(chat, only=option.field)
    elif values == ["default"]:
        chat.parameters.pop(option.field, None)
        show.parameters(chat, only=option.field)
    else:
        chat.set_parameter(option.field, sampling.read_words(option, values))
        show.parameters(chat, only=option.field)


def _engine_parameter(chat: Repl, name: str, values: list[str]) -> None:
    """What belongs to the engine: the model is opened again, the conversation stays."""
    try:
        (value,) = (int(v) for v in values)
    except ValueError:
        raise ConfigError(f"{name} takes one number") from None
    if _ENGINE[name] == "ctx_size":
        chat.open(chat.model, ctx_size=value)
        chat.say(f"context: {chat.llm.info.n_ctx} tokens")
    else:
        chat.open(chat.model, threads=value)
        chat.say(f"threads: {value}")


def _words(text: str) -> list[str]:
    """Words as a shell reads them, so that a stop string may hold blanks."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


SETTINGS = (
    Setting("parameter", "NAME VALUE", "a sampling parameter, num_ctx or num_thread; `default` unsets it", _parameter),
    Setting("system", "TEXT", "the system message; the conversation starts anew", _system),
    Setting("markdown", "", "show Markdown", _switch("markdown", True, "Markdown is shown")),
    Setting("nomarkdown", "", "show the text as it is written", _switch("markdown", False, "text is shown as it is")),
    Setting("wordwrap", "", "break lines between words", _switch("wrap", True, "lines break between words")),
    Setting("nowordwrap", "", "let the terminal break lines", _switch("wrap", False, "the terminal breaks lines")),
    Setting("verbose", "", "print figures and the seed after answers", _switch("stats", "long", "figures are shown")),
    Setting("quiet", "", "print nothing after answers", _switch("stats", "", "figures are not shown")),
    Setting("history", "", "store what is typed", _history(True)),
    Setting("nohistory", "", "do not store what is typed", _history(False)),
)
_NOT_YET = {
    "format": "answers cannot be constrained to a format",
    "noformat": "answers are never constrained to a format",
    "think": "thinking cannot be switched",
    "nothink": "thinking cannot be switched",
}


def _set(chat: Repl, rest: str) -> None:
    name, _, value = rest.partition(" ")
    found = next((s for s in SETTINGS if s.name == name), None)
    if found is not None:
        found.run(chat, value.strip())
    elif name in _NOT_YET:
        _unsupported(_NOT_YET[name])(chat, value)
    elif name.replace("-", "_") in (*sampling.BY_WORD, *_ENGINE):  # "/set temperature 0.5"
        _parameter(chat, rest)
    elif not name:
        _list_settings(chat)
    else:
        near = difflib.get_close_matches(name, [*(s.name for s in SETTINGS), *sampling.BY_WORD, *_ENGINE], n=1)
        raise ConfigError(f"there is no setting {name!r:.40}" + (f"; did you mean {near[0]}?" if near else ""))


def _list_settings(chat: Repl) -> None:
    chat.say_rows([(f"/set {s.name} {s.usage}".rstrip(), s.help) for s in SETTINGS])


def _show(chat: Repl, rest: str) -> None:
    found = show.TOPICS.get(rest.strip().lower())
    if found is None:
        chat.say(f"/show {'|'.join(show.TOPICS)}")
    else:
        found(chat)


def _set_choices(words: list[str], begun: str) -> list[str]:
    if words == ["parameter"]:
        return [*(o.field for o in sampling.OPTIONS), "num_ctx", "num_thread"]
    return [] if words else [s.name for s in SETTINGS]


def _leave(chat: Repl, rest: str) -> bool:
    return False


COMMANDS: tuple[Command, ...] = (
    Command(("/?", "/help"), "[COMMAND|shortcuts]", "show this help, that of a command, or the keys", _help,
            lambda words, begun: [] if words else ["shortcuts", *(c.names[0][1:] for c in COMMANDS)]),
    Command(("/set",), "NAME [VALUE]", "change how answers are made and shown; /set lists what there is", _set,
            _set_choices),
    Command(("/show",), "TOPIC", "show the model's info, license, parameters, system, template, ...", _show,
            lambda words, begun: [] if words else list(show.TOPICS)),
    Command(("/system",), "[TEXT]", "set the system message and start anew; alone: show it", _system),
    Command(("/read",), "FILE", "put a text file before your next message", _read, _files),
    Command(("/regen", "/retry"), "", "answer the last message again", _regen),
    Command(("/undo",), "", "take the last message back and edit it", _undo),
    Command(("/clear",), "", "forget the conversation", _clear),
    Command(("/save",), "[NAME]", "save the conversation", _save, _sessions),
    Command(("/load",), "NAME|MODEL", "go on with a saved conversation, or open another model", _load,
            _sessions),
    Command(("/bye", "/exit", "/quit"), "", "leave (also Ctrl-D)", _leave),
)  # fmt: skip
