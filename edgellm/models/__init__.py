"""What a model family is: from a GGUF's metadata to a plan that any backend can run."""

from edgellm.models.plan import Plan, PlanError
from edgellm.models.spec import Loaded, ModelInfo, architectures, load_plan

__all__ = ["Loaded", "ModelInfo", "Plan", "PlanError", "architectures", "load_plan"]
