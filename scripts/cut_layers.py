"""Cuts a model to its first layers: a draft for speculative decoding with the same vocabulary, embeddings and head.

python scripts/cut_layers.py MODEL.gguf DRAFT.gguf 10
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from edgellm import GGUFFile
from edgellm.gguf.writer import Tensor, write


def cut(source: Path, target: Path, n_layers: int) -> Path:
    """Write the first n_layers layers of `source`. SystemExit where there are not more than that."""
    file = GGUFFile(source)
    try:
        known: dict[str, Any] = dict(file.metadata)
        arch = known["general.architecture"]
        count = int(known[f"{arch}.block_count"])
        if not 1 <= n_layers < count:
            raise SystemExit(f"{source} has {count} layers: expected a number from 1 to {count - 1}, found {n_layers}")
        metadata: dict[str, Any] = {}
        for key, value in known.items():
            per_layer = key.startswith(f"{arch}.") and hasattr(value, "__len__") and not isinstance(value, str)
            metadata[key] = value[:n_layers] if per_layer and len(value) == count else value
        metadata[f"{arch}.block_count"] = n_layers
        tensors = [
            Tensor(name, info.shape, info.qtype, file.data(name))
            for name, info in file.tensors.items()
            if (match := re.match(r"blk\.(\d+)\.", name)) is None or int(match.group(1)) < n_layers
        ]
        return write(target, metadata, tensors)
    finally:
        file.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("draft", type=Path, help="the file to write")
    parser.add_argument("layers", type=int, help="layers to keep")
    args = parser.parse_args()
    print(cut(args.model, args.draft, args.layers))


if __name__ == "__main__":
    main()
