/* AVX2 matmul of the 32-block types: Q8_0, Q4_1, Q5_0. Formats and formulas: kernels.h. */
#include "avx2_matmul.h"

/* Expand f16 extras (count rows of 16) to f32. */
EL_INLINE void expand_f16(const uint8_t *from, int32_t count, uint8_t *to) {
    for (int32_t i = 0; i < count * 2; i++) {
        _mm256_store_ps((float *)(to + 32 * i), el_load_f16(from + 16 * i));
    }
}

/* Row i (16 floats) of a block's extras, half h of the 16 rows. */
EL_INLINE __m256 extra(const uint8_t *extras, int i, int h, const int expanded) {
    return expanded ? _mm256_load_ps((const float *)(extras + 64 * i + 32 * h))
                    : el_load_f16(extras + 32 * i + 16 * h);
}

EL_INLINE __m256i low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
EL_INLINE __m256i high_nibbles(__m256i v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }

/* t = (f32)i * dx for the first 16 of a block, fma((f32)i, dx, t) for the second. */
EL_INLINE __m256 scaled(__m256i i, const float *dx, const int second, __m256 t) {
    const __m256 f = _mm256_cvtepi32_ps(i), d = _mm256_broadcast_ss(dx);
    return second ? _mm256_fmadd_ps(f, d, t) : _mm256_mul_ps(f, d);
}

/* ---- Q8_0 -------------------------------------------------------------------------------------------------------
 * |w| <= 128 is the unsigned operand, the activation takes w's sign: 2 * 128 * 127 fits into int16, for one step. */
EL_INLINE void q8_0_tile(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t block0,
                         int32_t n_blocks, const void *const *x, float *acc, const int nc,
                         const int expanded) {
    const __m256i ones = _mm256_set1_epi16(1);
    el_column col[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) col[c] = el_column_a16(x[c], k, block0);
    for (int32_t b = 0; b < n_blocks; b++, quants += 512, extras += expanded ? 64 : 32) {
        if (!expanded) {
            el_prefetch(quants, 512);
            if (b % 2 == 0) el_prefetch(extras, 64);
        }
        __m256 v[EL_GROUP][2];
        EL_UNROLL
        for (int part = 0; part < 2; part++) {
            __m256i sum[EL_GROUP][2];
            EL_UNROLL
            for (int c = 0; c < nc; c++) sum[c][0] = sum[c][1] = _mm256_setzero_si256();
            EL_UNROLL
            for (int t = 4 * part; t < 4 * part + 4; t++) {
                const __m256i w0 = el_load(quants + 64 * t), w1 = el_load(quants + 64 * t + 32);
                const __m256i u0 = _mm256_abs_epi8(w0), u1 = _mm256_abs_epi8(w1);
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    const __m256i q = el_broadcast4(col[c].q + 32 * b + 4 * t);
                    const __m256i p0 = _mm256_maddubs_epi16(u0, _mm256_sign_epi8(q, w0));
                    const __m256i p1 = _mm256_maddubs_epi16(u1, _mm256_sign_epi8(q, w1));
                    sum[c][0] = _mm256_add_epi32(sum[c][0], _mm256_madd_epi16(p0, ones));
                    sum[c][1] = _mm256_add_epi32(sum[c][1], _mm256_madd_epi16(p1, ones));
                    EL_PIN(sum[c][0]);
                    EL_PIN(sum[c][1]);
                }
            }
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                EL_UNROLL
                for (int h = 0; h < 2; h++)
                    v[c][h] = scaled(sum[c][h], col[c].d + 2 * b + part, part,
                                     part ? v[c][h] : _mm256_setzero_ps());
            }
        }
        __m256 d[2];
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            d[h] = extra(extras, 0, h, expanded);
            EL_PIN(d[h]);
        }
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            EL_UNROLL
            for (int h = 0; h < 2; h++) {
                float *a = acc + 16 * c + 8 * h;
                _mm256_store_ps(a, _mm256_fmadd_ps(v[c][h], d[h], _mm256_load_ps(a)));
            }
        }
        EL_FENCE();
    }
}

/* ---- Q4_1 -------------------------------------------------------------------------------------------------------
 * The 4 steps of 16 weights fit into int16: 4 * 2 * 15 * 127 = 15,240. */
EL_INLINE void q4_1_tile(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t block0,
                         int32_t n_blocks, const void *const *x, float *acc, const int nc,
                         const int expanded) {
    const __m256i ones = _mm256_set1_epi16(1);
    el_column col[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) col[c] = el_column_a16(x[c], k, block0);
    for (int32_t b = 0; b < n_blocks; b++, quants += expanded ? 512 : 256, extras += expanded ? 128 : 64) {
        if (!expanded) {
            el_prefetch(quants, 256);
            el_prefetch(extras, 64);
        }
        __m256 v[EL_GROUP][2];
        EL_UNROLL
        for (int part = 0; part < 2; part++) { /* low nibbles: the first 16, high nibbles: the second */
            __m256i sum[EL_GROUP][2];
            EL_UNROLL
            for (int c = 0; c < nc; c++) sum[c][0] = sum[c][1] = _mm256_setzero_si256();
            EL_UNROLL
            for (int t = 0; t < 4; t++) {
                __m256i w[2];
                EL_UNROLL
                for (int h = 0; h < 2; h++) {
                    if (expanded) {
                        w[h] = el_load(quants + 64 * (t + 4 * part) + 32 * h);
                    } else {
                        const __m256i u = el_load(quants + 64 * t + 32 * h);
                        w[h] = part ? high_nibbles(u) : low_nibbles(u);
                    }
                }
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    const __m256i q = el_broadcast4(col[c].q + 32 * b + 16 * part + 4 * t);
                    sum[c][0] = _mm256_add_epi16(sum[c][0], _mm256_maddubs_epi16(w[0], q));
                    sum[c][1] = _mm256_add_epi16(sum[c][1], _mm256_maddubs_epi16(w[1], q));
                    EL_PIN(sum[c][0]);
                    EL_PIN(sum[c][1]);
                }
            }
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                EL_UNROLL
                for (int h = 0; h < 2; h++) {
                    const __m256i i = _mm256_madd_epi16(sum[c][h], ones);
                    v[c][h] = scaled(i, col[c].d + 2 * b + part, part, part ? v[c][h] : _mm256_setzero_ps());
                }
            }
        }
        __m256 d[2], m[2];
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            d[h] = extra(extras, 0, h, expanded);
            m[h] = extra(extras, 1, h, expanded);
            EL_PIN(d[h]);
            EL_PIN(m[h]);
        }
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m256 sx = _mm256_broadcast_ss(col[c].s + b);
            EL_UNROLL
            for (int h = 0; h < 2; h++) {
                float *a = acc + 16 * c + 8 * h;
                const __m256 to = _mm256_fmadd_ps(v[c][h], d[h], _mm256_load_ps(a));
                _mm256_store_ps(a, _mm256_fmadd_ps(m[h], sx, to));
            }
        }
        EL_FENCE();
    }
}

static void q4_1_expand(const uint8_t *quants, const uint8_t *extras, int32_t n_blocks, uint8_t *to_quants,
                        uint8_t *to_extras) {
    for (int32_t b = 0; b < n_blocks; b++, quants += 256, to_quants += 512) {
        el_prefetch(quants, 256);
        EL_UNROLL
        for (int i = 0; i < 8; i++) {
            const __m256i v = el_load(quants + 32 * i);
            el_store(to_quants + 32 * i, low_nibbles(v));
            el_store(to_quants + 256 + 32 * i, high_nibbles(v));
        }
    }
    expand_f16(extras, n_blocks * 2, to_extras);
}

/* ---- Q5_0 -------------------------------------------------------------------------------------------------------
 * 4 steps fit into int16: 4 * 2 * 31 * 127 = 31,496. The offset of 16 leaves through the activation sum. */

/* Bit s of each byte of h, moved to bit 4. */
EL_INLINE __m256i fifth_bit(__m256i h, const int s) {
    return _mm256_and_si256(s < 4 ? _mm256_slli_epi16(h, 4 - s) : _mm256_srli_epi16(h, s - 4),
                            _mm256_set1_epi8(16));
}

EL_INLINE void q5_0_tile(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t block0,
                         int32_t n_blocks, const void *const *x, float *acc, const int nc,
                         const int expanded) {
    const __m256i ones = _mm256_set1_epi16(1);
    el_column col[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) col[c] = el_column_a16(x[c], k, block0);
    for (int32_t b = 0; b < n_blocks; b++, quants += expanded ? 512 : 320, extras += expanded ? 64 : 32) {
        if (!expanded) {
            el_prefetch(quants, 320);
            if (b % 2 == 0) el_prefetch(extras, 64);
        }
        __m256 v[EL_GROUP][2];
        EL_UNROLL
        for (int part = 0; part < 2; part++) { /* low nibbles: the first 16, high nibbles: the second */
            __m256i sum[EL_GROUP][2];
            EL_UNROLL
            for (int c = 0; c < nc; c++) sum[c][0] = sum[c][1] = _mm256_setzero_si256();
            EL_UNROLL
            for (int t = 0; t < 4; t++) {
                __m256i w[2];
                EL_UNROLL
                for (int h = 0; h < 2; h++) {
                    if (expanded) {
                        w[h] = el_load(quants + 64 * (t + 4 * part) + 32 * h);
                    } else {
                        const __m256i u = el_load(quants + 64 * t + 32 * h),
                                      f = el_load(quants + 256 + 32 * h);
                        w[h] = _mm256_or_si256(part ? high_nibbles(u) : low_nibbles(u),
                                               fifth_bit(f, t + 4 * part));
                    }
                }
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    const __m256i q = el_broadcast4(col[c].q + 32 * b + 16 * part + 4 * t);
                    sum[c][0] = _mm256_add_epi16(sum[c][0], _mm256_maddubs_epi16(w[0], q));
                    sum[c][1] = _mm256_add_epi16(sum[c][1], _mm256_maddubs_epi16(w[1], q));
                    EL_PIN(sum[c][0]);
                    EL_PIN(sum[c][1]);
                }
            }
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                const __m256i offset = _mm256_slli_epi32(_mm256_set1_epi32(col[c].sum[2 * b + part]), 4);
                EL_UNROLL
                for (int h = 0; h < 2; h++) {
                    const __m256i i = _mm256_sub_epi32(_mm256_madd_epi16(sum[c][h], ones), offset);
                    v[c][h] = scaled(i, col[c].d + 2 * b + part, part, part ? v[c][h] : _mm256_setzero_ps());
                }
            }
        }
        __m256 d[2];
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            d[h] = extra(extras, 0, h, expanded);
            EL_PIN(d[h]);
        }
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            EL_UNROLL
            for (int h = 0; h < 2; h++) {
                float *a = acc + 16 * c + 8 * h;
                _mm256_store_ps(a, _mm256_fmadd_ps(v[c][h], d[h], _mm256_load_ps(a)));
            }
        }
        EL_FENCE();
    }
}

static void q5_0_expand(const uint8_t *quants, const uint8_t *extras, int32_t n_blocks, uint8_t *to_quants,
                        uint8_t *to_extras) {
    for (int32_t b = 0; b < n_blocks; b++, quants += 320, to_quants += 512) {
        el_prefetch(quants, 320);
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256i f = el_load(quants + 256 + 32 * h);
            EL_UNROLL
            for (int t = 0; t < 4; t++) {
                const __m256i v = el_load(quants + 64 * t + 32 * h);
                el_store(to_quants + 64 * t + 32 * h, _mm256_or_si256(low_nibbles(v), fifth_bit(f, t)));
                el_store(to_quants + 256 + 64 * t + 32 * h,
                         _mm256_or_si256(high_nibbles(v), fifth_bit(f, t + 4)));
            }
        }
    }
    expand_f16(extras, n_blocks, to_extras);
}

static void q8_0_expand(const uint8_t *quants, const uint8_t *extras, int32_t n_blocks, uint8_t *to_quants,
                        uint8_t *to_extras) {
    (void)quants;
    (void)to_quants;
    expand_f16(extras, n_blocks, to_extras);
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */
EL_TILE_FUNCTIONS(q8_0)
EL_TILE_FUNCTIONS(q4_1)
EL_TILE_FUNCTIONS(q5_0)

static const el_mm_type Q8_0 = {.block = 32,
                                .quant_bytes = 512,
                                .extra_bytes = 32,
                                .chunk = 64,
                                .expanded_quants = 0,
                                .expanded_extras = 64,
                                .expand = q8_0_expand,
                                EL_TILE_TABLES(q8_0)};
static const el_mm_type Q4_1 = {.block = 32,
                                .quant_bytes = 256,
                                .extra_bytes = 64,
                                .chunk = 64,
                                .expanded_quants = 512,
                                .expanded_extras = 128,
                                .expand = q4_1_expand,
                                EL_TILE_TABLES(q4_1)};
static const el_mm_type Q5_0 = {.block = 32,
                                .quant_bytes = 320,
                                .extra_bytes = 32,
                                .chunk = 64,
                                .expanded_quants = 512,
                                .expanded_extras = 64,
                                .expand = q5_0_expand,
                                EL_TILE_TABLES(q5_0)};

EL_MM_FUNCTION(mm_q8_0, Q8_0)
EL_MM_FUNCTION(mm_q4_1, Q4_1)
EL_MM_FUNCTION(mm_q5_0, Q5_0)

/* ---- pack -------------------------------------------------------------------------------------------------------
 * File blocks. Q8_0: f16 d, i8 q[32]. Q4_1: f16 d, f16 m, u8 qs[16]. Q5_0: f16 d, u32 qh, u8 qs[16]. Byte j of qs
 * holds weight j (low nibble) and j + 16: dword t of qs is what row t of the tile wants. */
static void pack_q8_0(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 34);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 32 * 512;
    for (int32_t b = 0; b < k / 32; b++, quants += 512, extras += 32, el_pack_next(&r)) {
        el_transpose_store(&r, 2, quants);
        el_transpose_store(&r, 18, quants + 256);
        el_store(extras, el_low_words(el_gather_8(&r, 0, 0), el_gather_8(&r, 8, 0)));
    }
    el_pack_end(panel, (size_t)k / 32 * 544);
}

static void pack_q4_1(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 20);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 32 * 256;
    for (int32_t b = 0; b < k / 32; b++, quants += 256, extras += 64, el_pack_next(&r)) {
        el_transpose_store(&r, 4, quants);
        const __m256i low = el_gather_8(&r, 0, 0), high = el_gather_8(&r, 8, 0);
        el_store(extras, el_low_words(low, high));
        el_store(extras + 32, el_high_words(low, high));
    }
}

/* Exchange, in every dword, the bits under `mask` with those `shift` above them. */
#define SWAP_BITS(v, shift, mask)                                                                        \
    do {                                                                                                 \
        const __m256i swap_ =                                                                            \
            _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi32(v, shift), v), _mm256_set1_epi32(mask)); \
        v = _mm256_xor_si256(v, _mm256_xor_si256(swap_, _mm256_slli_epi32(swap_, shift)));               \
    } while (0)

/* Bit 4s + i of each dword to bit 8i + s. As bit numbers s2 s1 s0 i1 i0 -> i1 i0 s2 s1 s0: four exchanges. */
EL_INLINE __m256i spread_bits(__m256i v) {
    SWAP_BITS(v, 15, 0x0000aaaa); /* s2 with i0: s2 s1 s0 i1 i0 -> i0 s1 s0 i1 s2 */
    SWAP_BITS(v, 14, 0x0000cccc); /* i0 with i1: -> i1 s1 s0 i0 s2 */
    SWAP_BITS(v, 6, 0x00cc00cc);  /* s1 with i0: -> i1 i0 s0 s1 s2 */
    SWAP_BITS(v, 3, 0x0a0a0a0a);  /* s0 with s2: -> i1 i0 s2 s1 s0 */
    return v;
}

static void pack_q5_0(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 22);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 32 * 320;
    for (int32_t b = 0; b < k / 32; b++, quants += 320, extras += 32, el_pack_next(&r)) {
        el_transpose_store(&r, 6, quants);
        el_store(quants + 256, spread_bits(el_gather_8(&r, 0, 2)));
        el_store(quants + 288, spread_bits(el_gather_8(&r, 8, 2)));
        el_store(extras, el_low_words(el_gather_8(&r, 0, 0), el_gather_8(&r, 8, 0)));
    }
    el_pack_end(panel, (size_t)k / 32 * 352);
}

void el_avx2_matmul_legacy(el_kernels *table) {
    table->mm[EL_Q8_0] = mm_q8_0;
    table->mm[EL_Q4_1] = mm_q4_1;
    table->mm[EL_Q5_0] = mm_q5_0;
    table->pack[EL_Q8_0] = pack_q8_0;
    table->pack[EL_Q4_1] = pack_q4_1;
    table->pack[EL_Q5_0] = pack_q5_0;
}
