"""What test_old_processor.py runs twice, here and on an emulated old processor: the whole library in one process.

    python old_processor.py MODEL...

Prints JSON: for every model the level that was chosen, what was generated with tiles, and a hash of the logits with
mapped weights.
"""

from __future__ import annotations

import hashlib
import json
import sys

from edgellm import LLM
from edgellm._native import usable_level


def report(path: str) -> dict[str, object]:
    """One model."""
    with LLM(path, weights="tiles", backend="native", n_threads=2) as llm:
        texts = [c.text for c in llm.generate(["hello world", "the"], max_tokens=8, temperature=0.7, seed=5)]
    with LLM(path, weights="mmap", backend="native", n_threads=2) as llm:
        logits = llm.logits(llm.tokenize("hello world, the hello"))
    return {"level": usable_level(), "texts": texts, "logits": hashlib.sha256(logits.tobytes()).hexdigest()}


if __name__ == "__main__":
    print(json.dumps({path: report(path) for path in sys.argv[1:]}))
