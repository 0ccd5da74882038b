"""What was done to the messages reaches the one who asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from serving.tiny import install, write_tiny

from edgellm import LLM, TemplateError
from edgellm.backends.fake import FakeBackend

TEMPLATES = Path(__file__).parent / "templates"
MESSAGES = [
    {"role": "system", "content": "hello"},
    {"role": "user", "content": "the"},
    {"role": "user", "content": "or"},
]


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeBackend())


def test_a_completion_says_what_was_done(tmp_path: Path) -> None:
    template = (TEMPLATES / "mistral.jinja").read_text("utf-8")
    with LLM(write_tiny(tmp_path / "tiny.gguf", template=template)) as llm:
        answer = llm.chat(MESSAGES, max_tokens=2)
        assert [note.split(": ")[1] for note in answer.notes] == [
            "the system message was put into the user turn",
            "they were joined",
        ]
        assert llm.render(MESSAGES) == "<|im_start|>[INST] hello\n\nthe\n\nor [/INST]"
        assert list(llm.chat(MESSAGES, max_tokens=2, stream=True))[-1].completion.notes == answer.notes  # type: ignore[union-attr]
        assert llm.chat("the", max_tokens=2).notes == ()
        assert llm.generate("the", max_tokens=2).notes == ()


def test_a_base_model_names_the_ways_out(tmp_path: Path) -> None:
    with LLM(write_tiny(tmp_path / "tiny.gguf", template=None)) as llm:
        for call in (llm.chat, llm.render, llm.chat_tokens):
            with pytest.raises(TemplateError, match=r"base model.*generate\(\) or `edgellm run --raw`"):
                call("hello")
