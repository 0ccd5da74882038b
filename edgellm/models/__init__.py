"""What a model family is: from a GGUF's metadata to a plan that any backend can run."""

from edgellm.models.plan import Plan, PlanError
from edgellm.models.spec import ModelInfo, architectures, load_model, load_plan

__all__ = ["ModelInfo", "Plan", "PlanError", "architectures", "load_model", "load_plan"]
