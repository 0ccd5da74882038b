"""Chat templates."""

from edgellm.chat.capabilities import Capabilities
from edgellm.chat.template import ChatTemplate, Rendered

__all__ = ["Capabilities", "ChatTemplate", "Rendered"]
