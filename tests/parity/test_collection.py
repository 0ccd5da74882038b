"""Every case of a larger golden collection whose architecture is supported, where there is one beside the checkout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from golden.materialize import materialize
from numpy.typing import NDArray
from parity.driver import Timeline, compiled, teacher_forced, usable

from edgellm.core.errors import UnsupportedModel
from edgellm.gguf.reader import GGUFFile
from edgellm.models import architectures, load_plan

ELSEWHERE = {"gemma4-dense", "gemma4-e2b", "gemma4-moe"}
"""Cases whose answers here depend on a table of GELU in half precision; `data/` has exact ones."""


def test_every_case_of_a_supported_architecture(
    shared_golden_dir: Path, tmp_path: Path, nmse: Callable[[NDArray[Any], NDArray[Any]], float]
) -> None:
    backend, known, seen, bad = usable("native"), set(architectures()), 0, []
    for source in sorted((shared_golden_dir / "archs").glob("*.json")):
        if json.loads(source.read_text(encoding="utf-8"))["arch"] not in known or source.stem in ELSEWHERE:
            continue
        case = materialize(source, tmp_path / "case.gguf")
        with GGUFFile(tmp_path / "case.gguf") as file, np.load(source.with_suffix(".npz")) as answers:
            plan, _ = load_plan(file)
            try:
                executable, pages = compiled(backend, plan, file)
            except UnsupportedModel:  # of the native backend: the reference has tests of its own
                continue
            for tokens, golden in ((case["tokens"], answers["logits"]), (case["tokens_long"], answers["logits_long"])):
                ours = teacher_forced(executable, plan, tokens, (256,), Timeline(pages))
                distance = nmse(golden, ours[-len(golden) :])
                if not distance < 1e-6:
                    bad.append(f"{source.stem}: {distance:.1e}")
            executable.close()
        seen += 1
    assert bad == []
    assert seen > 30
