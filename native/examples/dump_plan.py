"""A GGUF model as a plan file: plan, tiles, vectors and rope tables in one image that a C program loads as it is.

python native/examples/dump_plan.py MODEL.gguf OUT.plan [CONTEXT]

The format stands in docs/c-api.md; generate.c beside this file reads it.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np

from edgellm._native.library import ffi, lib
from edgellm._native.tiles import pack_tiles, room_for_tiles, tile_bytes, tile_layout
from edgellm.backends.lower import CODES, lower
from edgellm.backends.tensors import matrix_bytes, vector
from edgellm.gguf.reader import GGUFFile
from edgellm.models.rope import RopeCache
from edgellm.models.spec import load_plan

MAGIC = b"edgellm plan 1\n\0"
HEADER = struct.Struct("<16s4iq24x")
"""magic, interface version, tile layout, context, ending token or -1, bytes of the file."""


def put(out: IO[bytes], data: Any) -> int:
    """Write `data` on the next 64-byte line; its offset."""
    out.write(bytes(-out.tell() % 64))
    at = out.tell()
    out.write(data)
    return at


def tiles_of(data: np.ndarray[Any, Any], qtype: int, n_stack: int, n_rows: int, n_cols: int) -> np.ndarray[Any, Any]:
    """The matrices of a stack, one after the other, as tiles."""
    n_bytes = tile_bytes(qtype, n_rows, n_cols)
    tiles = room_for_tiles(n_stack * n_bytes)
    for rows, to in zip(np.split(data, n_stack), np.split(tiles, n_stack), strict=True):
        pack_tiles(qtype, n_rows, n_cols, rows, to)
    return tiles


def dump(model_path: Path, target: Path, n_ctx: int) -> None:
    """Write the plan file. Raises what opening and lowering a model raise; SystemExit for a cache without C code."""
    file = GGUFFile(model_path)
    plan, _ = load_plan(file)
    program = lower(plan, lambda tensor: file.tensors[tensor].qtype)
    for cache in plan.caches:
        if cache.kind not in ("full", "window"):
            raise SystemExit(f"{model_path}: the C core has no {cache.kind} cache")
    embedded = {int(op["w"][0]) for op in program.ops if op["code"] == CODES["EMBED"]}
    end = file.metadata.get("tokenizer.ggml.eos_token_id", -1)
    with open(target, "wb") as out:

        def table(name: str, rows: list[tuple[Any, ...]]) -> Any:
            """Write rows of a struct; the pointer to them, as an offset."""
            return ffi.cast(f"{name} *", put(out, ffi.buffer(ffi.new(f"{name}[]", rows))) if rows else 0)

        def pointer(data: Any) -> Any:
            return ffi.cast("void *", put(out, data))

        out.write(bytes(HEADER.size + ffi.sizeof("el_model")))
        weights = []
        for i, w in enumerate(program.matrices):
            weight = plan.weights[w]
            qtype = int(file.tensors[weight.tensor].qtype)
            data, _, n_stack = matrix_bytes(file, weight, "native")
            n_rows, n_cols = weight.shape[-2], weight.shape[-1]
            tiles, n_tile_bytes, rows = ffi.NULL, 0, ffi.NULL
            if w in program.packed:
                packed = tiles_of(data, qtype, n_stack, n_rows, n_cols)
                tiles, n_tile_bytes = pointer(packed), len(packed)
            if i in embedded or w not in program.packed:
                rows = pointer(data)
            # Beside tiles only embedding lookups read the rows: other matrices name an address that holds none.
            weights.append((rows or tiles, len(data), qtype, n_rows, n_cols, n_stack, 0, -1, 0, tiles, n_tile_bytes))
        vectors = [vector(file, plan.weights[w]) for w in program.vectors]
        ropes = []
        for t in plan.ropes:
            factors = None if t.factors is None else vector(file, plan.weights[t.factors])
            rope = RopeCache(t, n_ctx, factors)
            rope.ensure(n_ctx)
            cos, sin = (ffi.cast("float *", put(out, table_of)) for table_of in (rope.cos, rope.sin))
            ropes.append((cos, sin, n_ctx, t.n_rot))

        model = ffi.new("el_model *")
        model.size, model.n_ops = ffi.sizeof("el_model"), len(program.ops)
        model.ops = ffi.cast("el_op *", put(out, program.ops.tobytes()))
        buffers = [(b.width, "TR".index(b.axis), ("f32", "i32").index(b.dtype)) for b in program.buffers]
        layers = [
            (c, i, x.heads, x.k_dim, x.v_dim) for c, cache in enumerate(plan.caches) for i, x in enumerate(cache.layers)
        ]
        model.n_buffers, model.buffers = len(buffers), table("el_buffer", buffers)
        model.n_weights, model.weights = len(weights), table("el_weight", weights)
        model.n_vectors = len(vectors)
        model.vectors = table("el_vector", [(ffi.cast("float *", put(out, v)), v.size) for v in vectors])
        model.n_ropes, model.ropes = len(ropes), table("el_rope", ropes)
        model.n_cache_layers, model.cache_layers = len(layers), table("el_cache_layer", layers)
        model.n_classes, model.n_act_slots = len(plan.caches), program.n_act_slots
        model.n_vocab, model.logits = plan.n_vocab, plan.logits
        n_bytes = out.tell()
        out.seek(0)
        out.write(HEADER.pack(MAGIC, lib().el_abi_version(), tile_layout(), n_ctx, end, n_bytes))
        out.write(ffi.buffer(model))
    file.close()


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    dump(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) == 4 else 2048)
