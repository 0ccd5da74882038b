"""The same plan runs where the host cannot reach buffers, weights or caches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from conftest import GoldenCase
from opaque_backend import Handle, HostAccess, OpaqueBackend
from parity.driver import Timeline, batch, compiled, teacher_forced

from edgellm.backends.reference import ReferenceBackend
from edgellm.core.errors import NativeError
from edgellm.gguf.reader import GGUFFile
from edgellm.models import load_plan

CASES = ["llama-dense", "llama-moe", "gemma3-dense", "qwen35-dense", "mamba2-dense", "deepseek2-moe", "gpt-oss-moe"]


@pytest.mark.parametrize("name", [*CASES, "gemma4-e2b"])
def test_same_logits_as_the_reference(name: str, golden_case: Callable[[str], GoldenCase]) -> None:
    case = golden_case(name)
    with GGUFFile(case.path) as file:
        plan, _ = load_plan(file)
        opaque, pages = compiled(OpaqueBackend(), plan, file)
        reference, reference_pages = compiled(ReferenceBackend(), plan, file)
        for tokens, chunks in ((case.tokens, (7, 1)), (case.tokens_long[:50], (50,))):
            ours = teacher_forced(opaque, plan, tokens, chunks, Timeline(pages))
            theirs = teacher_forced(reference, plan, tokens, chunks, Timeline(reference_pages))
            assert (ours == theirs).all()


def test_pages_are_copied_on_the_device(golden_case: Callable[[str], GoldenCase]) -> None:
    case = golden_case("gemma3-dense")
    with GGUFFile(case.path) as file:
        plan, _ = load_plan(file)
        executable, pages = compiled(OpaqueBackend(), plan, file)
        line = Timeline(pages)
        executable.run(batch(plan, [(line, case.tokens[:20])]))
        fork = Timeline(pages)
        fork.n, fork.tables = line.n, [[p.pop()] for p in pages.free]
        for c, (src, dst) in enumerate(zip(line.tables, fork.tables, strict=True)):
            executable.copy_page(c, src[0], dst[0])
        a = executable.run(batch(plan, [(line, case.tokens[20:22])])).logits
        b = executable.run(batch(plan, [(fork, case.tokens[20:22])])).logits
        assert a is not None
        assert b is not None
        assert (a == b).all()


def test_a_step_leaves_nothing_behind(golden_case: Callable[[str], GoldenCase]) -> None:
    case = golden_case("llama-dense")
    with GGUFFile(case.path) as file:
        plan, _ = load_plan(file)
        backend = OpaqueBackend()
        executable, pages = compiled(backend, plan, file)
        line = Timeline(pages)
        before = backend.device.n_objects()
        executable.run(batch(plan, [(line, case.tokens)]))
        assert backend.device.n_objects() == before
        executable.close()
        executable.close()
        with pytest.raises(NativeError, match="closed"):
            executable.run(batch(plan, [(line, case.tokens)]))


@pytest.mark.parametrize(
    "touch",
    [np.asarray, len, list, bool, lambda h: h[0], lambda h: h.shape, lambda h: h + 1, lambda h: setattr(h, "x", 1)],
)
def test_the_host_cannot_look_inside(touch: Callable[[Handle], object]) -> None:
    handle = OpaqueBackend().device.upload(np.zeros(3, np.float32))
    with pytest.raises(HostAccess):
        touch(handle)
