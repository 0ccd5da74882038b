"""Chat templates."""

from edgellm.chat.template import ChatTemplate

__all__ = ["ChatTemplate"]
