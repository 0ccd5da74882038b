"""Calls of kernels from tables: arguments arrive, phases wait for each other, what fails ends on every thread."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from edgellm.core.errors import NativeError

pytest.importorskip("numba", reason='Numba is not installed: pip install "edgellm[numba]"')

import numba

from edgellm.backends.numba.calls import Calls, Rooms, Var
from edgellm.backends.numba.team import Team

N_ROOM = 4


@numba.njit(nogil=True)
def everything(i: int, f: Any, pair: tuple[Any, ...], room: Any, out: Any) -> None:
    """Uses one argument of each kind."""
    a, (b, j) = pair
    room[0] += 1
    for at in range(len(out)):
        out[at] = i + j + f + a[at] * b[at] + len(a) + 0 * room[0]


@numba.njit(nogil=True)
def mix(before: Any, after: Any, at: int) -> None:
    """after[at] depends on all of `before`."""
    total = at
    for x in before:
        total = (total * 31 + x) % 1000003
    after[at] = total


@numba.njit(nogil=True)
def failing(wanted: int) -> None:
    if wanted:
        raise MemoryError


def rooms_of(n_threads: int, n_bytes: int = 64) -> list[Any]:
    return [np.zeros(n_bytes, np.uint8) for _ in range(n_threads)]


def test_arguments_of_every_kind_arrive() -> None:
    a, b, out = np.arange(5, dtype=np.int8), np.arange(5, dtype=np.float32) / 2, np.zeros(5, np.float32)
    rooms, calls, team = Rooms(), Calls(), Team(1)
    rooms.reserve(np.int8, 3)
    room = rooms.reserve(np.int64, N_ROOM)
    calls.chunk()
    calls.add(everything, Var(1), np.float32(0.25), (a, (b, -7)), room, out)
    ready, memory = calls.ready(), rooms_of(1, rooms.n_bytes)
    for value in (3, -(1 << 40)):
        ready.run(team, memory, np.array([99, value]))
        assert np.array_equal(
            out, (np.float32(value - 7) + np.float32(0.25) + a * b + np.float32(5)).astype(np.float32)
        )
    assert memory[0].view(np.int64)[room.offset // 8] == 2
    with pytest.raises(ValueError, match="not flat"):
        calls.add(everything, 0, np.float32(0), (a[::2], (b, 0)), room, out)


@pytest.mark.parametrize("n_threads", [1, 2, 7])
def test_a_phase_begins_when_the_one_before_is_done(n_threads: int) -> None:
    n, n_phases = 9, 60
    states = [np.arange(n) if i == 0 else np.zeros(n, np.int64) for i in range(n_phases + 1)]
    calls = Calls()
    for before, after in pairwise(states):
        calls.phase()
        for at in range(n):
            if at % 3 == 0:  # three calls a chunk
                calls.chunk()
            calls.add(mix, before, after, at)
    team, ready = Team(n_threads), calls.ready()
    expected = states[0]
    for _ in range(n_phases):
        after = np.zeros(n, np.int64)
        for at in range(n):
            mix.py_func(expected, after, at)
        expected = after
    try:
        for _ in range(20):
            for state in states[1:]:
                state[:] = 0
            ready.run(team, rooms_of(n_threads), np.zeros(0, np.int64))
            assert np.array_equal(states[-1], expected)
    finally:
        team.close()


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_call_that_fails_ends_the_run_on_every_thread(n_threads: int) -> None:
    done = np.zeros(8, np.int64)
    calls, team = Calls(), Team(n_threads)
    for i in range(8):
        calls.phase()
        calls.chunk()
        calls.add(failing, Var(0) if i == 4 else 0)
        calls.add(mix, done, done, i)
    ready = calls.ready()
    try:
        with pytest.raises(NativeError, match="not enough memory"):
            ready.run(team, rooms_of(n_threads), np.array([1]))
        assert done[5:].tolist() == [0, 0, 0]
        ready.run(team, rooms_of(n_threads), np.array([0]))
        assert done[5:].all()
    finally:
        team.close()
