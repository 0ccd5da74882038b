"""Chat formats that `chat_format=` names, each as the template it stands for."""

from __future__ import annotations

from edgellm.chat import ChatTemplate
from edgellm.core.errors import ConfigError

_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

FORMATS = {
    "chatml": _CHATML,
    "qwen": (
        "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
        + _CHATML
    ),
    "llama-2": (
        "{% if messages[0].role == 'system' %}{% set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}"
        "{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
        "{% for m in turns %}{% if m.role == 'user' %}{{ bos_token }}[INST] {% if loop.first %}{{ system }}{% endif %}"
        "{{ m.content }} [/INST]{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
    ),
    "llama-3": (
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}<|eot_id|>"
        "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "mistral-instruct": (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system message') }}"
        "{% elif m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ m.content }}{{ eos_token }}{% endif %}"
        "{% endfor %}"
    ),
    "gemma": (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
        "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    "zephyr": (
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
}
"""Name -> Jinja source, as the models it is named after were trained."""

OF_FILE = (None, "chat_template.default")
"""Values of chat_format that mean the template in the model file."""


def template_of(name: str | None, bos_text: str, eos_text: str) -> ChatTemplate | None:
    """The template of a format, None for the model file's own. Raises ConfigError for a name that is none of them."""
    if name in OF_FILE:
        return None
    source = FORMATS.get(name or "")
    if source is None:
        raise ConfigError(
            f"chat_format={name!r:.80} is not supported: leave it out for the model file's own template, or use one "
            f"of {', '.join(FORMATS)}"
        )
    return ChatTemplate(source, bos_text, eos_text)
