"""Tokenizers built from GGUF vocabularies."""

from edgellm.tokenizer.pieces import StreamDecoder
from edgellm.tokenizer.tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer"]
