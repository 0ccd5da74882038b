"""Models split over files `name-00001-of-0000N.gguf`: finding the files, checking that they belong together.

In the metadata `split.no` counts from 0, in file names from 1; `split.count` is the number of files and
`split.tensors.count` the number of tensors of the whole model. The model's metadata is in the first file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from edgellm.core.errors import GGUFError, ModelNotFound
from edgellm.gguf.header import Header

_NAME = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_RAW_PART = re.compile(r"\.part\d+of\d+$|-split-[a-z]$|\.gguf\.part\w*$", re.IGNORECASE)
MAX_SHARDS = 4096


def shard_paths(path: Path) -> list[Path] | None:
    """All files of the set that `path` names, in order, existing or not; None if it names no set."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    count = int(match["count"])
    if not 1 <= int(match["no"]) <= count <= MAX_SHARDS:
        return None
    dot = path.name[-5:]
    return [path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}{dot}") for i in range(1, count + 1)]


def split_count(header: Header, where: str) -> int:
    """Files of the model according to one header: 1 when it is not split."""
    count = header.metadata.get("split.count", 1)
    if not isinstance(count, int) or not 0 <= count <= MAX_SHARDS:
        raise GGUFError(f"{where}: split.count is {count}; expected a number up to {MAX_SHARDS}")
    return max(count, 1)


def find_set(path: Path, count: int) -> list[Path]:
    """The `count` files of the set that contains `path`; GGUFError naming those that are missing."""
    paths = shard_paths(path)
    if paths is None or len(paths) != count:
        raise GGUFError(
            f"{path}: the file is one of {count} parts of a model (split.count), but its name is not like "
            f"NAME-00001-of-{count:05d}.gguf, so the other parts cannot be found; give it its original name"
        )
    missing = [p.name for p in paths if not p.is_file()]
    if missing:
        raise GGUFError(
            f"{path}: {len(missing)} of the {count} parts of this model are missing in {path.parent}: "
            f"{', '.join(missing[:8])}{', …' if len(missing) > 8 else ''}; download them as well"
        )
    return paths


def check_set(paths: list[Path], headers: list[Header]) -> None:
    """GGUFError unless every file says that it is what its name says, and the tensors add up."""
    count = len(paths)
    seen: dict[str, Path] = {}
    for i, (path, header) in enumerate(zip(paths, headers, strict=True)):
        no, of = header.metadata.get("split.no"), header.metadata.get("split.count")
        if of != count:
            raise GGUFError(f"{path}: split.count is {of}, expected {count}: it belongs to another model")
        if no != i:
            found = f"part {no + 1}" if isinstance(no, int) else f"no part (split.no is {no})"
            raise GGUFError(
                f"{path}: the name says part {i + 1} of {count}, but the file says it is {found}: "
                f"files were swapped or renamed; restore their names"
            )
        for name in header.tensors:
            if name in seen:
                raise GGUFError(f"{path}: tensor {name!r} is also in {seen[name].name}: parts of two models")
            seen[name] = path
    declared = headers[0].metadata.get("split.tensors.count")
    if declared is not None and declared != len(seen):
        raise GGUFError(
            f"{paths[0]}: split.tensors.count is {declared}, but the {count} parts have {len(seen)} tensors: "
            f"they are not parts of the same model"
        )


def model_in_directory(path: Path) -> Path:
    """The only model in a folder: its file, or the first file of its set. ModelNotFound names the choices."""
    found: dict[tuple[str, ...], Path] = {}
    for entry in sorted(os.scandir(path), key=lambda e: e.name):
        if not entry.name.lower().endswith(".gguf") or not entry.is_file():
            continue
        file = Path(entry.path)
        paths = shard_paths(file) or [file]
        found.setdefault(tuple(p.name for p in paths), file)
    models = {k: v for k, v in found.items() if not v.name.lower().startswith("mmproj")} or found
    if not models:
        raise ModelNotFound(f"{path} is a folder without a .gguf file; give the path of a model file")
    if len(models) > 1:
        names = ", ".join(v.name for v in models.values())
        raise ModelNotFound(f"{path} is a folder with {len(models)} models; name one of them: {names}")
    return next(iter(models.values()))


def raw_part_hint(path: Path) -> str:
    """Advice when the name looks like a piece of a file that was cut without regard to the format, or ''."""
    if _RAW_PART.search(path.name):
        return " The name looks like one piece of a file: join all pieces with `cat` (`copy /b` on Windows)."
    return ""
