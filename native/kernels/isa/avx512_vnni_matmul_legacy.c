/* AVX-512 VNNI matmul of the 32-block types: Q8_0, Q4_1, Q5_0. Formats and formulas: kernels.h. */
#include "avx512_vnni_matmul.h"

/* -(sum << shift) of a 16-block of activations in every lane: takes the weights' offset out. */
EL_INLINE __m512i minus_sum(const void *x, int32_t k, int32_t j, const int shift) {
    return _mm512_set1_epi32(-(el_a16_sum(x, k)[j] * (1 << shift)));
}

/* ---- Q8_0: w + 128 is unsigned ------------------------------------------------------------------------------- */
EL_INLINE void q8_0_tile(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t n_rows,
                         const void *const *x, float *const *y, size_t y_off, const int nc) {
    __m512 acc[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) acc[c] = _mm512_setzero_ps();
    for (int32_t b = 0; b < k / 32; b++, quants += 512, extras += 32) {
        el_prefetch(quants, 512);
        if (b % 2 == 0) el_prefetch(extras, 64);
        __m512 v[EL_GROUP];
        EL_UNROLL
        for (int part = 0; part < 2; part++) { /* the first 16 of the block, then the second */
            __m512i sum[EL_GROUP];
            EL_UNROLL
            for (int c = 0; c < nc; c++) sum[c] = minus_sum(x[c], k, 2 * b + part, 7);
            EL_UNROLL
            for (int t = 0; t < 4; t++) {
                const __m512i w =
                    _mm512_xor_si512(el_load(quants + 256 * part + 64 * t), _mm512_set1_epi8(-128));
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    const int8_t *q = (const int8_t *)x[c] + 32 * b + 16 * part + 4 * t;
                    sum[c] = _mm512_dpbusd_epi32(sum[c], w, el_broadcast4(q));
                }
            }
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                const __m512 f = _mm512_cvtepi32_ps(sum[c]),
                             dx = _mm512_set1_ps(el_a16_d(x[c], k)[2 * b + part]);
                v[c] = part ? _mm512_fmadd_ps(f, dx, v[c]) : _mm512_mul_ps(f, dx);
            }
        }
        const __m512 d = el_load_f16(extras);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            acc[c] = _mm512_fmadd_ps(v[c], d, acc[c]);
        }
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) el_write_rows(acc[c], n_rows, y[c] + y_off);
}

/* ---- Q4_1 ------------------------------------------------------------------------------------------------------- */
EL_INLINE void q4_1_tile(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t n_rows,
                         const void *const *x, float *const *y, size_t y_off, const int nc) {
    __m512 acc[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) acc[c] = _mm512_setzero_ps();
    for (int32_t b = 0; b < k / 32; b++, quants += 256, extras += 64) {
        el_prefetch(quants, 256);
        el_prefetch(extras, 64);
        __m512 v[EL_GROUP];
        EL_UNROLL
        for (int part = 0; part < 2; part++) { /* the first 16 of the block, then the second */
            __m512i sum[EL_GROUP];
            EL_UNROLL
            for (int c = 0; c < nc; c++) sum[c] = _mm512_setzero_si512();
            EL_UNROLL
            for (int t = 0; t < 4; t++) {
                const __m512i w = part ? el_high_nibbles(el_load(quants + 64 * t))
                                       : el_low_nibbles(el_load(quants + 64 * t));
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    const int8_t *q = (const int8_t *)x[c] + 32 * b + 16 * part + 4 * t;
                    sum[c] = _mm512_dpbusd_epi32(sum[c], w, el_broadcast4(q));
                }
            }
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                const __m512 f = _mm512_cvtepi32_ps(sum[c]),
                             dx = _mm512_set1_ps(el_a16_d(x[c], k)[2 * b + part]);
                v[c] = part ? _mm512_fmadd_ps(f, dx, v[c]) : _mm512_mul_ps(f, dx);
            }
        }
        const __m512 d = el_load_f16(extras), m = el_load_f16(extras + 32);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            acc[c] = _mm512_fmadd_ps(v[c], d, acc[c]);
            acc[c] = _mm512_fmadd_ps(m, _mm512_set1_ps(el_a16_s(x[c], k)[b]), acc[c]);
        }
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) el_write_rows(acc[c], n_rows, y[c] + y_off);
}

/* ---- Q5_0 -------------------------------------------------------------------------------------------------------
 * The offset of 16 leaves through the activation sum. */

/* Bit s of each byte of h, moved to bit 4. */
EL_INLINE __m512i fifth_bit(__m512i h, const int s) {
    __m512i moved = h;
    switch (s) { /* shift counts must be literals */
    case 0: moved = _mm512_slli_epi16(h, 4); break;
    case 1: moved = _mm512_slli_epi16(h, 3); break;
    case 2: moved = _mm512_slli_epi16(h, 2); break;
    case 3: moved = _mm512_slli_epi16(h, 1); break;
    case 5: moved = _mm512_srli_epi16(h, 1); break;
    case 6: moved = _mm512_srli_epi16(h, 2); break;
    case 7: moved = _mm512_srli_epi16(h, 3); break;
    default: break;
    }
    return _mm512_and_si512(moved, _mm512_set1_epi8(16));
}

/* Weights of step t of one half, 0 .. 31. */
EL_INLINE __m512i five_bits(__m512i v, __m512i h, const int part, const int t) {
    return _mm512_or_si512(part ? el_high_nibbles(v) : el_low_nibbles(v), fifth_bit(h, t + 4 * part));
}

EL_INLINE void q5_0_tile(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t n_rows,
                         const void *const *x, float *const *y, size_t y_off, const int nc) {
    __m512 acc[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) acc[c] = _mm512_setzero_ps();
    for (int32_t b = 0; b < k / 32; b++, quants += 320, extras += 32) {
        el_prefetch(quants, 320);
        if (b % 2 == 0) el_prefetch(extras, 64);
        const __m512i h = el_load(quants + 256);
        __m512 v[EL_GROUP];
        EL_UNROLL
        for (int part = 0; part < 2; part++) { /* the first 16 of the block, then the second */
            __m512i sum[EL_GROUP];
            EL_UNROLL
            for (int c = 0; c < nc; c++) sum[c] = minus_sum(x[c], k, 2 * b + part, 4);
            EL_UNROLL
            for (int t = 0; t < 4; t++) {
                const __m512i w = five_bits(el_load(quants + 64 * t), h, part, t);
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    const int8_t *q = (const int8_t *)x[c] + 32 * b + 16 * part + 4 * t;
                    sum[c] = _mm512_dpbusd_epi32(sum[c], w, el_broadcast4(q));
                }
            }
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                const __m512 f = _mm512_cvtepi32_ps(sum[c]),
                             dx = _mm512_set1_ps(el_a16_d(x[c], k)[2 * b + part]);
                v[c] = part ? _mm512_fmadd_ps(f, dx, v[c]) : _mm512_mul_ps(f, dx);
            }
        }
        const __m512 d = el_load_f16(extras);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            acc[c] = _mm512_fmadd_ps(v[c], d, acc[c]);
        }
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) el_write_rows(acc[c], n_rows, y[c] + y_off);
}

EL_MM_FUNCTION(q8_0, 32, 512)
EL_MM_FUNCTION(q4_1, 32, 256)
EL_MM_FUNCTION(q5_0, 32, 320)

void el_avx512_vnni_matmul_legacy(el_kernels *table) {
    table->mm[EL_Q8_0] = mm_q8_0;
    table->mm[EL_Q4_1] = mm_q4_1;
    table->mm[EL_Q5_0] = mm_q5_0;
}
