"""The self-test: one hash at every level, and whatever is changed changes it."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgellm import _native
from edgellm.core.version import NUMERICS_VERSION
from edgellm.engine import selftest
from edgellm.gguf.qtypes import QType
from edgellm.gguf.reader import GGUFFile

LEVELS = [name for name, usable, _ in _native.isa_levels() if usable] if _native.available() else []
PUBLISHED = {1: "b6a25090aafe12ae4878908cf9b07d72278fc4e8970b63848c33c422c4bbb073"}
"""The hash of each version of the numerics: a line is added, none is changed."""
EXP = np.float32(4.1665795894e-2)
"""A coefficient of the core's exp (native/kernels/fp.h)."""


def images(bits: int) -> list[bytes]:
    """A float32 of these bits as libraries hold it: level scalar computes its fma in double."""
    value = struct.unpack("<f", struct.pack("<I", bits))[0]
    return [struct.pack("<f", value), struct.pack("<d", value)]


@pytest.fixture
def flipped(tmp_path: Path) -> Path:
    """The native library with one bit of one constant flipped."""
    if not LEVELS:
        pytest.skip(_native.why_not())
    library = _native.library_path().read_bytes()
    bits = int(EXP.view(np.uint32))
    assert any(image in library for image in images(bits))
    for old, new in zip(images(bits), images(bits ^ 1 << 12), strict=True):
        library = library.replace(old, new)
    path = tmp_path / f"flipped{_native.library_path().suffix}"
    path.write_bytes(library)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return selftest.write_model(tmp_path / "model.gguf")


def test_the_hash_belongs_to_the_version_of_the_numerics() -> None:
    assert PUBLISHED[NUMERICS_VERSION] == selftest.LOGITS_SHA256


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_has_the_published_hash(level: str) -> None:
    got = selftest.check("native", level)
    assert (got.ok, got.why_not, got.digest) == (True, "", selftest.LOGITS_SHA256)


def test_the_reference_backend_means_the_same(model: Path) -> None:
    if not LEVELS:
        pytest.skip(_native.why_not())
    a, b = selftest.logits(model, "reference"), selftest.logits(model, "native")
    assert np.square(a - b).sum() / np.square(a).sum() < 4e-3  # 2e-3 was measured: what activations of 8 bits cost
    assert 0.5 < b.std() < 1


def test_the_model_has_every_weight_type_and_the_text_every_token(model: Path) -> None:
    with GGUFFile(model) as file:
        found = {t.qtype for t in file.tensors.values()}
    from edgellm.backends.lower import ACT_FORMATS

    assert found == set(selftest.TYPES) == set(ACT_FORMATS)
    assert set(selftest.TOKENS) == set(range(selftest.VOCABULARY))


def test_a_flipped_bit_of_the_model_fails(model: Path) -> None:
    if not LEVELS:
        pytest.skip(_native.why_not())
    good = model.read_bytes()
    with GGUFFile(model) as file:
        tensors = [(t, file.source(t.name)[1]) for t in file.tensors.values() if len(t.shape) == 2]
    for info, offset in tensors[::3]:
        bad = bytearray(good)
        last = info.qtype.block_bytes - 1 if info.qtype in (QType.F32, QType.F16, QType.BF16) else 1
        bad[offset + last] ^= 1  # of an exponent, a scale, or scales
        model.write_bytes(bad)
        got = selftest.check("native", LEVELS[-1], model)
        assert not got.ok
        assert got.digest not in ("", selftest.LOGITS_SHA256), info.name
        assert "the model's file has the hash" in got.why_not
        assert "the logits have the hash" in got.why_not
    bad = bytearray(good)
    bad[-1] ^= 1  # padding, which no logit sees
    model.write_bytes(bad)
    got = selftest.check("native", LEVELS[-1], model)
    assert not got.ok
    assert "the model's file has the hash" in got.why_not


def test_a_flipped_constant_of_the_library_fails(flipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGELLM_LIBRARY", str(flipped))
    for level in LEVELS:
        got = selftest.check("native", level)
        assert not got.ok, level
        assert got.digest not in ("", selftest.LOGITS_SHA256), level
        assert "the logits have the hash" in got.why_not


def test_doctor(flipped: Path) -> None:
    command = [sys.executable, "-m", "edgellm", "doctor", "--no-measure", "--selftest"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert [f"selftest   {name}: as published" in done.stdout for name in LEVELS] == [True] * len(LEVELS)
    assert selftest.LOGITS_SHA256 in done.stdout
    broken = {**os.environ, "EDGELLM_LIBRARY": str(flipped)}
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, env=broken)
    found = json.loads(done.stdout)["selftest"]
    assert (done.returncode, [c["level"] for c in found]) == (1, LEVELS)
    assert not any(c["ok"] for c in found)


def test_what_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGELLM_LIBRARY", str(tmp_path / "nothing.so"))
    got = selftest.check("native")
    assert (got.ok, got.digest) == (False, "")
    assert "there is no native library" in got.why_not
