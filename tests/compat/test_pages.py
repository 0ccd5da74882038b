"""Every command and every Python block of docs/migrate runs, and those of the README's first screen.

A page is run in a folder with `model.gguf` and `notes.txt`, by an account whose caches hold the same model: the
catalogue's, Ollama's under the name smollm2, and Hugging Face's as user/repository-GGUF:Q4_1. There is no network.
A server runs while what follows it is run, on a port of its own: the page's port is written over.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from edgellm import hub
from edgellm.core import env
from edgellm.hub.local import entry_path

PAGES = [
    "docs/migrate/llama.cpp.md",
    "docs/migrate/ollama.md",
    "docs/migrate/llama-cpp-python.md",
    "docs/migrate/vllm.md",
]
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
REPOSITORY_NAME = "models--user--repository-GGUF"


@dataclass(frozen=True)
class Account:
    """A folder to work in, and the environment of the commands that are run there."""

    folder: Path
    environment: dict[str, str]

    def run(self, command: str | list[str], typed: str = "", port: int = 0) -> str:
        """What a command prints; it must succeed. typed: its standard input. port: of the server it is to talk to."""
        done = subprocess.run(
            at_port(command, port) if isinstance(command, str) else [at_port(c, port) for c in command],
            shell=isinstance(command, str),
            cwd=self.folder,
            env=self.environment,
            input=typed,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def serving(self, command: str) -> Iterator[int]:
        """The port of a server that runs, is ready, and ends well when it is told to."""
        words = shlex.split(re.sub(r" --port \d+", "", command))
        log = self.folder / "server.log"
        with log.open("w") as out:
            server = subprocess.Popen(
                [*words, "--port", "0"], cwd=self.folder, env=self.environment, stdout=out, stderr=out
            )
        try:
            while (said := re.search(r"at http://127\.0\.0\.1:(\d+)\n", log.read_text())) is None:
                assert server.poll() is None, f"{command}\n{log.read_text()}"
                time.sleep(0.01)
            port = int(said[1])
            while not ready(port):
                assert server.poll() is None, f"{command}\n{log.read_text()}"
                time.sleep(0.01)
            yield port
            server.send_signal(signal.SIGTERM)
            assert server.wait() == 0, f"{command}\n{log.read_text()}"
        finally:
            server.kill()
            server.wait()


def ready(port: int) -> bool:
    """Whether a server there can answer requests."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def at_port(text: str, port: int) -> str:
    """A command or program that talks to a server at this port, if any, instead of the one it names."""
    return re.sub(r"(127\.0\.0\.1):\d+", rf"\1:{port}", text) if port else text


def put(source: Path, target: Path) -> None:
    """A symbolic link to a file, in a folder that need not be there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source)


def fill_ollama(model: Path, root: Path) -> None:
    """Ollama's store with the model as smollm2:latest."""
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    put(model, root / "blobs" / f"sha256-{digest}")
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest = root / "manifests" / "registry.ollama.ai" / "library" / "smollm2" / "latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [{**layer, "size": model.stat().st_size}]}))


def fill_hugging_face(model: Path, root: Path) -> None:
    """The Hugging Face cache with the model as user/repository-GGUF:Q4_1."""
    commit = "c" * 40
    put(model, root / REPOSITORY_NAME / "snapshots" / commit / "repository-Q4_1.gguf")
    (root / REPOSITORY_NAME / "refs").mkdir()
    (root / REPOSITORY_NAME / "refs" / "main").write_text(commit)


@pytest.fixture
def account(smollm2_path: Path, tmp_path: Path, clean_environment: pytest.MonkeyPatch) -> Account:
    if os.name == "nt":
        pytest.skip("the commands are written for a POSIX shell, and the models are symbolic links")
    home, folder, cache = tmp_path / "home", tmp_path / "here", tmp_path / "cache"
    clean_environment.setenv("EDGELLM_CACHE", str(cache))
    (entry,) = [e for e in hub.catalog() if e.name == "smollm2:135m"]
    put(smollm2_path, entry_path(entry))  # `edgellm rm` deletes the link
    put(smollm2_path, folder / "model.gguf")
    (folder / "notes.txt").write_text("The meeting is on Monday.\n")
    fill_ollama(smollm2_path, home / ".ollama" / "models")
    fill_hugging_face(smollm2_path, home / ".cache" / "huggingface" / "hub")
    others = ("XDG_CACHE_HOME", "OLLAMA_MODELS", "LLAMA_CACHE")
    given = {k: v for k, v in os.environ.items() if k not in others and not k.lower().endswith("_proxy")}
    places = {"HOME": str(home), "USERPROFILE": str(home), "EDGELLM_STATE": str(tmp_path / "state")}
    path = os.pathsep.join([str(Path(sys.executable).parent), given["PATH"]])
    return Account(folder, {**given, **places, "PATH": path, "HF_HUB_OFFLINE": "1"})


def commands(text: str) -> list[str]:
    """The commands of a page: the second cell of each row of a table, where it begins like one."""
    cells = [re.split(r"(?<!\\)\|", line)[2].strip() for line in text.splitlines() if re.match(r"\| .* \| ", line)]
    spans = [m[1].replace("\\|", "|") for cell in cells for m in re.finditer(r"`([^`]+)`", cell)]
    return [s for s in spans if re.match(r"(cat notes\.txt \| )?edgellm ", s)]


def python_blocks(text: str) -> list[str]:
    return [m[2] for m in BLOCK.finditer(text) if m[1] == "python"]


def test_commands_are_found() -> None:
    page = '| a | b |\n| --- | --- |\n| `x` | `edgellm run m "a"` |\n| `y \\| x` | `cat notes.txt \\| edgellm run` |\n'
    assert commands(page) == ['edgellm run m "a"', "cat notes.txt | edgellm run"]
    assert commands("| option | `edgellm doctor` | more |\nedgellm run\n") == ["edgellm doctor"]


def test_every_page_is_listed(repository: Path) -> None:
    assert sorted(p.relative_to(repository).as_posix() for p in (repository / "docs/migrate").iterdir()) == sorted(
        PAGES
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page(repository: Path, account: Account, page: str) -> None:
    text = (repository / page).read_text(encoding="utf-8")
    assert {m[1] for m in BLOCK.finditer(text)} <= {"python"}  # no other kind of block that nobody runs
    blocks, found = python_blocks(text), commands(text)
    clients = [b for b in blocks if "127.0.0.1" in b]
    servers = [c for c in found if c.startswith("edgellm serve")]
    talking = [c for c in found if "--url" in c]
    deleting = [c for c in found if c.startswith("edgellm rm")]
    assert found
    assert servers
    for command in servers:
        with account.serving(command) as port:
            assert chat(port) != ""
            if command is servers[0]:
                for block in clients:
                    assert account.run([sys.executable, "-c", block], port=port) != ""
                for one in talking:
                    if one.startswith("edgellm chat"):
                        assert account.run(f"{one} -n 8", "Hi\n", port) != ""
                    else:
                        account.run(one, port=port)
    for block in blocks:
        assert block in clients or account.run([sys.executable, "-W", "error", "-c", block]) != ""
    for command in [*[c for c in found if c not in (*servers, *talking, *deleting)], *deleting]:
        typed = "Hi\n" if command.startswith("edgellm chat") else ""
        assert account.run(command, typed) != "" or command in deleting, command


def chat(port: int) -> str:
    """A few tokens of the first model's answer."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as http:
        name = http.get("/v1/models").json()["data"][0]["id"]
        body = {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
        answer = http.post("/v1/chat/completions", json=body)
        while answer.status_code == 503:  # it is being loaded
            answer = http.post("/v1/chat/completions", json=body)
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def test_three_lines_of_server_use(repository: Path, account: Account) -> None:
    """What the README's first screen says about the server; curl's request is sent by Python."""
    text = (repository / "README.md").read_text(encoding="utf-8")
    (block,) = [m[2] for m in BLOCK.finditer(text) if m[1] == "sh"]
    serve, talk, curl = (shlex.split(line, comments=True) for line in block.splitlines())
    with account.serving(shlex.join(serve)) as port:
        assert account.run([*talk, "--temp", "0"], "Name three colors.\n", port) == "1. Red\n2. Blue\n3. Green\n"
        assert curl[0] == "curl"
        url, body = at_port(curl[1], port), curl[curl.index("-d") + 1]
        answer = httpx.post(f"http://{url}", content=body, trust_env=False, timeout=60)
        assert answer.json()["choices"][0]["message"]["content"] == "1. Red\n2. Blue\n3. Green"


def test_the_first_screen(repository: Path, account: Account) -> None:
    """What the README shows first is what comes out: by the same-bits rule, on every machine."""
    text = (repository / "README.md").read_text(encoding="utf-8")
    shown = [m[2] for m in BLOCK.finditer(text) if m[1] == "console"]
    assert shown
    for block in shown:
        command, _, output = block.removeprefix("$ ").partition("\n")
        assert account.run(command) == output
    assert account.run([sys.executable, "-W", "error", "-c", python_blocks(text)[0]]).startswith(
        shown[0].split("\n", 1)[1]
    )


@pytest.mark.slow
def test_the_other_python_of_the_readme(repository: Path, account: Account, gemma3_path: Path) -> None:
    (entry,) = [e for e in hub.catalog() if e.name == "gemma3:270m-base"]
    put(gemma3_path, entry_path(entry))
    assert env.CACHE.get() == account.folder.parent / "cache"
    for block in python_blocks((repository / "README.md").read_text(encoding="utf-8"))[1:]:
        assert account.run([sys.executable, "-W", "error", "-c", block]) != ""
