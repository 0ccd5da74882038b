"""Rendering: what templates may use, what they are told, and what stops them."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgellm.chat import ChatTemplate
from edgellm.core.errors import RequestError, TemplateError

USER = [{"role": "user", "content": "Hello"}]
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
    " + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages or USER, **options)


def test_chatml() -> None:
    conversation = [{"role": "system", "content": "Be kind."}, *USER]
    assert render(CHATML, conversation) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nHello<|im_end|>\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("{% if tools is none %}no{% endif %}{{ documents }}", "noNone"),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 2 %}{% break %}{% endif %}{{ i }}"
         "{% endfor %}", "02"),
        ("{%- generation %}{{ 1 }}{% endgeneration %}", "1"),
        ("{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}", "2"),
        ("{{ {'a': '<é>', 'b': [1, true, none]} | tojson }}", '{"a": "<é>", "b": [1, true, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=2) }}", '{\n  "b": 1,\n  "a": 2\n}'),
        ("{{ 'é🦙' | tojson(ensure_ascii=true) }}", '"\\u00e9\\ud83e\\udd99"'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ '<b>' }}", "<b>"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ messages[0].content[:2] }}{{ messages | length }}", "He1"),
        ("{{ 'a' | indent(2) }}{{ 'x' | center(3) }}|{{ 'ab' * 2 }}{{ 2 ** 3 }}{{ '%03d' % 7 }}", "a x |abab8007"),
        ("{{ 'x'.ljust(3) }}{{ '{:>3}'.format(1) }}|{{ '20240101'.format() }}", "x    1|20240101"),
        ("{{ missing }}{{ messages[0].missing }}", ""),
    ],
)  # fmt: skip
def test_what_templates_use(source: str, text: str) -> None:
    assert render(source) == text


def test_time_and_options() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", render("{{ strftime_now('%Y-%m-%d') }}"))
    assert render("{{ enable_thinking }}{{ documents[0].text }}", enable_thinking=False,
                  documents=[{"text": "x"}]) == "Falsex"  # fmt: skip
    assert render("{{ bos_token }}", bos_token="<mine>") == "<mine>"
    assert render("{{ tools[0].name }}", tools=[{"name": "f"}]) == "f"


def test_the_caller_keeps_the_messages() -> None:
    messages = [{"role": "user", "content": "a", "list": [1]}]
    with pytest.raises(TemplateError):
        render("{{ messages[0].list.append(2) }}", messages)
    assert messages == [{"role": "user", "content": "a", "list": [1]}]


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (
            "{{ raise_exception('Roles must alternate!') }}",
            "the chat template refused the messages: Roles must alternate!",
        ),
        ("{% if %}", "not valid in line 1"),
        ("{% for x in y %}", "not valid in line 1"),
        ("{{ 1 / 0 }}", r"the chat template failed: division by zero \(ZeroDivisionError\)"),
        ("{{ '\\ud83e' }}", "a lone surrogate"),
        ("{{ missing.x }}", "'missing' is undefined"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ [1].append(2) }}", "not allowed: access to 'append' of a list"),
        ("{% for x in range(10 ** 6) %}{% endfor %}", "a range of 1000000 numbers, at most 100000"),
        ("{{ 'a' * 10 ** 9 }}", "stopped: it makes too much text: 1000000000 characters more, where [0-9]+ are left"),
        ("{{ 9 ** 99999999 }}", "stopped: it computes a whole number of more than 1024 bits"),
        ("{{ '%999999d' % 1 }}", "stopped: it asks for a field of 999999 characters, at most 1000"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
         "stopped: it takes more than [0-9]+ steps"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "stopped: it nests more than 64 calls"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
        ("{% include 'x' %}", "something that is not allowed: {% include %} in line 1: a chat template stands alone"),
        ("x" * 300_000, "too long: 300000 characters, at most 262144 are read"),
        ("{{ x }}" * 9999, "not compiled: its source has more than 10000 words and signs"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, "is not valid: too many statically nested blocks"),
        ("{{ 'a' | striptags }}", "not valid in line 1: No filter named 'striptags'"),
        ("{{ ['a'] | map('striptags') }}", "there is no filter named 'striptags'"),
    ],
)  # fmt: skip
def test_what_stops_a_template(source: str, match: str) -> None:
    with pytest.raises(TemplateError, match=match):
        render(source)


def test_no_template() -> None:
    for source in (None, ""):
        template = ChatTemplate(source)
        assert not template.has_template
        for call in (template.render, template.render_segments):
            with pytest.raises(TemplateError, match=r"no chat template: it is a base model.*generate\(\)"):
                call(USER)


def test_a_broken_template_is_an_error_only_when_used() -> None:
    template = ChatTemplate("{% broken")
    assert template.has_template
    for _ in range(2):
        with pytest.raises(TemplateError, match="not valid"):
            template.render(USER)


def test_messages_are_checked_first() -> None:
    with pytest.raises(RequestError, match="messages is empty"):
        ChatTemplate(CHATML).render([])
    with pytest.raises(RequestError, match="template options"):
        ChatTemplate(CHATML).render(USER, thing=object())


PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]


def test_content_takes_the_form_the_template_writes() -> None:
    assert render(CHATML, PARTS).startswith("<|im_start|>user\na\nb<|im_end|>")
    only_parts = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    assert render(only_parts, USER) == "[Hello]"
    assert render(only_parts, PARTS) == "[a\nb]"
    refuses = "{{ raise_exception('no') }}"
    with pytest.raises(TemplateError, match="refused the messages: no"):
        render(refuses, PARTS)


def test_from_metadata() -> None:
    metadata = {
        "tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}plain",
        "tokenizer.chat_template.tool_use": "with tools",
        "tokenizer.ggml.tokens": ["<pad>", "<bos>", "<eos>", "x"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    template = ChatTemplate.from_metadata(metadata)
    assert template.render(USER) == "<bos><eos>plain"
    assert template.render(USER, tools=[{"name": "f"}]) == "with tools"
    assert not ChatTemplate.from_metadata({}).has_template
    assert not ChatTemplate.from_metadata({"tokenizer.chat_template": np.zeros(3)}).has_template
    spm = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"]}
    assert (ChatTemplate.from_metadata(spm).bos_text, ChatTemplate.from_metadata(spm).eos_text) == ("<s>", "</s>")
    for bad in (-1, 99, "x"):
        assert ChatTemplate.from_metadata(metadata | {"tokenizer.ggml.bos_token_id": bad}).bos_text == ""


def test_many_threads_render_at_once() -> None:
    template = ChatTemplate(CHATML)
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(template.render(USER))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [render(CHATML)] * 8


def test_smollm2_template(smollm2_path: Path) -> None:
    from edgellm.gguf import GGUFFile

    with GGUFFile(smollm2_path) as file:
        template = ChatTemplate.from_metadata(file.metadata)
    assert template.render(USER) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_gemma3_base_has_none(gemma3_path: Path) -> None:
    from edgellm.gguf import GGUFFile

    with GGUFFile(gemma3_path) as file:
        assert not ChatTemplate.from_metadata(file.metadata).has_template
