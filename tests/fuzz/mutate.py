"""Damage of every kind to a model file, a pure function of a seed: fields that lie, and bytes that flip."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable

from fuzz.image import ARRAY, CODES, STRING, Image, Key

NUMBERS = [0, 1, 2, 3, 4, 7, 9, 13, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 1000, 4096, 65535,
           65536, 1 << 20, (1 << 24) - 1, 1 << 24, 1 << 26, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40,
           1 << 48, (1 << 61) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 8, (1 << 64) - 1]  # fmt: skip
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e-30, 0.5, 1e30, 3.4e38, math.inf, -math.inf, math.nan, 2.0, 1e6, -1e-5]
TYPES = [*range(45), 97, 133, 210, 399, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
TEXTS = [b"", b"a", b"\0", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b" ", b"\n", b"<0x-1>", b"<0xZZ>", b"<0x100>",
         b"<0x0>", b"<0x41>", b"<s>", b"</s>", b"<unk>", b"<|im_end|>", b"<|endoftext|>", "\u2581".encode(),
         b"x" * 1000, b"x" * 70000, b"a b", b"a b c", b" a", b"a ", b"<|end|>", b"<|return|>", b"<|call|>",
         "\U0001f600".encode(),
         b"%", b"{{", b"linear", b"yarn", b"longrope", b"none", b"gpt2", b"llama", b"gemma4", b"bert", b"gemma3",
         b"mamba2",
         b"{% for i in range(10**9) %}x{% endfor %}", b"{{ '%1000000000d' % 1 }}", b"[EMPTY_3]", b"\x01unknown",
         b"h ell", b"hell o", b"o h"]  # fmt: skip
EXTRA = ["rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier",
         "rope.freq_base", "rope.freq_base_swa", "rope.dimension_count", "rope.scaling.original_context_length",
         "attention.key_length", "attention.value_length", "attention.sliding_window", "attention.temperature_length",
         "attention.temperature_scale", "attention.sliding_window_pattern", "attention.causal", "attention.scale",
         "attention.layer_norm_epsilon", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
         "expert_count", "expert_used_count", "expert_weights_scale", "expert_weights_norm", "expert_gating_func",
         "expert_group_count", "leading_dense_block_count", "nextn_predict_layers", "expert_shared_count",
         "interleave_moe_layer_step", "feed_forward_length", "attention.head_count_kv", "embedding_scale",
         "residual_scale", "vocab_size", "use_parallel_residual"]  # fmt: skip
GENERAL = ["general.alignment", "general.type", "general.file_type", "split.count", "split.no",
           "split.tensors.count", "general.sampling.temp", "general.sampling.top_k", "general.sampling.top_p",
           "general.sampling.penalty_repeat",
           "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id", "tokenizer.ggml.fim_pre_token_id",
           "tokenizer.ggml.padding_token_id", "tokenizer.ggml.suppress_tokens", "tokenizer.ggml.add_eos_token",
           "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.merges",
           "tokenizer.ggml.unknown_token_id",
           "tokenizer.chat_template", "tokenizer.ggml.tokens"]  # fmt: skip

Mutator = Callable[[random.Random, Image], None]


def mutated(image: Image, rng: random.Random) -> tuple[bytes, list[str]]:
    """The file after one to four damages, and their names."""
    out = image.copy()
    names: list[str] = []
    if rng.random() < 0.85:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            change = rng.choice(MUTATORS)
            change(rng, out)
            names.append(change.__name__)
    data = out.to_bytes()
    if not names or rng.random() < 0.15:
        data = flipped(rng, data)
        names.append("flipped")
    if rng.random() < 0.04:
        data = data[: rng.randrange(len(data) + 1)]
        names.append("cut")
    return data, names


def flipped(rng: random.Random, data: bytes) -> bytes:
    """Bytes overwritten, taken out or put in: mostly in the header."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        size = len(out) if rng.random() < 0.2 else min(len(out), rng.choice((64, 1500, 12000)))
        at = rng.randrange(max(size, 1))
        number = struct.pack("<Q", rng.choice(NUMBERS) & (1 << 64) - 1)
        kind = rng.randrange(6)
        if kind == 0 and out:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at : at + 1] = number[:1]
        elif kind == 2:
            out[at : at + 4] = number[:4]
        elif kind == 3:
            out[at : at + 8] = number
        elif kind == 4:
            del out[at : at + rng.choice((1, 4, 8, 32))]
        else:
            out[at:at] = number[: rng.choice((1, 4, 8))]
    return bytes(out)


def value_for(rng: random.Random, kind: int) -> object:
    if kind == STRING:
        return rng.choice(TEXTS)
    if kind == 7:
        return rng.choice((0, 1, 2))
    if kind in (6, 12):
        return rng.choice(FLOATS) if rng.random() < 0.8 else rng.uniform(-10, 10)
    return rng.choice(NUMBERS) if rng.random() < 0.8 else rng.randrange(600)


def pick(rng: random.Random, image: Image, kind: int | None = None) -> int | None:
    found = [i for i, k in enumerate(image.keys) if kind is None or k.type == kind]
    if kind == ARRAY:
        found = [i for i in found if isinstance(image.keys[i].value, list)]
    return rng.choice(found) if found else None


# ---- metadata ----


def scalar_changed(rng: random.Random, image: Image) -> None:
    found = [i for i, k in enumerate(image.keys) if k.type != ARRAY]
    if found:
        i = rng.choice(found)
        image.keys[i] = image.keys[i].changed(value=value_for(rng, image.keys[i].type))


def type_changed(rng: random.Random, image: Image) -> None:
    i = pick(rng, image)
    if i is not None:
        kind = rng.choice((*CODES, STRING))
        image.keys[i] = image.keys[i].changed(type=kind, value=value_for(rng, kind))


def type_lies(rng: random.Random, image: Image) -> None:
    i = pick(rng, image)
    if i is not None:
        k = image.keys[i]
        image.keys[i] = Key(k.name, rng.choice((*range(15), 77, (1 << 32) - 1)), 0, raw=k.encode()[12 + len(k.name) :])


def key_dropped(rng: random.Random, image: Image) -> None:
    i = pick(rng, image)
    if i is not None:
        del image.keys[i]


def key_twice(rng: random.Random, image: Image) -> None:
    i = pick(rng, image)
    if i is not None:
        image.keys.insert(rng.randrange(len(image.keys) + 1), image.keys[i])


def key_renamed(rng: random.Random, image: Image) -> None:
    i = pick(rng, image)
    if i is not None:
        name = rng.choice((b"", b"\xff", b"x\0y", b"x" * 70000, image.keys[i].name + b"s", rng.choice(image.keys).name))
        image.keys[i] = image.keys[i].changed(name=name)


def key_added(rng: random.Random, image: Image) -> None:
    arch = image.find(b"general.architecture")
    name = rng.choice(GENERAL).encode()
    if arch is not None and rng.random() < 0.75:
        value = image.keys[arch].value
        name = b"%s.%s" % (value if isinstance(value, bytes) else b"llama", rng.choice(EXTRA).encode())
    kind = rng.choice((4, 4, 4, 5, 6, 6, 7, STRING, 10, ARRAY))
    if kind == ARRAY:
        element = rng.choice((4, 5, 6, 7, STRING))
        fresh = Key(name, ARRAY, [value_for(rng, element) for _ in range(rng.choice((0, 1, 2, 5)))], element)
    else:
        fresh = Key(name, kind, value_for(rng, kind))
    old = image.find(name)
    if old is None:
        image.keys.append(fresh)
    else:
        image.keys[old] = fresh


def array_length(rng: random.Random, image: Image) -> None:
    i = pick(rng, image, ARRAY)
    if i is not None:
        old = list(image.keys[i].value)
        n = rng.choice((0, 1, len(old) // 2, max(len(old) - 1, 0), len(old) + 1, 2 * len(old), len(old) + 500))
        image.keys[i] = image.keys[i].changed(value=(old * (n // max(len(old), 1) + 1))[:n])


def array_count_lies(rng: random.Random, image: Image) -> None:
    i = pick(rng, image, ARRAY)
    if i is not None:
        image.keys[i] = image.keys[i].changed(count=rng.choice(NUMBERS))


def array_type(rng: random.Random, image: Image) -> None:
    i = pick(rng, image, ARRAY)
    if i is not None:
        kind = rng.choice((*CODES, STRING, ARRAY, 13, 200))
        values = [value_for(rng, kind) for _ in image.keys[i].value]
        image.keys[i] = image.keys[i].changed(element=kind, value=values)


def array_elements(rng: random.Random, image: Image) -> None:
    i = pick(rng, image, ARRAY)
    if i is not None and image.keys[i].value:
        values = list(image.keys[i].value)
        for _ in range(rng.choice((1, 3, 20))):
            fresh = value_for(rng, image.keys[i].element)
            values[rng.randrange(len(values))] = rng.choice(values) if rng.random() < 0.3 else fresh
        image.keys[i] = image.keys[i].changed(value=values)


def special_token(rng: random.Random, image: Image) -> None:
    found = [i for i, k in enumerate(image.keys) if k.name.endswith(b"_token_id")]
    if found:
        i = rng.choice(found)
        image.keys[i] = image.keys[i].changed(
            type=rng.choice((4, 5, 10, 11)), value=rng.choice((*NUMBERS, -1, 268, 269))
        )


def hyperparameter(rng: random.Random, image: Image) -> None:
    small = [0, 1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512]
    found = [i for i, k in enumerate(image.keys) if k.type in (4, 5) and not k.name.startswith((b"general", b"token"))]
    if found:
        i = rng.choice(found)
        old = int(image.keys[i].value)
        image.keys[i] = image.keys[i].changed(value=rng.choice((*small, old * 2, old // 2, old + 1, max(old - 1, 0))))


# ---- tensors ----


def dims_changed(rng: random.Random, image: Image) -> None:
    t = rng.choice(image.tensors) if image.tensors else None
    if t is not None and t.ne:
        k = rng.randrange(len(t.ne))
        old = t.ne[k]
        t.ne[k] = rng.choice((*NUMBERS, old * 2, old // 2, old + 1, old - 1, old + 32, old - 32, -old))
        if rng.random() < 0.7 and all(d >= 0 for d in t.ne):
            t.fit()


def dims_arranged(rng: random.Random, image: Image) -> None:
    t = rng.choice(image.tensors) if image.tensors else None
    if t is not None:
        kind = rng.randrange(4)
        if kind == 0:
            t.ne.reverse()
        elif kind == 1:
            t.ne.insert(rng.randrange(len(t.ne) + 1), 1)
        elif kind == 2 and len(t.ne) > 1:
            t.ne[0] *= t.ne.pop()
        else:
            t.n_dims = rng.choice((0, 1, 2, 3, 4, 5, 9, (1 << 32) - 1))


def qtype_changed(rng: random.Random, image: Image) -> None:
    t = rng.choice(image.tensors) if image.tensors else None
    if t is not None:
        t.type = rng.choice(TYPES)
        if rng.random() < 0.8:
            t.fit()


def offset_changed(rng: random.Random, image: Image) -> None:
    t = rng.choice(image.tensors) if image.tensors else None
    if t is not None:
        t.offset = rng.choice((*NUMBERS, 16, 32 * rng.randrange(1000), rng.randrange(1 << 20)))


def tensor_renamed(rng: random.Random, image: Image) -> None:
    t = rng.choice(image.tensors) if image.tensors else None
    if t is not None:
        t.name = rng.choice((b"", b"x", b"\xff", b"n" * 2000, rng.choice(image.tensors).name, t.name + b".bias",
                             t.name.replace(b".weight", b".bias"), t.name.replace(b".weight", b".scale")))  # fmt: skip


def tensor_dropped(rng: random.Random, image: Image) -> None:
    if image.tensors:
        del image.tensors[rng.randrange(len(image.tensors))]


def tensor_added(rng: random.Random, image: Image) -> None:
    if image.tensors:
        t = rng.choice(image.copy().tensors)
        t.name = rng.choice((b"rope_freqs.weight", b"output.weight", b"blk.0.attn_q.bias", b"blk.0.attn_q.scale",
                             b"blk.0.attn_q.input_scale", b"blk.1.attn_q.weight", b"blk.0.ffn_up.bias",
                             b"blk.0.attn_qkv.weight", b"blk.9.x", b"output_norm.bias", b"output.bias"))  # fmt: skip
        image.tensors.append(t)


def data_changed(rng: random.Random, image: Image) -> None:
    """Values of a tensor: not finite, huge, tiny or any bytes at all."""
    t = rng.choice(image.tensors) if image.tensors else None
    if t is not None and t.data:
        n = len(t.data)
        kind = rng.randrange(4)
        if kind == 0:
            t.data = rng.randbytes(n)
        elif kind == 1:
            t.data = bytes([rng.choice((0, 0x7F, 0x80, 0xFF, 0x7C))]) * n
        else:
            out = bytearray(t.data)
            for _ in range(rng.choice((1, 8, 100))):
                at = rng.randrange(n)
                out[at : at + 4] = struct.pack("<f", rng.choice(FLOATS))[: n - at]
            t.data = bytes(out)


# ---- the file ----


def counts_lie(rng: random.Random, image: Image) -> None:
    if rng.random() < 0.5:
        image.n_keys = rng.choice((*NUMBERS, len(image.keys) + 1, len(image.keys) - 1))
    else:
        image.n_tensors = rng.choice((*NUMBERS, len(image.tensors) + 1, len(image.tensors) - 1))


def alignment(rng: random.Random, image: Image) -> None:
    """One that the file keeps, or not."""
    value = rng.choice((0, 1, 2, 4, 8, 16, 33, 48, 64, 128, 256, 4096, 1 << 20, 1 << 21, (1 << 32) - 1))
    i = image.find(b"general.alignment")
    if i is not None:
        image.keys[i] = image.keys[i].changed(value=value)
    if 0 < value <= 4096 and rng.random() < 0.7:
        image.alignment = value


def magic_or_version(rng: random.Random, image: Image) -> None:
    if rng.random() < 0.5:
        image.version = rng.choice((0, 1, 2, 4, 3 << 24, 1 << 16, (1 << 32) - 1))
    else:
        image.magic = rng.choice((b"GGML", b"lmgg", b"tjgg", b"FUGG", b"<htm", b"\0\0\0\0", b""))


MUTATORS: list[Mutator] = [
    scalar_changed, scalar_changed, type_changed, type_lies, key_dropped, key_twice, key_renamed, key_added, key_added,
    array_length, array_count_lies, array_type, array_elements, array_elements, special_token, hyperparameter,
    hyperparameter, hyperparameter, dims_changed, dims_changed, dims_arranged, qtype_changed, qtype_changed,
    offset_changed, tensor_renamed, tensor_dropped, tensor_added, data_changed, data_changed, counts_lie, alignment,
    magic_or_version,
]  # fmt: skip
"""Drawn from with equal chances."""
