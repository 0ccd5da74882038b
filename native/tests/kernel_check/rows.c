/* GGUF rows for kernel_check: made at random, and read weight by weight from the bytes, apart from the library's code. */
#include "check.h"

#include "codebooks.inl"

#include <math.h>
#include <string.h>

/* Sizes of a block, and the offsets of its f16 fields (-1: none). */
typedef struct layout {
    int32_t qtype;
    const char *name;
    int32_t block, bytes, d, m;
} layout;

static const layout LAYOUTS[] = {
    {EL_F32, "F32", 1, 4, -1, -1},           {EL_F16, "F16", 1, 2, -1, -1},
    {EL_BF16, "BF16", 1, 2, -1, -1},         {EL_Q8_0, "Q8_0", 32, 34, 0, -1},
    {EL_Q4_0, "Q4_0", 32, 18, 0, -1},        {EL_Q4_1, "Q4_1", 32, 20, 0, 2},
    {EL_Q5_0, "Q5_0", 32, 22, 0, -1},        {EL_Q5_1, "Q5_1", 32, 24, 0, 2},
    {EL_Q2_K, "Q2_K", 256, 84, 80, 82},      {EL_Q3_K, "Q3_K", 256, 110, 108, -1},
    {EL_Q4_K, "Q4_K", 256, 144, 0, 2},       {EL_Q5_K, "Q5_K", 256, 176, 0, 2},
    {EL_Q6_K, "Q6_K", 256, 210, 208, -1},    {EL_TQ1_0, "TQ1_0", 256, 54, 52, -1},
    {EL_TQ2_0, "TQ2_0", 256, 66, 64, -1},    {EL_NVFP4, "NVFP4", 64, 36, -1, -1},
    {EL_IQ4_NL, "IQ4_NL", 32, 18, 0, -1},    {EL_MXFP4, "MXFP4", 32, 17, -1, -1},
    {EL_IQ4_XS, "IQ4_XS", 256, 136, 0, -1},  {EL_IQ1_S, "IQ1_S", 256, 50, 0, -1},
    {EL_IQ1_M, "IQ1_M", 256, 56, -1, -1},    {EL_IQ2_XXS, "IQ2_XXS", 256, 66, 0, -1},
    {EL_IQ2_XS, "IQ2_XS", 256, 74, 0, -1},   {EL_IQ2_S, "IQ2_S", 256, 82, 0, -1},
    {EL_IQ3_XXS, "IQ3_XXS", 256, 98, 0, -1}, {EL_IQ3_S, "IQ3_S", 256, 110, 0, -1},
};

static const layout *layout_of(int32_t qtype) {
    for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++) {
        if (LAYOUTS[i].qtype == qtype) return &LAYOUTS[i];
    }
    return NULL;
}

const char *qtype_name(int32_t qtype) { return layout_of(qtype)->name; }
int32_t qtype_block(int32_t qtype) { return layout_of(qtype)->block; }
int32_t qtype_has_minima(int32_t qtype) { return layout_of(qtype)->m >= 0; }
size_t qtype_row_bytes(int32_t qtype, int32_t k) {
    const layout *t = layout_of(qtype);
    return (size_t)(k / t->block) * (size_t)t->bytes;
}

/* ---- making ------------------------------------------------------------------------------------------------------- */

static uint16_t random_half(check *c, pattern p) {
    uint16_t sign = (uint16_t)(random_bits(c) & 0x8000u);
    switch (p) {
    case P_ZERO: return sign;
    case P_MAX: return 0x7bff; /* 65504 */
    case P_MIN: return 0xfbff;
    case P_DENORMAL: return (uint16_t)(sign | (random_bits(c) & 0x3ffu));
    case P_WILD: return (uint16_t)(sign | random_below(c, 0x7c00));
    default: return (uint16_t)(sign | (0x1400 + random_below(c, 0x2000))); /* 2^-10 .. 2^-2 */
    }
}

static uint8_t quant_byte(check *c, pattern p, int32_t qtype, int32_t i) {
    int32_t is_int8 = qtype == EL_Q8_0;
    switch (p) {
    case P_ZERO: return 0;
    case P_MAX: return is_int8 ? 0x7f : 0xff;
    case P_MIN: return is_int8 ? 0x80 : 0x00;
    case P_ALTERNATE: return is_int8 ? (i & 1 ? 0x80 : 0x7f) : (i & 1 ? 0xf0 : 0x0f);
    default: return (uint8_t)random_bits(c);
    }
}

/* The scale of MXFP4: 2^(e - 128). */
static uint8_t random_exponent(check *c, pattern p) {
    switch (p) {
    case P_ZERO: return 0;
    case P_MAX: return 251; /* the last whose weights are finite */
    case P_MIN: return 1;
    case P_DENORMAL: return (uint8_t)random_below(c, 4);
    case P_WILD: return (uint8_t)random_below(c, 252);
    default: return (uint8_t)(116 + random_below(c, 12));
    }
}

/* The scale of IQ1_M: a nibble in the top of each of four words. */
static void set_iq1_m_scale(uint8_t *block, uint32_t d) {
    for (int32_t i = 0; i < 4; i++) {
        uint8_t *top = block + 49 + 2 * i;
        *top = (uint8_t)((*top & 15) | (d >> (4 * i) & 15) << 4);
    }
}

void fill_row(check *c, pattern p, int32_t qtype, int32_t k, uint8_t *row) {
    const layout *t = layout_of(qtype);
    if (qtype == EL_F32 || qtype == EL_BF16) { /* BF16: the upper half */
        for (int32_t i = 0; i < k; i++) {
            float x;
            fill_floats(c, p, &x, 1);
            if (p == P_ALTERNATE && i & 1) x = -x;
            memcpy(row + (size_t)t->bytes * (size_t)i, (const char *)&x + 4 - t->bytes, (size_t)t->bytes);
        }
        return;
    }
    for (int32_t b = 0; b < k / t->block; b++) {
        uint8_t *block = row + (size_t)b * (size_t)t->bytes;
        uint16_t d = random_half(c, p), m = random_half(c, p);
        if (t->block == 1) {
            memcpy(block, &d, 2);
            continue;
        }
        for (int32_t i = 0; i < t->bytes; i++) block[i] = quant_byte(c, p, qtype, i);
        if (qtype == EL_Q6_K &&
            (p == P_MAX || p == P_MIN || p == P_ALTERNATE)) { /* signed scales at their ends */
            for (int32_t i = 192; i < 208; i++)
                block[i] = p == P_MAX || (p == P_ALTERNATE && i & 1) ? 0x7f : 0x80;
        }
        if (t->d >= 0) memcpy(block + t->d, &d, 2);
        if (t->m >= 0) memcpy(block + t->m, &m, 2);
        if (qtype == EL_MXFP4) block[0] = random_exponent(c, p);
        if (qtype == EL_IQ1_M) set_iq1_m_scale(block, d);
    }
}

void set_scales(int32_t qtype, int32_t k, uint8_t *row, uint16_t d, uint16_t m) {
    const layout *t = layout_of(qtype);
    for (int32_t b = 0; b < k / t->block; b++) {
        uint8_t *block = row + (size_t)b * (size_t)t->bytes;
        if (t->d >= 0) memcpy(block + t->d, &d, 2);
        if (t->m >= 0) memcpy(block + t->m, &m, 2);
        if (qtype == EL_MXFP4) block[0] = d ? 128 : 0; /* 2^0, or next to nothing */
        if (qtype == EL_IQ1_M) set_iq1_m_scale(block, d);
        if (qtype == EL_NVFP4) memset(block, d ? 0x40 : 0, 4); /* half of 2, or 0 */
    }
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

static double half(const uint8_t *p) {
    int32_t h = p[0] | p[1] << 8, exponent = (h >> 10) & 31, mantissa = h & 1023;
    double x = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h & 0x8000 ? -x : x;
}

static double brain_half(const uint8_t *p) {
    uint32_t u = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static double single(const uint8_t *p) {
    float x;
    memcpy(&x, p, 4);
    return x;
}

static int32_t bit(const uint8_t *p, int32_t i) { return (p[i / 8] >> (i % 8)) & 1; }

/* Weight i (0..31) of a nibble array: first 16 in the low halves. */
static int32_t nibble(const uint8_t *p, int32_t i) { return i < 16 ? p[i] & 15 : p[i - 16] >> 4; }

/* 6-bit fields of Q4_K and Q5_K: scale j is field j, minimum j is field j + 8, of 12 bytes in which bytes 8..11 hold the low
 * nibbles of scales and minima 4..7 and the top pairs of bits of bytes 0..7 their high ones. */
static int32_t scale_of_32(const uint8_t *s, int32_t j) {
    return j < 4 ? s[j] & 63 : (s[j + 4] & 15) + 16 * (s[j - 4] >> 6);
}
static int32_t minimum_of_32(const uint8_t *s, int32_t j) {
    return j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) + 16 * (s[j] >> 6);
}

/* Nibbles as floats of 4 bits, doubled: 0, 1/2, 1, 3/2, 2, 3, 4, 6 and their negatives. */
static int32_t e2m1_doubled(int32_t nibble) {
    int32_t exponent = (nibble >> 1) & 3, mantissa = nibble & 1;
    int32_t v = exponent ? (2 + mantissa) << (exponent - 1) : mantissa;
    return nibble & 8 ? -v : v;
}

/* The 16 values of IQ4_NL and IQ4_XS. */
static const int32_t IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static parts parts_of_32(int32_t qtype, const uint8_t *p, int32_t i) {
    switch (qtype) {
    case EL_Q8_0: return (parts){half(p), 0, 1, (int8_t)p[2 + i], 0};
    case EL_Q4_0: return (parts){half(p), 0, 1, nibble(p + 2, i) - 8, 0};
    case EL_IQ4_NL: return (parts){half(p), 0, 1, IQ4[nibble(p + 2, i)], 0};
    case EL_MXFP4: return (parts){ldexp(1, p[0] - 128), 0, 1, e2m1_doubled(nibble(p + 1, i)), 0};
    case EL_Q4_1: return (parts){half(p), -half(p + 2), 1, nibble(p + 4, i), 1};
    case EL_Q5_0: return (parts){half(p), 0, 1, nibble(p + 6, i) + 16 * bit(p + 2, i) - 16, 0};
    default: return (parts){half(p), -half(p + 2), 1, nibble(p + 8, i) + 16 * bit(p + 4, i), 1}; /* Q5_1 */
    }
}

/* Digit n of a byte that is a fraction of 256 in base 3. */
static int32_t trit(int32_t byte, int32_t n) {
    static const int32_t powers[] = {1, 3, 9, 27, 81};
    return (byte * powers[n] % 256) * 3 / 256;
}

/* A scale of NVFP4: an unsigned float of 4 + 3 bits, halved since the values are doubled. */
static double e4m3_halved(int32_t e) {
    int32_t exponent = (e >> 3) & 15, mantissa = e & 7;
    if (e == 0x7f) return 0;
    return (exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9)) / 2;
}

static parts parts_of_64(const uint8_t *p, int32_t i) { /* NVFP4 */
    int32_t byte = p[4 + 8 * (i / 16) + i % 8];
    return (parts){e4m3_halved(p[i / 16]), 0, 1, e2m1_doubled(i / 8 % 2 ? byte >> 4 : byte & 15), 0};
}

/* ---- code books: the number of a weight from an entry's nibbles, then its value ---- */

static int32_t two_bits(uint32_t entry, int32_t i) {
    return (int32_t)(entry >> (4 * (i % 4) + 2 * (i / 4)) & 3);
}
static int32_t three_bits(uint32_t entry, int32_t i) { return (int32_t)(entry >> (4 * i) & 7); }

/* Sign i (0..7) of seven, the eighth makes the number of negative ones even: -1 or 1. */
static int32_t even_sign(uint32_t seven, int32_t i) {
    int32_t n = 0;
    for (int32_t j = 0; j < 7; j++) n += seven >> j & 1;
    return (i < 7 ? (int32_t)(seven >> i & 1) : n & 1) ? -1 : 1;
}

static uint32_t word(const uint8_t *p, int32_t bytes) {
    uint32_t v = 0;
    for (int32_t i = 0; i < bytes; i++) v |= (uint32_t)p[i] << (8 * i);
    return v;
}

static int32_t iq2_value(uint32_t entry, int32_t i) {
    static const int32_t values[] = {8, 25, 43};
    return values[two_bits(entry, i)];
}

/* e: entry of 8 weights, i: weight of it. */
static parts parts_of_iq12(int32_t qtype, const uint8_t *p, int32_t e, int32_t i) {
    switch (qtype) {
    case EL_IQ1_S: {
        uint32_t h = word(p + 34 + 2 * (e / 4), 2);
        int32_t u = two_bits(IQ1_S_BOOK[p[2 + e] + 256 * (h >> (3 * (e % 4)) & 7)], i) - 1;
        return (parts){half(p) / 8, 0, 2 * (int32_t)(h >> 12 & 7) + 1, 8 * u + (h >> 15 ? -1 : 1), 0};
    }
    case EL_IQ1_M: {
        int32_t h = p[32 + e / 2] >> (4 * (e % 2)), g = e / 2;
        int32_t u = two_bits(IQ1_S_BOOK[p[e] + 256 * (h & 7)], i) - 1;
        uint8_t d[2] = {(uint8_t)(p[49] >> 4 | (p[51] & 0xf0)), (uint8_t)(p[53] >> 4 | (p[55] & 0xf0))};
        int32_t s = (int32_t)(word(p + 48 + 2 * (g / 4), 2) >> (3 * (g % 4)) & 7);
        return (parts){half(d) / 8, 0, 2 * s + 1, 8 * u + (h & 8 ? -1 : 1), 0};
    }
    case EL_IQ2_XXS: {
        const uint8_t *q = p + 2 + 8 * (e / 4);
        uint32_t rest = word(q + 4, 4);
        int32_t u = iq2_value(IQ2_XXS_BOOK[q[e % 4]], i) * even_sign(rest >> (7 * (e % 4)) & 127, i);
        return (parts){half(p) / 8, 0, 2 * (int32_t)(rest >> 28) + 1, u, 0};
    }
    case EL_IQ2_XS: {
        uint32_t q = word(p + 2 + 2 * e, 2);
        int32_t s = p[66 + e / 4] >> (4 * (e / 2 % 2)) & 15;
        return (parts){half(p) / 8, 0, 2 * s + 1, iq2_value(IQ2_XS_BOOK[q & 511], i) * even_sign(q >> 9, i),
                       0};
    }
    default: { /* IQ2_S */
        int32_t index = p[2 + e] + 256 * (p[66 + e / 4] >> (2 * (e % 4)) & 3);
        int32_t u = iq2_value(IQ2_S_BOOK[index], i), s = p[74 + e / 4] >> (4 * (e / 2 % 2)) & 15;
        return (parts){half(p) / 8, 0, 2 * s + 1, bit(p + 34 + e, i) ? -u : u, 0};
    }
    }
}

/* e: entry of 4 weights, i: weight of it. */
static parts parts_of_iq3(int32_t qtype, const uint8_t *p, int32_t e, int32_t i) {
    if (qtype == EL_IQ3_XXS) {
        static const int32_t values[] = {4, 12, 20, 28, 36, 44, 52, 62};
        uint32_t rest = word(p + 66 + 4 * (e / 8), 4);
        int32_t u = values[three_bits(IQ3_XXS_BOOK[p[2 + e]], i)];
        u *= even_sign(rest >> (7 * (e / 2 % 4)) & 127, 4 * (e % 2) + i);
        return (parts){half(p) / 4, 0, 2 * (int32_t)(rest >> 28) + 1, u, 0};
    }
    int32_t u = 2 * three_bits(IQ3_S_BOOK[p[2 + e] + 256 * bit(p + 66, e)], i) + 1;
    int32_t s = p[106 + e / 16] >> (4 * (e / 8 % 2)) & 15;
    return (parts){half(p), 0, 2 * s + 1, bit(p + 74, 4 * e + i) ? -u : u, 0};
}

static parts parts_of_256(int32_t qtype, const uint8_t *p, int32_t i) {
    int32_t half128 = i / 128, quarter = i / 32 % 4, l = i % 32; /* of Q2_K, Q3_K, Q6_K */
    int32_t j = i / 32;
    switch (qtype) {
    case EL_Q2_K: {
        int32_t u = (p[16 + 32 * half128 + l] >> (2 * quarter)) & 3;
        return (parts){half(p + 80), half(p + 82), p[i / 16] & 15, u, p[i / 16] >> 4};
    }
    case EL_Q3_K: {
        int32_t u = (p[32 + 32 * half128 + l] >> (2 * quarter)) & 3, g = i / 16;
        int32_t low = g < 8 ? p[96 + g] & 15 : p[96 + g - 8] >> 4,
                high = (p[104 + g % 4] >> (2 * (g / 4))) & 3;
        return (parts){half(p + 108), 0, low + 16 * high - 32, (p[l] >> j) & 1 ? u : u - 4, 0};
    }
    case EL_TQ1_0: {
        int32_t byte = i < 160 ? p[i % 32] : i < 240 ? p[32 + i % 16] : p[48 + i % 4];
        return (parts){half(p + 52), 0, 1,
                       trit(byte, i < 160   ? i / 32
                                  : i < 240 ? (i - 160) / 16
                                            : (i - 240) / 4) -
                           1,
                       0};
    }
    case EL_TQ2_0: return (parts){half(p + 64), 0, 1, ((p[32 * half128 + l] >> (2 * quarter)) & 3) - 1, 0};
    case EL_IQ4_XS: {
        int32_t low = (p[4 + j / 2] >> (4 * (j % 2))) & 15, high = (p[2 + j / 4] >> (2 * (j % 4))) & 3;
        return (parts){half(p), 0, low + 16 * high - 32, IQ4[nibble(p + 8 + 16 * j, l)], 0};
    }
    case EL_Q4_K: {
        int32_t byte = p[16 + 32 * (i / 64) + l], u = j & 1 ? byte >> 4 : byte & 15;
        return (parts){half(p), half(p + 2), scale_of_32(p + 4, j), u, minimum_of_32(p + 4, j)};
    }
    case EL_Q5_K: {
        int32_t byte = p[48 + 32 * (i / 64) + l],
                u = (j & 1 ? byte >> 4 : byte & 15) + 16 * ((p[16 + l] >> j) & 1);
        return (parts){half(p), half(p + 2), scale_of_32(p + 4, j), u, minimum_of_32(p + 4, j)};
    }
    default: { /* Q6_K */
        int32_t byte = p[64 * half128 + 32 * (quarter & 1) + l], low = quarter < 2 ? byte & 15 : byte >> 4;
        int32_t high = (p[128 + 32 * half128 + l] >> (2 * quarter)) & 3;
        return (parts){half(p + 208), 0, (int8_t)p[192 + i / 16], low + 16 * high - 32, 0};
    }
    }
}

parts row_parts(int32_t qtype, const uint8_t *row, int32_t i) {
    const layout *t = layout_of(qtype);
    const uint8_t *block = row + (size_t)(i / t->block) * (size_t)t->bytes;
    if (qtype == EL_F32) return (parts){single(block), 0, 1, 1, 0};
    if (qtype == EL_F16) return (parts){half(block), 0, 1, 1, 0};
    if (qtype == EL_BF16) return (parts){brain_half(block), 0, 1, 1, 0};
    if (qtype == EL_NVFP4) return parts_of_64(block, i % 64);
    switch (qtype) {
    case EL_IQ1_S:
    case EL_IQ1_M:
    case EL_IQ2_XXS:
    case EL_IQ2_XS:
    case EL_IQ2_S: return parts_of_iq12(qtype, block, i % 256 / 8, i % 8);
    case EL_IQ3_XXS:
    case EL_IQ3_S: return parts_of_iq3(qtype, block, i % 256 / 4, i % 4);
    }
    return t->block == 32 ? parts_of_32(qtype, block, i % 32) : parts_of_256(qtype, block, i % 256);
}
