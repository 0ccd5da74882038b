"""deepseek2: DeepSeek V2, V3 and R1, Kimi K2 and others with latent attention and shared experts.

The first layers are dense; then a router (softmax, or sigmoid with a selection bias and groups) beside shared experts.
"""

from __future__ import annotations

from edgellm.core.errors import UnsupportedModel
from edgellm.models.blocks import Moe, RopeSpec, embed, head, mlp, moe, pre_norm, project
from edgellm.models.build import Builder
from edgellm.models.dims import f32, read_dims, rsqrt32
from edgellm.models.keys import Keys
from edgellm.models.latent import Mla, latent_attend
from edgellm.models.plan import Plan
from edgellm.models.scaling import rope_table, scaling_type, yarn_magnitude
from edgellm.models.spec import Family
from edgellm.models.tables import RopeTable

_FUNCS = {1: "softmax", 2: "sigmoid", 3: "softmax_topk", 4: "sqrt_softplus"}


def build(b: Builder, k: Keys) -> Plan:
    d = read_dims(k, b)
    table, stretch = _positions(k, d.n_rot)
    if not k.has("attention.key_length_mla"):
        raise UnsupportedModel(
            f"metadata key '{k.arch}.attention.key_length_mla' is missing: the file was converted before the key and "
            f"value matrices were split; convert the model again"
        )
    k_dim, v_dim = k.integer("attention.key_length_mla", lo=d.n_rot + 1), k.integer("attention.value_length_mla", lo=1)
    latent = k.integer("attention.kv_lora_rank", lo=1)
    q_rank = k.integer("attention.q_lora_rank", 0)
    rope = RopeSpec(b.rope(table), d.n_rot, "norm")
    routed = _router(k, d.n_layer, d.n_vocab, d.n_expert, d.n_expert_used)
    n_dense = k.integer("leading_dense_block_count", 0)
    k.integer("expert_shared_count", 0)  # the shared experts are one matrix, as wide as they are together
    x = embed(b, d)
    for i in range(d.n_layer):
        h = pre_norm(b, d, x, f"blk.{i}.attn_norm.weight")
        rank = q_rank if b.has(f"blk.{i}.attn_q_a.weight") else 0
        a = Mla(d.heads[i], latent, rank, k_dim, v_dim, f32(stretch * rsqrt32(k_dim)), rope)
        project(b, f"blk.{i}.attn_output", latent_attend(b, d, i, h, a), x, residual=x)
        h = pre_norm(b, d, x, f"blk.{i}.ffn_norm.weight")
        if i < n_dense:
            mlp(b, f"blk.{i}.ffn", h, x, d.n_ff[i], "silu", residual=x, scale=False)
        else:
            moe(b, i, h, x, routed, residual=x)
            mlp(b, f"blk.{i}.ffn", h, x, 0, "silu", residual=x, scale=False, suffix="_shexp")
    b.ignore_layers(d.n_layer, d.n_extra, "predicts further tokens; the next token's logits do not depend on it")
    return b.finish(d.n_vocab, d.n_ctx, head(b, d, x))


def _positions(k: Keys, n_rot: int) -> tuple[RopeTable, float]:
    """The rope table, and a factor on the attention's scale.

    YaRN changes the scale of the whole attention (`yarn_log_multiplier`, by convention a tenth of the model's
    mscale_all_dim), and cos and sin are left alone.
    """
    multiplier = 10 * k.number("rope.scaling.yarn_log_multiplier", 0.0)
    if scaling_type(k) == "yarn" and multiplier > 0:
        table = rope_table(k, n_rot, log_multiplier=1.0)
        stretch = yarn_magnitude(table.scale_factor, multiplier) ** 2
    else:
        table, stretch = rope_table(k, n_rot), 1.0
    if table.attn_factor != 1.0 or (table.scale_factor != 1.0 and table.yarn is None):
        raise UnsupportedModel(
            f"positions are scaled by {table.scale_factor} with the factor {table.attn_factor} on cos and sin; edgellm "
            f"knows YaRN with '{k.arch}.rope.scaling.yarn_log_multiplier' and without other factors for this "
            f"architecture, whose attention scale depends on it"
        )
    return table, stretch


def _router(k: Keys, n_layer: int, n_vocab: int, n_expert: int, n_used: int) -> Moe:
    func = k.integer("expert_gating_func", 0, hi=4)
    if func == 0:  # files older than the key: a sigmoid only in GLM 4.7 Flash
        func = 2 if n_layer in (47, 48) and n_vocab == 154880 else 1
    return Moe(
        n_expert,
        n_used,
        "silu",
        _FUNCS[func],
        norm=k.flag("expert_weights_norm", False),
        weight_scale=k.number("expert_weights_scale", 1.0),
        select_bias=True,
        groups=k.integer("expert_group_count", 1),
        groups_used=k.integer("expert_group_used_count", 1),
        scale=False,
    )


FAMILY = Family(
    "deepseek2",
    build,
    ignored_keys={
        "attention.key_length": "that of the cached form; the latent rank and the rotated part say the same",
        "attention.value_length": "that of the cached form; the latent rank says the same",
    },
)
