"""Which of a repository's files make up one model, what its quantisation is called, and which one is meant.

A repository holds one model in several quantisations, each in one file or in a split set. Files beside them
that are no language models (vision projectors, importance matrices, draft heads) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from edgellm.core.record import dataclass

DEFAULT = "Q4_K_M"
"""What is meant where no quantisation is named. Another one is never chosen for the user."""

_LABEL = re.compile(
    r"(?<![A-Z0-9])((?:UD-)?(?:"
    r"Q\d_K(?:_(?:XXS|XS|S|M|L|XL|P))?|Q\d_[01](?:_\d_\d)?|IQ\d_(?:XXS|XS|S|M|NL|L|XL)|TQ\d_0|MXFP4(?:_MOE)?|NVFP4"
    r"|BF16|FP?16|FP?32|Q\d))(?![A-Z0-9])",
    re.IGNORECASE,
)
_SHARD = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})(?P<dot>\.gguf)", re.IGNORECASE)
_COMPANION = re.compile(r"mmproj|imatrix|^(?:mtp|eagle3|dflash|dspark)-", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model of a repository.

    Attributes:
        label: its quantisation, "" if the name does not say.
        files: its files in order; of a set that is not complete those that are there, and the first that is not.
        missing: how many files of its set are not there.
    """

    label: str
    files: tuple[str, ...]
    missing: int = 0

    @property
    def name(self) -> str:
        """The name of its (first) file."""
        return PurePosixPath(self.files[0]).name

    @property
    def plain(self) -> str:
        """The label without Unsloth's mark for a quantisation chosen layer by layer."""
        return self.label.removeprefix("UD-")


def label_of(path: str) -> str:
    """The quantisation that a file's name (else its folder's) states, in capitals, or ""."""
    file = PurePosixPath(path)
    for text in (file.stem, file.parent.name):
        found = [_upper(m) for m in _LABEL.findall(text)]
        quantised = [m for m in found if m not in ("BF16", "F16", "F32")]
        if found:
            return (quantised or found)[-1]
    return ""


def _upper(label: str) -> str:
    return re.sub(r"^FP(?=\d)", "F", label.upper())


def is_companion(path: str) -> bool:
    """Whether a .gguf file is no language model by itself: a projector, an importance matrix, a draft head."""
    return _COMPANION.search(PurePosixPath(path).name) is not None


def models(paths: Iterable[str]) -> list[Candidate]:
    """The models among a repository's paths, sorted by their first file."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    found = []
    for path in paths:
        if not path.lower().endswith(".gguf") or is_companion(path):
            continue
        match = _SHARD.fullmatch(path)
        if match is not None and 1 <= int(match["no"]) <= int(match["count"]):
            sets.setdefault((match["stem"], match["count"], match["dot"]), set()).add(int(match["no"]))
        else:
            found.append(Candidate(label_of(path), (path,)))
    for (stem, count, dot), there in sets.items():
        numbers, missing = sorted(there), int(count) - len(there)
        if missing:
            numbers.append(next(i for i in range(1, int(count) + 1) if i not in there))
        files = tuple(f"{stem}-{i:05d}-of-{count}{dot}" for i in sorted(numbers))
        found.append(Candidate(label_of(files[0]), files, missing))
    return sorted(found, key=lambda c: c.files)


def tag_of(candidate: Candidate, among: Sequence[Candidate]) -> str:
    """What to write after the colon for a candidate: its label where that says which, else its file's name."""
    same = [c for c in among if c.label == candidate.label]
    return candidate.label if candidate.label and len(same) == 1 else candidate.name


def matching(candidates: Sequence[Candidate], tag: str) -> list[Candidate]:
    """Those that `tag` names: a label in any case, a label but for the mark UD-, or a file's name."""
    wanted = _upper(tag)
    return (
        [c for c in candidates if c.label and c.label == wanted]
        or [c for c in candidates if c.label and c.plain == wanted]
        or [c for c in candidates if tag.lower() in _spellings(c)]
    )


def _spellings(candidate: Candidate) -> set[str]:
    name = candidate.name.lower()
    stem = name.removesuffix(".gguf")
    return {name, stem, re.sub(r"-\d{5}-of-\d{5}$", "", stem), candidate.files[0].lower()}


def default(candidates: Sequence[Candidate]) -> list[Candidate]:
    """What is meant when nobody says: Q4_K_M, else the only model there is. Several where that says not which."""
    return matching([c for c in candidates if c.label], DEFAULT) or list(candidates)


def inside(candidates: Sequence[Candidate], path: str) -> list[Candidate]:
    """Those with the file `path`, or in the folder `path`."""
    low = path.lower()
    exact = [c for c in candidates if low in (f.lower() for f in c.files)]
    return exact or [c for c in candidates if c.files[0].lower().startswith(low.rstrip("/") + "/")]
