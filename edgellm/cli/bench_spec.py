"""`edgellm bench --spec`: the same answers with and without speculative decoding, their times, what was guessed."""

from __future__ import annotations

import statistics
from queue import SimpleQueue
from typing import Any

from edgellm.core.config import SamplingParams
from edgellm.core.errors import ConfigError, EngineError
from edgellm.engine.loader import Loaded
from edgellm.engine.request import Done, Event, Request
from edgellm.engine.speculation import MAX_GUESS, Speculation

TEMPERATURES = (0.0, 0.5, 1.0)

TEXT = """\
Rivers carve valleys over thousands of years, while glaciers leave long lakes and scattered boulders
behind. In spring the melt fills every channel, and farmers open wooden gates to lead the water
across their terraces. A miller named Ansel kept a ledger of each flood since 1871, noting dates,
heights and the cost of repairs. His granddaughter copied the ledger by lamplight, adding sketches
of herons, willows and the broken bridge. Later an engineer from Graz compared those numbers with
rainfall tables and found two storms that nobody had recorded. The town council paid for stone
walls, a siren on the chapel roof, and eleven benches facing the water. Today the ledger lies in a
glass case beside a brass gauge, and school classes come on Thursdays to read it aloud. One winter
a girl called Mirela noticed that three pages had been cut out with a very sharp knife. She asked
the baker, whose cousin had kept the keys, and he remembered a visitor with a green umbrella who
paid for coffee in foreign coins. Letters went to archives in Trieste and Lyon; one came back with
a pressed fern and a photograph of the missing entries. They described an August without rain, when
the mill stood still and people carried buckets from a spring under the cemetery wall. Nobody knows
why the stranger took them, yet the copies now hang, framed in walnut, above the brass gauge.
"""
PROMPTS = {
    "copy": f"{TEXT}\n{TEXT}\n{TEXT[:60]}",
    "new": "Once upon a time there lived, in a small house at the edge of a forest, an old clockmaker who",
}
"""An answer that goes on copying a text of some 300 tokens, and one that has nothing to repeat."""


def measure(loaded: Loaded, n_gen: int, repetitions: int) -> list[dict[str, Any]]:
    """One row for each text and temperature: name, tokens a second with speculation (median), the rest under "spec"."""
    speculation = loaded.engine.speculation
    if speculation is None:
        raise ConfigError("there is no speculation to measure")
    rows = []
    for name, text in PROMPTS.items():
        prompt = loaded.tokenizer.encode(text)
        if len(prompt) + n_gen + 1 > loaded.n_ctx:
            raise ConfigError(
                f"--spec needs a context of {len(prompt) + n_gen + 1} tokens, this model's is {loaded.n_ctx}: ask for "
                f"shorter answers with -n"
            )
        _answer(loaded, speculation, True, prompt, 0.0, min(n_gen, 32), 0)  # warm up
        for temperature in TEMPERATURES:
            rates: dict[bool, list[float]] = {True: [], False: []}
            before = _counts(speculation)
            for seed in range(repetitions):
                answers = []
                for on in (False, True):
                    seconds, tokens = _answer(loaded, speculation, on, prompt, temperature, n_gen, seed)
                    rates[on].append((len(tokens) - 1) / max(seconds, 1e-9))
                    answers.append(tokens)
                if answers[0] != answers[1]:
                    raise EngineError(f"{name} at temperature {temperature}: the answer with guesses is another one")
            lengths, guessed, accepted = (
                [b - a for a, b in zip(x, y, strict=True)] for x, y in zip(before, _counts(speculation), strict=True)
            )
            plain = statistics.median(rates[False])
            rows.append(
                {
                    "name": f"spec-{name}@t{temperature}",
                    "rates": rates[True],
                    "spec": {
                        "plain_tokens_per_second": round(plain, 3),
                        "speed_up": round(statistics.median(rates[True]) / plain, 3),
                        "guesses": sum(lengths),
                        "lengths": lengths,
                        "acceptance": [round(a / g, 3) if g else None for a, g in zip(accepted, guessed, strict=True)],
                    },
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows for people: speeds, and how many guesses had so many right tokens."""
    lines = [
        "| test | t/s without | t/s with | speed-up | guesses | right tokens: guesses | right at place 1, 2, .. |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    for r in rows:
        s = r["speculation"]
        lengths = " ".join(f"{n}:{count}" for n, count in enumerate(s["lengths"]) if count)
        places = " ".join(f"{a:.2f}" for a in s["acceptance"] if a is not None)
        lines.append(
            f"| {r['test']} | {s['plain_tokens_per_second']:.2f} | {r['tokens_per_second']:.2f} | {s['speed_up']:.2f} "
            f"| {s['guesses']} | {lengths} | {places} |"
        )
    return "\n".join(lines)


def _counts(speculation: Speculation) -> tuple[list[int], list[int], list[int]]:
    stats = speculation.stats
    return list(stats.lengths[: MAX_GUESS + 1]), list(stats.guessed), list(stats.accepted)


def _answer(
    loaded: Loaded, speculation: Speculation, on: bool, prompt: list[int], temperature: float, n_gen: int, seed: int
) -> tuple[float, list[int]]:
    """Seconds from the first token to the last, and the tokens."""
    speculation.on = on
    params = SamplingParams(temperature=temperature, max_tokens=n_gen + 1, ignore_eos=True).resolved({})
    events: SimpleQueue[Event] = SimpleQueue()
    request = Request(prompt, params, seed=seed, eog_ids=loaded.tokenizer.eog_ids, events=events)
    loaded.engine.submit(request)
    while not isinstance(event := events.get(), Done):
        pass
    if event.error is not None:
        raise event.error
    return request.finished - request.first_token, request.sequences[0].tokens[len(prompt) :]
