/* AVX-512 VNNI matmul of the k-quants: Q4_K, Q6_K. Formats and formulas: kernels.h. */
#include "avx512_vnni_matmul.h"

/* ---- Q4_K ------------------------------------------------------------------------------------------------------- */

/* sum[c] = sum u q over 32-block j of block b: the low or (odd) the high nibbles of 8 rows. */
EL_INLINE void q4_k_dot(const uint8_t *quants, const void *const *x, int32_t b, int32_t j, __m512i *sum,
                        const int nc, const int odd) {
    EL_UNROLL
    for (int c = 0; c < nc; c++) sum[c] = _mm512_setzero_si512();
    EL_UNROLL
    for (int t = 0; t < 8; t++) {
        const __m512i v = el_load(quants + 64 * t), w = odd ? el_high_nibbles(v) : el_low_nibbles(v);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const int8_t *q = (const int8_t *)x[c] + 256 * b + 32 * j + 4 * t;
            sum[c] = _mm512_dpbusd_epi32(sum[c], w, el_broadcast4(q));
        }
    }
}

EL_INLINE __m512i q4_k_scales(const uint8_t *extras, int32_t j) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(extras + 16 * j)));
}

/* The float part of block b; total: S of each column. */
EL_INLINE void q4_k_chain(const uint8_t *extras, const void *const *x, int32_t k, int32_t b,
                          const __m512i *total, __m512 *acc, const int nc) {
    __m512i minima[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) minima[c] = _mm512_setzero_si512();
    EL_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512i mn = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(extras + 128 + 32 * j)));
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m512i sums = el_broadcast4(el_a256_sum32(x[c], k) + 8 * b + 2 * j);
            minima[c] = _mm512_dpwssd_epi32(minima[c], mn, sums);
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

EL_INLINE void q4_k_tile(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t n_rows,
                         const void *const *x, float *const *y, size_t y_off, void *scratch, const int nc) {
    (void)scratch;
    __m512 acc[EL_GROUP];
    el_clear(acc, nc);
    for (int32_t b = 0; b < k / 256; b++, extras += 320) {
        el_prefetch(extras, 320);
        __m512i total[EL_GROUP];
        EL_UNROLL
        for (int c = 0; c < nc; c++) total[c] = _mm512_setzero_si512();
        for (int32_t j = 0; j < 8; j += 2, quants += 512) {
            el_prefetch(quants, 512);
            EL_UNROLL
            for (int odd = 0; odd < 2; odd++) {
                __m512i sum[EL_GROUP];
                q4_k_dot(quants, x, b, j + odd, sum, nc, odd);
                const __m512i sc = q4_k_scales(extras, j + odd);
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    total[c] = _mm512_add_epi32(total[c], _mm512_mullo_epi32(sum[c], sc));
                }
            }
        }
        q4_k_chain(extras, x, k, b, total, acc, nc);
    }
    el_write_columns(acc, n_rows, y, y_off, nc);
}

EL_INLINE void q4_k_streamed(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t n_rows,
                             const void *const *x, float *const *y, size_t y_off, void *scratch,
                             const int nc) {
    __m512i *sums = scratch; /* [32-block][c] */
    for (int32_t j = 0; j < k / 32; j += 2, quants += 512) {
        el_prefetch(quants, 512);
        EL_UNROLL
        for (int odd = 0; odd < 2; odd++, sums += nc) {
            __m512i sum[EL_STREAMED];
            q4_k_dot(quants, x, 0, j + odd, sum, nc, odd);
            EL_UNROLL
            for (int c = 0; c < nc; c++) _mm512_store_si512(sums + c, sum[c]);
        }
    }
    sums = scratch;
    __m512 acc[EL_STREAMED];
    el_clear(acc, nc);
    for (int32_t b = 0; b < k / 256; b++, extras += 320) {
        el_prefetch(extras, 320);
        __m512i total[EL_STREAMED];
        EL_UNROLL
        for (int c = 0; c < nc; c++) total[c] = _mm512_setzero_si512();
        EL_UNROLL
        for (int j = 0; j < 8; j++, sums += nc) {
            const __m512i sc = q4_k_scales(extras, j);
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                total[c] = _mm512_add_epi32(total[c], _mm512_mullo_epi32(_mm512_load_si512(sums + c), sc));
            }
        }
        q4_k_chain(extras, x, k, b, total, acc, nc);
    }
    el_write_columns(acc, n_rows, y, y_off, nc);
}

/* ---- Q6_K -------------------------------------------------------------------------------------------------------
 * The offset of 32 leaves through the activation sum, with which the sum of a 16-block starts. */

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

/* sum[c] = sum (u - 32) q over 16-block `half` of 32-block j of block b. */
EL_INLINE void q6_k_dot(const uint8_t *quants, const void *const *x, int32_t k, int32_t b, int32_t j,
                        __m512i *sum, const int nc, const int half) {
    const uint8_t *nibbles = quants + 256 * j;
    const __m512i top = el_load(quants + 2048 + 128 * j + 64 * half);
    EL_UNROLL
    for (int c = 0; c < nc; c++)
        sum[c] = _mm512_set1_epi32(-32 * el_a256_sum16(x[c], k)[16 * b + 2 * j + half]);
    EL_UNROLL
    for (int t = 0; t < 4; t++) {
        const __m512i v = el_load(nibbles + 64 * t);
        const __m512i w = _mm512_or_si512(half ? el_high_nibbles(v) : el_low_nibbles(v), top_bits(top, t));
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const int8_t *q = (const int8_t *)x[c] + 256 * b + 32 * j + 16 * half + 4 * t;
            sum[c] = _mm512_dpbusd_epi32(sum[c], w, el_broadcast4(q));
        }
    }
}

EL_INLINE __m512i q6_k_scales(const uint8_t *extras, int32_t j) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(extras + 16 * j)));
}

EL_INLINE void q6_k_chain(const uint8_t *extras, const void *const *x, int32_t k, int32_t b,
                          const __m512i *total, __m512 *acc, const int nc) {
    const __m512 d = el_load_f16(extras + 256);
    EL_UNROLL
    for (int c = 0; c < nc; c++)
        acc[c] = el_chain(total[c], d, _mm512_set1_ps(el_a256_d(x[c], k)[b]), acc[c]);
}

EL_INLINE void q6_k_tile(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t n_rows,
                         const void *const *x, float *const *y, size_t y_off, void *scratch, const int nc) {
    (void)scratch;
    __m512 acc[EL_GROUP];
    el_clear(acc, nc);
    for (int32_t b = 0; b < k / 256; b++, quants += 3072, extras += 288) {
        el_prefetch(extras, 288);
        __m512i total[EL_GROUP];
        EL_UNROLL
        for (int c = 0; c < nc; c++) total[c] = _mm512_setzero_si512();
        for (int32_t j = 0; j < 8; j++) {
            el_prefetch(quants + 384 * j, 384);
            EL_UNROLL
            for (int half = 0; half < 2; half++) {
                __m512i sum[EL_GROUP];
                q6_k_dot(quants, x, k, b, j, sum, nc, half);
                const __m512i sc = q6_k_scales(extras, 2 * j + half);
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    total[c] = _mm512_add_epi32(total[c], _mm512_mullo_epi32(sum[c], sc));
                }
            }
        }
        q6_k_chain(extras, x, k, b, total, acc, nc);
    }
    el_write_columns(acc, n_rows, y, y_off, nc);
}

EL_INLINE void q6_k_streamed(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t n_rows,
                             const void *const *x, float *const *y, size_t y_off, void *scratch,
                             const int nc) {
    __m512i *sums = scratch; /* [16-block][c] */
    for (int32_t b = 0; b < k / 256; b++, quants += 3072) {
        for (int32_t j = 0; j < 8; j++) {
            el_prefetch(quants + 384 * j, 384);
            EL_UNROLL
            for (int half = 0; half < 2; half++, sums += nc) {
                __m512i sum[EL_STREAMED];
                q6_k_dot(quants, x, k, b, j, sum, nc, half);
                EL_UNROLL
                for (int c = 0; c < nc; c++) _mm512_store_si512(sums + c, sum[c]);
            }
        }
    }
    sums = scratch;
    __m512 acc[EL_STREAMED];
    el_clear(acc, nc);
    for (int32_t b = 0; b < k / 256; b++, extras += 288) {
        el_prefetch(extras, 288);
        __m512i total[EL_STREAMED];
        EL_UNROLL
        for (int c = 0; c < nc; c++) total[c] = _mm512_setzero_si512();
        EL_UNROLL
        for (int j = 0; j < 16; j++, sums += nc) {
            const __m512i sc = q6_k_scales(extras, j);
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                total[c] = _mm512_add_epi32(total[c], _mm512_mullo_epi32(_mm512_load_si512(sums + c), sc));
            }
        }
        q6_k_chain(extras, x, k, b, total, acc, nc);
    }
    el_write_columns(acc, n_rows, y, y_off, nc);
}

EL_MM_FUNCTION(q4_k, 256, 2048)
EL_MM_FUNCTION(q6_k, 256, 3072)

void el_avx512_vnni_matmul_kquants(el_kernels *table) {
    table->mm[EL_Q4_K] = mm_q4_k;
    table->mm[EL_Q6_K] = mm_q6_k;
}
