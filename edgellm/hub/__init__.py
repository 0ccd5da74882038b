"""Models by name: the catalogue, fetching, the cache, and finding what a user meant.

hub.resolve("smollm2:135m").path              fetched if need be
hub.resolve("u/r:Q8_0"), hub.resolve("https://huggingface.co/u/r"), ...
hub.pull("gemma3:270m-base")                  fetched, or verified if it is here
hub.list_local(), hub.remove("smollm2:135m"), hub.catalog(), hub.default_model()
"""

from edgellm.hub.catalogue import CatalogEntry, Wheel, catalog, default_model
from edgellm.hub.local import Progress, list_local, remove
from edgellm.hub.places import LocalModel
from edgellm.hub.resolve import ResolvedModel, pull, resolve

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
    "resolve",
]
