"""The native backend: a plan lowered to the C core, which runs a whole step in one call."""

from edgellm.backends.native.executable import NativeBackend, NativeExecutable

__all__ = ["NativeBackend", "NativeExecutable"]
