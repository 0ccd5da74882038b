"""The GGUF file format: reading, writing, tensor types, and their (de)quantisation in NumPy."""

from edgellm.gguf.header import TensorInfo
from edgellm.gguf.qtypes import QType
from edgellm.gguf.reader import GGUFFile
from edgellm.gguf.values import KVType, StringArray, Value, ValueType

__all__ = ["GGUFFile", "KVType", "QType", "StringArray", "TensorInfo", "Value", "ValueType"]
