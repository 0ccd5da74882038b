"""From a repository and a pattern of a file's name to a model that `LLM` opens."""

from __future__ import annotations

import fnmatch
import re

from edgellm.core import env
from edgellm.core.errors import DownloadError, ModelNotFound
from edgellm.hub import inventory, quants, spelling
from edgellm.hub.quants import Candidate
from edgellm.hub.spelling import HFName


def model_name(repo_id: str, filename: str | None) -> str:
    """The name of the one model of a repository whose file is called `filename`, which may be a pattern (* ? [).

    A pattern that exactly one model here of that repository has is answered without the network. filename=None means
    Q4_K_M, or the only model there is. Raises ModelNotFound, which lists what there is, and DownloadError.
    """
    name = spelling.parse(f"hf:{repo_id}", env.HF_ENDPOINT.get())
    if name is None or name.tag is not None or name.file is not None:
        raise ModelNotFound(f"{repo_id!r:.80} is not the name of a repository; expected USER/REPOSITORY")
    if filename is None:
        return f"hf:{name}"
    if not re.search(r"[*?\[]", filename):
        return f"hf:{name}/{filename}"
    here = [m.file or m.name for m in inventory.of_repo(name)]
    found = _matching(here, filename)
    if len(found) != 1:
        if env.HF_HUB_OFFLINE.get():
            raise DownloadError(
                f"{len(found)} models of {name.repo} on this machine match {filename!r:.80}, and asking Hugging Face "
                f"was forbidden (HF_HUB_OFFLINE). There are: {', '.join(here) or 'none'}"
            )
        there = _remote(name)
        found = _matching(there, filename)
        what = f"{len(found)} models match" if found else "no model matches"
        names = ", ".join(c.files[0] for c in found or quants.models(there))
    if len(found) != 1:
        raise ModelNotFound(f"{what} {filename!r:.80} in {name.repo}; there are: {names}")
    return f"hf:{name}/{found[0].files[0]}"


def _matching(paths: list[str], pattern: str) -> list[Candidate]:
    """Models with a file whose path, or whose name alone, matches."""
    return [
        c
        for c in quants.models(paths)
        if any(fnmatch.fnmatchcase(f, pattern) or fnmatch.fnmatchcase(f.rpartition("/")[2], pattern) for f in c.files)
    ]


def _remote(name: HFName) -> list[str]:
    from edgellm.hub import remote  # the network libraries

    return list(remote.look(name).files)
