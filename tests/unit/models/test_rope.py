"""Rope tables: the same bits everywhere, right to the last place of float32, and no memory before it is needed."""

from __future__ import annotations

import hashlib
from decimal import Decimal, localcontext

import numpy as np
import pytest

from edgellm.models.plan import PlanError, RopeTable
from edgellm.models.rope import BLOCK, RopeCache, inverse_frequencies, sin_cos

TABLES = [
    RopeTable(64, 10000.0),
    RopeTable(256, 1_000_000.0, scale_factor=8.0),
    RopeTable(128, 500_000.0, attn_factor=1.25),
]
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")


def exact_sin_cos(x: float) -> tuple[float, float]:
    """sin and cos of a float64, by Taylor series in 80 decimal digits."""
    with localcontext() as context:
        context.prec = 80
        r = Decimal(x) % (2 * PI)
        sin, cos, term = Decimal(0), Decimal(0), Decimal(1)
        for n in range(1, 90):
            if n % 2:
                cos += term
            else:
                sin += term
            term = term * r / n * (-1 if n % 2 == 0 else 1)
        return float(sin), float(cos)


def test_exact_sin_cos_is_right() -> None:
    assert exact_sin_cos(0.5) == (np.sin(0.5), np.cos(0.5))


def test_sin_cos_is_right_for_small_and_large_angles() -> None:
    rng = np.random.default_rng(1)
    angles = np.concatenate([rng.uniform(0, 10, 60), rng.uniform(0, 2**20, 60), np.arange(40) * (np.pi / 4)])
    sin, cos = sin_cos(angles)
    exact = np.array([exact_sin_cos(float(a)) for a in angles])
    assert np.abs(sin - exact[:, 0]).max() < 2**-50
    assert np.abs(cos - exact[:, 1]).max() < 2**-50


@pytest.mark.parametrize("table", TABLES)
def test_tables_round_the_exact_values(table: RopeTable) -> None:
    n_ctx = 2048
    cache = RopeCache(table, n_ctx)
    cache.ensure(n_ctx)
    assert cache.cos.shape == cache.sin.shape == (n_ctx, table.n_rot // 2)
    assert cache.cos.dtype == np.float32
    rng = np.random.default_rng(2)
    for p, i in zip(rng.integers(0, n_ctx, 200), rng.integers(0, table.n_rot // 2, 200), strict=True):
        with localcontext() as context:
            context.prec = 60
            inv = Decimal(table.base) ** (Decimal(-2 * int(i)) / table.n_rot) / Decimal(table.scale_factor)
            angle = float(inv * int(p))
        sin, cos = exact_sin_cos(angle)
        assert abs(float(cache.sin[p, i]) - sin * table.attn_factor) < 1e-7
        assert abs(float(cache.cos[p, i]) - cos * table.attn_factor) < 1e-7


def test_bits_are_pinned() -> None:
    """These bytes are part of the numerics version: they must be the same on every machine."""
    digest = hashlib.sha256()
    for table in TABLES:
        cache = RopeCache(table, 4096)
        cache.ensure(4096)
        digest.update(cache.cos.tobytes())
        digest.update(cache.sin.tobytes())
    assert digest.hexdigest() == "e45ba7b7937f39348765fbfc973a12f3cb99ce46c4dec49fb95e5efb2594fffb"


def test_rows_are_filled_when_asked_for() -> None:
    cache = RopeCache(TABLES[0], 1000)
    where = cache.cos.ctypes.data
    assert cache.n_filled == 0
    cache.ensure(1)
    assert cache.n_filled == BLOCK
    assert not cache.cos[BLOCK:].any()
    cache.ensure(BLOCK)
    assert cache.n_filled == BLOCK
    cache.ensure(1000)
    assert cache.n_filled == 1000
    assert cache.cos.ctypes.data == where
    whole = RopeCache(TABLES[0], 1000)
    whole.ensure(1000)
    assert (whole.cos == cache.cos).all()
    assert (whole.sin == cache.sin).all()
    with pytest.raises(ValueError, match="position 1000 is outside the rope table of 1000 rows"):
        cache.ensure(1001)


def test_factors_divide() -> None:
    table = RopeTable(8, 10000.0)
    plain = inverse_frequencies(table)
    factors = np.array([1.0, 2.0, 4.0, 1e30], np.float32)
    assert (inverse_frequencies(table, factors) == plain / factors.astype(np.float64)).all()
    assert (inverse_frequencies(RopeTable(8, 10000.0, scale_factor=2.0)) == plain / 2).all()
    assert plain.tolist() == [1.0, 0.1, 0.01, 0.001]


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_factors_are_an_error(bad: float) -> None:
    with pytest.raises(PlanError, match="finite and positive"):
        inverse_frequencies(RopeTable(4, 10000.0), np.array([1.0, bad], np.float32))
