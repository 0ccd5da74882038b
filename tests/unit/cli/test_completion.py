"""`edgellm completion`: scripts that shells accept, and what they offer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from unit.cli.conftest import CLI, PROGRAM, environment

from edgellm.cli import ALIASES, COMMANDS

SHELLS = ["bash", "zsh", "fish"]


def need(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    return found


@pytest.fixture
def scripts(cli: CLI, tmp_path: Path) -> Path:
    """A folder with the three scripts and a program `edgellm` that runs this one."""
    for shell in SHELLS:
        code, out, err = cli("completion", shell)
        assert (code, err) == (0, "")
        (tmp_path / f"edgellm.{shell}").write_text(out)
    program = tmp_path / "bin" / "edgellm"
    program.parent.mkdir()
    (tmp_path / "program.py").write_text(PROGRAM.format(answers=("x",), pace=0.0, held="", held_at=1))
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path / "program.py"}" "$@"\n')
    program.chmod(0o755)
    return tmp_path


def run(argv: list[str], scripts: Path) -> str:
    path = f"{scripts / 'bin'}{os.pathsep}{os.environ['PATH']}"
    env = environment(PATH=path, HOME=str(scripts), XDG_CONFIG_HOME=str(scripts))
    done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=scripts, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_name_every_command(scripts: Path, shell: str) -> None:
    text = (scripts / f"edgellm.{shell}").read_text()
    for name in (*COMMANDS, *ALIASES):
        assert name in text
    assert "--temp" in text or "-l temp" in text


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_accept_them(scripts: Path, shell: str) -> None:
    assert run([need(shell), "-n", str(scripts / f"edgellm.{shell}")], scripts) == ""


CASES = [
    (["ch"], ["chat"]),
    (["chat", "smo"], ["smollm2:135m"]),
    (["run", "--tem"], ["--temp", "--temperature"]),
    (["run", "--weights", "m"], ["mmap"]),
    (["completion", "f"], ["fish"]),
    (["show", "--ver"], ["--verify"]),
    (["pull", "gem"], ["gemma3:270m-base"]),
]


@pytest.mark.parametrize(("words", "offered"), CASES)
def test_bash(scripts: Path, words: list[str], offered: list[str]) -> None:
    script = 'source "$1"; shift; COMP_WORDS=(edgellm "$@"); COMP_CWORD=$#; _edgellm; printf "%s\\n" "${COMPREPLY[@]}"'
    out = run([need("bash"), "-c", script, "_", str(scripts / "edgellm.bash"), *words], scripts)
    assert sorted(set(out.split())) == offered


@pytest.mark.parametrize(
    ("words", "offered"),
    [(["smollm2", ":"], "135m"), (["smollm2", ":", "1"], "135m"), (["gemma3", ":", "2"], "270m-base")],
)
def test_bash_cuts_words_at_colons(scripts: Path, words: list[str], offered: str) -> None:
    test_bash(scripts, ["chat", *words], [offered])


def test_bash_offers_files(scripts: Path) -> None:
    (scripts / "model.gguf").write_text("x")
    test_bash(scripts, ["chat", "mod"], ["model.gguf"])
    test_bash(scripts, ["run", "-f", "prog"], ["program.py"])


@pytest.mark.parametrize(("words", "offered"), CASES)
def test_fish(scripts: Path, words: list[str], offered: list[str]) -> None:
    line = " ".join(["edgellm", *words])
    script = f"source {scripts / 'edgellm.fish'}; complete -C '{line}'"
    out = run([need("fish"), "--no-config", "-c", script], scripts)
    assert [row.split("\t")[0] for row in out.splitlines() if row] == offered


def test_the_names_of_models(cli: CLI) -> None:
    assert cli("completion", "--models").out.splitlines() == ["gemma3:270m-base", "smollm2:135m"]


@pytest.mark.parametrize("argv", [[], ["tcsh"]])
def test_the_shell_must_be_known(cli: CLI, argv: list[str]) -> None:
    code, out, err = cli("completion", *argv)
    assert (code, out) == (2, "")
    assert "the shell must be one of bash, zsh, fish" in err
