"""Every argument of llama-cpp-python's class is accepted, mapped or refused with the reason: one table."""

from __future__ import annotations

import inspect
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from compat.conftest import OpenLlama
from serving.tiny import write_tiny

from edgellm import ConfigError, ModelNotFound, RequestError
from edgellm.compat import Llama, arguments

# The arguments of llama-cpp-python 0.3.36, and their defaults.
CONSTRUCTOR: dict[str, Any] = {
    "n_gpu_layers": 0, "split_mode": 1, "main_gpu": 0, "tensor_split": None, "vocab_only": False, "use_mmap": True,
    "use_mlock": False, "kv_overrides": None, "seed": 0xFFFFFFFF, "n_ctx": 512, "n_batch": 512, "n_ubatch": 512,
    "n_threads": None, "n_threads_batch": None, "rope_scaling_type": -1, "pooling_type": -1, "attention_type": -1,
    "rope_freq_base": 0.0, "rope_freq_scale": 0.0, "yarn_ext_factor": -1.0, "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_orig_ctx": 0, "logits_all": False, "embedding": False,
    "offload_kqv": True, "flash_attn": False, "op_offload": None, "swa_full": None, "no_perf": False,
    "last_n_tokens_size": 64, "lora_base": None, "lora_scale": 1.0, "lora_path": None, "numa": False,
    "chat_format": None, "chat_handler": None, "draft_model": None, "tokenizer": None, "type_k": None, "type_v": None,
    "spm_infill": False, "verbose": True,
}  # fmt: skip
COMPLETION = (
    "prompt suffix max_tokens temperature top_p min_p typical_p logprobs echo stop frequency_penalty presence_penalty "
    "repeat_penalty top_k stream seed tfs_z mirostat_mode mirostat_tau mirostat_eta model stopping_criteria "
    "logits_processor grammar logit_bias"
).split()
CHAT = (
    "messages functions function_call tools tool_choice temperature top_p top_k min_p typical_p stream stop seed "
    "response_format max_tokens presence_penalty frequency_penalty repeat_penalty tfs_z mirostat_mode mirostat_tau "
    "mirostat_eta model logits_processor grammar logit_bias logprobs top_logprobs"
).split()
REFUSED = [a for a in arguments.CONSTRUCTOR.values() if a.fate == "refused"]
IGNORED = [a for a in arguments.CONSTRUCTOR.values() if a.fate == "ignored"]


def other(value: Any) -> Any:
    """A value that is not this one."""
    return not value if isinstance(value, bool) else "x" if value is None else value + 1


def test_the_table_has_every_argument_with_its_default() -> None:
    assert {name: a.default for name, a in arguments.CONSTRUCTOR.items()} == CONSTRUCTOR
    for table in (arguments.CONSTRUCTOR, arguments.CALL, arguments.FROM_PRETRAINED):
        assert {a.fate for a in table.values()} <= {"mapped", "ignored", "refused"}
        assert all(a.note for a in table.values())


@pytest.mark.parametrize(
    ("call", "names", "defaults"),
    [
        (Llama.__call__, COMPLETION, {"max_tokens": 16, "temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05}),
        (Llama.create_completion, COMPLETION, {"echo": False, "stream": False, "logprobs": None, "seed": None}),
        (Llama.create_chat_completion, CHAT, {"max_tokens": None, "temperature": 0.2, "repeat_penalty": 1.0}),
    ],
)
def test_calls_have_their_arguments_in_order(call: Any, names: list[str], defaults: dict[str, Any]) -> None:
    parameters = inspect.signature(call).parameters
    assert list(parameters) == ["self", *names]
    assert {name: parameters[name].default for name in defaults} == defaults


def test_all_defaults_spelt_out_are_accepted_in_silence(open_llama: OpenLlama, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG, "edgellm.compat")
    open_llama("x", **CONSTRUCTOR | {"n_ctx": 0})
    assert [r for r in caplog.records if r.name.startswith("edgellm.compat")] == []


@pytest.mark.parametrize("argument", REFUSED, ids=lambda a: a.name)
def test_refused(open_llama: OpenLlama, argument: arguments.Argument) -> None:
    with pytest.raises(ConfigError) as caught:
        open_llama("x", **{argument.name: other(argument.default)})
    assert str(caught.value).startswith(f"{argument.name}=")
    assert argument.note in str(caught.value)


def test_ignored_arguments_are_named_in_the_log(open_llama: OpenLlama, caplog: Any) -> None:
    changed = {a.name: other(a.default) for a in IGNORED}
    open_llama("x", **changed)
    said = [r.getMessage() for r in caplog.records if r.name.startswith("edgellm.compat")]
    assert [text.partition("=")[0] for text in said] == list(changed)
    assert said[0] == "n_gpu_layers=1 changes nothing: edgellm computes on the CPU"
    caplog.clear()
    open_llama("x", verbose=False, **changed)
    assert [r for r in caplog.records if r.name.startswith("edgellm.compat")] == []


def test_an_unknown_argument_is_named(open_llama: OpenLlama) -> None:
    with pytest.raises(TypeError, match=r"unknown argument 'n_gpu_layer'; did you mean n_gpu_layers\?"):
        open_llama("x", n_gpu_layer=1)


def test_what_is_mapped(open_llama: OpenLlama) -> None:
    llama = open_llama("x", n_ctx=100, type_k=8, type_v="f32", n_threads=0, n_batch=32, n_ubatch=64)
    assert (llama.n_ctx(), llama.llm.info.kv_type) == (100, "q8_0+f32")
    assert llama.llm._loaded.engine.spec.budget.tokens == 32
    assert open_llama("x", n_ctx=0).n_ctx() == 256
    plain, drafted = open_llama("abc" * 20), open_llama("abc" * 20, draft_model=object())
    texts = [llama("abc" * 8, max_tokens=None, temperature=0)["choices"][0]["text"] for llama in (plain, drafted)]
    assert texts == ["abc" * 20] * 2
    assert drafted.llm.stats.steps < plain.llm.stats.steps
    with pytest.raises(ConfigError, match="pooling_type=0 is not supported"):
        open_llama("x", pooling_type=0)
    with pytest.raises(ConfigError, match=r"kv_type must be one of .* found '3'"):
        open_llama("x", type_k=3)


@pytest.mark.parametrize("name", ["tfs_z", "stopping_criteria", "logits_processor", "grammar"])
def test_calls_refuse(open_llama: OpenLlama, name: str) -> None:
    llama = open_llama("x")
    note = arguments.CALL[name].note
    value = 0.5 if name == "tfs_z" else object()
    with pytest.raises(RequestError) as caught:
        llama("a", **{name: value})
    assert note in str(caught.value)
    if name != "stopping_criteria":
        with pytest.raises(RequestError, match=name):
            llama.create_chat_completion([{"role": "user", "content": "a"}], **{name: value})
        with pytest.raises(RequestError, match=name):
            llama.generate([1], **{name: value})


def test_chat_refuses(open_llama: OpenLlama) -> None:
    llama, ask = open_llama("x"), [{"role": "user", "content": "a"}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for given in ({"functions": [tool]}, {"function_call": "auto"}, {"tools": [tool], "tool_choice": "required"}):
        with pytest.raises(RequestError, match=list(given)[-1]):
            llama.create_chat_completion(ask, **given)
    for allowed in ({"tools": [tool], "tool_choice": "none"}, {"tools": [tool]}, {"response_format": {"type": "text"}}):
        assert llama.create_chat_completion(ask, **allowed)["choices"][0]["message"]["content"] == "x"


def test_chat_formats(open_llama: OpenLlama) -> None:
    with pytest.raises(ConfigError, match=r"chat_format='lama' is not supported: .* one of chatml, "):
        open_llama("x", chat_format="lama")
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "V"},
    ]
    bos, eos = "<|im_start|>", "<|im_end|>"
    chatml = (
        "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages) + "<|im_start|>assistant\n"
    )
    turns = [f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n{m['content']}<|eot_id|>" for m in messages]
    expected = {
        "chatml": chatml,
        "qwen": chatml,
        "llama-2": f"{bos}[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A {eos}{bos}[INST] V [/INST]",
        "llama-3": "".join(turns) + "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "mistral-instruct": f"[INST] S\n\nU [/INST]A{eos}[INST] V [/INST]",
        "gemma": "<start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
        "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
        "zephyr": f"<|system|>\nS{eos}\n<|user|>\nU{eos}\n<|assistant|>\nA{eos}\n<|user|>\nV{eos}\n<|assistant|>\n",
    }
    for name, text in expected.items():
        llama = open_llama("yes", chat_format=name, n_ctx=1024)
        out = llama.create_chat_completion(messages)
        assert out["choices"][0]["message"]["content"] == "yes"
        assert llama.llm.tokenizer.decode(llama.chat_tokens(messages), special=True) == text
    qwen = open_llama("x", chat_format="qwen").chat_tokens([{"role": "user", "content": "U"}])
    assert len(qwen) > len(open_llama("x", chat_format="chatml").chat_tokens([{"role": "user", "content": "U"}]))
    # Text of a message is never a control token, whatever the format.
    for name in (None, "chatml"):
        ids = open_llama("x", chat_format=name).chat_tokens([{"role": "user", "content": "<|im_end|>"}])
        assert ids.count(272) == 1


def test_a_model_without_a_template_needs_a_format(open_llama: OpenLlama, tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "base.gguf", template=None)
    ask = [{"role": "user", "content": "a"}]
    with pytest.raises(RequestError, match="base model"):
        open_llama("x", path=path).create_chat_completion(ask)
    assert open_llama("x", path=path, chat_format="chatml").create_chat_completion(ask)["object"] == "chat.completion"


def test_a_handler_is_called_with_everything(open_llama: OpenLlama) -> None:
    seen: dict[str, Any] = {}

    def handler(**given: Any) -> str:
        seen.update(given)
        return "answer"

    llama = open_llama("x", chat_handler=handler)
    assert llama.create_chat_completion([], temperature=0.5, stream=True) == "answer"
    assert seen.pop("llama") is llama
    assert (list(seen), seen["temperature"], seen["stream"]) == (CHAT, 0.5, True)


def test_from_pretrained_refuses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="EDGELLM_CACHE"):
        Llama.from_pretrained("u/r", "*.gguf", local_dir=str(tmp_path))
    with pytest.raises(ModelNotFound, match="expected USER/REPOSITORY"):
        Llama.from_pretrained("u/r:Q8_0", "*.gguf")
    with pytest.raises(ModelNotFound):
        Llama.from_pretrained("r", "*.gguf")


def test_pickling_opens_the_model_again(open_llama: OpenLlama) -> None:
    llama = open_llama("abc", last_n_tokens_size=7)
    copy = pickle.loads(pickle.dumps(llama))
    assert copy("q", temperature=0)["choices"][0]["text"] == "abc"
    assert (copy.model_path, copy.last_n_tokens_size) == (llama.model_path, 7)
    copy.close()
