/* NEON packing of the commonest types into panels. Formats: kernels.h and qblocks.h; the others take the baseline's.
 *
 * A transpose of dwords over the rows gives lines of one step (4 k), 4 rows a register. Where the panel's byte holds other
 * weights than the file's, bits are exchanged between lines. */
#include "neon_matmul.h"
#include "pack_rows.h"

/* Rows 4 quad .. 4 quad + 3, 16 bytes each at `offset`: t[i] = dword i of each. */
EL_INLINE void transpose_4(const el_pack_rows *r, const int quad, size_t offset, uint8x16_t t[4]) {
    uint32x4_t v[4];
    EL_UNROLL
    for (int i = 0; i < 4; i++) v[i] = vreinterpretq_u32_u8(vld1q_u8(r->p[4 * quad + i] + offset));
    EL_UNROLL
    for (int i = 0; i < 2; i++) {
        const uint64x2_t a = vreinterpretq_u64_u32(i ? vtrn2q_u32(v[0], v[1]) : vtrn1q_u32(v[0], v[1]));
        const uint64x2_t b = vreinterpretq_u64_u32(i ? vtrn2q_u32(v[2], v[3]) : vtrn1q_u32(v[2], v[3]));
        t[i] = vreinterpretq_u8_u64(vtrn1q_u64(a, b));
        t[i + 2] = vreinterpretq_u8_u64(vtrn2q_u64(a, b));
    }
}

/* The same of all 16 rows, as 4 lines of 64 bytes. */
EL_INLINE void transpose_store(const el_pack_rows *r, size_t offset, uint8_t *to) {
    EL_UNROLL
    for (int quad = 0; quad < 4; quad++) {
        uint8x16_t t[4];
        transpose_4(r, quad, offset, t);
        EL_UNROLL
        for (int i = 0; i < 4; i++) vst1q_u8(to + 64 * i + 16 * quad, t[i]);
    }
}

/* The dword at `offset` of all rows, 4 a register. */
EL_INLINE void gather(const el_pack_rows *r, size_t offset, uint32x4_t dwords[4]) {
    EL_UNROLL
    for (int quad = 0; quad < 4; quad++) {
        uint32_t v[4];
        EL_UNROLL
        for (int i = 0; i < 4; i++) memcpy(&v[i], r->p[4 * quad + i] + offset, 4);
        dwords[quad] = vld1q_u32(v);
    }
}

/* The low (or high) words of 16 dwords, in row order. */
EL_INLINE void store_words(const uint32x4_t dwords[4], const int high, uint8_t *to) {
    EL_UNROLL
    for (int i = 0; i < 2; i++) {
        const uint16x8_t a = vreinterpretq_u16_u32(dwords[2 * i]),
                         b = vreinterpretq_u16_u32(dwords[2 * i + 1]);
        vst1q_u8(to + 16 * i, vreinterpretq_u8_u16(high ? vuzp2q_u16(a, b) : vuzp1q_u16(a, b)));
    }
}

/* 4 bytes per row: byte i of all rows to to[16 i ..]. */
EL_INLINE void store_bytes_by_row(const uint8x16_t quads[4], uint8_t *to) {
    uint8_t by_row[64];
    EL_UNROLL
    for (int quad = 0; quad < 4; quad++) vst1q_u8(by_row + 16 * quad, quads[quad]);
    const uint8x16x4_t bytes = vld4q_u8(by_row);
    EL_UNROLL
    for (int i = 0; i < 4; i++) vst1q_u8(to + 16 * i, bytes.val[i]);
}

/* ---- 32-block types ----------------------------------------------------------------------------------------------
 * File blocks: f16 d (MXFP4: u8 e); f16 m where there are minima; u32 of fifth bits in Q5_0 and Q5_1; i8 q[32] in Q8_0,
 * u8 qs[16] in the others. Byte j of qs holds weights j (low nibble) and j + 16: dword t of qs is what line t wants. */

/* Exchange, in every dword, the bits under `mask` with those `shift` above them. */
EL_INLINE uint32x4_t swap_bits(uint32x4_t v, const int shift, const uint32_t mask) {
    const uint32x4_t right = vshlq_u32(v, vdupq_n_s32(-shift));
    const uint32x4_t differ = vandq_u32(veorq_u32(right, v), vdupq_n_u32(mask));
    return veorq_u32(v, veorq_u32(differ, vshlq_u32(differ, vdupq_n_s32(shift))));
}

/* Bit 4s + i of each dword to bit 8i + s. As bit numbers s2 s1 s0 i1 i0 -> i1 i0 s2 s1 s0: four exchanges. */
EL_INLINE uint32x4_t spread_bits(uint32x4_t v) {
    v = swap_bits(v, 15, 0x0000aaaa);
    v = swap_bits(v, 14, 0x0000cccc);
    v = swap_bits(v, 6, 0x00cc00cc);
    return swap_bits(v, 3, 0x0a0a0a0a);
}

static void pack_q8_0(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 34);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 32 * 512;
    for (int32_t b = 0; b < k / 32; b++, quants += 512, extras += 32, el_pack_next(&r)) {
        uint32x4_t d[4];
        transpose_store(&r, 2, quants);
        transpose_store(&r, 18, quants + 256);
        gather(&r, 0, d);
        store_words(d, 0, extras);
    }
    el_pack_end(panel, (size_t)k / 32 * 544);
}

EL_INLINE void pack_nibbles(const int has_min, const int has_fifth, const void *rows, size_t row_stride,
                            int32_t n_rows, int32_t k, void *panel) {
    const size_t scales = has_min ? 4 : 2, fifth = has_fifth ? 4 : 0;
    const int32_t n_blocks = k / 32, to_quants = has_fifth ? 320 : 256, to_extras = has_min ? 64 : 32;
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, scales + fifth + 16);
    uint8_t *quants = panel, *extras = quants + (size_t)n_blocks * (size_t)to_quants;
    for (int32_t b = 0; b < n_blocks; b++, quants += to_quants, extras += to_extras, el_pack_next(&r)) {
        uint32x4_t d[4];
        transpose_store(&r, scales + fifth, quants);
        if (fifth) {
            uint32x4_t bits[4];
            gather(&r, scales, bits);
            EL_UNROLL
            for (int i = 0; i < 4; i++)
                vst1q_u8(quants + 256 + 16 * i, vreinterpretq_u8_u32(spread_bits(bits[i])));
        }
        gather(&r, 0, d);
        store_words(d, 0, extras);
        if (has_min) store_words(d, 1, extras + 32);
    }
    el_pack_end(panel, (size_t)n_blocks * (size_t)(to_quants + to_extras));
}

#define PACK_NIBBLES(name, has_min, has_fifth)                                                             \
    static void pack_##name(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) { \
        pack_nibbles(has_min, has_fifth, rows, row_stride, n_rows, k, panel);                              \
    }

PACK_NIBBLES(q4_0, 0, 0)
PACK_NIBBLES(q4_1, 1, 0)
PACK_NIBBLES(q5_0, 0, 1)
PACK_NIBBLES(q5_1, 1, 1)

static void pack_mxfp4(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 17);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 32 * 256;
    for (int32_t b = 0; b < k / 32; b++, quants += 256, extras += 16, el_pack_next(&r)) {
        transpose_store(&r, 1, quants);
        for (int i = 0; i < EL_TILE_ROWS; i++) extras[i] = *r.p[i];
    }
    el_pack_end(panel, (size_t)k / 32 * 272);
}

/* ---- k-quants --------------------------------------------------------------------------------------------------- */

/* Extras of Q4_K and Q5_K, which begin with f16 d, f16 dmin and 12 bytes of 6-bit scales and minima. */
EL_INLINE void store_k4_extras(const el_pack_rows *r, uint8_t *extras) {
    const uint8x16_t low6 = vdupq_n_u8(0x3f), top2 = vdupq_n_u8(0x30);
    uint32x4_t d[4], mn[2][4];
    uint8x16_t sc[2][4]; /* [4 32-blocks][4 rows] */
    EL_UNROLL
    for (int quad = 0; quad < 4; quad++) {
        uint8x16_t t[4];
        transpose_4(r, quad, 0, t);
        d[quad] = vreinterpretq_u32_u8(t[0]);
        sc[0][quad] = vandq_u8(t[1], low6);
        mn[0][quad] = vreinterpretq_u32_u8(vandq_u8(t[2], low6));
        sc[1][quad] = vorrq_u8(el_low_nibbles(t[3]), vandq_u8(vshrq_n_u8(t[1], 2), top2));
        mn[1][quad] =
            vreinterpretq_u32_u8(vorrq_u8(vshrq_n_u8(t[3], 4), vandq_u8(vshrq_n_u8(t[2], 2), top2)));
    }
    EL_UNROLL
    for (int i = 0; i < 2; i++) {
        store_bytes_by_row(sc[i], extras + 64 * i);
        store_words(mn[i], 0, extras + 128 + 64 * i);
        store_words(mn[i], 1, extras + 160 + 64 * i);
    }
    store_words(d, 0, extras + 256);
    store_words(d, 1, extras + 288);
}

/* Q4_K in the file: those 16 bytes, u8 qs[128]. Byte i of the c-th 32 bytes of qs holds weights 64c + i (low nibble) and
 * 64c + 32 + i: its dword t is what line t of chunk c wants. */
static void pack_q4_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 144);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 256 * 2048;
    for (int32_t b = 0; b < k / 256; b++, quants += 2048, extras += 320, el_pack_next(&r)) {
        for (int i = 0; i < 8; i++) transpose_store(&r, 16 + 16 * (size_t)i, quants + 256 * i);
        store_k4_extras(&r, extras);
    }
    el_pack_end(panel, (size_t)k / 256 * 2368);
}

/* Exchange bit `d` of the number of a line with that of a bit: the bits under `mask` of line i + d with those d above in
 * line i. */
EL_INLINE void exchange_bits(uint8x16_t line[8], const int d, const uint8_t mask) {
    EL_UNROLL
    for (int i = 0; i < 8; i++) {
        if (i & d) continue;
        const uint8x16_t right = vshlq_u8(line[i], vdupq_n_s8((int8_t)-d));
        const uint8x16_t differ = vandq_u8(veorq_u8(right, line[i + d]), vdupq_n_u8(mask));
        line[i + d] = veorq_u8(line[i + d], differ);
        line[i] = veorq_u8(line[i], vshlq_u8(differ, vdupq_n_s8((int8_t)d)));
    }
}

/* Q5_K in the file: the 16 bytes, u8 qh[32], then as Q4_K. Weight l of 32-block j has its fifth bit in bit j of qh[l]. */
static void pack_q5_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 176);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 256 * 2560;
    for (int32_t b = 0; b < k / 256; b++, quants += 2560, extras += 320, el_pack_next(&r)) {
        for (int i = 0; i < 8; i++)
            transpose_store(&r, 48 + 16 * (size_t)i, quants + 640 * (i / 2) + 256 * (i % 2));
        for (int quad = 0; quad < 4; quad++) {
            uint8x16_t line[8]; /* of steps, then of 32-blocks */
            transpose_4(&r, quad, 16, line);
            transpose_4(&r, quad, 32, line + 4);
            exchange_bits(line, 4, 0x0f);
            exchange_bits(line, 2, 0x33);
            exchange_bits(line, 1, 0x55);
            EL_UNROLL
            for (int j = 0; j < 8; j++)
                vst1q_u8(quants + 640 * (j / 2) + 512 + 64 * (j % 2) + 16 * quad, line[j]);
        }
        store_k4_extras(&r, extras);
    }
    el_pack_end(panel, (size_t)k / 256 * 2880);
}

/* Lines of 4 steps whose bytes hold a crumb of each of four 32-blocks: to those of 32-blocks, with a crumb of each step. */
EL_INLINE void exchange_crumbs(uint8x16_t t[4]) {
    const uint8x16_t low2 = vdupq_n_u8(0x33);
    const uint8x16_t v[4] = {vsliq_n_u8(t[0], t[2], 4), vsliq_n_u8(t[1], t[3], 4), vsriq_n_u8(t[2], t[0], 4),
                             vsriq_n_u8(t[3], t[1], 4)};
    EL_UNROLL
    for (int i = 0; i < 4; i += 2) {
        t[i] = vbslq_u8(low2, v[i], vshlq_n_u8(v[i + 1], 2));
        t[i + 1] = vbslq_u8(low2, vshrq_n_u8(v[i], 2), v[i + 1]);
    }
}

/* Q6_K in the file: u8 ql[128], u8 qh[64], i8 scales[16], f16 d. Of the 128 weights 128g .. : weight l (0..31) of
 * 32-block 4g + i has its low bits in ql[64g + 32 (i % 2) + l] (low nibble for i < 2), its top bits in
 * qh[32g + l] at bits 2i. */
static void pack_q6_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 210);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 256 * 3072;
    for (int32_t b = 0; b < k / 256; b++, quants += 3072, extras += 288, el_pack_next(&r)) {
        uint8x16_t scales[4][4]; /* [dword][quad] */
        for (int quad = 0; quad < 4; quad++) {
            uint8x16_t t[4], u[4];
            for (int i = 0; i < 4; i++) { /* 32-blocks 4g + i % 2 and two behind it, g = i / 2 */
                transpose_4(&r, quad, 32 * (size_t)i, t);
                transpose_4(&r, quad, 32 * (size_t)i + 16, u);
                uint8_t *to = quants + 1024 * (i / 2) + 256 * (i % 2) + 16 * quad;
                EL_UNROLL
                for (int s = 0; s < 4; s++) { /* steps s and s + 4 share a line */
                    vst1q_u8(to + 64 * s, vsliq_n_u8(t[s], u[s], 4));
                    vst1q_u8(to + 512 + 64 * s, vsriq_n_u8(u[s], t[s], 4));
                }
            }
            for (int i = 0; i < 4; i++) { /* steps 4 (i % 2) .. of half i / 2 */
                transpose_4(&r, quad, 128 + 16 * (size_t)i, t);
                exchange_crumbs(t);
                EL_UNROLL
                for (int j = 0; j < 4; j++)
                    vst1q_u8(quants + 2048 + 512 * (i / 2) + 128 * j + 64 * (i % 2) + 16 * quad, t[j]);
            }
            transpose_4(&r, quad, 192, t);
            EL_UNROLL
            for (int i = 0; i < 4; i++) scales[i][quad] = t[i];
        }
        for (int i = 0; i < 4; i++) store_bytes_by_row(scales[i], extras + 64 * i);
        uint32x4_t d[4];
        gather(&r, 206, d);
        store_words(d, 1, extras + 256);
    }
    el_pack_end(panel, (size_t)k / 256 * 3360);
}

/* F16 and BF16: a transpose of words. */
static void pack_16_bits(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 16);
    uint8_t *to = panel;
    int32_t i = 0;
    for (; i + 8 <= k; i += 8, to += 256, el_pack_next(&r)) {
        uint8x16_t t[4][4]; /* [quad][two k] */
        EL_UNROLL
        for (int quad = 0; quad < 4; quad++) transpose_4(&r, quad, 0, t[quad]);
        EL_UNROLL
        for (int j = 0; j < 4; j++) {
            const uint32x4_t two[4] = {vreinterpretq_u32_u8(t[0][j]), vreinterpretq_u32_u8(t[1][j]),
                                       vreinterpretq_u32_u8(t[2][j]), vreinterpretq_u32_u8(t[3][j])};
            store_words(two, 0, to + 64 * j);
            store_words(two, 1, to + 64 * j + 32);
        }
    }
    for (int32_t j = 0; i < k; i++, j++, to += 32) {
        for (int row = 0; row < EL_TILE_ROWS; row++) memcpy(to + 2 * row, r.p[row] + 2 * j, 2);
    }
    el_pack_end(panel, (size_t)k * 32);
}

void el_neon_matmul_pack(el_kernels *table) {
    table->pack[EL_Q8_0] = pack_q8_0;
    table->pack[EL_Q4_0] = pack_q4_0;
    table->pack[EL_Q4_1] = pack_q4_1;
    table->pack[EL_Q5_0] = pack_q5_0;
    table->pack[EL_Q5_1] = pack_q5_1;
    table->pack[EL_IQ4_NL] = pack_q4_0; /* the same bytes */
    table->pack[EL_MXFP4] = pack_mxfp4;
    table->pack[EL_Q4_K] = pack_q4_k;
    table->pack[EL_Q5_K] = pack_q5_k;
    table->pack[EL_Q6_K] = pack_q6_k;
    table->pack[EL_F16] = pack_16_bits;
    table->pack[EL_BF16] = pack_16_bits;
}
