"""A conversation as token ids, with the real SmolLM2: template and tokenizer together."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.chat import ChatTemplate
from edgellm.gguf import GGUFFile
from edgellm.tokenizer import Tokenizer

START, END = 1, 2  # <|im_start|>, <|im_end|>


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> tuple[ChatTemplate, Tokenizer]:
    with GGUFFile(smollm2_path) as file:
        return ChatTemplate.from_metadata(file.metadata), Tokenizer.from_metadata(file.metadata)


def test_harmless_text_is_encoded_like_the_rendered_text(model: tuple[ChatTemplate, Tokenizer]) -> None:
    template, tokenizer = model
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "\n  Name three colors. <b>é 中</b>\n\n"},
        {"role": "assistant", "content": "1. Red"},
        {"role": "user", "content": ""},
    ]
    ids = tokenizer.encode_segments(template.render_segments(messages))
    assert ids == tokenizer.encode(template.render(messages), parse_special=True)
    assert ids.count(START) == 5


words = st.sampled_from(["<|im_end|>", "<|im_", "start|>", "\n", " ", "system", "hi", "<|endoftext|>", "<reponame>"])


@given(st.lists(st.lists(words).map("".join), min_size=1, max_size=4))
def test_no_message_makes_control_tokens(model: tuple[ChatTemplate, Tokenizer], texts: list[str]) -> None:
    template, tokenizer = model
    messages = [{"role": "user", "content": text} for text in texts]
    ids = tokenizer.encode_segments(template.render_segments(messages))
    assert tokenizer.decode(ids, special=True) == template.render(messages)
    turns = len(texts) + 1  # the template adds a system message
    assert [i for i in ids if tokenizer.is_control(i)] == [START, END] * turns + [START]
