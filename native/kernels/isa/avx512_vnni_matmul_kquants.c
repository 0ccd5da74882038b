/* AVX-512 VNNI matmul of the k-quants: Q4_K, Q6_K. Formats and formulas: kernels.h. */
#include "avx512_vnni_matmul.h"

/* ---- Q4_K ------------------------------------------------------------------------------------------------------- */
EL_INLINE void q4_k_tile(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t n_rows,
                         const void *const *x, float *const *y, size_t y_off, const int nc) {
    __m512 acc[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) acc[c] = _mm512_setzero_ps();
    for (int32_t b = 0; b < k / 256; b++, extras += 320) {
        el_prefetch(extras, 320);
        __m512i total[EL_GROUP];
        EL_UNROLL
        for (int c = 0; c < nc; c++) total[c] = _mm512_setzero_si512();
        for (int32_t j = 0; j < 8; j += 2, quants += 512) { /* 32-blocks j and j + 1 */
            el_prefetch(quants, 512);
            EL_UNROLL
            for (int odd = 0; odd < 2; odd++) {
                __m512i sum[EL_GROUP];
                EL_UNROLL
                for (int c = 0; c < nc; c++) sum[c] = _mm512_setzero_si512();
                EL_UNROLL
                for (int t = 0; t < 8; t++) {
                    const __m512i v = el_load(quants + 64 * t),
                                  w = odd ? el_high_nibbles(v) : el_low_nibbles(v);
                    EL_UNROLL
                    for (int c = 0; c < nc; c++) {
                        const int8_t *q = (const int8_t *)x[c] + 256 * b + 32 * (j + odd) + 4 * t;
                        sum[c] = _mm512_dpbusd_epi32(sum[c], w, el_broadcast4(q));
                    }
                }
                const __m512i sc =
                    _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(extras + 16 * (j + odd))));
                EL_UNROLL
                for (int c = 0; c < nc; c++)
                    total[c] = _mm512_add_epi32(total[c], _mm512_mullo_epi32(sum[c], sc));
            }
        }
        __m512i minima[EL_GROUP];
        EL_UNROLL
        for (int c = 0; c < nc; c++) minima[c] = _mm512_setzero_si512();
        EL_UNROLL
        for (int j = 0; j < 4; j++) {
            const __m512i mn =
                _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(extras + 128 + 32 * j)));
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                minima[c] =
                    _mm512_dpwssd_epi32(minima[c], mn, el_broadcast4(el_a256_sum32(x[c], k) + 8 * b + 2 * j));
            }
        }
        const __m512 d = el_load_f16(extras + 256), dmin = el_load_f16(extras + 288);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m512 dx = _mm512_set1_ps(el_a256_d(x[c], k)[b]);
            acc[c] = el_chain(total[c], d, dx, acc[c]);
            acc[c] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(minima[c]), _mm512_mul_ps(dmin, dx), acc[c]);
        }
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) el_write_rows(acc[c], n_rows, y[c] + y_off);
}

/* ---- Q6_K -------------------------------------------------------------------------------------------------------
 * The offset of 32 leaves as 32 * sum_j sc[j] sum16[j]. */

/* The crumb i (bits 2i, 2i+1) of each byte, moved to bits 4 and 5. */
EL_INLINE __m512i top_bits(__m512i v, const int i) {
    __m512i moved = v;
    switch (i) { /* shift counts must be literals */
    case 0: moved = _mm512_slli_epi16(v, 4); break;
    case 1: moved = _mm512_slli_epi16(v, 2); break;
    case 3: moved = _mm512_srli_epi16(v, 2); break;
    default: break;
    }
    return _mm512_and_si512(moved, _mm512_set1_epi8(0x30));
}

/* Dwords of rows: (scale of 16-block 2j, of 2j + 1) as int16, from the two arrays of 16 bytes at p. */
EL_INLINE __m512i scale_pairs(const uint8_t *p) {
    const __m128i a = _mm_loadu_si128((const __m128i *)p), b = _mm_loadu_si128((const __m128i *)(p + 16));
    const __m256i low = _mm256_castsi128_si256(_mm_unpacklo_epi8(a, b));
    return _mm512_cvtepi8_epi16(_mm256_inserti128_si256(low, _mm_unpackhi_epi8(a, b), 1));
}

EL_INLINE void q6_k_tile(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t n_rows,
                         const void *const *x, float *const *y, size_t y_off, const int nc) {
    __m512 acc[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) acc[c] = _mm512_setzero_ps();
    for (int32_t b = 0; b < k / 256; b++, quants += 3072, extras += 288) {
        el_prefetch(extras, 288);
        __m512i total[EL_GROUP], offset[EL_GROUP];
        EL_UNROLL
        for (int c = 0; c < nc; c++) total[c] = offset[c] = _mm512_setzero_si512();
        for (int32_t j = 0; j < 8; j++) { /* 32-blocks */
            const uint8_t *nibbles = quants + 256 * j, *top = quants + 2048 + 128 * j;
            el_prefetch(nibbles, 256);
            el_prefetch(top, 128);
            EL_UNROLL
            for (int u = 0; u < 2; u++) { /* 16-blocks */
                const __m512i tops = el_load(top + 64 * u);
                __m512i sum[EL_GROUP];
                EL_UNROLL
                for (int c = 0; c < nc; c++) sum[c] = _mm512_setzero_si512();
                EL_UNROLL
                for (int t = 0; t < 4; t++) {
                    const __m512i v = el_load(nibbles + 64 * t);
                    const __m512i w =
                        _mm512_or_si512(u ? el_high_nibbles(v) : el_low_nibbles(v), top_bits(tops, t));
                    EL_UNROLL
                    for (int c = 0; c < nc; c++) {
                        const int8_t *q = (const int8_t *)x[c] + 256 * b + 32 * j + 16 * u + 4 * t;
                        sum[c] = _mm512_dpbusd_epi32(sum[c], w, el_broadcast4(q));
                    }
                }
                const __m512i sc =
                    _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(extras + 16 * (2 * j + u))));
                EL_UNROLL
                for (int c = 0; c < nc; c++)
                    total[c] = _mm512_add_epi32(total[c], _mm512_mullo_epi32(sum[c], sc));
            }
            const __m512i pairs = scale_pairs(extras + 32 * j);
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                const __m512i sums = el_broadcast4(el_a256_sum16(x[c], k) + 16 * b + 2 * j);
                offset[c] = _mm512_dpwssd_epi32(offset[c], pairs, sums);
            }
        }
        const __m512 d = el_load_f16(extras + 256);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m512i i = _mm512_sub_epi32(total[c], _mm512_slli_epi32(offset[c], 5));
            acc[c] = el_chain(i, d, _mm512_set1_ps(el_a256_d(x[c], k)[b]), acc[c]);
        }
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) el_write_rows(acc[c], n_rows, y[c] + y_off);
}

EL_MM_FUNCTION(q4_k, 256, 2048)
EL_MM_FUNCTION(q6_k, 256, 3072)

void el_avx512_vnni_matmul_kquants(el_kernels *table) {
    table->mm[EL_Q4_K] = mm_q4_k;
    table->mm[EL_Q6_K] = mm_q6_k;
}
