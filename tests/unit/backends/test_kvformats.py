"""What KV formats keep, against their definitions by enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edgellm.backends.reference.kvformats import kept
from edgellm.core.kv import KV_FORMATS

F32 = NDArray[np.float32]


def numbers(mantissa: int, bias: int, last: int) -> NDArray[np.float64]:
    """The magnitudes of an fp8 with codes 0..last, ascending."""
    code = np.arange(last + 1)
    exponent, part = code >> mantissa, code & ((1 << mantissa) - 1)
    normal = (part + (1 << mantissa)) * 2.0 ** (exponent - bias - mantissa)
    return np.where(exponent > 0, normal, part * 2.0 ** (1 - bias - mantissa))


def samples(all_: NDArray[np.float64]) -> F32:
    """Numbers, the middles between two, and what lies just beside them, of both signs."""
    middles = (all_[1:] + all_[:-1]) / 2
    x = np.concatenate([all_, middles, np.nextafter(middles.astype(np.float32), 0), all_ * 1.01, all_[-1:] * [1.2, 99]])
    return np.concatenate([x, -x]).astype(np.float32)


@pytest.mark.parametrize(("kind", "mantissa", "bias", "last"), [("fp8_e4m3", 3, 7, 0x7E), ("fp8_e5m2", 2, 15, 0x7B)])
def test_fp8_is_the_nearest_number(kind: str, mantissa: int, bias: int, last: int) -> None:
    all_ = numbers(mantissa, bias, last)
    assert all_[-1] == {"fp8_e4m3": 448, "fp8_e5m2": 57344}[kind]
    x = samples(all_)
    distance = np.abs(np.abs(x.astype(np.float64))[:, None] - all_)
    ties = distance == distance.min(1, keepdims=True)
    code = np.where(ties.sum(1) > 1, 2 * ((ties.argmax(1) + 1) // 2), ties.argmax(1))  # of two the even one
    assert np.array_equal(kept(x, kind), np.copysign(all_[code], x).astype(np.float32))
    assert np.array_equal(kept(kept(x, kind), kind), kept(x, kind))


@pytest.mark.parametrize("kind", KV_FORMATS)
def test_what_is_not_finite_stays_so(kind: str) -> None:
    for bad in (np.inf, -np.inf, np.nan):
        x = np.ones((2, 64), np.float32)
        x[1, 40] = bad
        y = kept(x, kind)
        assert np.isfinite(y[0]).all()
        assert np.isfinite(y[1, :32]).all()
        assert not np.isfinite(y[1, 40])


@pytest.mark.parametrize(("kind", "steps"), [("q8_0", 127), ("q4_0", 8)])
def test_blocks_of_32(kind: str, steps: int) -> None:
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((50, 2, 80)) * 10.0 ** rng.integers(-20, 20, (50, 1, 1))).astype(np.float32)
    y = kept(x, kind)
    assert y.shape == x.shape
    for first in (0, 32, 64):
        block, got = x[..., first : first + 32], y[..., first : first + 32]
        amax = np.abs(block).max(-1, keepdims=True)
        assert (np.abs(got - block) <= amax / steps * (1.01 if kind == "q4_0" else 0.505)).all()
        largest = np.abs(block) == amax
        assert np.allclose(got[largest], block[largest], rtol=0.008)
    assert np.array_equal(kept(x[..., :32], kind), y[..., :32])  # a block stands alone
    assert not kept(np.full((1, 32), 1e-38, np.float32), kind).any()


def test_simple_formats() -> None:
    x = np.array([1.0, 1.00390625, 1.01171875, 70000.0, 1e-45, -0.0, 3.4e38], np.float32)
    assert np.array_equal(kept(x, "f32"), x)
    assert kept(x, "bf16").tolist() == [1.0, 1.0, 1.015625, 70144.0, 0.0, -0.0, np.inf]
    assert kept(x, "f16").tolist() == [1.0, 1.00390625, 1.01171875, np.inf, 0.0, -0.0, np.inf]
