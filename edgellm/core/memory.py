"""How much memory there is to take."""

from __future__ import annotations


def available() -> int:
    """Bytes that programs can take before the system has to swap."""
    try:
        # What psutil reads too, which takes longer to import than a small model's header takes to read.
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) << 10
    except OSError:
        pass  # not Linux
    import psutil

    return int(psutil.virtual_memory().available)
