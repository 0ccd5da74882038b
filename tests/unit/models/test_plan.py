"""Plans survive bytes unchanged, and anything that is not a sound plan is refused with a reason."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import numpy as np
import pytest
from parity.driver import Timeline, batch, compiled

from edgellm.backends.reference import ReferenceBackend
from edgellm.core.errors import EdgeLLMError, ModelError
from edgellm.models import Plan, PlanError, load_plan
from edgellm.models.plan import FORMAT, MAX_PLAN_BYTES

CASES = [
    "llama-dense", "llama-moe", "gemma3-dense", "qwen35-dense",
    "mamba2-dense", "deepseek2-moe", "gpt-oss-moe", "gemma4-e2b",
]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_round_trip(variant: Any, name: str) -> None:
    plan = load_plan(variant(name)).plan
    data = plan.to_bytes()
    again = Plan.from_bytes(data)
    assert again == plan
    assert again.to_bytes() == data
    assert hash(again) == hash(plan)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a plan"),
        (b"\xff\xfe", "not a plan"),
        (b"[1, 2", "not a plan"),
        (b"[" * 100_000, "not a plan"),
        (b"{}", "starts with"),
        (b'["edgellm-plan", 1]', "starts with"),
        (b'["other", 1, []]', "starts with"),
        (b'["edgellm-plan", 2, []]', "has version 2, this edgellm reads version 1"),
        (b'["edgellm-plan", 1, [1, 2]]', "9 fields"),
        (b'["edgellm-plan", 1, ["a", 1, 1, [], [], [], [], {}, 0]]', "ops are not a list"),
        (b'["edgellm-plan", 1, ["a", 1, 1, [], [], [], [], [], 0]]', "the plan has 0 ops"),
        (b'["edgellm-plan", 1, ["a", true, 1, [], [], [], [], [], 0]]', "n_vocab is True, expected a 32-bit integer"),
        (b'["edgellm-plan", 1, ["a", 1e999, 1, [], [], [], [], [], 0]]', "n_vocab is inf"),
        (b'["edgellm-plan", 1, ["a", 1, 1, [["x"]], [], [], [], [], 0]]', r"buffers\[0\] is .*, expected a list of 4"),
        (b'["edgellm-plan", 1, ["a", 1, 1, [], [], [], [], [["Exec", 1]], 0]]', r"ops.0. is .*, expected one of Embed"),
    ],
)  # fmt: skip
def test_other_bytes_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.from_bytes(data)


def test_size_is_bounded() -> None:
    with pytest.raises(PlanError, match="larger than any sound one"):
        Plan.from_bytes(bytes(MAX_PLAN_BYTES + 1))


def test_errors_are_in_the_tree() -> None:
    assert issubclass(PlanError, ModelError)
    assert issubclass(PlanError, ValueError)


def edit(plan: Plan, change: Any) -> bytes:
    body = json.loads(plan.to_bytes())
    change(
        dict(
            zip(
                ["arch", "n_vocab", "n_ctx", "buffers", "weights", "ropes", "caches", "ops", "logits"],
                body[2],
                strict=True,
            )
        ),
        body[2],
    )
    return json.dumps(body).encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, b: p["ops"].pop(0), "reads columns of buffer 'x' that nothing has written"),
        (lambda p, b: p["ops"].pop(), "the logits must fill an f32 buffer"),
        (lambda p, b: b.__setitem__(8, 99), "logits is buffer 99, which does not exist"),
        (lambda p, b: b.__setitem__(1, 127), "the logits must fill an f32 buffer of 127 columns"),
        (lambda p, b: b.__setitem__(2, 0), "n_ctx_train is 0"),
        (lambda p, b: p["buffers"][0].__setitem__(1, 2**31 - 1), "has 2147483647 columns, expected 1..16777216"),
        (lambda p, b: p["buffers"][0].__setitem__(2, "Q"), "has axis 'Q'"),
        (lambda p, b: p["weights"][0].__setitem__(1, [2**31 - 1, 2**31 - 1]), "expected positive sizes"),
        (lambda p, b: p["weights"][0].__setitem__(2, "secret"), "has role 'secret'"),
        (lambda p, b: p["weights"][0].__setitem__(3, 5), "starts at row 5"),
        (lambda p, b: p["ropes"][0].__setitem__(1, -1.0), "expected > 0"),
        (lambda p, b: p["ropes"][0].__setitem__(5, [0.0, 1.0, 2.0]), "has YaRN numbers"),
        (lambda p, b: p["ropes"][0].__setitem__(6, [256, [1.0], [1.0]]), "has two kinds of divisors"),
        (lambda p, b: p["ropes"][0].__setitem__(7, [0.1, 0]), "has temperature 0.1 per 0"),
        (lambda p, b: p["caches"][0].__setitem__(0, "half"), "has kind 'half'"),
        (lambda p, b: p["caches"][0].__setitem__(1, []), "has no layers"),
        (lambda p, b: p["caches"][0][1][0].__setitem__(0, 0), r"key and value sizes \[0, "),
        (lambda p, b: p["ops"][0].__setitem__(2, 77), r"ops\[0\] Embed: weight 77 does not exist"),
        (lambda p, b: p["ops"][0].__setitem__(1, [0, -1, 5]), r"ops\[0\] Embed: y takes columns -1..3"),
    ],
)
def test_edited_plans_are_refused(variant: Any, change: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.from_bytes(edit(load_plan(variant("llama-moe")).plan, change))


def mutate(rng: random.Random, body: list[Any]) -> None:
    """Replaces, drops or repeats one random value somewhere inside."""
    node: Any = body
    while True:
        i = rng.randrange(len(node))
        if isinstance(node[i], list) and node[i] and rng.random() < 0.9:
            node = node[i]
            continue
        old = node[i]
        choices = [0, 1, -1, 2, 3, 7, 63, 64, 255, 2**31, 0.0, -0.5, 1e30, None, "", "rms", "full", [], [0], True]
        if isinstance(old, int):
            choices += [old + 1, old - 1, old * 2, old // 2] * 3
        action = rng.random()
        if action < 0.8:
            node[i] = rng.choice(choices)
        elif action < 0.9:
            del node[i]
        else:
            node.insert(i, copy.deepcopy(old))
        return


@pytest.mark.parametrize("name", ["llama-moe", "deepseek2-moe", "qwen35-dense", "gemma4-e2b"])
def test_mutated_plans_are_refused_or_run(variant: Any, name: str) -> None:
    """Whatever passes the check runs: no shape or index is left for the interpreter to trip over."""
    file = variant(name)
    plan = load_plan(file).plan
    source = json.loads(plan.to_bytes())
    sizes = {"n_ctx": 64, "max_tokens": 8, "max_rows": 8, "n_pages": (4,) * len(plan.caches)}
    refused = ran = 0
    for seed in range(150):
        rng = random.Random(seed)
        body = copy.deepcopy(source[2])
        for _ in range(rng.choice([1, 1, 1, 3])):
            mutate(rng, body)
        try:
            changed = Plan.from_bytes(json.dumps([FORMAT, 1, body]).encode())
            executable, pages = compiled(ReferenceBackend(), changed, file, **sizes)
        except EdgeLLMError:
            refused += 1
            continue
        line = Timeline(pages)
        for tokens in ([1, 2, 3], [4]):
            out = executable.run(batch(changed, [(line, [t % changed.n_vocab for t in tokens])], top_k=1))
            assert out.logits is not None
            assert out.logits.shape == (len(tokens), changed.n_vocab)
            assert out.top_ids.dtype == np.int32
        ran += 1
    assert refused > 50
    assert ran > 5
