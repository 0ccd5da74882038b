"""A plan: a model as a flat, immutable list of ops over numbered buffers, with its weights and caches named.

`Builder` (build.py) collects ops with every shape checked by name; `Plan.to_bytes` / `Plan.from_bytes` round-trip.
"""

from __future__ import annotations

import json
import typing

from edgellm.core.record import dataclass
from edgellm.models import codec
from edgellm.models.check_plan import check_plan
from edgellm.models.ops import Linear, Op, View
from edgellm.models.tables import Buffer, CacheClass, CacheLayer, PlanError, RopeTable, Weight

__all__ = ["Buffer", "CacheClass", "CacheLayer", "Plan", "PlanError", "RopeTable", "Weight"]

FORMAT = "edgellm-plan"
VERSION = 1
MAX_PLAN_BYTES = 64 << 20

_OPS: dict[str, type] = {op.__name__: op for op in typing.get_args(Op)}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a backend needs to run a model, except the weights' bytes.

    n_vocab: width of the logits. n_ctx_train: trained context length. logits: index of the [R, V] result buffer.
    """

    arch: str
    n_vocab: int
    n_ctx_train: int
    buffers: tuple[Buffer, ...]
    weights: tuple[Weight, ...]
    ropes: tuple[RopeTable, ...]
    caches: tuple[CacheClass, ...]
    ops: tuple[Op, ...]
    logits: int

    @property
    def hidden(self) -> View:
        """What the last matrix multiplies: the final hidden states, after the norm. PlanError where there is none."""
        for op in self.ops:
            if isinstance(op, Linear) and op.y.buf == self.logits:
                return op.x
        raise PlanError("the logits of this plan are not made by one matrix: there are no final hidden states")

    def long_context(self, n_ctx: int) -> bool:
        """Does a context of n_ctx tokens change the numbers, because LongRoPE's long divisors apply to it?"""
        return any(r.longrope is not None and n_ctx > r.longrope.n_ctx for r in self.ropes)

    def check(self, *, checked: bool = False) -> None:
        """PlanError unless every index, shape and order of use is sound. `from_bytes` and the builder do this.

        checked: each op has been looked at by itself already.
        """
        check_plan(self, self.ops, self.n_vocab, self.n_ctx_train, self.logits, checked=checked)

    def to_bytes(self) -> bytes:
        """The plan as UTF-8 JSON: [format, version, fields in order]. Equal plans give equal bytes."""
        body = [
            self.arch,
            self.n_vocab,
            self.n_ctx_train,
            codec.encode(self.buffers),
            codec.encode(self.weights),
            codec.encode(self.ropes),
            codec.encode(self.caches),
            [codec.encode_member(op) for op in self.ops],
            self.logits,
        ]
        text = json.dumps([FORMAT, VERSION, body], separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        return text.encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Plan:
        """The plan that `to_bytes` wrote, checked. PlanError for anything else, and past MAX_PLAN_BYTES."""
        if len(data) > MAX_PLAN_BYTES:
            raise PlanError(f"a plan of {len(data)} bytes is larger than any sound one ({MAX_PLAN_BYTES} bytes)")
        try:
            head = json.loads(data)
        except (ValueError, RecursionError) as e:
            raise PlanError(f"the bytes are not a plan: {e}") from None
        if not isinstance(head, list) or len(head) != 3 or head[0] != FORMAT:
            raise PlanError(f"the bytes are not a plan: expected a list that starts with {FORMAT!r}")
        if head[1] != VERSION:
            raise PlanError(f"the plan has version {head[1]!r}, this edgellm reads version {VERSION}: build it again")
        if not isinstance(head[2], list) or len(head[2]) != 9:
            raise PlanError("the plan's body is not a list of 9 fields")
        arch, n_vocab, n_ctx, buffers, weights, ropes, caches, ops, logits = head[2]
        if not isinstance(ops, list):
            raise PlanError("the plan's ops are not a list")
        plan = cls(
            arch=codec.decode(str, arch, "arch"),
            n_vocab=codec.decode(int, n_vocab, "n_vocab"),
            n_ctx_train=codec.decode(int, n_ctx, "n_ctx_train"),
            buffers=codec.decode(tuple[Buffer, ...], buffers, "buffers"),
            weights=codec.decode(tuple[Weight, ...], weights, "weights"),
            ropes=codec.decode(tuple[RopeTable, ...], ropes, "ropes"),
            caches=codec.decode(tuple[CacheClass, ...], caches, "caches"),
            ops=tuple(codec.decode_member(_OPS, op, f"ops[{i}]") for i, op in enumerate(ops)),
            logits=codec.decode(int, logits, "logits"),
        )
        plan.check()
        return plan
