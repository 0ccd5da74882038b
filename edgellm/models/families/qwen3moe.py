"""qwen3moe: Qwen 3 with experts: qwen3, with a softmax router whose weights are normalised."""

from __future__ import annotations

from edgellm.models.families.qwen3 import build
from edgellm.models.spec import Family

FAMILY = Family("qwen3moe", build)
