"""granitemoe: Granite 3 and 4 with experts, and a shared one beside them in some."""

from __future__ import annotations

from edgellm.models.build import Builder
from edgellm.models.dims import read_dims
from edgellm.models.families.granite import Factors, layers
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.spec import Family


def build(b: Builder, k: Keys) -> Plan:
    factors = Factors(k.number("embedding_scale", 0.0), k.number("residual_scale", 0.0), k.number("logit_scale"))
    return layers(b, k, read_dims(k, b), factors)


FAMILY = Family("granitemoe", build)
