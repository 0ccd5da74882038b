"""minicpm: MiniCPM 1 and 2, and 4 without its sparse attention: granite, with factors of its own."""

from __future__ import annotations

from edgellm.models.build import Builder
from edgellm.models.dims import f32, read_dims, rsqrt32
from edgellm.models.families.granite import Factors, layers
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.spec import Family


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    factors = Factors(
        k.number("embedding_scale", 12.0),
        k.number("residual_scale", f32(f32(1.4) * rsqrt32(d.n_layer))),
        k.number("logit_scale", f32(256.0 / d.n_embd)),
    )
    return layers(b, k, d, factors)


FAMILY = Family("minicpm", build)
