"""Each KV format on both backends: the native core stores what the reference says a format keeps."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import GOLDEN
from golden.materialize import materialize
from parity.driver import Timeline, compiled, teacher_forced, usable

from edgellm.core.kv import KV_FORMATS
from edgellm.gguf.reader import GGUFFile
from edgellm.models import load_plan

LIMITS = {"f32": 1e-9, "f16": 1e-8, "bf16": 1e-6, "q8_0": 3e-5, "q4_0": 2e-3, "fp8_e4m3": 1e-4, "fp8_e5m2": 5e-4}
"""Largest mean squared difference of the logits, relative. Values at the edge between two numbers of a format fall to
different sides where sums have another order; with K in q8_0 the native core quantises the queries too."""


@pytest.mark.parametrize("kinds", [*((k, k) for k in KV_FORMATS), ("q8_0", "f16"), ("f16", "q4_0")], ids="-".join)
@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense"])
def test_native_equals_reference(name: str, kinds: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("kv") / "m.gguf"
    case = materialize(GOLDEN / "archs" / f"{name}.json", path)
    logits = {}
    with GGUFFile(path) as file:
        plan, _ = load_plan(file)
        for backend in ("native", "reference"):
            executable, pages = compiled(usable(backend), plan, file, k_type=kinds[0], v_type=kinds[1])
            logits[backend] = teacher_forced(executable, plan, case["tokens_long"], (32,), Timeline(pages))
            executable.close()
    difference = float(((logits["native"] - logits["reference"]) ** 2).mean() / np.var(logits["reference"]))
    print(f"{name} {kinds}: {difference:.2e}")
    assert difference < max(LIMITS[k] for k in kinds)
