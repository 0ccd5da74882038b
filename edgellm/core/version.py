"""The version of the package: the only place where it is written; wheel and native library read it here."""

__version__ = "0.1.0"
