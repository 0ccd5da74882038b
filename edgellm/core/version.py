"""The version of the package: the only place where it is written; wheel and native library read it here."""

__version__ = "0.1.0"

NUMERICS_VERSION = 1
"""Version of the numerics (docs/numerics.md): changes whenever any result's bits change."""
