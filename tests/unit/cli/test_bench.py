"""`edgellm bench`: names of tests, what is counted, and that rates are those of the machine."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from serving.tiny import write_tiny
from unit.cli.conftest import CLI

from edgellm.backends.fake import FakeBackend
from edgellm.cli import bench
from edgellm.cli.bench import JSON, Case, read_cases
from edgellm.core.record import replace
from edgellm.engine.loader import Loaded, OpenOptions, open_model


def cases(**options: Any) -> list[str]:
    defaults = {"n_prompt": "512", "n_gen": "128", "n_depth": "0", "parallel": "", "repetitions": 5}
    return [c.name for c in read_cases(argparse.Namespace(**{**defaults, **options}))]


def test_names() -> None:
    assert cases() == ["pp512", "tg128"]
    assert cases(n_prompt="0", n_depth="4096") == ["tg128@d4096"]
    assert cases(n_prompt="16,512", n_gen="0") == ["pp16", "pp512"]
    assert cases(n_prompt="8", n_gen="4", n_depth="0,32") == ["pp8", "tg4", "pp8@d32", "tg4@d32"]
    assert cases(n_prompt="0", n_gen="16", parallel="1,8,32") == ["tg16", "npl1", "npl8", "npl32"]
    assert cases(n_prompt="0", n_gen="0", parallel="8", n_depth="64") == ["npl8@d64"]


def test_json_has_the_keys_of_the_contract(cli: CLI, tiny: str) -> None:
    code, out, err = cli("bench", tiny, "-p", "16", "-n", "4", "-npl", "2", "-d", "0,32", "-r", "2", "--json")
    assert (code, err) == (0, "")
    results = json.loads(out)
    assert [r["test"] for r in results] == ["pp16", "tg4", "npl2", "pp16@d32", "tg4@d32", "npl2@d32"]
    for r in results:
        assert list(r) == list(JSON)
        assert r["tokens_per_second"] > 0
        assert (r["isa"], r["n_threads"]) == ("none", 1)


def test_a_depth_that_the_cache_has_lost_is_refused(cli: CLI, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_cache(path: str, options: OpenOptions) -> Loaded:
        return open_model(path, replace(options, prefix_cache=False))

    monkeypatch.setattr(bench, "open_model", without_cache)
    code, out, err = cli("bench", tiny, "-p", "16", "-n", "0", "-d", "40", "-r", "1", "--json")
    assert (code, out) == (1, "")
    assert "pp16@d40: the prompt cache kept 0 of the 40 tokens that go before" in err
    assert cli("bench", tiny, "-p", "16", "-n", "4", "-d", "0", "-r", "1", "--json").code == 0


def test_the_table_is_llama_benchs(cli: CLI, tiny: str) -> None:
    code, out, err = cli("bench", tiny, "-p", "16", "-n", "4", "-r", "1")
    assert (code, err) == (0, "")
    head, rule, *rows = out.splitlines()
    assert head == "| model | size | params | backend | threads | test | t/s | GB/s |"
    assert set(rule) <= set("|-:")
    assert re.fullmatch(
        r"\| tiny \| 0\.\d\d MiB \| 0\.03 M \| none \| 1 \| pp16 \| \d+\.\d\d ± 0\.00 \| [\d.]+ \|", rows[0]
    )
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("argv", "steps", "tokens"),
    [
        (["-p", "64", "-n", "0"], 1, 64),
        (["-p", "64", "-n", "0", "-ub", "16"], 4, 64),
        (["-p", "0", "-n", "10"], 10, 10),
        (["-p", "0", "-n", "10", "-d", "64"], 10, 10),
        (["-p", "0", "-n", "10", "-npl", "4"], 10, 40),
        (["-p", "0", "-n", "40", "-npl", "4", "-d", "64", "-ub", "16"], None, None),
    ],
)
def test_rates_are_tokens_over_the_time_they_took(
    cli: CLI, tiny: str, argv: list[str], steps: int | None, tokens: int | None
) -> None:
    """Each step takes 4 ms at least, whatever is in it: the rate follows from the number of steps."""
    out = cli("bench", tiny, *argv, "-r", "1", "--json", fake=FakeBackend(step_seconds=0.004)).out
    result = json.loads(out)[-1]
    if steps is None or tokens is None:  # sequences begin to generate one after the other; each step still makes four
        expected = 4 / 0.004
    else:
        expected = tokens / (steps * 0.004)
    assert 0.01 * expected < result["tokens_per_second"] <= 1.02 * expected


def test_passes_over_the_weights(cli: CLI, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgellm.backends.base import BackendInfo

    monkeypatch.setattr(
        "edgellm.backends.fake.BackendInfo", lambda *a: BackendInfo("fake", "none", 1, "tiles", 1_000_000_000, 0)
    )
    argv = ["-p", "64", "-n", "8", "-npl", "4", "-r", "1", "--json", "-ub", "32"]
    pp, tg, npl = json.loads(cli("bench", tiny, *argv, fake=FakeBackend(step_seconds=0.002)).out)
    assert pp["gb_per_second"] == pytest.approx(pp["tokens_per_second"] / 64 * 2, rel=1e-3)
    assert tg["gb_per_second"] == pytest.approx(tg["tokens_per_second"], rel=1e-3)
    assert npl["gb_per_second"] == pytest.approx(npl["tokens_per_second"] / 4, rel=1e-3)


def test_a_base_model_can_be_measured(cli: CLI, tiny_base: str) -> None:
    assert cli("bench", tiny_base, "-p", "8", "-n", "2", "-r", "1").code == 0


def test_the_context_is_as_long_as_needed() -> None:
    assert Case("", 512, 0, 0, 1).n_ctx == 513
    assert Case("", 0, 128, 4096, 1).n_ctx == 4096 + 129


def test_more_than_memory_holds(cli: CLI, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgellm.engine.loader.KV_FRACTION", 1e-6)
    path = str(write_tiny(tmp_path / "wide.gguf", n_ctx=1 << 20))
    code, out, err = cli("bench", path, "-p", "0", "-n", "16", "-npl", "4096")
    assert (code, out) == (1, "")
    assert "pages of KV cache" in err


def test_failures_are_reported(cli: CLI, tiny: str) -> None:
    code, out, err = cli("bench", tiny, "-p", "16", "-r", "1", fake=FakeBackend(failing=lambda past: len(past) == 16))
    assert (code, out) == (1, "")
    assert "non-finite" in err


def test_speculation(cli: CLI, tmp_path: Path) -> None:
    """With a model whose answers begin again and again."""
    tiny = str(write_tiny(tmp_path / "long.gguf", n_ctx=4096))
    words = [65 + i % 26 for i in range(40)] + [i % 200 for i in range(60)]

    def again(past: Sequence[int]) -> int:
        return words[len(past) % 100]

    argv = ("bench", tiny, "--spec", "prompt", "-n", "150", "-r", "1")
    code, out, err = cli(*argv, "--json", fake=FakeBackend(again, step_seconds=0.001))
    assert (code, err) == (0, "")
    results = json.loads(out)
    assert [r["test"] for r in results] == [f"spec-{n}@t{t}" for n in ("copy", "new") for t in (0.0, 0.5, 1.0)]
    for r in results:
        assert list(r) == list(JSON)
        s = r["speculation"]
        assert s["guesses"] == sum(s["lengths"])
        assert all(a is None or 0 <= a <= 1 for a in s["acceptance"])
    assert max(r["speculation"]["acceptance"][0] or 0 for r in results) > 0.8
    code, out, err = cli(*argv, fake=FakeBackend(again))
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 8
