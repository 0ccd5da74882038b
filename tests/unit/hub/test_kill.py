"""Kill -9 during a download, then pull again: it goes on, verifies, and no file in place is ever a wrong one."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from unit.hub.fake_hub import HubWorld, noise, sha
from unit.hub.fake_index import World

from edgellm import hub

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")

# Pulls argv[2] and dies at the moment argv[3]: when a progress label that begins so reports so many bytes, or
# around the n-th rename. Nothing is cleaned up or flushed, as when somebody else sends the signal.
CHILD = """
import os, signal, sys
from pathlib import Path
from edgellm import hub
from edgellm.hub import catalogue, sources, web
catalogue.catalog_path = lambda: Path(sys.argv[1])
sources.SOURCES = sources.SOURCES[:1]
kind, _, number = sys.argv[3].rpartition(" ")
renames, replace = 0, os.replace

def die_at(what, count):
    if kind == what and count == int(number):
        os.kill(os.getpid(), signal.SIGKILL)

def replacing(source, target):
    global renames
    renames += 1
    die_at("before rename", renames)
    replace(source, target)
    die_at("after rename", renames)

os.replace = replacing

def progress(done, total, label):
    if label.startswith(kind) and done >= int(number):
        os.kill(os.getpid(), signal.SIGKILL)

hub.pull(sys.argv[2], progress=progress)
print("not killed")
"""


def killed(world: World, name: str, moment: str) -> None:
    """Pulls `name` in a process that is killed at `moment`."""
    command = [sys.executable, "-c", CHILD, str(world.catalog_file), name, moment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "", "")


def in_place(cache: Path) -> dict[str, bytes]:
    """Every model file under its own name, with its bytes."""
    models = cache / "models"
    return {p.name: p.read_bytes() for p in models.rglob("*.gguf") if ".download" not in p.parts}


def parts(cache: Path) -> dict[str, int]:
    """Every unfinished download, with its size."""
    return {p.name: p.stat().st_size for p in (cache / "models").rglob(".download/*.part")}


# -- from Hugging Face: a model of two files -------------------------------------------------------------------

ONE, TWO = (f"m-Q4_K_M-0000{i}-of-00002.gguf" for i in (1, 2))
SIZE = 1_500_000


@pytest.mark.parametrize(
    ("moment", "there", "resumed_at"),
    [
        ("downloading 0", [], 0),
        ("downloading 1", [], 1),
        ("downloading 400000", [], 400_000),
        ("downloading 1100000", [], 1_100_000),
        ("downloading 1499999", [], 1_400_000),
        ("before rename 1", [], SIZE),
        ("after rename 1", [ONE], 0),
        ("downloading 2200000", [ONE], 700_000),
        ("before rename 2", [ONE], SIZE),
        ("after rename 2", [ONE, TWO], 0),
        ("before rename 3", [ONE, TWO], 0),  # the notes beside them
        ("after rename 3", [ONE, TWO], 0),
    ],
)
def test_hugging_face(hf: HubWorld, world: World, moment: str, there: list[str], resumed_at: int) -> None:
    files = {ONE: noise(1, SIZE), TWO: noise(2, SIZE)}
    hf.hub.add("u/big", files)
    killed(world, "u/big", moment)
    assert in_place(hf.cache) == {n: files[n] for n in there}
    assert [m.name for m in hub.list_local()] == (["u/big:Q4_K_M"] if len(there) == 2 else [])
    have = parts(hf.cache)
    assert len(have) <= 1
    part = sum(have.values())
    # What was in the process's own buffer is lost; nothing that was written is.
    assert max(resumed_at - (1 << 18), 0) <= part <= SIZE
    before = len(hf.hub.downloads())
    found = hub.pull("u/big")
    assert found.path.name == ONE
    assert in_place(hf.cache) == files
    assert parts(hf.cache) == {}
    asked = [(r.path.split("/")[2], r.range) for r in hf.hub.downloads()[before:]]
    missing = [n for n in (ONE, TWO) if n not in there]
    expected = [(sha(files[n]), None) for n in missing]
    if have and part == SIZE:
        expected = expected[1:]  # only verified
    elif have and part:
        expected[0] = (expected[0][0], f"bytes={part}-")
    assert asked == expected
    assert [m.name for m in hub.list_local()] == ["u/big:Q4_K_M"]
    assert sorted(p.name for p in found.path.parent.iterdir()) == [".edgellm.json", ONE, TWO]


@pytest.mark.slow
def test_killed_again_and_again_from_outside(hf: HubWorld, world: World) -> None:
    """Ten times at any instruction: every pull goes on where the last one was stopped."""
    hf.hub.pace = 0.01
    chance, n_bytes = random.Random(0), len(hf.model)
    command = [sys.executable, "-c", CHILD, str(world.catalog_file), "u/r-GGUF", "never 0"]
    for round_ in range(10):
        had = sum(parts(hf.cache).values())
        wanted = min(had + chance.randrange(1, 250_000), n_bytes - (1 << 19))
        # However late it is killed, it has not ended: the rest is not sent.
        gate, hf.hub.gate_at = threading.Event(), min(wanted + (1 << 19), n_bytes - (1 << 16))
        hf.hub.gate = gate
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while sum(parts(hf.cache).values()) < wanted or len(hf.hub.downloads()) <= round_:
            assert process.poll() is None, f"round {round_} ended by itself: {process.communicate()}"
            time.sleep(0.001)
        process.kill()
        process.communicate()
        gate.set()
        assert in_place(hf.cache) == {}
        assert hf.model.startswith(hf.part.read_bytes())
    hf.hub.pace, hf.hub.gate = 0.0, None
    had = hf.part.stat().st_size
    assert hub.pull("u/r-GGUF").path.read_bytes() == hf.model
    starts = [int(r.range[6:-1]) if r.range else 0 for r in hf.hub.downloads()]
    assert len(starts) == 11
    assert starts == sorted(starts)
    assert starts[-1] == had > 0
    assert parts(hf.cache) == {}


# -- from the package index: a model in two wheels -------------------------------------------------------------


@pytest.mark.parametrize(
    ("moment", "wheels_again"),
    [
        ("downloading 0", 2),
        ("downloading 1", 2),
        ("downloading 300000", 2),
        ("downloading 500000", 2),
        ("before rename 1", 1),  # the part is complete
        ("after rename 1", 1),
        ("downloading 1200000", 1),
        ("before rename 2", 0),
        ("unpacking 0", 0),
        ("unpacking 1000000", 0),
        ("before rename 3", 0),  # unpacked and verified
        ("after rename 3", 0),  # the wheels are still there
    ],
)
def test_the_package_index(world: World, moment: str, wheels_again: int) -> None:
    killed(world, "two:base", moment)
    complete = moment == "after rename 3"
    assert in_place(world.cache) == ({"two.gguf": world.two} if complete else {})
    assert [m.name for m in hub.list_local()] == (["two:base"] if complete else [])
    growing = {n: size for n, size in parts(world.cache).items() if n.endswith(".whl.part")}
    before = len(world.index.downloads())
    assert hub.pull("two:base").path.read_bytes() == world.two
    again = world.index.downloads()[before:]
    assert len(again) == wheels_again
    if again and any(growing.values()) and "rename" not in moment:
        assert again[0].range == f"bytes={max(growing.values())}-"
    assert in_place(world.cache) == {"two.gguf": world.two}
    left = sorted(p.name for p in (world.cache / "models" / "two-base").iterdir())
    assert left == ([".download", "two.gguf"] if complete else ["two.gguf"])
    assert hub.remove("two:base") >= len(world.two)
    assert not (world.cache / "models" / "two-base").exists()
