"""How much memory there is."""

from __future__ import annotations

import builtins
from typing import Any

import psutil
import pytest

from edgellm.core import memory


def test_it_is_what_psutil_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert abs(memory.available() - psutil.virtual_memory().available) < psutil.virtual_memory().total / 4


def test_psutil_is_asked_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.open

    def elsewhere(path: Any, *args: Any, **kwargs: Any) -> Any:
        if path == "/proc/meminfo":
            raise FileNotFoundError(path)
        return real(path, *args, **kwargs)

    class Memory:
        available = 12345

    monkeypatch.setattr(builtins, "open", elsewhere)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory)
    assert memory.available() == 12345
