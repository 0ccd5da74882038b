"""scripts/engine_figures.py: what it promises about answers, on models of a few kilobytes."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgellm.llm import LLM

Golden = Callable[[str], Any]


@pytest.fixture
def figures(repository: Path) -> Any:
    spec = importlib.util.spec_from_file_location("engine_figures", repository / "scripts" / "engine_figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense"])
def test_many_users_get_the_answers_of_one(
    figures: Any, golden_case: Golden, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The C core: full attention and sliding windows, with and without guesses, with too few pages."""
    figures.users(str(golden_case(name).path), 50, longest=42, answer=20, backend="native")
    plain, guessing = capsys.readouterr().out.splitlines()
    for line in (plain, guessing):
        assert int(re.findall(r"(\d+) preemptions", line)[0]) > 0
        assert "all answers are those of the request alone" in line
    assert int(re.findall(r"(\d+) of \d+ guesses", guessing)[0]) > 0


def test_another_answer_is_noticed(
    figures: Any, golden_case: Golden, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = figures.ask

    def lying(llm: LLM, *args: Any) -> Any:
        said = ask(llm, *args)
        return [*said[:-1], said[-1] ^ 1] if said and llm._loaded.engine.spec.prefix_cache else said

    monkeypatch.setattr(figures, "ask", lying)
    with pytest.raises(AssertionError, match="not those of the same requests alone"):
        figures.users(str(golden_case("llama-dense").path), 8, longest=42, answer=20, backend="native")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense"])
def test_forks_take_one_page_each(
    figures: Any, golden_case: Golden, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    figures.forks(str(golden_case(name).path), 92)
    assert "computed 1 token each" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["llama-dense", "gemma3-dense"])
def test_sessions_in_turn_compute_their_prompt_once(
    figures: Any, golden_case: Golden, name: str, tmp_path: Path
) -> None:
    first, second = (figures.five_sessions(str(golden_case(name).path), 150, str(tmp_path)) for _ in range(2))
    assert first["computed"] == [150, 1, 1, 1, 1, 150 - 128]
    assert second["computed"] == [150 - 128, 1, 1, 1, 1, 150 - 128]
    assert first["answers"] == second["answers"]
    assert (first["read"], second["read"] > 0) == (0, True)
