"""The disk tier under random traffic: arrivals, aborts, evictions, restarts and damaged files.

The fake backend computes every step, and raises when a page does not hold what its sequence expects there.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.engine.test_scheduler import new_seq

from edgellm.backends.base import BackendConfig
from edgellm.backends.fake import FakeBackend, FakeExecutable, fake_plan
from edgellm.engine import scheduler
from edgellm.engine.batcher import Batcher
from edgellm.engine.request import Sequence
from edgellm.engine.scheduler import Budget, State
from edgellm.engine.tier import Tier
from edgellm.kvcache.disk import Address, DiskStore, child_key, root_key
from edgellm.kvcache.spec import ClassSpec
from edgellm.kvcache.table import Ledger

N_CTX, N_VOCAB = 256, 256
CLASSES: dict[str, tuple[tuple[str, int], ...]] = {
    "full": (("full", 0),),
    "window": (("window", 48), ("full", 0)),
    "latent": (("latent", 0),),
    "state": (("state", 0),),
    "both": (("full", 0), ("state", 0)),
}


class Machine:
    """An engine's turn without its thread; the files are those of the machine before."""

    def __init__(self, classes: tuple[tuple[str, int], ...], n_pages: int, budget: Budget, folder: Path) -> None:
        specs = tuple(ClassSpec(kind, window) for kind, window in classes)
        pages = tuple(budget.seqs + 3 if kind == "state" else n_pages for kind, _ in classes)
        self.budget = budget
        self.state = State(Ledger(specs, pages, N_CTX))
        plan = fake_plan(N_VOCAB, N_CTX, classes)
        config = BackendConfig(N_CTX, budget.tokens, budget.rows, budget.seqs, pages)
        self.executable: FakeExecutable = FakeBackend().compile(plan, None, config)
        self.store = DiskStore(folder, "el-test", 1 << 20)
        self.tier = Tier(self.store, self.state, self.executable)
        self.batcher = Batcher(budget, self.state.ledger, N_VOCAB)
        self.live: list[Sequence] = []

    def add(self, n: int, text: int, salt: str) -> None:
        seq = new_seq(self.state, n, text=text, salt=salt)
        seq.unasked = True
        self.live.append(seq)

    def end(self, seq: Sequence, reason: str) -> None:
        seq.finish_reason = reason
        scheduler.finish(self.state, seq)
        self.live.remove(seq)

    def step(self) -> bool:
        """Whether anything happened."""
        self.tier.ask(self.budget.seqs)
        pieces = scheduler.schedule(self.state, self.budget)
        self.tier.work()
        scheduler.check(self.state)
        if not pieces:
            return self.tier.due
        self.executable.run(self.batcher.build(pieces, False))
        scheduler.commit(self.state, pieces)
        for piece in pieces:
            if piece.rows:
                piece.seq.tokens.append(7)
        for seq in [s for s in self.live if s.n_generated >= 3]:
            self.end(seq, "stop")
        return True

    def close(self) -> None:
        for seq in list(self.live):
            self.end(seq, "cancelled")
        self.tier.close(save=True)


ACTIONS = st.tuples(
    st.sampled_from(["add", "add", *["step"] * 5, "cancel", "restart", "damage"]),
    st.integers(1, 200),  # tokens, or which sequence, or which file
    st.sampled_from([(0, "a"), (0, "a"), (40, "a"), (0, "b")]),
    st.integers(0, 2),
)
"""What happens next. Drawn without a look at the machine: how far it is depends on time."""


@pytest.mark.parametrize("kind", CLASSES)
@settings(max_examples=25, deadline=None)
@given(
    n_pages=st.integers(8, 16),
    budget=st.builds(Budget, st.integers(4, 64), st.integers(1, 4), st.just(4), st.integers(0, 9)),
    actions=st.lists(ACTIONS, min_size=1, max_size=40),
)
def test_random_traffic(kind: str, n_pages: int, budget: Budget, actions: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        m = Machine(CLASSES[kind], n_pages, budget, folder)
        for action, n, (text, salt), how in actions:
            if action == "add":
                m.add(n, text, salt)
            elif action == "cancel" and m.live:
                m.end(m.live[n % len(m.live)], "cancelled")
            elif action == "restart":
                m.close()
                m = Machine(CLASSES[kind], n_pages, budget, folder)
            elif action == "damage":
                files = sorted(p for p in folder.rglob("*-[0-9]") if p.is_file())
                if files:
                    damage(files[n % len(files)], how)
            else:
                m.step()
        for _ in range(2000):
            if not m.live:
                break
            assert m.step(), "nothing happened although sequences are live"
        assert not m.live
        m.tier.ask(budget.seqs)
        assert not any(m.state.ledger.n_in_use(c) for c in range(len(m.state.ledger.pools)))
        m.close()


def damage(path: Path, how: int) -> None:
    if how == 0:
        path.unlink(missing_ok=True)
    elif how == 1:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def test_a_full_disk_loses_pages_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgellm.kvcache.disk.os.replace", full)
    m = Machine(CLASSES["full"], 8, Budget(64, 2, 2), tmp_path)
    for text in (0, 40):
        m.add(150, text, "a")
        while m.live:
            m.step()
    m.close()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    assert caplog.text.count("No space left on device") == 1


def test_what_waits_to_be_written_is_bounded_and_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that does not answer: pages are lost, and no step waits for it."""
    before, answers, write = threading.enumerate(), threading.Event(), DiskStore._write

    def slow(store: DiskStore, *args: Any) -> None:
        assert answers.wait(60)
        write(store, *args)

    monkeypatch.setattr(DiskStore, "_write", slow)
    monkeypatch.setattr("edgellm.kvcache.disk.MOST_WAITING", 1000)
    m = Machine(CLASSES["full"], 8, Budget(64, 2, 2), tmp_path)
    for text in (0, 40, 80):
        m.add(150, text, "a")
        while m.live:
            m.step()
    assert m.store.stats.lost_pages > 0
    first = m.store._waiting[m.store._order[0]][0]
    seen: list[bytes] = []
    assert m.store.read(first, 0, lambda data: seen.append(bytes(data)))
    assert seen == [m.store._waiting[first.key, 0][1]]
    answers.set()
    m.close()
    assert [t.name for t in threading.enumerate() if t not in before] == []


def test_pages_of_one_tick_of_the_clock_go_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However coarsely time is told: those that were not used for longest are the ones to go."""
    now = 1_700_000_000_000_000_000
    monkeypatch.setattr("edgellm.kvcache.disk.time", SimpleNamespace(time_ns=lambda: now, time=lambda: now / 1e9))
    store, parent = DiskStore(tmp_path, "el-test", 1 << 30), root_key("")
    addresses: list[Address] = []
    for i in range(40):
        addresses.append(Address(child_key(parent, [i]), parent, (i,)))
        parent = addresses[-1].key
        store.write(addresses[-1], 0, bytes(1000))
    store.close()
    assert all(store.touch(addresses[i].key, 0) for i in (7, 3))
    expected = [a for i, a in enumerate(addresses) if i not in (3, 7)] + [addresses[7], addresses[3]]
    found = sorted(store._files())
    assert [path.name for _, _, path in found] == [f"{a.key.hex()}-0" for a in expected]
    assert all(0 <= at - now < 1_000_000 for at, _, _ in found)


def test_what_processes_left_behind_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "el-test" / "ab"
    folder.mkdir(parents=True)
    old, new = folder / "x-0.1-1.part", folder / "y-0.2-1.part"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    DiskStore(tmp_path, "el-test", 1 << 20).close()
    assert (old.exists(), new.exists()) == (False, True)
