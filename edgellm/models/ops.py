"""The ops of a plan: frozen dataclasses over views of numbered buffers. This list is all that a backend interprets.

A buffer is a float32 (or int32) matrix with one row per token (axis "T") or per output row (axis "R"). A `View` names
columns of a buffer. `w`, `b`, ... are indices into `Plan.weights`, None where absent. Every op works on all rows.
Letters: T tokens, D model dim, F ffn dim, H query heads, G kv heads, E head dim, N outputs and K inputs of a matmul.
"""

from __future__ import annotations

from typing import NamedTuple

from edgellm.core.record import dataclass


class View(NamedTuple):
    """Columns start .. start+width-1 of buffer `buf`."""

    buf: int
    start: int
    width: int

    def columns(self, start: int, width: int) -> View:
        """Columns start .. start+width-1 of this view."""
        return View(self.buf, self.start + start, width)


class Part(NamedTuple):
    """One matrix of a Linear: rows of y are scale * (W @ x) + b. `w` [N, K], `b` [N] or None."""

    w: int
    b: int | None = None
    scale: float = 1.0


class Experts(NamedTuple):
    """A stack of expert matrices: `w` [X, N, K]; `b` [X, N] or None; `scale` [X] (per expert, on W @ x) or None."""

    w: int
    b: int | None = None
    scale: int | None = None


class Slot(NamedTuple):
    """A layer's place in the cache: class index, layer index within the class."""

    cls: int
    layer: int


ACTS = ("none", "silu", "gelu_tanh", "gelu_erf", "relu", "relu2", "sigmoid", "swiglu_oai")
"""Activations. As gates: y = act(gate) * up; swiglu_oai clamps gate to (-inf, 7], up to [-7, 7] and is
gate * sigmoid(1.702 * gate) * (up + 1)."""


@dataclass(frozen=True, slots=True)
class Embed:
    """y[t] = scale * W[token[t]] (+ row dequantised to float32)."""

    y: View
    w: int
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Norm:
    """Normalise each of `groups` equal segments of x's row; y = norm(x) * w + b. May be in place.

    kind "rms": x / sqrt(mean(x^2) + eps); "layer": (x - mean) / sqrt(var + eps); "l2": x / max(sqrt(sum x^2), eps).
    w, b: [width / groups] (shared by the segments) or [width]; None = without.
    """

    x: View
    y: View
    eps: float
    w: int | None = None
    b: int | None = None
    kind: str = "rms"
    groups: int = 1


@dataclass(frozen=True, slots=True)
class Linear:
    """y = (residual +) concat over parts of scale * (W x) + b; parts may have different weight types.

    residual may be y itself.
    """

    x: View
    y: View
    parts: tuple[Part, ...]
    residual: View | None = None


@dataclass(frozen=True, slots=True)
class Gated:
    """y[T,F] = act(gate(x)) * up(x), the gated feed-forward's first half in one op."""

    x: View
    y: View
    gate: Part
    up: Part
    act: str


@dataclass(frozen=True, slots=True)
class Glu:
    """y = act(gate) * up, elementwise; view widths equal. Also output gates (act "sigmoid")."""

    gate: View
    up: View
    y: View
    act: str


@dataclass(frozen=True, slots=True)
class Act:
    """y = act(x), elementwise."""

    x: View
    y: View
    act: str


@dataclass(frozen=True, slots=True)
class Add:
    """y = a + b, elementwise. May be in place."""

    a: View
    b: View
    y: View


@dataclass(frozen=True, slots=True)
class Copy:
    """For each of `heads` equal segments h of x (width X) and of y (width Y): y[h*Y + y_offset : + n] =
    x[h*X + x_offset : + n]. Joins or splits what lies head by head; the rest of y stays as it is."""

    x: View
    y: View
    heads: int
    x_offset: int
    y_offset: int
    n: int


@dataclass(frozen=True, slots=True)
class Scale:
    """y = factor * x. May be in place."""

    x: View
    y: View
    factor: float


@dataclass(frozen=True, slots=True)
class Softcap:
    """y = cap * tanh(x / cap). May be in place."""

    x: View
    y: View
    cap: float


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotate, in place, dimensions offset .. offset+n_rot-1 of each of `heads` equal segments of x.

    mode "norm" pairs (2i, 2i+1), "neox" pairs (i, i + n_rot/2). `table` indexes Plan.ropes.
    """

    x: View
    heads: int
    n_rot: int
    offset: int
    mode: str
    table: int


@dataclass(frozen=True, slots=True)
class KVWrite:
    """Store k [T, G*Ek] and v [T, G*Ev] at the tokens' positions; v is None for a latent class (V is part of K)."""

    k: View
    v: View | None
    cache: Slot


@dataclass(frozen=True, slots=True)
class Attention:
    """y[T, H*Ev] = softmax(mask(cap(scale * q k^T))) v over the sequence's cache, tokens of this step included.

    q: [T, H*Ek]; H % G == 0, query head h reads kv head h // (H/G). Token at position p sees positions
    max(0, p-window+1) .. p (window 0: all). softcap 0: none. sinks: weight [H], an extra logit in the denominator.
    causal=False: every token of the sequence's step is seen (encoders).
    """

    q: View
    y: View
    cache: Slot
    heads: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: int | None = None
    causal: bool = True


@dataclass(frozen=True, slots=True)
class Route:
    """Choose `k` experts a token from router logits [T, X]: ids [T, k] (int32), weights [T, k] (float32).

    func: "softmax" over all, "sigmoid", "softmax_topk" (softmax over the chosen logits), "sqrt_softplus".
    bias [X] is added for the choice only. Ranked by choice value descending, ties to the lower index.
    norm: divide by max(sum of the chosen weights, 6.103515625e-5); then times `scale`.
    groups/groups_used: group-limited choice (sum of a group's best two), 1/1 = off.
    """

    logits: View
    ids: View
    weights: View
    k: int
    func: str
    bias: int | None = None
    norm: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_used: int = 1


@dataclass(frozen=True, slots=True)
class ExpertLinear:
    """For each rank j < k: y[t, j*N:(j+1)*N] = expert ids[t, j] applied to x.

    x is [T, K] (shared by the ranks) or, with per_rank, [T, k*K].
    """

    x: View
    ids: View
    y: View
    experts: Experts
    k: int
    per_rank: bool = False


@dataclass(frozen=True, slots=True)
class ExpertGated:
    """For each rank j: y[t, j*F:(j+1)*F] = act(gate_e(x)) * up_e(x), e = ids[t, j]. x [T, K]."""

    x: View
    ids: View
    y: View
    gate: Experts
    up: Experts
    k: int
    act: str


@dataclass(frozen=True, slots=True)
class Combine:
    """y[T, D] = (residual +) sum over ranks j ascending of weights[t, j] * x[t, j*D:(j+1)*D]."""

    x: View
    weights: View
    y: View
    k: int
    residual: View | None = None


@dataclass(frozen=True, slots=True)
class SelectRows:
    """y[r] = x[rows[r]]: from the token axis to the output axis."""

    x: View
    y: View


@dataclass(frozen=True, slots=True)
class HeadLinear:
    """A small matrix per head: y[t, h*N:(h+1)*N] = W[h] @ x[t, h*K:(h+1)*K]; w [H, N, K]. (MLA absorption.)"""

    x: View
    y: View
    w: int
    heads: int


@dataclass(frozen=True, slots=True)
class Conv1d:
    """Causal depth-wise convolution over time with state: y[t,c] = act(sum_j w[c,j] x[t-J+1+j, c] + b[c]).

    w [C, J]; the last J-1 inputs are kept in the sequence's state slot `cache`.
    """

    x: View
    y: View
    w: int
    b: int | None
    act: str
    cache: Slot


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated delta rule, sequential in t, per value head (state S [Ek, Ev] in slot `cache`):

    S = exp(g) S;  S = S + k (beta (v - S^T k))^T;  y = S^T q.  q, k: [T, Hk*Ek] (already normalised and scaled),
    v, y: [T, Hv*Ev], g, beta: [T, Hv]. Value head h uses key head h % Hk ("tiled") or h // (Hv/Hk) ("grouped").
    """

    q: View
    k: View
    v: View
    g: View
    beta: View
    y: View
    heads: int
    k_heads: int
    head_map: str
    cache: Slot


@dataclass(frozen=True, slots=True)
class Decay:
    """y = w * softplus(x + b), elementwise on [T, Hv]: the log decay of a gated delta-net head."""

    x: View
    y: View
    w: int
    b: int


@dataclass(frozen=True, slots=True)
class Ssm:
    """Mamba-2 selective scan, sequential in t, per head (state S [E, N] in slot `cache`):

    dt = softplus(dt_in + dt_bias);  S = exp(dt * a) S + dt * x B^T;  y = S C + d * x.
    x, y: [T, H*E], B, C: [T, groups*N], dt: [T, H]; a, d, dt_bias: [H].
    """

    x: View
    B: View
    C: View
    dt: View
    y: View
    a: int
    d: int
    dt_bias: int
    heads: int
    groups: int
    cache: Slot


Op = (
    Embed
    | Norm
    | Linear
    | Gated
    | Glu
    | Act
    | Add
    | Copy
    | Scale
    | Softcap
    | Rope
    | KVWrite
    | Attention
    | Route
    | ExpertLinear
    | ExpertGated
    | Combine
    | SelectRows
    | HeadLinear
    | Conv1d
    | DeltaNet
    | Decay
    | Ssm
)
