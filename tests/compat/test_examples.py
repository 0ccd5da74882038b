"""Programs as they are written for llama-cpp-python run on a real model with nothing changed but the import line."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

BEFORE, AFTER = "from llama_cpp import Llama\n", "from edgellm.compat import Llama\n"

COMPLETION = """
from llama_cpp import Llama

llm = Llama(
    model_path="./models/model.gguf",
    n_gpu_layers=-1,
    seed=1337,
    n_ctx=2048,
)
output = llm("Q: What are the colors of the flag of France? A: ", max_tokens=32, stop=["Q:", "\\n"], echo=True)
print(output["choices"][0]["text"])
"""

CHAT = """
from llama_cpp import Llama

llm = Llama(model_path="./models/model.gguf", chat_format="chatml", verbose=False)
output = llm.create_chat_completion(
    messages=[
        {"role": "system", "content": "You name colors and nothing else."},
        {"role": "user", "content": "Name the colors of a traffic light."},
    ],
    temperature=0,
    max_tokens=24,
)
print(output["choices"][0]["message"]["content"])
"""

STREAM = """
from llama_cpp import Llama

llm = Llama(model_path="./models/model.gguf")
output = []
for chunk in llm.create_chat_completion(
    messages=[{"role": "user", "content": "Count from one to five."}], stream=True, max_tokens=24, temperature=0
):
    output.append(chunk)
    print(chunk["choices"][0]["delta"].get("content", ""), end="", flush=True)
for chunk in llm.create_completion("One, two, three,", max_tokens=8, temperature=0, stream=True):
    output.append(chunk)
    print(chunk["choices"][0]["text"], end="", flush=True)
"""

TOKENS = """
from llama_cpp import Llama

llm = Llama(model_path="./models/model.gguf", n_ctx=64, seed=1)
tokens = llm.tokenize(b"Hello, world! \\xc3\\xa9\\xe6\\x97\\xa5")
output = llm.detokenize(tokens)
following = []
for token in llm.generate(tokens, top_k=40, top_p=0.95, temp=1.0, repeat_penalty=1.0):
    if token == llm.token_eos() or len(following) == 4:
        break
    following.append(llm.detokenize([token]))
print(len(tokens), output.decode(), len(following))
"""


def run(source: str, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, str]:
    """What a program leaves as `output`, and what it prints."""
    assert source.count(BEFORE) == 1
    (folder / "models").mkdir()
    (folder / "models" / "model.gguf").symlink_to(model)
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(source.replace(BEFORE, AFTER), "example.py", "exec"), names)
    names["llm"].close()
    return names["output"], printed.getvalue()


def test_completion(smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, printed = run(COMPLETION, smollm2_path, tmp_path, monkeypatch)
    assert printed.startswith("Q: What are the colors of the flag of France? A: ")
    assert output["model"] == "./models/model.gguf"
    assert output["choices"][0]["finish_reason"] in ("stop", "length")
    assert 0 < output["usage"]["completion_tokens"] <= 32


def test_chat(smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, printed = run(CHAT, smollm2_path, tmp_path, monkeypatch)
    assert len(printed.split()) > 1
    assert output["choices"][0]["message"] == {"role": "assistant", "content": printed.removesuffix("\n")}


def test_streams(smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, printed = run(STREAM, smollm2_path, tmp_path, monkeypatch)
    assert "four" in printed
    assert output[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert [c["object"] for c in (output[0], output[-1])] == ["chat.completion.chunk", "text_completion"]
    assert output[-1]["choices"][0]["finish_reason"] == "length"


def test_tokens(smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, printed = run(TOKENS, smollm2_path, tmp_path, monkeypatch)
    assert output == "Hello, world! é日".encode()
    assert re.fullmatch(r"\d+ Hello, world! é日 [1-4]\n", printed)
