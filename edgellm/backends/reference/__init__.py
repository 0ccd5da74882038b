"""The NumPy backend: the obvious interpretation of every op, in float32. The oracle for the fast ones."""

from edgellm.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
