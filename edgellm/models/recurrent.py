"""Blocks with recurrent state instead of a cache of keys and values."""

from __future__ import annotations

from edgellm.core.record import dataclass
from edgellm.models import ops as o
from edgellm.models.blocks import project, rms_norm
from edgellm.models.build import Builder
from edgellm.models.dims import Dims, f32, rsqrt32
from edgellm.models.keys import Keys
from edgellm.models.ops import View
from edgellm.models.tables import PlanError


@dataclass(frozen=True, slots=True)
class SsmDims:
    """Sizes under `ssm.`: taps of the convolution, inner width, state per head, (value) heads, (key) groups."""

    taps: int
    inner: int
    state: int
    heads: int
    groups: int


def read_ssm(k: Keys) -> SsmDims:
    """Reads the keys. PlanError where heads or groups do not divide the inner width."""
    s = SsmDims(
        taps=k.integer("ssm.conv_kernel", lo=2, hi=64),
        inner=k.integer("ssm.inner_size", lo=1),
        state=k.integer("ssm.state_size", lo=1, hi=1 << 16),
        heads=k.integer("ssm.time_step_rank", lo=1, hi=1 << 16),
        groups=k.integer("ssm.group_count", lo=1, hi=1 << 16),
    )
    if s.inner % s.heads or s.inner % s.groups or s.heads % s.groups:
        raise PlanError(f"{s.inner} inner columns do not divide into {s.heads} heads and {s.groups} groups")
    return s


def delta_net(b: Builder, d: Dims, i: int, h: View, x: View, s: SsmDims, head_map: str) -> None:
    """x += a gated delta-net layer of h: `heads` value heads over `groups` key heads, with an output gate.

    Columns of the input product: q | k | v | output gate z | beta | alpha.
    """
    blk = f"blk.{i}"
    n_k, n_v, e_v = s.groups * s.state, s.inner, s.inner // s.heads
    mixed = 2 * n_k + n_v
    out = b.buffer("delta_in", mixed + n_v + 2 * s.heads)
    parts = (
        b.part(f"{blk}.attn_qkv", mixed),
        b.part(f"{blk}.attn_gate", n_v),
        b.part(f"{blk}.ssm_beta", s.heads),
        b.part(f"{blk}.ssm_alpha", s.heads),
    )
    b.add(o.Linear(h, out, parts))
    z, beta = out.columns(mixed, n_v), out.columns(mixed + n_v, s.heads)
    g = out.columns(mixed + n_v + s.heads, s.heads)
    b.add(o.Act(beta, beta, "sigmoid"))
    b.add(o.Decay(g, g, b.vector(f"{blk}.ssm_a", (s.heads,)), b.vector(f"{blk}.ssm_dt.bias")))
    conv = b.buffer("conv", mixed)
    w = b.vector(f"{blk}.ssm_conv1d.weight", (mixed, s.taps))
    b.add(o.Conv1d(out.columns(0, mixed), conv, w, None, "silu", b.state(s.taps - 1, mixed)))
    # q and k over sqrt(sum of squares + eps), as an RMS norm over sqrt(n); q also over sqrt(n).
    q, k, v = conv.columns(0, n_k), conv.columns(n_k, n_k), conv.columns(2 * n_k, n_v)
    both = conv.columns(0, 2 * n_k)
    b.add(o.Norm(both, both, f32(d.eps / s.state), groups=2 * s.groups))
    b.add(o.Scale(q, q, f32(1 / s.state)))
    b.add(o.Scale(k, k, rsqrt32(s.state)))
    y = b.buffer("delta_out", n_v)
    b.add(o.DeltaNet(q, k, v, g, beta, y, s.heads, s.groups, head_map, b.state(s.heads, s.state, e_v)))
    rms_norm(b, y, y, f"{blk}.ssm_norm.weight", d.eps, s.heads)
    b.add(o.Glu(z, y, y, "silu"))
    project(b, f"{blk}.ssm_out", y, x, residual=x)


def mamba2(b: Builder, d: Dims, i: int, h: View, x: View, s: SsmDims) -> None:
    """x += a Mamba-2 layer of h. Columns of the input product: gate z | x | B | C | dt."""
    blk = f"blk.{i}"
    n_bc = s.groups * s.state
    mixed = s.inner + 2 * n_bc
    out = b.buffer("ssm_in", s.inner + mixed + s.heads)
    project(b, f"{blk}.ssm_in", h, out)
    z, dt = out.columns(0, s.inner), out.columns(s.inner + mixed, s.heads)
    conv = b.buffer("conv", mixed)
    w, bias = b.vector(f"{blk}.ssm_conv1d.weight", (mixed, s.taps)), b.vector(f"{blk}.ssm_conv1d.bias")
    b.add(o.Conv1d(out.columns(s.inner, mixed), conv, w, bias, "silu", b.state(s.taps - 1, mixed)))
    y = b.buffer("ssm_out", s.inner)
    a, skip = b.vector(f"{blk}.ssm_a", (s.heads,)), b.vector(f"{blk}.ssm_d", (s.heads,))
    scan = o.Ssm(
        x=conv.columns(0, s.inner),
        B=conv.columns(s.inner, n_bc),
        C=conv.columns(s.inner + n_bc, n_bc),
        dt=dt,
        y=y,
        a=a,
        d=skip,
        dt_bias=b.vector(f"{blk}.ssm_dt.bias"),
        heads=s.heads,
        groups=s.groups,
        cache=b.state(s.heads, s.inner // s.heads, s.state),
    )
    b.add(scan)
    b.add(o.Glu(z, y, y, "silu"))
    b.add(o.Norm(y, y, d.eps, b.vector(f"{blk}.ssm_norm.weight", (s.inner,)), groups=s.groups))
    project(b, f"{blk}.ssm_out", y, x, residual=x)
