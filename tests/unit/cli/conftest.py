"""The command line in this process (`cli`) and as a program on a pipe or a terminal (`program`, `terminal`)."""

from __future__ import annotations

import io
import logging
import os
import re
import select as system_select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from serving.tiny import install, write_tiny

from edgellm.backends.fake import FakeBackend
from edgellm.cli import main

REPOSITORY = Path(__file__).resolve().parents[3]

# The program, with a scripted model behind it. From the step `held_at` on each makes the file "begun" in the folder
# `held` ("": nowhere), and waits for as long as there is a file "hold" in it.
PROGRAM = """
import itertools, sys, time
from pathlib import Path
from edgellm.backends import select
from edgellm.backends.fake import FakeBackend
from edgellm.cli import main
from serving.tiny import saying
mark, hold = (Path({held!r}, name) for name in ("begun", "hold"))

steps = itertools.count(1)

def wait(batch):
    if next(steps) >= {held_at}:
        mark.touch()
        while hold.exists():
            time.sleep(0.005)

on_step = wait if {held!r} else None
select.BACKENDS["native"] = lambda: FakeBackend(saying(*{answers!r}), step_seconds={pace!r}, on_step=on_step)
sys.exit(main())
"""


class Result(NamedTuple):
    """Exit code, standard output, standard error."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _clean_log() -> Iterator[None]:
    root = logging.getLogger("edgellm")
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture(autouse=True)
def _own_machine(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_environment.setenv("EDGELLM_CACHE", str(tmp_path / "cache"))
    clean_environment.setenv("EDGELLM_STATE", str(tmp_path / "state"))
    clean_environment.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the tiny chat model."""
    return str(write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf"))


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the tiny model without a chat template."""
    return str(write_tiny(tmp_path_factory.mktemp("base") / "base.gguf", template=None))


class Terminal(io.StringIO):
    """Text that claims to come from a keyboard."""

    def isatty(self) -> bool:
        return True


CLI = Callable[..., Result]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CLI:
    """cli("run", "m.gguf", stdin="text", fake=FakeBackend(...)) -> Result; stdin=None: a terminal nobody types at."""

    def call(*argv: str, stdin: str | bytes | Terminal | None = "", fake: FakeBackend | None = None) -> Result:
        install(monkeypatch, fake or FakeBackend())
        source: Any = Terminal() if stdin is None else io.StringIO(stdin) if isinstance(stdin, str) else stdin
        if isinstance(stdin, bytes):
            source = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", source)
        capsys.readouterr()
        code = main(list(argv))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(REPOSITORY / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **more}


def command(
    *argv: str, answers: tuple[str, ...] = ("Hello.",), pace: float = 0.0, held: str = "", held_at: int = 1
) -> list[str]:
    """The program's command line, with a model that gives these answers, `pace` seconds a token; see PROGRAM."""
    return [sys.executable, "-c", PROGRAM.format(answers=answers, pace=pace, held=held, held_at=held_at), *argv]


@pytest.fixture
def program() -> CLI:
    """program("run", "m.gguf", stdin="text", answers=("Hello.",)) -> Result of the program on pipes."""

    def call(*argv: str, stdin: str = "", **options: Any) -> Result:
        done = subprocess.run(
            command(*argv, **options), input=stdin, capture_output=True, text=True, env=environment(), timeout=60
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return call


class Screen:
    """A program on a pseudo-terminal: type, wait for what it shows, interrupt."""

    def __init__(self, argv: list[str], term: str, stdout: int | None) -> None:
        import pty

        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            env=environment(TERM=term, COLUMNS="100"),
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self.shown = ""
        self._at = 0

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str, timeout: float = 60.0) -> str:
        """Reads until `text` appears after what was waited for before; returns what came before it."""
        deadline = time.monotonic() + timeout
        while (i := self.shown.find(text, self._at)) < 0:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} did not appear; the screen after the last match: {self.shown[self._at :]!r}"
            if system_select.select([self._master], [], [], min(left, 0.5))[0]:
                self._read()
        before, self._at = self.shown[self._at : i], i + len(text)
        return before

    def wait_until(self, condition: Callable[[], object], timeout: float = 60.0) -> None:
        """Reads until something holds."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, f"nothing happens: {self.shown[-500:]!r}"
            if system_select.select([self._master], [], [], 0.01)[0]:
                self._read()

    def end(self, timeout: float = 60.0) -> int:
        """The exit code, when the program has ended."""
        deadline = time.monotonic() + timeout
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"the program goes on: {self.shown[-500:]!r}"
            if system_select.select([self._master], [], [], 0.05)[0]:
                self._read()
        return self._process.returncode

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the program's side is closed
            data = b""
        if b"\x1b[6n" in data:  # "where is the cursor?": a terminal answers
            os.write(self._master, b"\x1b[1;1R")
        text = data.decode("utf-8", "replace")
        self.shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r", "", text)
        if not data:
            time.sleep(0.02)


def _take_terminal() -> None:
    """Makes standard input the controlling terminal, so that Ctrl-C on it is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Screen]]:
    """terminal("chat", "m.gguf", answers=..., pace=...) -> Screen; stdout: a descriptor, to pipe the answers away."""
    if sys.platform == "win32":
        pytest.skip("pseudo-terminals need a POSIX system")
    screens: list[Screen] = []

    def start(*argv: str, term: str = "xterm", stdout: int | None = None, **options: Any) -> Screen:
        screens.append(Screen(command(*argv, **options), term, stdout))
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()
