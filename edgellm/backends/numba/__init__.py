"""The numba backend: the native core's programs and bits, with kernels compiled by Numba. Needs the extra `numba`."""

from edgellm.backends.numba.backend import NumbaBackend

__all__ = ["NumbaBackend"]
