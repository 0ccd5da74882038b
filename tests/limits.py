"""Limits of time: kept by `make limits` on an idle machine; in `make test` only a hang goes beyond them.

A test with a limit has the marker `timing`. Its other checks hold everywhere.
"""

from __future__ import annotations

import os

STRICT = os.environ.get("EDGELLM_LIMITS") == "1"
HANG = 60.0


def seconds(limit: float) -> float:
    """What a test compares a time with: the limit where times are being checked, else what only a hang takes."""
    return limit if STRICT else max(HANG, 10 * limit)
