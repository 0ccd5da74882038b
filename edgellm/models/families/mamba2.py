"""mamba2: Mamba-2 state-space models: no attention, no feed-forward."""

from __future__ import annotations

from edgellm.models.blocks import embed, head, pre_norm
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.recurrent import mamba2, read_ssm
from edgellm.models.spec import Family


def build(b: Builder, k: Keys) -> Plan:
    d, s = read_dims(k, b), read_ssm(k)
    x = embed(b, d)
    for i in range(d.n_layer):
        mamba2(b, d, i, pre_norm(b, d, x, f"blk.{i}.attn_norm.weight"), x, s)
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


FAMILY = Family("mamba2", build)
