"""Calls that a type checker has to refuse, one a line, each marked with the error's code. Never run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import edgellm

if TYPE_CHECKING:
    llm = edgellm.LLM("smollm2:135m")
    llm.generate(5)  # call-overload
    llm.generate(["Hi", "Ho"], stream=True)  # call-overload
    llm.generate("Hi", edgellm.SamplingParams(), stream=1)  # call-overload
    llm.generate("Hi", n="2")  # call-overload
    llm.chat([["Hi"]])  # list-item
    llm.chat("Hi", {"temperature": 0})  # call-overload
    edgellm.LLM("smollm2:135m", n_ctx="4096")  # arg-type
    edgellm.LLM("smollm2:135m", context=4096)  # call-arg
    edgellm.SamplingParams(temprature=1.0)  # call-arg
    edgellm.SamplingParams(mirostat=1.5)  # arg-type
    edgellm.SamplingParams(1.0).temperature = 2.0  # misc
    print(llm.generate("Hi").txt)  # attr-defined
    for chunk in llm.generate("Hi", stream=True):
        print(chunk.seed)  # attr-defined

    async def program() -> None:
        a = edgellm.AsyncLLM("smollm2:135m")
        await a.generate(5)  # call-overload
        await a.generate("Hi", stream=True)  # misc
        a.generate(["Hi", "Ho"], stream=True)  # call-overload
        print(a.generate("Hi").text)  # attr-defined
        for chunk in a.chat("Hi", stream=True):  # attr-defined
            print(chunk)
