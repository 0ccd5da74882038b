/* The IQ types whose weights are entries of code books: pack and dequant. A panel has their numbers, not the entries' indices,
 * in the form of another type's: IQ1 and IQ2 two bits and a third as Q3_K, IQ3 nibbles as IQ4_XS. So reading a block of a
 * row gives its "share": its four bytes of each line of 64, its scales and d. pack spreads shares over a panel, dequant
 * looks their values up. */
#include "fp.h"
#include "qblocks.h"
#include "scalar.h"

#include "codebooks.inl"

#define INLINE static inline __attribute__((always_inline))

typedef struct share {
    uint32_t lines[32]; /* 24 of three bits, 3 for each 32-block; 32 of nibbles, 4 for each */
    uint8_t scales[16]; /* of 16 weights; with nibbles 8, of 32 */
    uint16_t d;
} share;

/* ---- bits ---------------------------------------------------------------------------------------------------------- */

/* Bit i of a byte moved to bit 8 (i % 4) + i / 4: what the signs of 8 weights are in a line of bits. */
#define SIGNS_1(n) n, (n) + 0x00000001
#define SIGNS_2(n) SIGNS_1(n), SIGNS_1((n) + 0x00000100)
#define SIGNS_3(n) SIGNS_2(n), SIGNS_2((n) + 0x00010000)
#define SIGNS_4(n) SIGNS_3(n), SIGNS_3((n) + 0x01000000)
#define SIGNS_5(n) SIGNS_4(n), SIGNS_4((n) + 0x00000002)
#define SIGNS_6(n) SIGNS_5(n), SIGNS_5((n) + 0x00000200)
#define SIGNS_7(n) SIGNS_6(n), SIGNS_6((n) + 0x00020000)
static const uint32_t SIGNS[256] = {SIGNS_7(0), SIGNS_7(0x02000000)};

/* The signs of 32 weights, a bit each, as a line of bits: bit s of byte j is that of weight 4 s + j. */
INLINE uint32_t line_of_signs(uint32_t bits) {
    return SIGNS[bits & 255] | SIGNS[bits >> 8 & 255] << 2 | SIGNS[bits >> 16 & 255] << 4 |
           SIGNS[bits >> 24] << 6;
}

/* Four bytes of 7 signs each get an eighth, so that the number of set bits is even. */
INLINE uint32_t even_signs(uint32_t sevens) {
    uint32_t parity = sevens ^ sevens >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return sevens | (parity & 0x01010101) << 7;
}

/* 28 bits as four bytes of 7. */
INLINE uint32_t sevens_of(uint32_t bits) {
    bits = (bits & 0x3fff) | (bits & 0xfffc000) << 2;
    return (bits & 0x007f007f) | (bits & 0x3f803f80) << 1;
}

/* The nibbles of two entries as bytes, b's on top of a's. */
INLINE uint32_t bytes_of(uint32_t a, uint32_t b) {
    uint64_t v = a | (uint64_t)b << 32;
    v = (v | v << 8) & 0x00ff00ff00ff00ffu;
    v = (v | v << 4) & 0x0f0f0f0f0f0f0f0fu;
    return (uint32_t)(v | v >> 28);
}

/* 32-block j of three bits: four entries and a line of third bits. */
INLINE void put_three_bits(share *s, int j, uint32_t e0, uint32_t e1, uint32_t e2, uint32_t e3,
                           uint32_t third) {
    s->lines[3 * j] = bytes_of(e0, e1);
    s->lines[3 * j + 1] = bytes_of(e2, e3);
    s->lines[3 * j + 2] = third;
}

/* Line t (0..3) of 32-block j of nibbles: two entries, and the line of signs of the whole 32-block. */
INLINE void put_nibbles(share *s, int j, int t, uint32_t e, uint32_t e4, uint32_t signs) {
    s->lines[4 * j + t] = bytes_of(e, e4) | (signs >> t << 3 & 0x88888888);
}

INLINE uint32_t load_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

/* 2 s + 1 of the low and the high nibble of a byte. */
INLINE void put_odd_scales(uint8_t *scales, uint8_t nibbles) {
    scales[0] = (uint8_t)(2 * (nibbles & 15) + 1);
    scales[1] = (uint8_t)(2 * (nibbles >> 4) + 1);
}

/* ---- a block's share, type by type --------------------------------------------------------------------------------- */

INLINE void share_iq2_xxs(const void *row, int32_t b, share *s) {
    el_block_iq2_xxs block;
    el_load_block(&block, row, b);
    s->d = block.d;
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = block.qs + 8 * j;
        uint32_t rest = load_u32(q + 4);
        put_three_bits(s, j, IQ2_XXS_BOOK[q[0]], IQ2_XXS_BOOK[q[1]], IQ2_XXS_BOOK[q[2]], IQ2_XXS_BOOK[q[3]],
                       line_of_signs(even_signs(sevens_of(rest & 0xfffffff))));
        s->scales[2 * j] = s->scales[2 * j + 1] = (uint8_t)(2 * (rest >> 28) + 1);
    }
}

INLINE void share_iq2_xs(const void *row, int32_t b, share *s) {
    el_block_iq2_xs block;
    el_load_block(&block, row, b);
    s->d = block.d;
    for (int j = 0; j < 8; j++) {
        const uint16_t *q = block.qs + 4 * j;
        uint32_t sevens =
            q[0] >> 9 | (uint32_t)q[1] >> 9 << 8 | (uint32_t)q[2] >> 9 << 16 | (uint32_t)q[3] >> 9 << 24;
        put_three_bits(s, j, IQ2_XS_BOOK[q[0] & 511], IQ2_XS_BOOK[q[1] & 511], IQ2_XS_BOOK[q[2] & 511],
                       IQ2_XS_BOOK[q[3] & 511], line_of_signs(even_signs(sevens)));
        put_odd_scales(s->scales + 2 * j, block.scales[j]);
    }
}

INLINE void share_iq2_s(const void *row, int32_t b, share *s) {
    el_block_iq2_s block;
    el_load_block(&block, row, b);
    s->d = block.d;
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = block.qs + 4 * j;
        unsigned high = block.qh[j];
        put_three_bits(s, j, IQ2_S_BOOK[q[0] | (high << 8 & 0x300)], IQ2_S_BOOK[q[1] | (high << 6 & 0x300)],
                       IQ2_S_BOOK[q[2] | (high << 4 & 0x300)], IQ2_S_BOOK[q[3] | (high << 2 & 0x300)],
                       line_of_signs(load_u32(block.signs + 4 * j)));
        put_odd_scales(s->scales + 2 * j, block.scales[j]);
    }
}

/* The third bit of IQ1 is set where an eighth is subtracted. */
INLINE void share_iq1_s(const void *row, int32_t b, share *s) {
    el_block_iq1_s block;
    el_load_block(&block, row, b);
    s->d = block.d;
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = block.qs + 4 * j;
        unsigned high = block.qh[j];
        put_three_bits(s, j, IQ1_S_BOOK[q[0] | (high << 8 & 0x700)], IQ1_S_BOOK[q[1] | (high << 5 & 0x700)],
                       IQ1_S_BOOK[q[2] | (high << 2 & 0x700)], IQ1_S_BOOK[q[3] | (high >> 1 & 0x700)],
                       high & 0x8000 ? 0xffffffff : 0);
        s->scales[2 * j] = s->scales[2 * j + 1] = (uint8_t)(2 * (high >> 12 & 7) + 1);
    }
}

INLINE void share_iq1_m(const void *row, int32_t b, share *s) {
    el_block_iq1_m block;
    el_load_block(&block, row, b);
    s->d = (uint16_t)(block.scales[0] >> 12 | (block.scales[1] >> 8 & 0xf0) | (block.scales[2] >> 4 & 0xf00) |
                      (block.scales[3] & 0xf000));
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = block.qs + 4 * j;
        uint32_t high = block.qh[2 * j] | (uint32_t)block.qh[2 * j + 1] << 8; /* nibbles: top bits, minus */
        uint32_t minus = (high >> 3 & 1) * 0x03030303 | (high >> 7 & 1) * 0x0c0c0c0c |
                         (high >> 11 & 1) * 0x30303030 | (high >> 15) * 0xc0c0c0c0;
        unsigned scales = block.scales[j / 2] >> (6 * (j % 2));
        put_three_bits(s, j, IQ1_S_BOOK[q[0] | (high << 8 & 0x700)], IQ1_S_BOOK[q[1] | (high << 4 & 0x700)],
                       IQ1_S_BOOK[q[2] | (high & 0x700)], IQ1_S_BOOK[q[3] | (high >> 4 & 0x700)], minus);
        s->scales[2 * j] = (uint8_t)(2 * (scales & 7) + 1);
        s->scales[2 * j + 1] = (uint8_t)(2 * (scales >> 3 & 7) + 1);
    }
}

INLINE void share_iq3_xxs(const void *row, int32_t b, share *s) {
    el_block_iq3_xxs block;
    el_load_block(&block, row, b);
    s->d = block.d;
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = block.qs + 8 * j;
        uint32_t rest = load_u32(block.rest + 4 * j);
        uint32_t signs = line_of_signs(even_signs(sevens_of(rest & 0xfffffff)));
        for (int t = 0; t < 4; t++) put_nibbles(s, j, t, IQ3_XXS_BOOK[q[t]], IQ3_XXS_BOOK[q[t + 4]], signs);
        s->scales[j] = (uint8_t)(2 * (rest >> 28) + 1);
    }
}

INLINE void share_iq3_s(const void *row, int32_t b, share *s) {
    el_block_iq3_s block;
    el_load_block(&block, row, b);
    s->d = block.d;
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = block.qs + 8 * j;
        unsigned high = block.qh[j];
        uint32_t signs = line_of_signs(load_u32(block.signs + 4 * j));
        for (int t = 0; t < 4; t++)
            put_nibbles(s, j, t, IQ3_S_BOOK[q[t] | (high << (8 - t) & 256)],
                        IQ3_S_BOOK[q[t + 4] | (high << (4 - t) & 256)], signs);
        if (j % 2) put_odd_scales(s->scales + j - 1, block.scales[j / 2]);
    }
}

/* ---- from shares --------------------------------------------------------------------------------------------------- */

typedef void share_fn(const void *row, int32_t b, share *s);

INLINE void pack(share_fn *read, int32_t qtype, const void *rows, size_t row_stride, int32_t n_rows,
                 int32_t k, void *panel) {
    const el_tile *t = el_tile_of(qtype);
    const int n_lines = t->quant_bytes / 64, n_scales = (t->extra_bytes - 32) / 16;
    uint8_t *quants = panel, *extras = quants + (size_t)(k / 256) * (size_t)t->quant_bytes;
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 256; b++, quants += t->quant_bytes, extras += t->extra_bytes) {
        for (int r = 0; r < n_rows; r++) {
            share s;
            read((const char *)rows + (size_t)r * row_stride, b, &s);
            for (int i = 0; i < n_lines; i++) memcpy(quants + 64 * i + 4 * r, &s.lines[i], 4);
            for (int i = 0; i < n_scales; i++) extras[16 * i + r] = s.scales[i];
            memcpy(extras + 16 * n_scales + 2 * r, &s.d, 2);
        }
    }
}

/* The number of weight l of 32-block j. */
static int number_of_three_bits(const share *s, int j, int l) {
    const uint32_t *line = s->lines + 3 * j;
    uint32_t low = line[l / 16] >> (8 * (l % 4) + 2 * (l / 4 % 4)), high = line[2] >> (8 * (l % 4) + l / 4);
    return (int)((low & 3) | (high & 1) << 2);
}
static int number_of_nibbles(const share *s, int j, int l) {
    return s->lines[4 * j + l / 4 % 4] >> (8 * (l % 4) + 4 * (l / 16)) & 15;
}

static void dequant(share_fn *read, int32_t qtype, const el_values *values, const void *row, int32_t k,
                    float *y) {
    const int is_nibbles = el_tile_of(qtype)->quant_bytes == 2048;
    for (int32_t b = 0; b < k / 256; b++, y += 256) {
        share s;
        read(row, b, &s);
        float d = el_f16_to_f32(s.d) * values->unit;
        for (int i = 0; i < 256; i++) {
            int number =
                is_nibbles ? number_of_nibbles(&s, i / 32, i % 32) : number_of_three_bits(&s, i / 32, i % 32);
            y[i] = (d * (float)s.scales[is_nibbles ? i / 32 : i / 16]) * (float)values->of[number];
        }
    }
}

#define CODEBOOK_TYPE(name, type, values)                                                                  \
    static void pack_##name(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) { \
        pack(share_##name, type, rows, row_stride, n_rows, k, panel);                                      \
    }                                                                                                      \
    static void dequant_##name(const void *row, int32_t k, float *y) {                                     \
        dequant(share_##name, type, &values, row, k, y);                                                   \
    }

CODEBOOK_TYPE(iq1_s, EL_IQ1_S, EL_IQ1_VALUES)
CODEBOOK_TYPE(iq1_m, EL_IQ1_M, EL_IQ1_VALUES)
CODEBOOK_TYPE(iq2_xxs, EL_IQ2_XXS, EL_IQ2_VALUES)
CODEBOOK_TYPE(iq2_xs, EL_IQ2_XS, EL_IQ2_VALUES)
CODEBOOK_TYPE(iq2_s, EL_IQ2_S, EL_IQ2_VALUES)
CODEBOOK_TYPE(iq3_xxs, EL_IQ3_XXS, EL_IQ3_XXS_VALUES)
CODEBOOK_TYPE(iq3_s, EL_IQ3_S, EL_IQ3_S_VALUES)

void el_codebook_kernels(el_kernels *table) {
    table->pack[EL_IQ1_S] = pack_iq1_s;
    table->pack[EL_IQ1_M] = pack_iq1_m;
    table->pack[EL_IQ2_XXS] = pack_iq2_xxs;
    table->pack[EL_IQ2_XS] = pack_iq2_xs;
    table->pack[EL_IQ2_S] = pack_iq2_s;
    table->pack[EL_IQ3_XXS] = pack_iq3_xxs;
    table->pack[EL_IQ3_S] = pack_iq3_s;
    table->dequant[EL_IQ1_S] = dequant_iq1_s;
    table->dequant[EL_IQ1_M] = dequant_iq1_m;
    table->dequant[EL_IQ2_XXS] = dequant_iq2_xxs;
    table->dequant[EL_IQ2_XS] = dequant_iq2_xs;
    table->dequant[EL_IQ2_S] = dequant_iq2_s;
    table->dequant[EL_IQ3_XXS] = dequant_iq3_xxs;
    table->dequant[EL_IQ3_S] = dequant_iq3_s;
}
