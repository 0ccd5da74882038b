/* AVX2 packing of the k-quants into panels. Formats: kernels.h and qblocks.h.
 *
 * In the file, weights 32 or 64 or 128 apart share a byte; dword t of 32 such bytes holds step t of each of them. A
 * transpose of dwords over the rows gives lines of one step; where the panel's byte holds other weights than the file's,
 * bits are exchanged between lines. */
#include "avx2_matmul.h"

/* 16 bytes per row at `offset`: byte i of all 16 rows to to[16 i ..]. */
EL_INLINE void store_16_bytes_by_row(const el_pack_rows *r, size_t offset, uint8_t *to) {
    __m256i t[2][4];
    el_transpose_8(r, 0, offset, t[0]);
    el_transpose_8(r, 8, offset, t[1]);
    EL_UNROLL
    for (int i = 0; i < 4; i++) el_store_bytes_by_row(t[0][i], t[1][i], to + 64 * i);
}

/* 32 bytes per row at `offset` that hold weight l (0..31) of 32-block i (0..3) in bits 2i of byte l: two lines of crumbs
 * for each 32-block, `stride` apart, half h. */
EL_INLINE void store_crumbs(const el_pack_rows *r, const int h, size_t offset, uint8_t *to, int32_t stride) {
    const __m256i low = _mm256_set1_epi8(0x0f), low2 = _mm256_set1_epi8(0x33);
    EL_UNROLL
    for (int u = 0; u < 2; u++) { /* 16-blocks: 4 steps x 4 crumbs (of four 32-blocks), transposed */
        __m256i t[4], v[4];
        el_transpose_8(r, 8 * h, offset + 16 * (size_t)u, t);
        EL_UNROLL
        for (int s = 0; s < 2; s++) { /* crumbs 0 1 of steps s, s + 2; crumbs 2 3 */
            v[s] = _mm256_or_si256(_mm256_and_si256(t[s], low),
                                   _mm256_slli_epi16(_mm256_and_si256(t[s + 2], low), 4));
            v[s + 2] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(t[s], 4), low),
                                       _mm256_andnot_si256(low, t[s + 2]));
        }
        EL_UNROLL
        for (int s = 0; s < 4; s += 2) { /* crumb s, then crumb s + 1, of all steps */
            const __m256i even = _mm256_or_si256(_mm256_and_si256(v[s], low2),
                                                 _mm256_slli_epi16(_mm256_and_si256(v[s + 1], low2), 2));
            const __m256i odd = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v[s], 2), low2),
                                                _mm256_andnot_si256(low2, v[s + 1]));
            el_store(to + stride * s + 64 * u + 32 * h, even);
            el_store(to + stride * (s + 1) + 64 * u + 32 * h, odd);
        }
    }
}

/* Exchange bit `d` of the number of a line with that of a bit: the bits under `mask` of line i + d with those d above in
 * line i. */
EL_INLINE void exchange_bits(__m256i line[8], const int d, const char mask) {
    EL_UNROLL
    for (int i = 0; i < 8; i++) {
        if (i & d) continue;
        const __m256i differ = _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi16(line[i], d), line[i + d]),
                                                _mm256_set1_epi8(mask));
        line[i + d] = _mm256_xor_si256(line[i + d], differ);
        line[i] = _mm256_xor_si256(line[i], _mm256_slli_epi16(differ, d));
    }
}

/* 32 bytes per row at `offset` that hold weight l (0..31) of 32-block j (0..7) in bit j of byte l: a line of bits for each
 * 32-block, half h. */
EL_INLINE void load_bits(const el_pack_rows *r, const int h, size_t offset, __m256i line[8]) {
    el_transpose_8(r, 8 * h, offset, line);
    el_transpose_8(r, 8 * h, offset + 16, line + 4);
    exchange_bits(line, 4, 0x0f);
    exchange_bits(line, 2, 0x33);
    exchange_bits(line, 1, 0x55);
}

/* Q2_K in the file: 16 bytes of scales and minima, u8 qs[64], f16 d, f16 dmin. */
static void pack_q2_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 84);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 256 * 1024;
    for (int32_t b = 0; b < k / 256; b++, quants += 1024, extras += 320, el_pack_next(&r)) {
        for (int h = 0; h < 2; h++) {
            store_crumbs(&r, h, 16, quants, 128);
            store_crumbs(&r, h, 48, quants + 512, 128);
        }
        store_16_bytes_by_row(&r, 0, extras);
        const __m256i low = el_gather_8(&r, 0, 80), high = el_gather_8(&r, 8, 80);
        el_store(extras + 256, el_low_words(low, high));
        el_store(extras + 288, el_high_words(low, high));
    }
}

/* Q3_K in the file: u8 hmask[32], u8 qs[64], 12 bytes of 6-bit scales with 32 added, f16 d. */
static void pack_q3_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const __m256i low4 = _mm256_set1_epi8(0x0f), top2 = _mm256_set1_epi8(0x30);
    const __m256i row = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i offset[2] = {
        /* 32 for the rows that there are */
        _mm256_and_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(n_rows), row), _mm256_set1_epi8(32)),
        _mm256_and_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(n_rows - 8), row), _mm256_set1_epi8(32))};
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 110);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 256 * 1536;
    for (int32_t b = 0; b < k / 256; b++, quants += 1536, extras += 288, el_pack_next(&r)) {
        __m256i sc[4][2]; /* [4 16-blocks][8 rows] */
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i bits[8];
            store_crumbs(&r, h, 32, quants, 192);
            store_crumbs(&r, h, 64, quants + 768, 192);
            load_bits(&r, h, 0, bits);
            EL_UNROLL
            for (int j = 0; j < 8; j++) el_store(quants + 192 * j + 128 + 32 * h, bits[j]);
            const __m256i a[2] = {el_gather_8(&r, 8 * h, 96), el_gather_8(&r, 8 * h, 100)};
            const __m256i top = el_gather_8(&r, 8 * h, 104);
            EL_UNROLL
            for (int i = 0; i < 4; i++) {
                const __m256i low = i < 2 ? a[i % 2] : _mm256_srli_epi16(a[i % 2], 4);
                const __m256i high =
                    i < 2 ? _mm256_slli_epi16(top, 4 - 2 * i) : _mm256_srli_epi16(top, 2 * i - 4);
                const __m256i both =
                    _mm256_or_si256(_mm256_and_si256(low, low4), _mm256_and_si256(high, top2));
                sc[i][h] = _mm256_sub_epi8(both, offset[h]);
            }
        }
        EL_UNROLL
        for (int i = 0; i < 4; i++) el_store_bytes_by_row(sc[i][0], sc[i][1], extras + 64 * i);
        el_store(extras + 256, el_high_words(el_gather_8(&r, 0, 106), el_gather_8(&r, 8, 106)));
    }
    el_pack_end(panel, (size_t)k / 256 * 1824);
}

/* Extras of Q4_K and Q5_K, which begin with f16 d, f16 dmin and 12 bytes of 6-bit scales and minima. */
EL_INLINE void store_k4_extras(const el_pack_rows *r, uint8_t *extras) {
    const __m256i low6 = _mm256_set1_epi8(0x3f), low4 = _mm256_set1_epi8(0x0f), top2 = _mm256_set1_epi8(0x30);
    __m256i d[2], sc[2][2], mn[2][2]; /* [4 32-blocks][8 rows] */
    EL_UNROLL
    for (int h = 0; h < 2; h++) {
        __m256i t[4];
        el_transpose_8(r, 8 * h, 0, t);
        d[h] = t[0];
        sc[0][h] = _mm256_and_si256(t[1], low6);
        mn[0][h] = _mm256_and_si256(t[2], low6);
        sc[1][h] =
            _mm256_or_si256(_mm256_and_si256(t[3], low4), _mm256_and_si256(_mm256_srli_epi32(t[1], 2), top2));
        mn[1][h] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(t[3], 4), low4),
                                   _mm256_and_si256(_mm256_srli_epi32(t[2], 2), top2));
    }
    EL_UNROLL
    for (int i = 0; i < 2; i++) {
        el_store_bytes_by_row(sc[i][0], sc[i][1], extras + 64 * i);
        el_store(extras + 128 + 64 * i, el_low_words(mn[i][0], mn[i][1]));
        el_store(extras + 160 + 64 * i, el_high_words(mn[i][0], mn[i][1]));
    }
    el_store(extras + 256, el_low_words(d[0], d[1]));
    el_store(extras + 288, el_high_words(d[0], d[1]));
}

/* Q4_K in the file: those 16 bytes, u8 qs[128]. Byte i of the c-th 32 bytes of qs holds weight 64c + i (low nibble) and
 * 64c + 32 + i: its dword t is what row t of chunk c of the tile wants. */
static void pack_q4_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 144);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 256 * 2048;
    for (int32_t b = 0; b < k / 256; b++, quants += 2048, extras += 320, el_pack_next(&r)) {
        for (int i = 0; i < 8; i++) el_transpose_store(&r, 16 + 16 * (size_t)i, quants + 256 * i);
        store_k4_extras(&r, extras);
    }
}

/* Q5_K in the file: the 16 bytes, u8 qh[32], then as Q4_K. */
static void pack_q5_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 176);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 256 * 2560;
    for (int32_t b = 0; b < k / 256; b++, quants += 2560, extras += 320, el_pack_next(&r)) {
        for (int i = 0; i < 8; i++)
            el_transpose_store(&r, 48 + 16 * (size_t)i, quants + 640 * (i / 2) + 256 * (i % 2));
        for (int h = 0; h < 2; h++) {
            __m256i bits[8];
            load_bits(&r, h, 16, bits);
            EL_UNROLL
            for (int j = 0; j < 8; j++)
                el_store(quants + 640 * (j / 2) + 512 + 64 * (j % 2) + 32 * h, bits[j]);
        }
        store_k4_extras(&r, extras);
    }
}

/* Q6_K in the file: u8 ql[128], u8 qh[64], i8 scales[16], f16 d. Of the 128 weights 128g .. : weight l (0..31) of
 * 32-block 4g + i has its low bits in ql[64g + 32 (i % 2) + l] (low nibble for i < 2), its top bits in
 * qh[32g + l] at bits 2i. */
static void pack_q6_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const __m256i low = _mm256_set1_epi8(0x0f);
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 210);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 256 * 3072;
    for (int32_t b = 0; b < k / 256; b++, quants += 3072, extras += 288, el_pack_next(&r)) {
        for (int half = 0; half < 4; half++) { /* g = half / 2, rows 8 (half % 2) .. */
            const int g = half / 2, h = half % 2;
            uint8_t *to = quants + 1024 * g + 32 * h;
            EL_UNROLL
            for (int i = 0; i < 2; i++) { /* 32-blocks 4g + i and 4g + 2 + i */
                __m256i t[4], u[4];
                el_transpose_8(&r, 8 * h, 64 * (size_t)g + 32 * (size_t)i, t);
                el_transpose_8(&r, 8 * h, 64 * (size_t)g + 32 * (size_t)i + 16, u);
                EL_UNROLL
                for (int s = 0; s < 4; s++) { /* steps s and s + 4 share a row */
                    el_store(to + 256 * i + 64 * s,
                             _mm256_or_si256(_mm256_and_si256(t[s], low),
                                             _mm256_slli_epi16(_mm256_and_si256(u[s], low), 4)));
                    el_store(to + 256 * (i + 2) + 64 * s,
                             _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(t[s], 4), low),
                                             _mm256_andnot_si256(low, u[s])));
                }
            }
            store_crumbs(&r, h, 128 + 32 * (size_t)g, quants + 2048 + 512 * g, 128);
        }
        store_16_bytes_by_row(&r, 192, extras);
        el_store(extras + 256, el_high_words(el_gather_8(&r, 0, 206), el_gather_8(&r, 8, 206)));
    }
    el_pack_end(panel, (size_t)k / 256 * 3360);
}

/* IQ4_XS in the file: f16 d, u16 scales_h, u8 scales_l[4], u8 qs[128]. */
static void pack_iq4_xs(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, sizeof(el_block_iq4_xs));
    uint8_t *quants = panel, *extras = quants + (size_t)k / 256 * 2048;
    for (int32_t b = 0; b < k / 256; b++, quants += 2048, extras += 160, el_pack_next(&r)) {
        for (int j = 0; j < 8; j++) el_transpose_store(&r, 8 + 16 * (size_t)j, quants + 256 * j);
        for (int i = 0; i < EL_TILE_ROWS; i++) {
            el_block_iq4_xs block;
            memcpy(&block, r.p[i], 8);
            for (int j = 0; j < 8; j++)
                extras[16 * j + i] = i < n_rows ? (uint8_t)el_iq4_xs_scale(&block, j) : 0;
        }
        el_store(extras + 128, el_low_words(el_gather_8(&r, 0, 0), el_gather_8(&r, 8, 0)));
    }
    el_pack_end(panel, (size_t)k / 256 * 2208);
}

void el_avx2_matmul_kquants_pack(el_kernels *table) {
    table->pack[EL_Q2_K] = pack_q2_k;
    table->pack[EL_Q3_K] = pack_q3_k;
    table->pack[EL_Q4_K] = pack_q4_k;
    table->pack[EL_Q5_K] = pack_q5_k;
    table->pack[EL_Q6_K] = pack_q6_k;
    table->pack[EL_IQ4_XS] = pack_iq4_xs;
}
