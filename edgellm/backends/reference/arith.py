"""The arithmetic of ops on plain float32 arrays, one row per token; docs/numerics.md without its summation order."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from edgellm.core.types import F32

_SQRT_2_OVER_PI = np.float32(0.7978845608028654)


def rms_norm(x: F32, eps: float) -> F32:
    """Rows over the square root of their mean square."""
    y: F32 = x * (np.float32(1) / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)))
    return y


def layer_norm(x: F32, eps: float) -> F32:
    """Rows without their mean, over their standard deviation."""
    x = x - np.mean(x, axis=-1, keepdims=True)
    return rms_norm(x, eps)


def l2_norm(x: F32, eps: float) -> F32:
    """Rows over their length, at least eps."""
    y: F32 = x / np.maximum(np.sqrt(np.sum(x * x, axis=-1, keepdims=True)), np.float32(eps))
    return y


def sigmoid(x: F32) -> F32:
    """1 / (1 + exp(-x))."""
    y: F32 = np.float32(1) / (np.float32(1) + np.exp(-x))
    return y


def softplus(x: F32) -> F32:
    """log(1 + exp(x)), which is x for large x."""
    y: F32 = np.maximum(x, np.float32(0)) + np.log1p(np.exp(-np.abs(x)))
    return y


def softmax(x: F32) -> F32:
    """exp(x) over its sum, along the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    out: F32 = e / e.sum(axis=-1, keepdims=True)
    return out


def erf(x: F32) -> F32:
    """The error function."""
    return np.array([math.erf(v) for v in x.ravel().tolist()], np.float32).reshape(x.shape)


def gelu_tanh(x: F32) -> F32:
    """GELU in its tanh form."""
    u = _SQRT_2_OVER_PI * x * (np.float32(1) + np.float32(0.044715) * x * x)
    y: F32 = np.float32(0.5) * x * (np.float32(1) + np.tanh(u))
    return y


def gelu_erf(x: F32) -> F32:
    """GELU in its exact form."""
    y: F32 = np.float32(0.5) * x * (np.float32(1) + erf(x * np.float32(0.7071067811865476)))
    return y


def silu(x: F32) -> F32:
    """x * sigmoid(x)."""
    return x * sigmoid(x)


def relu(x: F32) -> F32:
    """x where it is positive, else 0."""
    y: F32 = np.maximum(x, np.float32(0))
    return y


_ACTS: dict[str, Callable[[F32], F32]] = {
    "none": lambda x: x,
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "gelu_erf": gelu_erf,
    "relu": relu,
    "relu2": lambda x: relu(x) * relu(x),
    "sigmoid": sigmoid,
}


def activate(act: str, x: F32) -> F32:
    """An activation of one argument: any of ops.ACTS but swiglu_oai."""
    return _ACTS[act](x)


def gated(act: str, gate: F32, up: F32) -> F32:
    """act(gate) * up."""
    if act == "swiglu_oai":
        g = np.minimum(gate, np.float32(7))
        u = np.clip(up, np.float32(-7), np.float32(7))
        y: F32 = g * sigmoid(np.float32(1.702) * g) * (u + np.float32(1))
        return y
    return activate(act, gate) * up


def rotate(x: F32, cos: F32, sin: F32, mode: str) -> F32:
    """x [T, heads, n_rot] rotated by cos, sin [T, n_rot / 2]: pairs (2i, 2i+1) or (i, i + n_rot / 2)."""
    c, s = cos[:, None, :], sin[:, None, :]
    half = x.shape[-1] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if mode == "norm" else (x[..., :half], x[..., half:])
    y0, y1 = a * c - b * s, a * s + b * c
    out = np.stack([y0, y1], axis=-1).reshape(x.shape) if mode == "norm" else np.concatenate([y0, y1], axis=-1)
    return out.astype(np.float32, copy=False)


def attention(q: F32, k: F32, v: F32, seen: NDArray[np.bool_], scale: float, softcap: float, sinks: F32 | None) -> F32:
    """Softmax attention of one sequence.

    q [T, H, Ek], k [N, G, Ek], v [N, G, Ev], seen [T, N] true where a token sees a position, sinks [H] -> [T, H, Ev].
    """
    n_tokens, n_heads, _ = q.shape
    n_kv = k.shape[1]
    group = n_heads // n_kv
    out = np.empty((n_tokens, n_heads, v.shape[2]), np.float32)
    for h in range(n_heads):
        s = (q[:, h] @ k[:, h // group].T) * np.float32(scale)
        if softcap:
            s = np.float32(softcap) * np.tanh(s / np.float32(softcap))
        s = np.where(seen, s, np.float32(-np.inf))
        top = s.max(axis=1, keepdims=True)
        if sinks is not None:
            top = np.maximum(top, sinks[h])
        w = np.exp(s - top)
        total = w.sum(axis=1, keepdims=True)
        if sinks is not None:
            total = total + np.exp(sinks[h] - top)
        out[:, h] = (w @ v[:, h // group]) / total
    return out
