"""`edgellm` itself: help, version, unknown commands, exit codes, start-up time, a reader that leaves."""

from __future__ import annotations

import gc
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from serving.tiny import saying
from unit.cli.conftest import CLI, Screen, command, environment

from edgellm.backends.fake import FakeBackend
from edgellm.cli import ALIASES, COMMANDS, EXIT_CODES, HINTS, command_parser, top_parser
from edgellm.core.version import __version__


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(cli: CLI, argv: list[str]) -> None:
    code, out, err = cli(*argv)
    assert (code, err) == (0, "")
    for name, entry in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(entry.help)}$", out, re.MULTILINE)


def test_version(cli: CLI) -> None:
    assert cli("--version") == (0, f"edgellm {__version__}\n", "")


@pytest.mark.parametrize("name", [*COMMANDS, *ALIASES])
def test_every_command_has_help(cli: CLI, name: str) -> None:
    for argv in ([name, "--help"], [name, "-h"], ["help", name]):
        code, out, err = cli(*argv)
        assert (code, err) == (0, "")
        assert out.startswith(f"usage: edgellm {ALIASES.get(name, name)} ")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["chta"], "unknown command 'chta'; did you mean chat?"),
        (["inspct"], "did you mean inspect?"),
        (["frobnicate"], "unknown command 'frobnicate'; there are chat, run, bench"),
        (["model.gguf"], "to talk to that model: edgellm chat model.gguf"),
        (["smollm2:135m"], "to talk to that model: edgellm chat smollm2:135m"),
        (["help", "nothing"], "unknown command 'nothing'"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["run", "--frobnicate", "m"], "unrecognized arguments: --frobnicate"),
        (["run", "--tempp", "1", "m"], "unrecognized arguments: --tempp; did you mean --temp?"),
        (["run", "--ctx-siz=5", "m"], "did you mean --ctx-size?"),
        (["inspect", "--verfy"], "did you mean --verify?"),
        (["run", "m", "-ngl", "99"], "-ngl: models are computed by the CPU in this release: leave it out"),
        (["run", "m", "-fa"], "-fa: attention never stores its scores"),
        (["chat", "--no-mmap"], "--no-mmap: `--weights mmap` runs from the file"),
        (["chat", "-ct", "f16"], "unrecognized arguments: -ct"),
        (["run", "-nfive", "m", "x"], "unrecognized arguments: -nfive"),
        (["chat", "-sys", "a", "-sysf", "b"], "give the system message once"),
        (["chat", "-sysf", "/nowhere/at/all"], "cannot read /nowhere/at/all"),
        (["run", "--see", "3"], "unrecognized arguments: --see"),
        (["run", "--seed"], "argument -s/--seed: expected one argument"),
        (["run", "--seed", "x"], "invalid int value"),
        (["chat", "-ctk", "q9_0"], "invalid choice: 'q9_0'"),
        (["rm"], "MODEL"),
        (["chat", "a", "b"], "unrecognized arguments: b"),
        (["chat", "a", "-m", "b"], "give the model once"),
        (["run", "m", "x", "--temp", "-1"], "temperature must be a number from 0"),
        (["run", "m", "x", "--top-p", "2"], "top_p must be a number from 0 to 1"),
        (["run", "m", "x", "-n", "-2"], "max_tokens must be an integer from 0"),
        (["run", "m", "x", "--stop", ""], "stop must hold strings"),
        (["run", "m", "x", "--raw", "-sys", "y"], "--raw uses no chat template"),
        (["bench", "-p", "x"], "-p takes numbers separated by commas, found 'x'"),
        (["bench", "-p", "-5"], "-p"),
        (["bench", "-p", "0", "-n", "0"], "nothing to measure"),
        (["bench", "-r", "0"], "-r must be from 1"),
        (["inspect", "-c", "-1"], "-c must be from 0"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_and_where_to_look(cli: CLI, argv: list[str], words: str) -> None:
    code, out, err = cli(*argv)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("edgellm")
    assert "Traceback" not in err


def test_a_wrong_environment_is_wrong_usage(cli: CLI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGELLM_LOG", "loud")
    code, out, err = cli("list")
    assert (code, out) == (2, "")
    assert "EDGELLM_LOG is set to 'loud', expected one of debug" in err


def test_failures_exit_1(cli: CLI) -> None:
    code, out, err = cli("run", "nowhere:1b", "x")
    assert (code, out) == (1, "")
    assert err.startswith("edgellm: no model is called 'nowhere:1b'.")


def test_a_number_may_follow_its_letter(cli: CLI, tiny: str) -> None:
    assert cli("run", tiny, "Hi", "-n3", "--temp", "0", fake=FakeBackend(saying("abcdef"))).out == "abc\n"
    assert cli("run", tiny, "Hi", "-n-1", "--temp", "0", fake=FakeBackend(saying("abcdef"))).out == "abcdef\n"


def test_every_hint_is_for_an_option_that_does_not_exist() -> None:
    others = [name for name in COMMANDS if name != "serve"]  # which takes other servers' options, see its flags.py
    known = {option for name in others for option in command_parser(name)._option_string_actions}
    foreign = [option for options in HINTS.values() for option in options.split()]
    assert len(foreign) == len(set(foreign))
    assert known.isdisjoint(foreign)


def test_exit_codes_are_documented() -> None:
    assert list(EXIT_CODES) == [0, 1, 2, 130]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_shape_of_json_is_documented(name: str) -> None:
    module = importlib.import_module(f"edgellm.cli.{COMMANDS[name].module}")
    has_json = "--json" in command_parser(name)._option_string_actions
    assert has_json == hasattr(module, "JSON")


def test_options_are_never_abbreviated() -> None:
    for name in COMMANDS:
        assert command_parser(name).allow_abbrev is False
    assert top_parser().allow_abbrev is False


HEAVY = (
    "numpy", "rich", "prompt_toolkit", "tokenizers", "sentencepiece", "jinja2", "cffi", "_cffi_backend", "psutil",
    "huggingface_hub", "pygments", "asyncio", "dataclasses", "secrets",
)  # fmt: skip


def imported(*argv: str, stdin: str = "", **options: Any) -> set[str]:
    """Those of the heavy libraries that a command line imports."""
    argv0, flag, program, *rest = command(*argv, **options)
    program = program.replace("sys.exit(main())", "code = main()")
    program += f"\nprint('LOADED', *(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)\nsys.exit(code)"
    if not options:  # without a model the scripted backend is not needed, and it imports NumPy itself
        program = f"import sys\nfrom edgellm.cli import main\nmain()\n{program.splitlines()[-2]}"
    done = subprocess.run(
        [argv0, flag, program, *rest], input=stdin, capture_output=True, text=True, env=environment(), timeout=60
    )
    line = next(line for line in done.stderr.splitlines() if line.startswith("LOADED"))
    return set(line.split()[1:])


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["chta"],
        ["run", "--help"],
        ["chat", "--help"],
        ["tokenize", "--help"],
        ["run", "--tempp", "1"],
        ["chat", "--temp", "hot"],
    ],
)
def test_help_imports_nothing_heavy(argv: list[str]) -> None:
    assert imported(*argv) == set()


def test_an_answer_in_a_pipe_imports_no_terminal_libraries(tiny: str) -> None:
    loaded = imported("run", tiny, "Hi", "-n", "1", answers=("x",))
    assert loaded.isdisjoint({"rich", "prompt_toolkit", "pygments", "huggingface_hub", "asyncio"})
    assert loaded.isdisjoint({"sentencepiece"}), "a byte-level vocabulary does not need it"


def test_an_answer_imports_nothing_that_it_can_do_without(tiny: str) -> None:
    """Each of these takes milliseconds of every start."""
    others = {"psutil", "secrets", "difflib", "tokenizers", "rich", "huggingface_hub", "numpy.random", "urllib.request"}
    program = f"import sys\nfrom edgellm.__main__ import main\nmain()\nprint(*({others} & set(sys.modules)))"
    argv = [sys.executable, "-c", program, "run", "--raw", tiny, "Hi", "-n", "1"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stdout.splitlines()[-1].strip()) == (0, "")


def test_a_chat_in_a_pipe_imports_no_terminal_libraries(tiny: str) -> None:
    loaded = imported("chat", tiny, "-n", "1", stdin="Hi\n/bye\n", answers=("x",))
    assert loaded.isdisjoint({"rich", "prompt_toolkit", "pygments", "huggingface_hub", "asyncio"})


EDITOR = """
import sys
class Watch:
    def find_spec(self, name, path, target=None):
        if name == "prompt_toolkit":
            sys.stderr.write(f"<editor after backend: {'edgellm.backends.reference.backend' in sys.modules}>")
sys.meta_path.insert(0, Watch())
from edgellm.__main__ import main
sys.exit(main())
"""


def test_on_a_terminal_the_line_editor_is_imported_beside_the_weights(tiny: str) -> None:
    """Before that it would hold up their loading, which does without Python."""
    if sys.platform == "win32":
        pytest.skip("pseudo-terminals need a POSIX system")
    screen = Screen([sys.executable, "-c", EDITOR, "chat", tiny, "--backend", "reference"], "xterm", None)
    try:
        screen.wait_for("<editor after backend: True>")
        screen.wait_for(">>> ")
        screen.type("Hi\r")
        screen.wait_for(">>> ")
        screen.type("\x04")
        assert screen.end() == 0
        assert screen.shown.count("<editor") == 1
    finally:
        screen.close()


def test_the_package_imports_nothing_of_itself_before_the_program_can_be_interrupted() -> None:
    program = "import edgellm.__main__, sys; print(*(m for m in sys.modules if m.startswith('edgellm')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert (done.stdout.split(), done.stderr) == (["edgellm", "edgellm.__main__"], "")


INTERRUPTED = """
import sys
class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == WHERE:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from edgellm.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    "where", ["edgellm.cli", "argparse", "edgellm.core.env", "edgellm.cli.run", "numpy", "edgellm._native.library"]
)
def test_an_interrupt_while_the_program_starts(where: str, tiny: str) -> None:
    program = INTERRUPTED.replace("WHERE", repr(where))
    done = subprocess.run(
        [sys.executable, "-c", program, "run", tiny, "Hi", "-n", "1"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("argv", [["--help"], ["chta"], ["run", "nowhere:1b", "x"], ["list"]])
def test_garbage_is_collected_as_before(cli: CLI, argv: list[str]) -> None:
    assert gc.isenabled()
    cli(*argv)
    assert gc.isenabled()
    gc.disable()
    try:
        cli("--help")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_garbage_is_collected_while_a_model_answers(cli: CLI, tiny: str) -> None:
    seen: list[bool] = []
    fake = FakeBackend(saying("x"), on_step=lambda batch: seen.append(gc.isenabled()))
    for argv in (["run", tiny, "Hi"], ["bench", tiny, "-p", "4", "-n", "2", "-r", "1"]):
        assert cli(*argv, fake=fake).code == 0
    cli("chat", tiny, stdin="Hi\n", fake=fake)
    assert seen
    assert all(seen)


def test_python_m_edgellm() -> None:
    done = subprocess.run([sys.executable, "-m", "edgellm", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"edgellm {__version__}\n")


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break differently there")
@pytest.mark.parametrize("argv", [("run", "{tiny}", "Hi", "--temp", "0"), ("inspect", "{tiny}", "--json")])
def test_a_reader_that_leaves_ends_the_program_quietly(tiny: str, argv: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "hold").touch()  # what follows the first word comes when the reader has left
    words = [a.format(tiny=tiny) for a in argv]
    read, write = os.pipe()
    process = subprocess.Popen(
        command(*words, answers=("word " * 40,), held=str(tmp_path), held_at=2), stdout=write, stderr=subprocess.PIPE,
        text=True, env=environment(), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(write)
    if argv[0] == "run":
        os.read(read, 1)
    os.close(read)
    (tmp_path / "hold").unlink()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "")


def test_log_lines_go_to_stderr(cli: CLI, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGELLM_LOG", "info")
    code, _, err = cli("run", tiny, "Hi", "-n", "1")
    assert code == 0
    assert re.search(r"^edgellm\.engine\.loader: .*tiny\.gguf: llama, ", err, re.MULTILINE)
    monkeypatch.delenv("EDGELLM_LOG")
    assert cli("run", tiny, "Hi", "-n", "1").err == ""


def test_a_warning_is_shown(cli: CLI, tiny: str) -> None:
    assert "trained for 256" in cli("run", tiny, "Hi", "-n", "1", "-c", "512").err


def test_the_repository_has_no_other_entry(repository: Path) -> None:
    assert 'edgellm = "edgellm.__main__:main"' in (repository / "pyproject.toml").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
@pytest.mark.parametrize("words", [("list",), ("doctor",), ("run", "hi", "-n", "3", "--json")])
def test_standard_streams_may_be_closed(tiny: str, words: tuple[str, ...], closed: str) -> None:
    argv = list(words)
    if argv[0] == "run":
        argv.insert(1, tiny)
    line = f"{shlex.join(command(*argv))} {closed}"
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, env=environment(), stdin=subprocess.DEVNULL
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == ("1>&-" not in closed)
