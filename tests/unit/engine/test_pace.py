"""How many tokens of prompts go beside sequences that decode."""

from __future__ import annotations

from itertools import pairwise

from edgellm.engine.pace import FIRST, FLIGHT_LEAST, LEAST, LEAST_SLICE, LONGEST, REFRESH, SLICE, Pace


def test_before_anything_was_measured() -> None:
    assert Pace().prefill(512) == FIRST
    assert Pace().prefill(4) == 4


def test_a_step_with_prompts_is_so_many_times_one_without() -> None:
    """A machine that needs 5 ms for a decode step and 0.1 ms for a token of a prompt."""
    pace = Pace()
    pace.note(0, 512, 512 * 0.05e-3)  # many at once are cheaper
    for _ in range(20):
        pace.note(3, 0, 5e-3)
    for _ in range(60):
        n = pace.prefill(512, n_decode=3)
        pace.note(3, n, 5e-3 + n * 0.1e-3)
    n = n or pace.prefill(512, n_decode=3)
    assert 1.9 < (5e-3 + n * 0.1e-3) / 5e-3 <= LONGEST
    assert pace.prefill(20, n_decode=3) == 20


def test_prompts_go_on_where_each_token_costs_a_step() -> None:
    pace = Pace()
    pace.note(1, 0, 5e-3)
    for _ in range(5):
        pace.note(1, 10, 100e-3)
    assert pace.prefill(512) == LEAST


def test_it_follows_the_machine() -> None:
    pace = Pace(decode=5e-3, token=0.1e-3)
    before = pace.prefill(512)
    for _ in range(100):
        pace.note(1, 0, 10e-3)
    assert 1.9 * before < pace.prefill(512) < 2.1 * before


def test_where_many_wait_they_get_more_of_a_step() -> None:
    pace = Pace(decode=5e-3, token=0.1e-3)
    alone = pace.prefill(4096)
    assert pace.prefill(4096, n_decode=4, n_waiting=4) == alone
    assert abs(pace.prefill(4096, n_decode=4, n_waiting=16) - 4 * alone) <= 4
    assert pace.prefill(4096, n_decode=1, n_waiting=1000) == 950  # 0.1 s, less the decode step
    assert Pace(decode=0.2, token=1e-3).prefill(4096, n_decode=1, n_waiting=1000) in (299, 300)


def test_now_and_then_a_step_goes_without_prompts_and_never_two() -> None:
    pace = Pace(decode=5e-3, token=0.1e-3)
    taken = []
    for _ in range(3 * REFRESH):
        taken.append(pace.prefill(512))
        pace.note(1, taken[-1], 5e-3 + taken[-1] * 0.1e-3)
    assert taken.count(0) == 2
    assert all(a or b for a, b in pairwise(taken))


def test_more_sequences_that_decode_are_measured_anew() -> None:
    pace = Pace(decode=5e-3, token=0.1e-3)
    pace.note(1, 50, 10e-3)
    assert pace.prefill(512, n_decode=4) == 0
    pace.note(4, 0, 9e-3)
    assert pace.decode == 9e-3
    assert abs(pace.prefill(512, n_decode=4) - int((LONGEST - 1) * 9e-3 / 0.1e-3)) <= 1


def test_where_steps_without_prompts_are_never_seen_prompts_go_on() -> None:
    """As with guesses, whose steps are not noted."""
    pace = Pace(decode=5e-3, token=0.1e-3)
    taken = [(pace.note(1, 10, 6e-3), pace.prefill(512, n_decode=30))[1] for _ in range(200)]
    assert taken.count(0) <= 7
    assert all(a or b for a, b in pairwise(taken))


def test_a_disturbed_step_raises_the_time_of_decoding_little() -> None:
    pace = Pace(decode=5e-3, token=0.1e-3)
    pace.note(1, 0, 50e-3)
    for _ in range(5):
        pace.note(1, 0, 5e-3)
    assert pace.decode < 5.5e-3


def test_a_flight_takes_about_so_long_and_its_slices_follow_the_decode_steps() -> None:
    pace = Pace()
    assert pace.flight(512) == FIRST
    assert pace.slice(n_decode=1, n_waiting=1) == SLICE
    pace.landed(32, 32 * 1e-3)
    assert pace.flight(512) == 200
    assert pace.flight(64) == 64
    for _ in range(20):
        pace.landed(200, 200 * 50e-3)
    assert pace.flight(512) == FLIGHT_LEAST
    pace.note(4, 0, 5e-3)
    assert pace.slice(n_decode=4, n_waiting=1) == (LONGEST - 1) * 5e-3
    assert pace.slice(n_decode=4, n_waiting=8) == 2 * (LONGEST - 1) * 5e-3
    for _ in range(40):
        pace.paused(4, 7e-3)
    assert abs(pace.slice(n_decode=4, n_waiting=1) + 7e-3 - LONGEST * 5e-3) < 1e-5
    for _ in range(40):
        pace.sliced(1e-3)
    assert abs(pace.slice(n_decode=4, n_waiting=1) + 8e-3 - LONGEST * 5e-3) < 1e-5
    for _ in range(30):
        pace.paused(4, 70e-3)
    assert pace.slice(n_decode=4, n_waiting=1) == LEAST_SLICE * 5e-3
    pace.paused(8, 6e-3)  # as many were never seen
    assert abs(pace.slice(n_decode=4, n_waiting=1) + 7e-3 - LONGEST * 5e-3) < 1e-5


def test_steps_between_slices_do_not_tell_what_a_step_takes_without() -> None:
    """They are slower. Only where as many never decoded before they are taken for it, up to the first without."""
    pace = Pace()
    pace.note(4, 0, 5e-3)
    for _ in range(50):
        pace.note(4, 0, 9e-3, in_flight=True)
    assert pace.decode == 5e-3
    pace.note(8, 0, 12e-3, in_flight=True)
    assert pace.decode == 12e-3
    pace.note(8, 0, 8e-3)
    assert pace.decode == 8e-3
