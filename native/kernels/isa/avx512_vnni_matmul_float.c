/* AVX-512 matmul of F16 and F32 weights: one fma chain over k per output, lanes are rows. */
#include "avx512_vnni_matmul.h"

EL_INLINE void float_tile(const uint8_t *w, int32_t k, int32_t n_rows, const void *const *x, float *const *y,
                          size_t y_off, const int nc, const int is_f16) {
    const int bytes = is_f16 ? 32 : 64;
    __m512 acc[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) acc[c] = _mm512_setzero_ps();
    for (int32_t i = 0; i < k; i++, w += bytes) {
        if (!is_f16 || i % 2 == 0) el_prefetch(w, 64);
        const __m512 v = is_f16 ? el_load_f16(w) : _mm512_loadu_ps((const float *)w);
        EL_UNROLL
        for (int c = 0; c < nc; c++)
            acc[c] = _mm512_fmadd_ps(v, _mm512_set1_ps(((const float *)x[c])[i]), acc[c]);
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) el_write_rows(acc[c], n_rows, y[c] + y_off);
}

/* There are no extras: a panel is one stream in either form. */
#define FLOAT_FORM(name, form, is_f16)                                                                    \
    EL_INLINE void name##_##form(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t n_rows, \
                                 const void *const *x, float *const *y, size_t y_off, void *scratch,      \
                                 const int nc) {                                                          \
        (void)extras;                                                                                     \
        (void)scratch;                                                                                    \
        float_tile(quants, k, n_rows, x, y, y_off, nc, is_f16);                                           \
    }

FLOAT_FORM(f16, tile, 1)
FLOAT_FORM(f16, streamed, 1)
FLOAT_FORM(f32, tile, 0)
FLOAT_FORM(f32, streamed, 0)

EL_MM_FUNCTION(f16, 1, 32)
EL_MM_FUNCTION(f32, 1, 64)

void el_avx512_vnni_matmul_float(el_kernels *table) {
    table->mm[EL_F16] = mm_f16;
    table->mm[EL_F32] = mm_f32;
}
