"""mistral3: Ministral 3, Mistral Small 3 and Devstral 2: llama, with YaRN and queries that grow with the position."""

from __future__ import annotations

from edgellm.core.record import replace
from edgellm.models.build import Builder
from edgellm.models.dims import read_dims
from edgellm.models.families.llama import layers
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.scaling import divided_table, temperature
from edgellm.models.spec import Family


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    table = divided_table(b, k, d.n_rot, k.number("rope.scaling.yarn_log_multiplier", 0.0))
    return layers(b, k, d, table, replace(table, temperature=temperature(k)))


FAMILY = Family("mistral3", build)
