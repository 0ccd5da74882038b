"""What the native backend refuses before anything is compiled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edgellm.backends.native.executable import _cache_layers
from edgellm.core.errors import UnsupportedModel


@pytest.mark.parametrize(("k_dim", "v_dim"), [(34, 34), (2, 2), (64, 6)])
def test_heads_that_do_not_fit_the_kernels(k_dim: int, v_dim: int) -> None:
    layer = SimpleNamespace(heads=2, k_dim=k_dim, v_dim=v_dim)
    plan: Any = SimpleNamespace(arch="llama", caches=[SimpleNamespace(kind="full", layers=[layer])])
    with pytest.raises(UnsupportedModel, match=f'multiples of 4 numbers, found {k_dim} and {v_dim}: use backend="ref'):
        _cache_layers(plan)
    layer.k_dim = layer.v_dim = 36
    assert [(x.k_dim, x.v_dim) for x in _cache_layers(plan)] == [(36, 36)]
