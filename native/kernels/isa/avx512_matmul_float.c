/* AVX-512 matmul of F16, BF16 and F32 weights: one fma chain over k per output, lanes are rows. */
#include "avx512_matmul.h"

/* 16 weights at p as floats (exact). */
EL_INLINE __m512 load_floats(const int type, const uint8_t *p) {
    if (type == EL_F32) return _mm512_loadu_ps((const float *)p);
    if (type == EL_F16) return el_load_f16(p);
    const __m512i halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
}

EL_INLINE void float_tile(const uint8_t *w, int32_t k, int32_t n_rows, const void *const *x, float *const *y,
                          size_t y_off, const int nc, const int type) {
    const int bytes = type == EL_F32 ? 64 : 32;
    __m512 acc[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) acc[c] = _mm512_setzero_ps();
    for (int32_t i = 0; i < k; i++, w += bytes) {
        if (bytes == 64 || i % 2 == 0) el_prefetch(w, 64);
        const __m512 v = load_floats(type, w);
        EL_UNROLL
        for (int c = 0; c < nc; c++)
            acc[c] = _mm512_fmadd_ps(v, _mm512_set1_ps(((const float *)x[c])[i]), acc[c]);
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) el_write_rows(acc[c], n_rows, y[c] + y_off);
}

/* There are no extras: a panel is one stream in either form. */
#define FLOAT_FORM(name, form, type)                                                                    \
    EL_INLINE void name##_##form(const el_values *values, const uint8_t *quants, const uint8_t *extras, \
                                 int32_t k, int32_t n_rows, const void *const *x, float *const *y,      \
                                 size_t y_off, void *scratch, const int nc) {                           \
        (void)values;                                                                                   \
        (void)extras;                                                                                   \
        (void)scratch;                                                                                  \
        float_tile(quants, k, n_rows, x, y, y_off, nc, type);                                           \
    }

FLOAT_FORM(f16, tile, EL_F16)
FLOAT_FORM(f16, streamed, EL_F16)
FLOAT_FORM(bf16, tile, EL_BF16)
FLOAT_FORM(bf16, streamed, EL_BF16)
FLOAT_FORM(f32, tile, EL_F32)
FLOAT_FORM(f32, streamed, EL_F32)

EL_MM_FUNCTION(f16, NULL, 1, 32)
EL_MM_FUNCTION(bf16, NULL, 1, 32)
EL_MM_FUNCTION(f32, NULL, 1, 64)

void el_avx512_matmul_float(el_kernels *table) {
    table->mm[EL_F16] = mm_f16;
    table->mm[EL_BF16] = mm_bf16;
    table->mm[EL_F32] = mm_f32;
}
