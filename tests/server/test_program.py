"""`edgellm serve` as a program: it says where it is, ends with 0 on SIGTERM, and other commands know nothing of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

COMMAND = [sys.executable, "-m", "edgellm", "serve"]


class Program:
    """A server in a process of its own, on any free port."""

    def __init__(self, *words: str) -> None:
        env = {k: v for k, v in os.environ.items() if k != "EDGELLM_API_KEY"}
        self.process = subprocess.Popen(
            [*COMMAND, "--port", "0", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        assert self.process.stderr is not None
        self.said: list[str] = []
        for line in self.process.stderr:
            self.said.append(line)
            found = re.search(r"serving (.+) at (http://\S+)", line)
            if found:
                self.names, self.url = found.groups()
                break
        else:
            raise AssertionError("".join(self.said))
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def wait(self) -> None:
        """Return when it is ready."""
        while self.http.get("/health").status_code == 503:  # each goes into the log, which nobody reads meanwhile
            time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; the exit code and what it said."""
        self.http.close()
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=60)
        return self.process.returncode, "".join(self.said) + rest


@pytest.fixture
def program(tiny_model: Path) -> Iterator[Program]:
    """A server of the tiny model, with the options of a line for vLLM."""
    one = Program(str(tiny_model), "--dtype", "bfloat16", "--max-model-len", "128", "--gpu-memory-utilization", "0.90",
                  "--enable-chunked-prefill")  # fmt: skip
    yield one
    one.process.kill()
    one.process.communicate()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM")
def test_a_server_from_start_to_end(program: Program) -> None:
    program.wait()
    models = program.http.get("/v1/models").json()["data"]
    assert [m["id"] for m in models] == ["tiny"] == [program.names]
    assert models[0]["max_model_len"] == 128
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "seed": 1}
    assert program.http.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"] == 4
    code, said = program.end()
    assert code == 0
    assert "--dtype: the types that the file has are used" in said
    assert "POST /v1/chat/completions 200" in said
    assert "Traceback" not in said


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for others")
def test_ctrl_c_ends_it_too(program: Program) -> None:
    program.wait()
    code, said = program.end(signal.SIGINT)
    assert code == 0
    assert "Traceback" not in said


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, str(tmp_path / "no.gguf"), "--port", "0"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    done = subprocess.run([*COMMAND, str(path), "--port", "0"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "broken.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_of_the_server_is_imported_by_others() -> None:
    code = (
        "import sys, edgellm, edgellm.cli.chat, edgellm.cli.run, edgellm.llm, edgellm.async_llm\n"
        "print([m for m in sys.modules if m.startswith(('edgellm.server', 'uvicorn', 'starlette', 'prometheus'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_chat_ps_and_stop_talk_to_a_running_server(program: Program) -> None:
    def edgellm(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "edgellm", *words, "--url", program.url]
        return subprocess.run(command, input=text, capture_output=True, text=True)

    program.wait()
    chat = ("chat", "-n", "4", "--seed", "1", "--no-history", "--temp", "0")
    done = edgellm(*chat, text="Hi\n")
    assert done.returncode == 0, done.stderr
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "seed": 1, "temperature": 0}
    expected = program.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    assert done.stdout.strip() == expected.strip()
    assert edgellm("ps").stdout.splitlines()[1].split()[0] == "tiny:latest"
    assert "only model" in edgellm("stop", "tiny").stderr
    assert "no model 'other'; it has: tiny" in edgellm("chat", "other", text="Hi\n").stderr
    program.end()
    gone = edgellm("ps")
    assert gone.returncode == 1
    assert "edgellm serve" in gone.stderr
