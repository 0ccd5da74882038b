/* The blocks of GGUF's quantised types, byte for byte. d is the scale, m or dmin the minimum; both are f16 bits. A file may
 * place a block at any address: copy it (el_load_block) before use. Multi-byte fields are little endian. */
#ifndef EL_QBLOCKS_H
#define EL_QBLOCKS_H

#include <assert.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "edgellm reads GGUF blocks in place: little-endian machines only"
#endif

/* 32 weights. Nibble j of qs: weight j in the low half of byte j, weight j + 16 in the high half. qh: bit j = the fifth bit
 * of weight j. */
typedef struct el_block_q8_0 {
    uint16_t d;
    int8_t qs[32];
} el_block_q8_0;
typedef struct el_block_q4_0 {
    uint16_t d;
    uint8_t qs[16];
} el_block_q4_0;
typedef struct el_block_q4_1 {
    uint16_t d, m;
    uint8_t qs[16];
} el_block_q4_1;
typedef struct el_block_q5_0 {
    uint16_t d;
    uint8_t qh[4], qs[16];
} el_block_q5_0;
typedef struct el_block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4], qs[16];
} el_block_q5_1;

/* Nibbles that are indices of EL_MXFP4_VALUES; e: the scale is 2^(e - 128), see el_e8m0_half. IQ4_NL is Q4_0 with
 * EL_IQ4_VALUES. */
typedef struct el_block_mxfp4 {
    uint8_t e, qs[16];
} el_block_mxfp4;

/* 64 weights in groups of 16, each with a scale e (el_e4m3_half) and 8 bytes of MXFP4's nibbles: low ones first. */
typedef struct el_block_nvfp4 {
    uint8_t e[4], qs[32];
} el_block_nvfp4;

/* 256 weights ("k-quants"), each 16 or 32 weights with a small integer scale of their own. */
typedef struct el_block_q2_k {
    uint8_t scales[16], qs[64];
    uint16_t d, dmin;
} el_block_q2_k;
typedef struct el_block_q3_k {
    uint8_t hmask[32], qs[64], scales[12];
    uint16_t d;
} el_block_q3_k;
typedef struct el_block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12], qs[128];
} el_block_q4_k;
typedef struct el_block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12], qh[32], qs[128];
} el_block_q5_k;
typedef struct el_block_q6_k {
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint16_t d;
} el_block_q6_k;

/* Nibbles of each 32 weights as in IQ4_NL. */
typedef struct el_block_iq4_xs {
    uint16_t d, scales_h;
    uint8_t scales_l[4], qs[128];
} el_block_iq4_xs;

/* Ternary: weights -1, 0, 1, stored with 1 added. TQ1_0: five to a byte (four in qh), TQ2_0: two bits each, as in Q2_K. */
typedef struct el_block_tq1_0 {
    uint8_t qs[48], qh[4];
    uint16_t d;
} el_block_tq1_0;
typedef struct el_block_tq2_0 {
    uint8_t qs[64];
    uint16_t d;
} el_block_tq2_0;

/* Indices into code books (codebooks.c), with signs or a minus, and small scales, 256 weights. The fields of IQ2_XXS: for each
 * 32 weights 4 indices and 32 bits (4 times 7 signs, scale), of IQ2_XS: 9 bits of index, 7 signs. */
typedef struct el_block_iq1_s {
    uint16_t d;
    uint8_t qs[32];
    uint16_t qh[8];
} el_block_iq1_s;
typedef struct el_block_iq1_m {
    uint8_t qs[32], qh[16];
    uint16_t scales[4];
} el_block_iq1_m;
typedef struct el_block_iq2_xxs {
    uint16_t d;
    uint8_t qs[64];
} el_block_iq2_xxs;
typedef struct el_block_iq2_xs {
    uint16_t d, qs[32];
    uint8_t scales[8];
} el_block_iq2_xs;
typedef struct el_block_iq2_s {
    uint16_t d;
    uint8_t qs[32], signs[32], qh[8], scales[8];
} el_block_iq2_s;
typedef struct el_block_iq3_xxs {
    uint16_t d;
    uint8_t qs[64], rest[32];
} el_block_iq3_xxs;
typedef struct el_block_iq3_s {
    uint16_t d;
    uint8_t qs[64], qh[8], signs[32], scales[4];
} el_block_iq3_s;

static_assert(sizeof(el_block_q8_0) == 34, "Q8_0");
static_assert(sizeof(el_block_q4_0) == 18, "Q4_0");
static_assert(sizeof(el_block_q4_1) == 20, "Q4_1");
static_assert(sizeof(el_block_q5_0) == 22, "Q5_0");
static_assert(sizeof(el_block_q5_1) == 24, "Q5_1");
static_assert(sizeof(el_block_q2_k) == 84, "Q2_K");
static_assert(sizeof(el_block_q3_k) == 110, "Q3_K");
static_assert(sizeof(el_block_q4_k) == 144, "Q4_K");
static_assert(sizeof(el_block_q5_k) == 176, "Q5_K");
static_assert(sizeof(el_block_q6_k) == 210, "Q6_K");
static_assert(sizeof(el_block_mxfp4) == 17, "MXFP4");
static_assert(sizeof(el_block_nvfp4) == 36, "NVFP4");
static_assert(sizeof(el_block_iq4_xs) == 136, "IQ4_XS");
static_assert(sizeof(el_block_tq1_0) == 54, "TQ1_0");
static_assert(sizeof(el_block_tq2_0) == 66, "TQ2_0");
static_assert(sizeof(el_block_iq1_s) == 50, "IQ1_S");
static_assert(sizeof(el_block_iq1_m) == 56, "IQ1_M");
static_assert(sizeof(el_block_iq2_xxs) == 66, "IQ2_XXS");
static_assert(sizeof(el_block_iq2_xs) == 74, "IQ2_XS");
static_assert(sizeof(el_block_iq2_s) == 82, "IQ2_S");
static_assert(sizeof(el_block_iq3_xxs) == 98, "IQ3_XXS");
static_assert(sizeof(el_block_iq3_s) == 110, "IQ3_S");

/* What the nibbles of IQ4_NL and IQ4_XS mean, and those of MXFP4: twice the values of E2M1 (sign, 2 bits of exponent, 1 of
 * mantissa). */
static const int8_t EL_IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                         1,    13,   25,  38,  53,  69,  89,  113};
static const int8_t EL_MXFP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* What the numbers in the panels of IQ1 to IQ4_XS mean: a weight is (unit * d) * scale * of[number]. The top bit of a number,
 * the third of IQ1 and IQ2, is a sign; that of IQ1 says whether an eighth is added to -1, 0, 1 or subtracted. */
typedef struct el_values {
    const int8_t *of; /* [16] */
    float unit;       /* a power of two */
} el_values;
static const int8_t EL_IQ1_NUMBERS[16] = {-7, 1, 9, 0, -9, -1, 7};
static const int8_t EL_IQ2_NUMBERS[16] = {8, 25, 43, 0, -8, -25, -43};
static const int8_t EL_IQ3_XXS_NUMBERS[16] = {4,  12,  20,  28,  36,  44,  52,  62,
                                              -4, -12, -20, -28, -36, -44, -52, -62};
static const int8_t EL_IQ3_S_NUMBERS[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
static const el_values EL_IQ1_VALUES = {EL_IQ1_NUMBERS, 0.125f};
static const el_values EL_IQ2_VALUES = {EL_IQ2_NUMBERS, 0.125f};
static const el_values EL_IQ3_XXS_VALUES = {EL_IQ3_XXS_NUMBERS, 0.25f};
static const el_values EL_IQ3_S_VALUES = {EL_IQ3_S_NUMBERS, 1};
static const el_values EL_IQ4_XS_VALUES = {EL_IQ4_VALUES, 1};

/* Block i of a row of blocks, whatever the row's alignment: `block` is a pointer to the wanted struct. */
#define el_load_block(block, row, i) \
    memcpy((block), (const char *)(row) + (size_t)(i) * sizeof *(block), sizeof *(block))

/* The 6-bit scale and minimum of 32-block j (0..7) of Q4_K and Q5_K. */
static inline void el_k4_scale(const uint8_t s[12], int j, uint8_t *scale, uint8_t *minimum) {
    if (j < 4) {
        *scale = s[j] & 63;
        *minimum = s[j + 4] & 63;
    } else {
        *scale = (uint8_t)((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
        *minimum = (uint8_t)((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
    }
}

/* The quants of a block in order, as stored (unsigned: no offset subtracted). */
static inline void el_nibbles32(const uint8_t qs[16], uint8_t u[32]) {
    for (int j = 0; j < 16; j++) {
        u[j] = qs[j] & 15;
        u[j + 16] = qs[j] >> 4;
    }
}

static inline void el_fifth_bits32(const uint8_t qh[4], uint8_t u[32]) {
    for (int j = 0; j < 32; j++) u[j] |= (uint8_t)(((qh[j / 8] >> (j % 8)) & 1) << 4);
}

/* Values in place of nibbles. */
static inline void el_values32(const uint8_t qs[16], const int8_t values[16], int8_t w[32]) {
    for (int j = 0; j < 16; j++) {
        w[j] = values[qs[j] & 15];
        w[j + 16] = values[qs[j] >> 4];
    }
}

/* The bits of 2^(e - 128) as a float, for MXFP4; the first two are subnormal. Half the value of E8M0, whose quants are
 * doubled. */
static inline uint32_t el_e8m0_half(uint8_t e) {
    return e < 2 ? (uint32_t)0x00200000 << e : (uint32_t)(e - 1) << 23;
}

/* Half of an unsigned float of 4 bits of exponent (bias 7) and 3 of mantissa, times 2^10: an integer. 0x7f is 0; bit 7 is
 * ignored elsewhere. */
static inline int32_t el_e4m3_half_1024(uint8_t e) {
    int exponent = (e >> 3) & 15, mantissa = e & 7;
    if (e == 0x7f) return 0;
    return exponent ? (8 + mantissa) << (exponent - 1) : mantissa;
}
static inline float el_e4m3_half(uint8_t e) { return (float)el_e4m3_half_1024(e) * (1.0f / 1024.0f); }

/* The 64 nibbles of NVFP4 in order. */
static inline void el_nibbles64(const uint8_t qs[32], uint8_t u[64]) {
    for (int i = 0; i < 64; i++) u[i] = (qs[8 * (i / 16) + i % 8] >> (i / 8 % 2 * 4)) & 15;
}

/* Scale j (0..7) of IQ4_XS: four low bits in scales_l, two high bits in scales_h; stored with 32 added. */
static inline int8_t el_iq4_xs_scale(const el_block_iq4_xs *b, int j) {
    int low = (b->scales_l[j / 2] >> (4 * (j % 2))) & 15, high = (b->scales_h >> (2 * j)) & 3;
    return (int8_t)((low | (high << 4)) - 32);
}

static inline void el_unpack_q4_k(const el_block_q4_k *b, uint8_t u[256]) {
    for (int j = 0; j < 4; j++) {
        for (int l = 0; l < 32; l++) {
            u[64 * j + l] = b->qs[32 * j + l] & 15;
            u[64 * j + 32 + l] = b->qs[32 * j + l] >> 4;
        }
    }
}

static inline void el_unpack_q5_k(const el_block_q5_k *b, uint8_t u[256]) {
    for (int i = 0; i < 256; i++) { /* bit j of qh[l]: fifth bit of weight 32 j + l */
        u[i] = (uint8_t)(((b->qs[32 * (i / 64) + i % 32] >> (4 * (i / 32 % 2))) & 15) |
                         (((b->qh[i % 32] >> (i / 32)) & 1) << 4));
    }
}

/* Two bits of Q2_K and Q3_K: within each half of 128, those at 2j of byte l belong to weight 32 j + l. */
static inline void el_crumbs256(const uint8_t qs[64], uint8_t u[256]) {
    for (int i = 0; i < 256; i++) u[i] = (qs[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4))) & 3;
}

/* A byte is a fraction of 256 in base 3: digit n (from 0) is the integer part of 3 times what is left after n digits. The
 * digits n of m bytes are m consecutive weights; m is 32, then 16 (qs), then 4 (qh). */
static inline void el_unpack_tq1_0(const el_block_tq1_0 *b, uint8_t u[256]) {
    static const int8_t RUNS[3][3] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}}; /* first byte, bytes, digits */
    uint8_t bytes[52];
    memcpy(bytes, b->qs, 48);
    memcpy(bytes + 48, b->qh, 4);
    for (int run = 0; run < 3; run++) {
        for (int n = 0; n < RUNS[run][2]; n++) {
            for (int i = RUNS[run][0]; i < RUNS[run][0] + RUNS[run][1]; i++) {
                *u++ = (uint8_t)((bytes[i] * 3) >> 8);
                bytes[i] = (uint8_t)(bytes[i] * 3);
            }
        }
    }
}

/* The third bit of weight i is bit i / 32 of hmask[i % 32]. */
static inline void el_unpack_q3_k(const el_block_q3_k *b, uint8_t u[256]) {
    el_crumbs256(b->qs, u);
    for (int i = 0; i < 256; i++) u[i] |= (uint8_t)(((b->hmask[i % 32] >> (i / 32)) & 1) << 2);
}

/* Scale j (0..15) of Q3_K: four low bits in byte j % 8 (high half for j >= 8), two high bits in byte 8 + j % 4 at
 * 2 (j / 4); stored with 32 added. */
static inline int8_t el_q3_k_scale(const uint8_t s[12], int j) {
    int low = (s[j % 8] >> (4 * (j / 8))) & 15, high = (s[8 + j % 4] >> (2 * (j / 4))) & 3;
    return (int8_t)((low | (high << 4)) - 32);
}

static inline void el_unpack_q6_k(const el_block_q6_k *b, uint8_t u[256]) {
    for (int half = 0; half < 2; half++) {
        const uint8_t *ql = b->ql + 64 * half, *qh = b->qh + 32 * half;
        uint8_t *y = u + 128 * half;
        for (int l = 0; l < 32; l++) {
            y[l] = (uint8_t)((ql[l] & 15) | ((qh[l] & 3) << 4));
            y[l + 32] = (uint8_t)((ql[l + 32] & 15) | (((qh[l] >> 2) & 3) << 4));
            y[l + 64] = (uint8_t)((ql[l] >> 4) | (((qh[l] >> 4) & 3) << 4));
            y[l + 96] = (uint8_t)((ql[l + 32] >> 4) | ((qh[l] >> 6) << 4));
        }
    }
}

#endif
