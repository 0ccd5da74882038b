"""A chat on a real terminal emulator: tmux, driven by keys and read as the screen that a person sees."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from serving.tiny import write_tiny
from unit.cli.conftest import command, environment

TIMEOUT = 90.0


class Tmux:
    """One window of a tmux server of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._servers = folder, 0
        self._tmux: list[str] = []

    def start(self, argv: list[str], columns: int, rows: int, **variables: str) -> None:
        """Run a program; the window stays when it ends and then says "ended with CODE"."""
        # A server that is ending still holds its socket for a moment: each has its own.
        self._servers += 1
        socket = self._folder / f"tmux{self._servers}"
        self._tmux = [str(shutil.which("tmux")), "-S", str(socket), "-f", "/dev/null"]
        script = self._folder / "start.sh"
        script.write_text(f'trap : INT\n{shlex.join(argv)}\necho "ended with $?"\nsleep 1000\n', encoding="utf-8")
        settings = environment(TERM="screen-256color", LC_ALL="C.UTF-8", **variables)
        settings.pop("COLUMNS", None)
        size = ["-x", str(columns), "-y", str(rows)]
        self._run("-u", "new-session", "-d", *size, f"sh {shlex.quote(str(script))}", env=settings)
        self._run("set-option", "-g", "history-limit", "5000")

    def type(self, text: str) -> None:
        """Keys for the characters of `text`."""
        self._run("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: Enter, C-c, Up, Tab."""
        self._run("send-keys", *keys)

    def paste(self, text: str) -> None:
        """A bracketed paste."""
        self._run("load-buffer", "-", text=text)
        self._run("paste-buffer", "-p", "-r")

    def resize(self, columns: int, rows: int) -> None:
        """Another size of the window."""
        self._run("resize-window", "-x", str(columns), "-y", str(rows))

    def screen(self, *, scrolled: bool = False, joined: bool = False, escapes: bool = False) -> str:
        """What is on the screen, without empty lines at the end. scrolled: what has left it, too. joined: rows that
        the terminal wrapped are one line."""
        options = [*(["-S", "-"] if scrolled else []), *(["-J"] if joined else []), *(["-e"] if escapes else [])]
        return self._run("capture-pane", "-p", *options).rstrip()

    def wait_for(self, text: str, *, times: int = 1, scrolled: bool = False) -> str:
        """The screen, once `text` is on it (`times` times)."""
        deadline = time.monotonic() + TIMEOUT
        while (screen := self.screen(scrolled=scrolled)).count(text) < times:
            assert time.monotonic() < deadline, f"{text!r} did not appear:\n{screen}"
            time.sleep(0.05)
        return screen

    def prompt(self) -> str:
        """The screen, once the chat waits: an empty prompt is its last line."""
        deadline = time.monotonic() + TIMEOUT
        while not (screen := self.screen()).endswith(">>> Send a message (/? for help)"):
            assert time.monotonic() < deadline, f"no prompt appeared:\n{screen}"
            time.sleep(0.05)
        return screen

    def program(self) -> int:
        """The process of the program (Linux)."""
        shell = self._run("display-message", "-p", "#{pane_pid}").strip()
        (child,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return int(child)

    def stop(self) -> None:
        """End everything."""
        if self._tmux:
            subprocess.run([*self._tmux, "kill-server"], capture_output=True)

    def _run(self, *argv: str, text: str | None = None, env: dict[str, str] | None = None) -> str:
        done = subprocess.run([*self._tmux, *argv], input=text, capture_output=True, encoding="utf-8", env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a tiny chat model with room for long messages."""
    return str(write_tiny(tmp_path_factory.mktemp("terminal") / "tiny.gguf", n_ctx=32768))


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    """A tmux of its own; skips where there is none."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed (the package is called tmux)")
    server = Tmux(tmp_path)
    yield server
    server.stop()


Chat = Callable[..., Tmux]


@pytest.fixture
def chat(tmux: Tmux, model: str, tmp_path: Path) -> Chat:
    """chat("-v", answers=("One.",), pace=0.01) -> Tmux with a chat that waits for the first message."""

    def start(
        *argv: str, answers: tuple[str, ...] = ("Hello.",), pace: float = 0.0, columns: int = 80, rows: int = 24
    ) -> Tmux:
        line = command("chat", model, "--temp", "0", *argv, answers=answers, pace=pace)
        state, cache = str(tmp_path / "state"), str(tmp_path / "cache")
        tmux.start(line, columns, rows, EDGELLM_STATE=state, EDGELLM_CACHE=cache, HF_HUB_OFFLINE="1")
        tmux.prompt()
        return tmux

    return start
