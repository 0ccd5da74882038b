"""Dequantisation equals the gguf package bit for bit; quantisation gives valid blocks within its error bound."""

from __future__ import annotations

import warnings

import gguf as oracle
import numpy as np
import pytest
from matrices import CODEBOOKS

from edgellm.core.errors import GGUFError
from edgellm.gguf import QType
from edgellm.gguf.dequantize import can_dequantize, dequantize
from edgellm.gguf.quantize import quantize

KNOWN = [t for t in QType if can_dequantize(t)]
WRITABLE = [t for t in KNOWN if t not in CODEBOOKS]


def test_the_types_that_are_implemented() -> None:
    names = "F32 F16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S"
    names += " IQ4_XS IQ1_M BF16 TQ1_0 TQ2_0 MXFP4 NVFP4"
    assert [t.name for t in KNOWN] == names.split()


def test_the_table_agrees_with_the_gguf_package() -> None:
    theirs = {int(k): v for k, v in oracle.GGML_QUANT_SIZES.items()}
    # It counts Q8_1 with float32 scales; in files and in llama.cpp they are float16.
    theirs[int(QType.Q8_1)] = (32, 36)
    for t in QType:
        if int(t) in theirs:
            assert (t.block, t.block_bytes) == theirs[int(t)], t
            assert t.name == oracle.GGMLQuantizationType(int(t)).name
    assert {int(t) for t in QType} >= set(theirs)


@pytest.mark.parametrize("qtype", KNOWN, ids=str)
def test_random_blocks_equal_the_gguf_package(qtype: QType) -> None:
    rng = np.random.default_rng(int(qtype))
    raw = rng.integers(0, 256, (8, 300 * qtype.block_bytes), dtype=np.uint8)
    shape = (8, 300 * qtype.block)
    ours = dequantize(raw.reshape(-1), qtype, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random scales may be infinite
        theirs = oracle.quants.dequantize(raw, oracle.GGMLQuantizationType(int(qtype)))
    assert ours.dtype == np.float32
    assert ours.shape == shape
    finite = ~np.isnan(theirs)
    assert finite.mean() > 0.9
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    assert np.array_equal(ours.view(np.uint32)[finite], theirs.view(np.uint32)[finite])  # bits: -0.0 too


@pytest.mark.parametrize("qtype", [QType.Q4_K, QType.Q8_0, QType.F16], ids=str)
def test_large_tensors_go_in_pieces(qtype: QType) -> None:
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 60, (1 << 21) // qtype.block * qtype.block_bytes + qtype.block_bytes * 3, dtype=np.uint8)
    n = len(raw) // qtype.block_bytes * qtype.block
    whole = dequantize(raw, qtype, (n,))
    half = n // qtype.block // 2
    parts = [
        dequantize(raw[: half * qtype.block_bytes], qtype, (half * qtype.block,)),
        dequantize(raw[half * qtype.block_bytes :], qtype, (n - half * qtype.block,)),
    ]
    assert np.array_equal(whole, np.concatenate(parts))


def test_values_of_hand_made_blocks() -> None:
    one = np.float16(1).tobytes()
    q4_0 = np.frombuffer(one + bytes([0x80 + i for i in range(16)]), np.uint8)
    assert dequantize(q4_0, QType.Q4_0, (32,)).tolist() == [*map(float, range(-8, 8)), *[0.0] * 16]
    q5_0 = np.frombuffer(one + b"\x01\0\0\x80" + bytes(16), np.uint8)
    assert dequantize(q5_0, QType.Q5_0, (32,)).tolist() == [0.0] + [-16.0] * 30 + [0.0]
    q8_0 = np.frombuffer(np.float16(0.5).tobytes() + np.arange(-16, 16, dtype=np.int8).tobytes(), np.uint8)
    assert dequantize(q8_0, QType.Q8_0, (1, 32)).tolist() == [[i / 2 for i in range(-16, 16)]]
    scales = bytes([1] * 4 + [2] * 4 + [0x21] * 4)  # every scale 1, every minimum 2
    q4_k = np.frombuffer(one + one + scales + bytes([0x73] * 128), np.uint8)
    assert dequantize(q4_k, QType.Q4_K, (256,)).tolist() == ([1.0] * 32 + [5.0] * 32) * 4
    q6_k = np.frombuffer(bytes(192) + bytes([2] * 16) + one, np.uint8)
    assert dequantize(q6_k, QType.Q6_K, (256,)).tolist() == [-64.0] * 256


def bound(x: np.ndarray, qtype: QType) -> np.ndarray:
    """Largest error that rounding may cause in each element: half a step, and the rounding of the scales."""
    block = x.reshape(-1, qtype.block)
    amax = np.abs(block).max(axis=1, keepdims=True)
    span = block.max(axis=1, keepdims=True) - block.min(axis=1, keepdims=True)
    wide = np.maximum(span, amax)
    relative = {
        QType.F32: 0,
        QType.F16: 2.0**-11,
        QType.BF16: 2.0**-8,
        QType.Q4_0: 1 / 8,  # the end without the extreme value is one step short
        QType.Q4_1: 0.51 / 15,
        QType.Q5_0: 1 / 16,
        QType.Q5_1: 0.51 / 31,
        QType.Q8_0: 0.51 / 127,
        # half a step, the scale of the extreme value (`top` steps), the minimum, each rounded to a multiple
        QType.Q2_K: 0.6 / 3 + 0.6 / 15 + 0.6 / 15,
        QType.Q3_K: 0.6 / 3 + 0.6 / 31,
        QType.Q4_K: 0.6 / 15 + 0.6 / 63 + 0.6 / 63,
        QType.Q5_K: 0.6 / 31 + 0.6 / 63 + 0.6 / 63,
        QType.Q6_K: 0.6 / 31 + 1 / 127,
        # values reach 127 steps to one side, 113 to the other; the scale of the extreme value as above
        QType.IQ4_NL: 14.5 / 127,
        QType.IQ4_XS: 14.5 / 127 + 0.6 / 31,
        QType.NVFP4: 2.3 / 12,  # likewise, of a scale that is an eighth too large at most
        QType.TQ1_0: 0.51,
        QType.TQ2_0: 0.51,
        QType.MXFP4: 4 / 12,  # half of the widest gap, four steps of a sixth of the extreme value
    }[qtype]
    return np.broadcast_to(wide * relative * 1.001 + 1e-7, block.shape).reshape(x.shape)


@pytest.mark.parametrize("qtype", WRITABLE, ids=str)
@pytest.mark.parametrize("kind", ["normal", "positive", "negative", "sparse", "zero", "tiny", "large"])
def test_quantisation_stays_within_its_bound(qtype: QType, kind: str) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((5, 4 * 256)).astype(np.float32)
    if kind == "positive":
        x = np.abs(x) + 3
    elif kind == "negative":
        x = -np.abs(x) - 3
    elif kind == "sparse":
        x[rng.random(x.shape) < 0.95] = 0
    elif kind == "zero":
        x[:] = 0
    elif kind == "tiny":
        x *= np.float32(1e-30)
    elif kind == "large":
        x *= np.float32(1e2 if qtype is QType.NVFP4 else 1e4)
    raw = quantize(x, qtype)
    assert raw.dtype == np.uint8
    assert raw.shape == (qtype.n_bytes(x.size),)
    error = np.abs(dequantize(raw, qtype, x.shape) - x)
    assert (error <= bound(x, qtype)).all()


@pytest.mark.parametrize("qtype", [QType.F16, QType.BF16, QType.F32], ids=str)
def test_plain_types_round_as_the_gguf_package(qtype: QType) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((4, 999)) * 10.0 ** rng.integers(-6, 4, (4, 999))).astype(np.float32)
    theirs = oracle.quants.quantize(x, oracle.GGMLQuantizationType(int(qtype)))
    assert quantize(x, qtype).tobytes() == theirs.tobytes()


@pytest.mark.parametrize("qtype", [QType.Q4_0, QType.Q4_1, QType.Q5_0, QType.Q5_1, QType.Q8_0], ids=str)
def test_about_as_good_as_the_gguf_package(qtype: QType) -> None:
    x = np.random.default_rng(2).standard_normal((16, 1024)).astype(np.float32)
    kind = oracle.GGMLQuantizationType(int(qtype))
    theirs = oracle.quants.dequantize(oracle.quants.quantize(x, kind), kind)
    ours = dequantize(quantize(x, qtype), qtype, x.shape)
    assert np.square(ours - x).mean() <= 1.001 * np.square(theirs - x).mean()


def test_bad_input_is_a_typed_error() -> None:
    raw = np.zeros(18, np.uint8)
    with pytest.raises(GGUFError, match=r"18 bytes do not hold shape \(64,\) in Q4_0"):
        dequantize(raw, QType.Q4_0, (64,))
    with pytest.raises(GGUFError, match="do not hold shape"):
        dequantize(raw, QType.Q4_0, (2, 16))
    with pytest.raises(GGUFError, match="do not hold shape"):
        dequantize(raw, QType.Q4_0, ())
    with pytest.raises(GGUFError, match="Q8_K cannot be dequantised; possible: F32, "):
        dequantize(raw, QType.Q8_K, (256,))
    with pytest.raises(GGUFError, match="IQ3_S cannot be quantised"):
        quantize(np.zeros(256, np.float32), QType.IQ3_S)
    with pytest.raises(GGUFError, match="not whole Q4_K blocks of 256"):
        quantize(np.zeros((2, 128), np.float32), QType.Q4_K)
    with pytest.raises(GGUFError, match="must be finite"):
        quantize(np.array([np.nan] * 32, np.float32), QType.Q8_0)
    with pytest.raises(GGUFError, match="does not fit float16"):
        quantize(np.full(32, 1e9, np.float32), QType.Q8_0)
    with pytest.raises(GGUFError, match="does not fit bfloat16"):
        quantize(np.full(4, np.finfo(np.float32).max), QType.BF16)
    with pytest.raises(GGUFError, match="31 elements do not fill whole Q4_0 blocks"):
        QType.Q4_0.n_bytes(31)
