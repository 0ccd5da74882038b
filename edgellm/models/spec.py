"""From a file to a plan: finds the family by `general.architecture`, builds, and refuses what would be ignored."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from edgellm.core.errors import UnsupportedModel
from edgellm.core.log import logger
from edgellm.core.record import dataclass, field
from edgellm.gguf.reader import GGUFFile
from edgellm.models import families
from edgellm.models.build import Builder
from edgellm.models.keys import Keys
from edgellm.models.plan import Plan
from edgellm.models.tables import PlanError

_log = logger(__name__)

IGNORED_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "vocab_size": "the embedding matrix has that many rows",
        "pooling_type": "how embeddings of a whole text are pooled; tokens' logits do not depend on it",
        "expert_feed_forward_length": "the experts' tensors have that many rows",
        "expert_shared_feed_forward_length": "the shared experts' tensors have that many rows",
    }
)
IGNORED_TENSORS: Mapping[str, str] = MappingProxyType(
    {".input_scale": "scales activations for 4-bit float matmuls; exact arithmetic does not depend on it"}
)


@dataclass(frozen=True, slots=True)
class Family:
    """A model family: what to do with files of one architecture.

    build: describes the layers to the builder, reading keys as it goes, and returns the finished plan.
    ignored_keys: keys (without `<arch>.`) that need not be read, each with the reason.
    ignored_tensors: endings of tensor names that need not be used, each with the reason.
    """

    name: str
    build: Callable[[Builder, Keys], Plan]
    ignored_keys: Mapping[str, str] = field(default_factory=dict)
    ignored_tensors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts about a model for people. deviations: what `strict=False` let pass, one sentence each.

    n_params, weight_bytes: over all tensors of the file. head_dim, heads: of the first layer that has attention, or 0.
    """

    arch: str
    name: str
    n_params: int
    weight_bytes: int
    n_ctx_train: int
    n_vocab: int
    n_layer: int
    n_embd: int
    n_ff: int
    heads: int
    kv_heads: int
    head_dim: int
    n_expert: int
    n_expert_used: int
    deviations: tuple[str, ...] = ()

    @property
    def bits_per_weight(self) -> float:
        """Bytes of all tensors in bits, over n_params."""
        return self.weight_bytes * 8 / self.n_params


class Loaded(NamedTuple):
    """A plan with the facts about its model."""

    plan: Plan
    info: ModelInfo


def architectures() -> tuple[str, ...]:
    """Names of all supported architectures, sorted."""
    return tuple(sorted(_import(m).name for m in _modules()))


def family_of(arch: str) -> Family:
    """The family of this architecture. UnsupportedModel lists the known ones."""
    module = arch.replace("-", "_")
    if module in _modules():
        family = _import(module)
        if family.name == arch:
            return family
    raise UnsupportedModel(f"architecture '{arch[:64]}' is not supported; edgellm runs {', '.join(architectures())}")


def load_plan(file: GGUFFile, *, strict: bool = True) -> Loaded:
    """Builds the file's model: its plan, and facts about it.

    Raises UnsupportedModel, naming the key or tensor, for an unknown architecture, for missing or ill-shaped parts
    and, when strict, for metadata that would change the numbers and tensors that would go unused. With strict=False
    the latter are logged as warnings and listed in `info.deviations`.
    """
    arch = file.metadata.get("general.architecture")
    if not isinstance(arch, str):
        raise UnsupportedModel(f"{file.path}: metadata key 'general.architecture' is missing; this is not a model")
    kind = file.metadata.get("general.type", "model")
    if not isinstance(kind, str) or kind != "model":
        raise UnsupportedModel(f"{file.path}: the file holds a {kind!s:.60} (general.type), not a model by itself")
    family = family_of(arch)
    keys, builder = Keys(file.metadata, arch), Builder(file, arch)
    try:
        plan = family.build(builder, keys)
    except PlanError as e:
        raise UnsupportedModel(f"{file.path}: {e}; the file does not fit its own description") from e
    except UnsupportedModel as e:
        raise UnsupportedModel(f"{file.path}: {e}") from e
    problems = [
        f"metadata key '{key}' = {keys.value(key)} would be ignored, and may change the results"
        for key in keys.unread({**IGNORED_KEYS, **family.ignored_keys})
    ]
    problems += [f"{t} would go unused" for t in builder.leftovers({**IGNORED_TENSORS, **family.ignored_tensors})]
    if problems and strict:
        more = f" (and {len(problems) - 4} more)" if len(problems) > 4 else ""
        raise UnsupportedModel(
            f"{file.path}: {'; '.join(problems[:4])}{more}. "
            f"Load it anyway with strict=False (--no-strict); the results may then be wrong"
        )
    for problem in problems:
        _log.warning("%s: %s; loading it anyway because strict is off", file.path, problem)
    return Loaded(plan, _info(file, keys, plan, tuple(problems)))


def _info(file: GGUFFile, keys: Keys, plan: Plan, deviations: tuple[str, ...]) -> ModelInfo:
    name = file.metadata.get("general.name")
    n_layer = keys.integer("block_count")
    heads = max(keys.integers("attention.head_count", n_layer, 0))
    n_embd = keys.integer("embedding_length")
    return ModelInfo(
        arch=plan.arch,
        name=name if isinstance(name, str) else file.path.stem,
        n_params=sum(t.n_elements for t in file.tensors.values()),
        weight_bytes=sum(t.n_bytes for t in file.tensors.values()),
        n_ctx_train=plan.n_ctx_train,
        n_vocab=plan.n_vocab,
        n_layer=n_layer,
        n_embd=n_embd,
        n_ff=max(keys.integers("feed_forward_length", n_layer, 0)),
        heads=heads,
        kv_heads=max(keys.integers("attention.head_count_kv", n_layer, heads)),
        head_dim=keys.integer("attention.key_length", n_embd // heads if heads else 0),
        n_expert=keys.integer("expert_count", 0),
        n_expert_used=keys.integer("expert_used_count", 0),
        deviations=deviations,
    )


@functools.cache
def _modules() -> tuple[str, ...]:
    return tuple(m.name for m in pkgutil.iter_modules(families.__path__))


def _import(module: str) -> Family:
    family = importlib.import_module(f"{families.__name__}.{module}").FAMILY
    assert isinstance(family, Family)  # noqa: S101 - our own modules, never input
    return family
