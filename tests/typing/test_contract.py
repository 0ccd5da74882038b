"""The public surface type-checks: mypy --strict accepts contract.py and refuses each marked line of mistakes.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api
from policy.source import REPOSITORY

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def check(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """mypy's report on one file, with the package itself followed but not reported on."""
    monkeypatch.chdir(REPOSITORY)
    out, err, _ = api.run(
        ["--strict", "--config-file=", "--python-version=3.10", "--explicit-package-bases", "--follow-imports=silent",
         "--no-error-summary", "--hide-error-context", "--no-pretty", f"--cache-dir={cache}", str(file)]
    )  # fmt: skip
    assert err == ""
    return out


def test_the_contract_type_checks(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(HERE / "contract.py", cache, monkeypatch) == ""


def test_mistakes_are_refused(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line by line, so that a signature that takes anything (or `Any` as a result) is found."""
    text = (HERE / "mistakes.py").read_text(encoding="utf-8").splitlines()
    expected = {n: m.group(1) for n, line in enumerate(text, 1) if (m := re.search(r"  # ([a-z-]+)$", line))}
    found = re.findall(
        r"mistakes\.py:(\d+): error: .*\[([a-z-]+)\]$", check(HERE / "mistakes.py", cache, monkeypatch), re.M
    )
    assert len(expected) > 10
    assert {int(n): code for n, code in found} == expected
