"""The interval at which Python threads take turns: short while an engine lives."""

from __future__ import annotations

import sys
import threading

INTERVAL = 1e-4
"""Seconds. With the default of 5 ms one busy Python thread beside the engine more than doubles a step."""


class SwitchInterval:
    """Counts engines: the first shortens the process's interval, the last puts it back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines = 0
        self._before = self._ours = 0.0

    def shorten(self) -> None:
        """One engine more."""
        with self._lock:
            self._engines += 1
            if self._engines == 1 and sys.getswitchinterval() > INTERVAL:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(INTERVAL)
                self._ours = sys.getswitchinterval()

    def restore(self) -> None:
        """One engine less. An interval that somebody else has set meanwhile stays."""
        with self._lock:
            self._engines -= 1
            if self._engines == 0 and self._ours:
                if sys.getswitchinterval() == self._ours:
                    sys.setswitchinterval(self._before)
                self._ours = 0.0


switch_interval = SwitchInterval()
"""The one of this process."""
