"""Environment variables: typed, read late, and refused with a sentence when they cannot be honoured."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgellm.core import env
from edgellm.core.errors import ConfigError


def test_the_table_lists_every_variable_of_the_module_once() -> None:
    defined = [v for v in vars(env).values() if isinstance(v, env.Variable)]
    names = [v.name for v in env.VARIABLES]
    assert len(names) == len(set(names))
    assert {v.name for v in defined} == set(names)
    assert all(v.help.endswith(".") and len(v.help) < 110 for v in env.VARIABLES)


def test_defaults(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("XDG_CACHE_HOME", "/caches")
    assert env.ISA.get() is None
    assert env.THREADS.get() is None
    assert env.LIBRARY.get() is None
    assert env.TEST_MODELS.get() is None
    assert env.HF_TOKEN.get() is None
    assert env.HF_HUB_OFFLINE.get() is False
    assert env.HF_ENDPOINT.get() == "https://huggingface.co"
    assert env.HF_HOME.get() == Path("/caches/huggingface")
    assert env.HF_HUB_CACHE.get() == Path("/caches/huggingface/hub")


def test_the_cache_folder_follows_the_system(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_environment.setenv("XDG_CACHE_HOME", str(tmp_path))
    clean_environment.delenv("LOCALAPPDATA", raising=False)
    assert env.CACHE.get() == tmp_path / "edgellm"
    clean_environment.setenv("EDGELLM_CACHE", str(tmp_path / "elsewhere"))
    assert env.CACHE.get() == tmp_path / "elsewhere"


def test_the_state_folder_follows_the_system(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clean_environment.setenv("XDG_STATE_HOME", str(tmp_path))
    assert env.STATE.get() == tmp_path / "edgellm"
    clean_environment.delenv("XDG_STATE_HOME")
    clean_environment.setenv("HOME", str(tmp_path))
    assert env.STATE.get() == tmp_path / ".local" / "state" / "edgellm"
    clean_environment.setenv("EDGELLM_STATE", "~/state")
    assert env.STATE.get() == tmp_path / "state"


def test_the_hub_cache_lies_in_hf_home(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("HF_HOME", "/h")
    assert env.HF_HUB_CACHE.get() == Path("/h/hub")
    clean_environment.setenv("HF_HUB_CACHE", "/c")
    assert env.HF_HUB_CACHE.get() == Path("/c")


def test_values_are_read_at_the_call(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("EDGELLM_THREADS", "3")
    assert env.THREADS.get() == 3
    clean_environment.setenv("EDGELLM_THREADS", " 4 ")
    assert env.THREADS.get() == 4


@pytest.mark.parametrize("level", env.ISA_LEVELS)
def test_isa_levels(clean_environment: pytest.MonkeyPatch, level: str) -> None:
    clean_environment.setenv("EDGELLM_ISA", level.upper())
    assert env.ISA.get() == level


@pytest.mark.parametrize("text", ["", "   "])
def test_empty_is_unset(clean_environment: pytest.MonkeyPatch, text: str) -> None:
    for variable in env.VARIABLES:
        clean_environment.setenv(variable.name, text)
        assert variable.text() is None
        variable.get()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        (env.ISA, "avx1024"),
        (env.THREADS, "0"),
        (env.THREADS, "-1"),
        (env.THREADS, "1025"),
        (env.THREADS, "two"),
        (env.THREADS, "9" * 5000),
        (env.THREADS, "²"),
        (env.HF_HUB_OFFLINE, "maybe"),
        (env.HF_ENDPOINT, "huggingface.co"),
        (env.LOG, "loud"),
    ],
)
def test_a_bad_value_is_named(clean_environment: pytest.MonkeyPatch, variable: env.Variable[object], text: str) -> None:
    clean_environment.setenv(variable.name, text)
    with pytest.raises(ConfigError) as caught:
        variable.get()
    message = str(caught.value)
    assert variable.name in message
    assert text in message
    assert "expected" in message


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("no", False)])
def test_flags(clean_environment: pytest.MonkeyPatch, text: str, value: bool) -> None:
    clean_environment.setenv("HF_HUB_OFFLINE", text)
    assert env.HF_HUB_OFFLINE.get() is value


def test_a_secret_is_never_shown(clean_environment: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> str:
        raise ValueError("another one")

    variable = env.Variable("EDGELLM_X", "A secret.", refuse, lambda: "", secret=True)
    clean_environment.setenv("EDGELLM_X", "hunter2")
    with pytest.raises(ConfigError, match="expected another one") as caught:
        variable.get()
    assert "hunter2" not in str(caught.value)


def test_no_home_folder_is_a_typed_error(clean_environment: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    clean_environment.delenv("XDG_CACHE_HOME", raising=False)
    clean_environment.delenv("LOCALAPPDATA", raising=False)
    clean_environment.setattr(Path, "home", no_home)
    with pytest.raises(ConfigError, match="EDGELLM_CACHE is not set"):
        env.CACHE.get()
