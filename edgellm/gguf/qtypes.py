"""The tensor types of GGUF: one table with id, name, elements of a block and bytes of a block.

A row of K elements of type t is `K / t.block` blocks of `t.block_bytes` bytes, back to back. Rows follow each
other without padding, so a tensor of n elements has `n / t.block * t.block_bytes` bytes.
"""

from __future__ import annotations

import enum

from edgellm.core.errors import GGUFError


class QType(enum.IntEnum):
    """A tensor type; the integer value is the id in the file.

    Attributes:
        block: elements per quantisation block (1 for plain types).
        block_bytes: bytes per block.
    """

    block: int
    block_bytes: int

    def __new__(cls, value: int, block: int, block_bytes: int) -> QType:
        member = int.__new__(cls, value)
        member._value_ = value
        member.block = block
        member.block_bytes = block_bytes
        return member

    #         id  block  bytes
    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q8_1 = (9, 32, 36)
    Q2_K = (10, 256, 84)
    Q3_K = (11, 256, 110)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    Q8_K = (15, 256, 292)
    IQ2_XXS = (16, 256, 66)
    IQ2_XS = (17, 256, 74)
    IQ3_XXS = (18, 256, 98)
    IQ1_S = (19, 256, 50)
    IQ4_NL = (20, 32, 18)
    IQ3_S = (21, 256, 110)
    IQ2_S = (22, 256, 82)
    IQ4_XS = (23, 256, 136)
    I8 = (24, 1, 1)
    I16 = (25, 1, 2)
    I32 = (26, 1, 4)
    I64 = (27, 1, 8)
    F64 = (28, 1, 8)
    IQ1_M = (29, 256, 56)
    BF16 = (30, 1, 2)
    TQ1_0 = (34, 256, 54)
    TQ2_0 = (35, 256, 66)
    MXFP4 = (39, 32, 17)
    NVFP4 = (40, 64, 36)
    Q1_0 = (41, 128, 18)
    Q2_0 = (42, 64, 18)

    @property
    def bits_per_weight(self) -> float:
        """Storage bits per element."""
        return self.block_bytes * 8 / self.block

    def n_bytes(self, n_elements: int) -> int:
        """Bytes of `n_elements` elements; GGUFError unless they fill whole blocks."""
        blocks, rest = divmod(n_elements, self.block)
        if rest or n_elements < 0:
            raise GGUFError(f"{n_elements} elements do not fill whole {self.name} blocks of {self.block}")
        return blocks * self.block_bytes

    def __str__(self) -> str:
        return self.name


# Ids that once had a meaning. Files with them need to be made again from the original weights.
REMOVED: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4 (or I2_S of bitnet.cpp)",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}

# Ids of ik_llama.cpp, a fork with tensor types of its own. Row-interleaved types are the plain id + 200.
IK_LLAMA: dict[int, str] = {
    97: "Q8_0_X4",
    98: "Q8_1_X4",
    99: "Q8_2_X4",
    133: "Q6_0",
    134: "IQ1_BN",
    135: "IQ2_BN",
    136: "Q8_K64",
    137: "IQ2_K",
    138: "IQ3_K",
    139: "IQ4_K",
    140: "IQ5_K",
    141: "IQ6_K",
    144: "IQ4_KS",
    145: "IQ2_KS",
    146: "IQ4_KSS",
    147: "Q8_K16",
    148: "Q8_K32",
    149: "Q8_KR8",
    150: "Q8_K128",
    151: "Q8_KV",
    152: "IQ5_KS",
    153: "IQ2_KT",
    154: "IQ3_KT",
    155: "IQ4_KT",
    156: "IQ3_KS",
    157: "IQ2_KL",
    158: "IQ1_KT",
    202: "Q4_0_R8",
    206: "Q5_0_R4",
    208: "Q8_0_R8",
    210: "Q2_K_R4",
    211: "Q3_K_R4",
    212: "Q4_K_R4",
    213: "Q5_K_R4",
    214: "Q6_K_R4",
    216: "IQ2_XXS_R4",
    217: "IQ2_XS_R4",
    218: "IQ3_XXS_R4",
    219: "IQ1_S_R4",
    220: "IQ4_NL_R4",
    221: "IQ3_S_R4",
    222: "IQ2_S_R4",
    223: "IQ4_XS_R8",
    229: "IQ1_M_R4",
    230: "BF16_R16",
    233: "Q6_0_R4",
    335: "IQ2_BN_R4",
    337: "IQ2_K_R4",
    338: "IQ3_K_R4",
    339: "IQ4_K_R4",
    340: "IQ5_K_R4",
    344: "IQ4_KS_R4",
    352: "IQ5_KS_R4",
    397: "Q8_K_R16",
    398: "Q8_KV_R8",
    399: "Q8_K_R8",
}

_BY_ID: dict[int, QType] = {int(t): t for t in QType}


def qtype_from_id(type_id: int) -> QType:
    """The type with this id; GGUFError with a reason for removed, foreign and unknown ids."""
    known = _BY_ID.get(type_id)
    if known is not None:
        return known
    if type_id in REMOVED:
        raise GGUFError(
            f"type id {type_id} ({REMOVED[type_id]}) was removed from GGUF; "
            f"download or convert the model again in a current type such as Q4_K"
        )
    if type_id in IK_LLAMA:
        raise GGUFError(
            f"type id {type_id} ({IK_LLAMA[type_id]}) exists only in ik_llama.cpp; "
            f"use the model in a standard type such as Q4_K"
        )
    raise GGUFError(
        f"type id {type_id} is unknown (known ids: 0 to {max(_BY_ID)}); "
        f"the file is damaged or newer than this version of edgellm"
    )
