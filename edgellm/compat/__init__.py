"""Other packages' interfaces over edgellm, so that a program moves by changing one import line.

from edgellm.compat import Llama        # instead of: from llama_cpp import Llama
"""

from edgellm.compat.llama import Llama
from edgellm.compat.state import LlamaState

__all__ = ["Llama", "LlamaState"]
