"""Multi-head latent attention, in its absorbed form: the cache holds one small vector per token for all heads."""

from __future__ import annotations

from edgellm.core.record import dataclass
from edgellm.models import ops as o
from edgellm.models.blocks import RopeSpec, rms_norm
from edgellm.models.build import Builder
from edgellm.models.dims import Dims
from edgellm.models.ops import View
from edgellm.models.tables import CacheLayer


@dataclass(frozen=True, slots=True)
class Mla:
    """Sizes: `latent` cached columns plus `rope.n_rot` rotated ones; heads of k_dim (rotated part last) and v_dim.

    q_rank: columns between the two query matrices, 0 where there is only one.
    """

    heads: int
    latent: int
    q_rank: int
    k_dim: int
    v_dim: int
    scale: float
    rope: RopeSpec


def latent_attend(b: Builder, d: Dims, i: int, h: View, a: Mla) -> View:
    """Attention of layer i up to its output projection: [T, H * v_dim].

    kv = [norm(c) | k_pe]                      cached, shared by the heads
    q' = [W_k q_nope | q_pe]  per head         so that q' . kv = q . k
    y  = W_v (softmax(q' kv^T) c)  per head
    """
    blk, n_rot, n_q = f"blk.{i}", a.rope.n_rot, a.heads * a.k_dim
    nope, wide = a.k_dim - n_rot, a.latent + n_rot
    first = a.q_rank or n_q
    down = b.buffer("kv_a", first + wide)
    stem = f"{blk}.attn_q_a" if a.q_rank else f"{blk}.attn_q"
    b.add(o.Linear(h, down, (b.part(stem, first), b.part(f"{blk}.attn_kv_a_mqa", wide))))
    q, kv = down.columns(0, first), down.columns(first, wide)
    if a.q_rank:
        rms_norm(b, q, q, f"{blk}.attn_q_a_norm.weight", d.eps)
        full = b.buffer("q", n_q)
        b.add(o.Linear(q, full, (b.part(f"{blk}.attn_q_b", n_q),)))
        q = full
    c, k_pe = kv.columns(0, a.latent), kv.columns(a.latent, n_rot)
    rms_norm(b, c, c, f"{blk}.attn_kv_a_norm.weight", d.eps)
    b.add(o.Rope(q, a.heads, n_rot, nope, a.rope.mode, a.rope.table))
    b.add(o.Rope(k_pe, 1, n_rot, 0, a.rope.mode, a.rope.table))
    slot = b.cache("latent", CacheLayer(1, wide, a.latent))
    b.add(o.KVWrite(kv, None, slot))
    q_nope, absorbed = b.buffer("q_nope", a.heads * nope), b.buffer("q_absorbed", a.heads * a.latent)
    joined = b.buffer("q_latent", a.heads * wide)
    b.add(o.Copy(q, q_nope, a.heads, 0, 0, nope))
    b.add(o.HeadLinear(q_nope, absorbed, b.matrix(f"{blk}.attn_k_b.weight", (a.heads, a.latent, nope)), a.heads))
    b.add(o.Copy(absorbed, joined, a.heads, 0, 0, a.latent))
    b.add(o.Copy(q, joined, a.heads, nope, a.latent, n_rot))
    mixed, y = b.buffer("att_latent", a.heads * a.latent), b.buffer("att", a.heads * a.v_dim)
    b.add(o.Attention(joined, mixed, slot, a.heads, a.scale))
    b.add(o.HeadLinear(mixed, y, b.matrix(f"{blk}.attn_v_b.weight", (a.heads, a.v_dim, a.latent)), a.heads))
    return y
