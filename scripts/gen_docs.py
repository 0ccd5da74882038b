#!/usr/bin/env python3
"""Writes what the documentation says about the code from the code: docs/cli.md, and tables in other pages.

    python scripts/gen_docs.py            # write
    python scripts/gen_docs.py --check    # say what is out of date, and end with 1

The tables stand between `<!-- generated: NAME -->` and `<!-- end -->`. An architecture is said to run on the
backends on which the parity tests prove it, a weight type where a backend has code for it.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import pkgutil
import re
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from parity.test_families import BACKENDS as PARITY_BACKENDS  # noqa: E402
from parity.test_families import MORE as PARITY_CASES  # noqa: E402

from edgellm.backends.lower import ACT_FORMATS  # noqa: E402
from edgellm.cli import (  # noqa: E402
    ALIASES,
    COMMANDS,
    EXIT_CODES,
    HINTS,
    command_parser,
    commands,
    sampling,
)
from edgellm.cli.history import MAX_ENTRIES  # noqa: E402
from edgellm.cli.show import TOPICS  # noqa: E402
from edgellm.compat import arguments, formats  # noqa: E402
from edgellm.core import env  # noqa: E402
from edgellm.core.errors import GGUFError  # noqa: E402
from edgellm.gguf.dequantize import dequantize  # noqa: E402
from edgellm.gguf.qtypes import QType  # noqa: E402
from edgellm.models import families  # noqa: E402
from edgellm.models.spec import Family  # noqa: E402

GOLDEN = ROOT / "tests" / "golden"
GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table. Bars inside cells are escaped."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(c.replace("|", "\\|") for c in line) + " |\n" for line in lines)


# ---- docs/cli.md -----------------------------------------------------------------------------------------


def cli_page() -> str:
    """The page of the command line."""
    parts = [
        "# The command line\n\n"
        "<!-- written by scripts/gen_docs.py from the parsers: do not edit -->\n\n"
        "`edgellm COMMAND [MODEL] [options]`. MODEL is the path of a GGUF file or of a folder with one in it, or a\n"
        "name that `edgellm list` shows; without one the starter model is used, and fetched the first time. Options\n"
        "may stand anywhere and are never abbreviated.\n\n"
        "Tokens and results go to standard output, everything else to standard error; progress bars are drawn on\n"
        "terminals only. In a pipe or a file an answer is what the model wrote, byte for byte; on a terminal words\n"
        "are wrapped, Markdown is shown, and control characters are made visible.\n\n"
    ]
    parts.append(table(("exit code", "meaning"), [(str(code), text) for code, text in EXIT_CODES.items()]) + "\n")
    parts.append(table(("command", "does"), [(f"[`{n}`](#edgellm-{n})", c.help) for n, c in COMMANDS.items()]))
    for name in COMMANDS:
        parts.append(_command(name))
        if name == "chat":
            parts.append(_slash_commands())
    parts.append("\n## Options of other programs\n\nWhat to do instead, said where one of these is used.\n\n")
    parts.append(table(("option", "instead"), [(f"`{'`, `'.join(o.split())}`", text) for text, o in HINTS.items()]))
    parts.append("\n## Environment\n\nAn empty variable counts as unset.\n\n")
    parts.append(table(("variable", "meaning"), [(f"`{v.name}`", v.help) for v in env.VARIABLES]))
    return "".join(parts)


def _slash_commands() -> str:
    """The commands of the chat, and its keys."""
    parts = [
        "\nThree quotes begin a message of several lines and end it; a backslash at the end of a line continues it; a\n"
        "paste of several lines is one message. What is typed is kept in `history.jsonl` of EDGELLM_STATE (the newest\n"
        f"{MAX_ENTRIES} entries; not what begins with a blank), saved conversations in `sessions`, as JSON.\n\n"
    ]
    rows = [(", ".join(f"`{f'{n} {c.usage}'.strip()}`" for n in c.names), c.help) for c in commands.COMMANDS]
    parts.append(table(("in the chat", "does"), rows))
    rows = [(f"`/set {f'{s.name} {s.usage}'.strip()}`", s.help) for s in commands.SETTINGS]
    parts.append("\n" + table(("setting", "does"), rows))
    rows = [(f"`{'`, `'.join(o.words)}`", o.described) for o in sampling.OPTIONS]
    parts.append("\n" + table(("parameter", "meaning"), rows))
    topics = [(f"`/show {name}`", (show.__doc__ or "").strip()) for name, show in TOPICS.items()]
    parts.append("\n" + table(("topic", "shows"), topics))
    parts.append("\n" + table(("key", "does"), list(commands.SHORTCUTS)))
    return "".join(parts)


def _command(name: str) -> str:
    parser = command_parser(name)
    aliases = [a for a, target in ALIASES.items() if target == name]
    also = f" (also `edgellm {'`, `edgellm '.join(aliases)}`)" if aliases else ""
    usage = f"`edgellm {name} {COMMANDS[name].usage}`{also}"
    text = f"\n## edgellm {name}\n\n{usage}\n\n{(parser.description or '').strip()}\n"
    for group in parser._action_groups:
        rows = []
        for action in group._group_actions:
            if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
                continue
            value = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.metavar
            takes = f" {value}" if action.nargs != 0 and value else ""
            spelt = [f"`{option}{takes}`" for option in action.option_strings] or [f"`{action.metavar}`"]
            rows.append((", ".join(spelt), action.help or ""))
        if rows:
            title = {"positional arguments": "argument", "options": "option"}.get(group.title or "", group.title or "")
            text += "\n" + table((title, "meaning"), rows)
    shape: dict[str, str] | None = getattr(
        importlib.import_module(f"edgellm.cli.{COMMANDS[name].module}"), "JSON", None
    )
    if shape is not None:
        each = "a list of objects" if name == "bench" else "an object"
        text += f"\n`--json` prints {each}:\n\n" + table(("key", "value"), [(f"`{k}`", v) for k, v in shape.items()])
    return text


# ---- the tables of the README ----------------------------------------------------------------------------


def architectures() -> str:
    """Every family, with the backends on which the parity tests run cases of it."""
    backends: dict[str, set[str]] = {}
    for case, names in PARITY_BACKENDS.items():
        files = [folder / f"{case}.json" for folder in (GOLDEN / "archs", PARITY_CASES)]
        arch = json.loads(next(f for f in files if f.exists()).read_text(encoding="utf-8"))["arch"]
        backends.setdefault(arch, set()).update(names)
    rows = []
    for module in pkgutil.iter_modules(families.__path__):
        family = importlib.import_module(f"{families.__name__}.{module.name}")
        assert isinstance(family.FAMILY, Family)
        name = family.FAMILY.name
        line = str(family.__doc__).splitlines()[0].removeprefix(f"{name}: ").rstrip(".")
        rows.append((f"`{name}`", line, ", ".join(sorted(backends.get(name, ()))) or "untested"))
    return table(("architecture", "models", "backends"), rows)


def weights() -> str:
    """Every weight type that a backend multiplies with."""
    rows = []
    for qtype in QType:
        try:
            dequantize(np.zeros(qtype.block_bytes, np.uint8), qtype, (qtype.block,))
            reference = "yes"
        except GGUFError:
            reference = ""
        native = "yes" if qtype in ACT_FORMATS else ""
        if reference or native:
            rows.append((qtype.name, f"{8 * qtype.block_bytes / qtype.block:g}", native, reference))
    return table(("weight type", "bits per weight", "native", "reference"), rows)


SPEEDS = ROOT / "docs" / "perf" / "xeon-2c-avx512_vnni.csv"
ROWS = (
    ("SmolLM2-135M-Instruct.Q4_1", "tg128", "SmolLM2 135M Q4_1, one answer"),
    ("1b", "tg128", "1B shape Q4_K_M, one answer"),
    ("1b", "npl8", "1B shape Q4_K_M, eight answers at once"),
    ("1b", "pp512", "1B shape Q4_K_M, a prompt of 512 tokens"),
)


def speeds() -> str:
    """The newest measurements of four kinds of work, and llama.cpp's better setting beside them."""
    with SPEEDS.open(encoding="utf-8", newline="") as file:
        found = {(r["model"], r["test"], r["runtime"]): r for r in csv.DictReader(file)}
    rows = []
    for model, test, title in ROWS:
        ours, theirs = (found[model, test, runtime] for runtime in ("edgellm", "llama.cpp"))
        a, b, limit = float(ours["tokens_per_s"]), float(theirs["tokens_per_s"]), float(ours["limit"])
        rows.append((title, f"{a:.0f}", f"{b:.0f}", f"{a / b:.1f}x", f"{limit:.0f}", f"{100 * a / limit:.0f} %"))
    return table(("tokens a second", "edgellm", "llama.cpp", "ratio", "limit", "of the limit"), rows)


# ---- the tables of docs/migrate --------------------------------------------------------------------------


def compat_constructor() -> str:
    """What becomes of the arguments of llama-cpp-python's constructor."""
    return _fates(arguments.CONSTRUCTOR | arguments.FROM_PRETRAINED)


def compat_calls() -> str:
    """The same for arguments of calls."""
    return _fates(arguments.CALL)


def _fates(arguments_: dict[str, arguments.Argument]) -> str:
    rows = [(f"`{a.name}={a.default!r}`", a.fate, a.note) for a in arguments_.values()]
    return table(("argument and its default", "", "note"), rows)


def compat_formats() -> str:
    """Names of chat formats."""
    return ", ".join(f"`{name}`" for name in formats.FORMATS) + "\n"


BLOCKS = {
    "README.md": (architectures, weights, speeds),
    "docs/migrate/llama-cpp-python.md": (compat_constructor, compat_formats, compat_calls),
}
"""Page -> its generated tables."""


def filled(page: str) -> str:
    """The text of a page with its tables as they should be."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = {make.__name__: make for make in BLOCKS[page]}
    found = [m[2] for m in GENERATED.finditer(text)]
    if sorted(found) != sorted(blocks):
        raise SystemExit(f"{page} has the generated blocks {found}, expected {sorted(blocks)}")
    return GENERATED.sub(lambda m: m[1] + blocks[m[2]]() + m[4], text)


# ---- writing and checking --------------------------------------------------------------------------------


def pages() -> dict[Path, str]:
    """Path -> the text that it should have."""
    return {ROOT / "docs" / "cli.md": cli_page(), **{ROOT / page: filled(page) for page in BLOCKS}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 when something is out of date")
    check = parser.parse_args().check
    stale = [p for p, text in pages().items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    if check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run python scripts/gen_docs.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(pages()[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
