"""The table of KV formats."""

from __future__ import annotations

import pytest

from edgellm.core.kv import KV_FORMATS, KV_NAMES, kv_name, kv_pair_name


@pytest.mark.parametrize(
    ("name", "bits"),
    [("f32", 32), ("f16", 16), ("bf16", 16), ("q8_0", 8.5), ("q4_0", 4.5), ("fp8_e4m3", 8), ("fp8_e5m2", 8)],
)
def test_sizes(name: str, bits: float) -> None:
    assert KV_FORMATS[name].n_bytes(128, 32) == 128 * 32 * bits / 8


def test_blocks_are_whole() -> None:
    assert KV_FORMATS["q8_0"].n_bytes(80, 32) == KV_FORMATS["q8_0"].n_bytes(96, 32) == 96 * 34
    assert KV_FORMATS["q4_0"].n_bytes(4, 32) == 32 * 18
    assert KV_FORMATS["fp8_e4m3"].n_bytes(80, 32) == 80 * 32


def test_names() -> None:
    assert kv_name("fp8") == "fp8_e4m3"
    assert [kv_name(n) for n in KV_FORMATS] == list(KV_FORMATS)
    assert "fp8" in KV_NAMES
    assert kv_pair_name("q8_0", "q8_0") == "q8_0"
    assert kv_pair_name("q8_0", "f16") == "q8_0+f16"
    assert len({f.code for f in KV_FORMATS.values()}) == len(KV_FORMATS)
