"""The usual families: what they write, what they can express, and what happens to what they cannot."""

from __future__ import annotations

import json
import lzma
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2.sandbox
import pytest

from edgellm.chat import Capabilities, ChatTemplate
from edgellm.chat.sandbox import _Generation
from edgellm.core.errors import TemplateError

FAMILIES = {
    path.stem: path.read_text("utf-8") for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))
}
"""Templates of the usual families, rewritten to what matters about each: which roles it takes and in what order, what
it does with text, tools and thinking. None is a copy of a published file."""

Messages = list[dict[str, Any]]
SYSTEM = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hi."}
MORE = {"role": "user", "content": "More"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"town": "Rome"}}}
    ],
}
RESULT = {"role": "tool", "content": "20 degrees", "tool_call_id": "abcdefghi"}

CONVERSATIONS: dict[str, Messages] = {
    "one turn": [USER],
    "with a system message": [SYSTEM, USER],
    "three turns": [USER, ANSWER, MORE],
    "four messages": [SYSTEM, USER, ANSWER, MORE],
    "two user turns": [USER, MORE],
    "two answers": [USER, ANSWER, ANSWER],
    "a late system message": [USER, ANSWER, SYSTEM, MORE],
    "thoughts": [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi."}, MORE],
    "a call": [USER, CALL, RESULT],
    "an open answer": [USER, ANSWER],
    "odd text": [{"role": "user", "content": "  <b>'\"\\ é中🦙\n\n{{ x }} {% y %} "}],
}


def jinja() -> jinja2.Environment:
    """Jinja's own sandbox, set up as the models' makers set it up."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=refuse, strftime_now=lambda f: datetime.now().strftime(f))
    return environment


@pytest.mark.parametrize("name", FAMILIES)
def test_the_text_is_jinjas(name: str) -> None:
    """Where Jinja itself writes something, and nothing was adapted, the text is the same."""
    theirs = jinja().from_string(FAMILIES[name])
    ours = ChatTemplate(FAMILIES[name], "<s>", "</s>")
    n_same = 0
    for messages in CONVERSATIONS.values():
        for tools in (None, [TOOL]):
            for options in ({}, {"add_generation_prompt": False}, {"enable_thinking": False}):
                variables = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", **options}
                try:
                    expected = theirs.render(messages=messages, tools=tools, documents=None, **variables)
                except (jinja2.TemplateError, TypeError):
                    continue
                rendered = ours.apply(messages, tools=tools, **options)
                if any("turn" in note for note in rendered.notes):
                    continue
                assert rendered.text == expected
                assert ours.render(messages, tools=tools, **options) == expected
                n_same += 1
    assert n_same >= 18


CAN = Capabilities(
    system_role=True,
    late_system=True,
    developer_role=True,
    user_turns=True,
    assistant_turns=True,
    tools=False,
    object_arguments=True,
    thinking=False,
    generation_prompt=True,
)
NOT = {
    "chatml": "",
    "smollm2": "",
    "llama2": "late_system developer_role user_turns assistant_turns generation_prompt",
    "llama3": "",
    "mistral": "system_role late_system developer_role user_turns assistant_turns generation_prompt",
    "mistral-v3": "late_system developer_role user_turns assistant_turns generation_prompt",
    "gemma2": "system_role late_system developer_role user_turns assistant_turns",
    "gemma3": "late_system developer_role user_turns assistant_turns",
    "phi3": "system_role late_system developer_role generation_prompt",
    "qwen2.5": "developer_role",
    "qwen3": "developer_role",
    "qwen3.5": "late_system developer_role",
    "deepseek-r1": "developer_role",
    "command-r": "late_system developer_role user_turns assistant_turns",
    "zephyr": "developer_role",
    "granite": "",
}
ALSO = {"llama3": "tools", "mistral-v3": "tools", "qwen2.5": "tools", "qwen3": "thinking", "qwen3.5": "thinking"}


@pytest.mark.parametrize("name", FAMILIES)
def test_what_they_can_express(name: str) -> None:
    can = ChatTemplate(FAMILIES[name], "<s>", "</s>").capabilities
    assert can is not None
    differences = {f: getattr(can, f) for f in CAN.__slots__ if getattr(can, f) != getattr(CAN, f)}
    assert differences == {
        **dict.fromkeys(NOT[name].split(), False),
        **dict.fromkeys(ALSO.get(name, "").split(), True),
    }


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("conversation", ["with a system message", "four messages", "two user turns", "two answers",
                                          "a late system message", "three turns"])  # fmt: skip
def test_nothing_is_lost_and_what_was_done_is_said(name: str, conversation: str) -> None:
    messages = CONVERSATIONS[conversation]
    rendered = ChatTemplate(FAMILIES[name], "<s>", "</s>").apply(messages)
    for message in messages:
        assert message["content"] in rendered.text
    try:
        plain = jinja().from_string(FAMILIES[name]).render(
            messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", tools=None
        )  # fmt: skip
        adapted = not all(m["content"] in plain for m in messages)
    except jinja2.TemplateError:
        adapted = True
    assert bool(rendered.notes) == adapted


def test_gemma_takes_the_system_message_in_the_first_user_turn() -> None:
    template = ChatTemplate(FAMILIES["gemma2"], "<bos>", "<eos>")
    rendered = template.apply([SYSTEM, USER, ANSWER, MORE])
    assert rendered.text == (
        "<bos><start_of_turn>user\nBe kind.\n\nHello<end_of_turn>\n<start_of_turn>model\nHi.<end_of_turn>\n"
        "<start_of_turn>user\nMore<end_of_turn>\n<start_of_turn>model\n"
    )
    assert rendered.notes == (
        "the model's chat template has no system role: the system message was put into the user turn",
    )
    assert ("Be kind.\n\nHello", False) in rendered.segments
    assert template.apply([USER]).notes == ()


def test_mistral_joins_turns_of_one_role() -> None:
    rendered = ChatTemplate(FAMILIES["mistral"], "<s>", "</s>").apply([USER, MORE, ANSWER, ANSWER, USER])
    assert rendered.text == "<s>[INST] Hello\n\nMore [/INST]Hi.\n\nHi.</s>[INST] Hello [/INST]"
    assert rendered.notes == (
        "the model's chat template takes no two user turns in a row: they were joined",
        "the model's chat template takes no two assistant turns in a row: they were joined",
    )


def test_late_system_messages_stay_where_they_are_said() -> None:
    template = ChatTemplate(FAMILIES["qwen3.5"])
    rendered = template.apply([SYSTEM, {"role": "system", "content": "Be brief."}, USER, ANSWER, SYSTEM, MORE])
    assert rendered.text == (
        "<|im_start|>system\nBe kind.\n\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi.<|im_end|>\n<|im_start|>user\nBe kind.\n\nMore<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [note.split(": ")[1] for note in rendered.notes] == [
        "those at the beginning were joined",
        "later ones were put into the user turn",
    ]
    last = template.apply([USER, ANSWER, SYSTEM]).text
    assert last.endswith("<|im_start|>user\nBe kind.<|im_end|>\n<|im_start|>assistant\n")


def test_only_a_system_message_becomes_a_user_turn() -> None:
    assert ChatTemplate(FAMILIES["gemma2"]).apply([SYSTEM]).text.count("<start_of_turn>user\nBe kind.<end") == 1
    rendered = ChatTemplate(FAMILIES["mistral"]).apply([{"role": "system", "content": ""}, USER])
    assert rendered.text == "[INST] Hello [/INST]"


def test_developer_messages() -> None:
    rendered = ChatTemplate(FAMILIES["qwen2.5"]).apply([{"role": "developer", "content": "Be kind."}, USER])
    assert "<|im_start|>system\nBe kind.<|im_end|>" in rendered.text
    assert "no developer role" in rendered.notes[0]
    rendered = ChatTemplate(FAMILIES["gemma2"]).apply([{"role": "developer", "content": "Be kind."}, USER])
    assert "user\nBe kind.\n\nHello" in rendered.text
    assert len(rendered.notes) == 2


def test_messages_with_more_than_text_are_not_joined() -> None:
    with pytest.raises(TemplateError, match="refused the messages: Conversation roles must alternate"):
        ChatTemplate(FAMILIES["mistral"]).apply([USER, CALL, CALL])
    named = [{"role": "user", "content": "a", "name": "Ann"}, {"role": "user", "content": "b", "name": "Bob"}]
    with pytest.raises(TemplateError, match="must alternate"):
        ChatTemplate(FAMILIES["mistral"]).apply(named)


def test_what_cannot_be_helped_is_refused_in_the_templates_words() -> None:
    with pytest.raises(TemplateError, match="refused the messages: Conversation roles must alternate user/assistant"):
        ChatTemplate(FAMILIES["gemma2"]).apply([ANSWER, USER])


def test_tools() -> None:
    text = ChatTemplate(FAMILIES["qwen2.5"]).apply([USER, CALL, RESULT], tools=[TOOL])
    assert '{"name": "weather", "arguments": {"town": "Rome"}}' in text.text
    assert "<tool_response>\n20 degrees\n</tool_response>" in text.text
    assert json.dumps(TOOL) in text.text
    assert text.notes == ()
    noted = ChatTemplate(FAMILIES["gemma2"]).apply([USER], tools=[TOOL])
    assert noted.notes == ("the model's chat template has no place for tools: the model does not see them",)


def test_arguments_as_a_template_wants_them() -> None:
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' + c.function.arguments }}"
        "{% endfor %}{{ m.content }}|{% endfor %}"
    )
    template = ChatTemplate(source)
    assert template.capabilities is not None
    assert not template.capabilities.object_arguments
    assert template.apply([USER, CALL, USER]).text == 'Hello|weather {"town": "Rome"}|Hello|'
    assert CALL["tool_calls"][0]["function"]["arguments"] == {"town": "Rome"}


def test_thinking() -> None:
    template = ChatTemplate(FAMILIES["qwen3"])
    assert template.render([USER], enable_thinking=False).endswith("<think>\n\n</think>\n\n")
    assert template.render([USER], enable_thinking=True).endswith("assistant\n")
    thoughts = CONVERSATIONS["thoughts"]
    assert "hm" not in template.render(thoughts)
    assert "<think>\nhm\n</think>\n\nHi." in template.render(thoughts[:2])


def test_a_template_that_always_refuses_has_no_capabilities() -> None:
    template = ChatTemplate("{{ raise_exception('never') }}")
    assert template.capabilities is None
    with pytest.raises(TemplateError, match="refused the messages: never"):
        template.apply([SYSTEM, USER])


def test_templates_of_parts_are_probed_with_parts() -> None:
    source = "{% for m in messages %}{% for p in m.content %}<{{ m.role }}>{{ p.text }}{% endfor %}{% endfor %}"
    template = ChatTemplate(source)
    assert template.capabilities is not None
    assert template.capabilities.system_role
    assert template.render([SYSTEM, USER]) == "<system>Be kind.<user>Hello"


@pytest.mark.parametrize("name", ["command-r", "gemma-4", "phi-3", "qwen2", "qwen35"])
def test_published_templates(name: str, shared_golden_dir: Path, tmp_path: Path) -> None:
    """The templates that vocabulary files carry write what Jinja writes."""
    from edgellm.gguf import GGUFFile

    packed = shared_golden_dir / "vocab_files" / f"{name}.gguf.xz"
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    with GGUFFile(path) as file:
        template = ChatTemplate.from_metadata(file.metadata)
    assert template.source is not None
    theirs = jinja().from_string(template.source)
    for conversation in ("one turn", "three turns", "odd text"):
        for tools in (None, [TOOL]):
            expected = theirs.render(
                messages=CONVERSATIONS[conversation],
                tools=tools,
                add_generation_prompt=True,
                bos_token=template.bos_text,
                eos_token=template.eos_text,
            )
            if name != "command-r" or tools is None:  # it has a template of its own for tools
                assert template.render(CONVERSATIONS[conversation], tools=tools) == expected
                assert template.apply(CONVERSATIONS[conversation], tools=tools).text == expected
    for messages in CONVERSATIONS.values():
        if all(m["role"] != "tool" for m in messages):
            rendered = template.apply(messages)
            assert all(m["content"].strip()[-3:] in rendered.text for m in messages)
