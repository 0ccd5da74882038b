/* What the AVX-512 VNNI matmul files share.
 *
 * The lanes of a zmm are the panel's 16 rows. Weights are vpdpbusd's unsigned operand and are unpacked on the way: that
 * costs less than reading them expanded. The activations, 4 k at a time, are its broadcast operand. Products and sums
 * are exact in int32. A call takes the whole K:
 *
 *   tile      up to 8 columns, integer sums and float chains in registers.
 *   streamed  1 or 2 columns: first all quants, then all extras, so that memory sees one ascending stream; the sums
 *             wait in scratch. (Two interleaved streams cost 20 % of the bandwidth at level avx2.)
 *
 * pack and quantize are those of the AVX2 level.
 */
#ifndef EL_AVX512_VNNI_MATMUL_H
#define EL_AVX512_VNNI_MATMUL_H

#include "simd_x86.h"

#include "../kernels.h"

#include <string.h>

enum {
    EL_GROUP = 8,       /* columns of a tile call */
    EL_STREAMED = 2,    /* columns of a streamed call */
    EL_PREFETCH = 4096, /* bytes ahead in the panel, and on into the next */
};

EL_INLINE __m512i el_load(const void *p) { return _mm512_loadu_si512(p); }

/* 16 halves at p. */
EL_INLINE __m512 el_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

/* 4 bytes at p (4 activations, or 2 int16 sums) in every dword. */
EL_INLINE __m512i el_broadcast4(const void *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

EL_INLINE __m512i el_low_nibbles(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
EL_INLINE __m512i el_high_nibbles(__m512i v) { return el_low_nibbles(_mm512_srli_epi16(v, 4)); }

/* Each word shifted left by n, right where n is negative. The intrinsics want literals. */
EL_INLINE __m512i el_shift(__m512i v, const int n) {
    switch (n) {
    case 4: return _mm512_slli_epi16(v, 4);
    case 3: return _mm512_slli_epi16(v, 3);
    case 2: return _mm512_slli_epi16(v, 2);
    case 1: return _mm512_slli_epi16(v, 1);
    case -1: return _mm512_srli_epi16(v, 1);
    case -2: return _mm512_srli_epi16(v, 2);
    case -3: return _mm512_srli_epi16(v, 3);
    case -4: return _mm512_srli_epi16(v, 4);
    case -5: return _mm512_srli_epi16(v, 5);
    case -6: return _mm512_srli_epi16(v, 6);
    default: return v; /* 0 */
    }
}

/* Bit s of each byte, moved to bit `to` (2 or more). */
EL_INLINE __m512i el_bit(__m512i v, const int s, const int to) {
    return _mm512_and_si512(el_shift(v, to - s), _mm512_set1_epi8((char)(1 << to)));
}

/* The crumb i (bits 2i, 2i+1) of each byte, moved to bits `to` and `to` + 1. */
EL_INLINE __m512i el_crumb(__m512i v, const int i, const int to) {
    return _mm512_and_si512(el_shift(v, to - 2 * i), _mm512_set1_epi8((char)(3 << to)));
}

EL_INLINE void el_clear(__m512 *acc, const int nc) {
    EL_UNROLL
    for (int c = 0; c < nc; c++) acc[c] = _mm512_setzero_ps();
}

/* fma((f32)i, d * dx, acc). */
EL_INLINE __m512 el_chain(__m512i i, __m512 d, __m512 dx, __m512 acc) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(i), _mm512_mul_ps(d, dx), acc);
}

EL_INLINE void el_prefetch(const void *p, int32_t bytes) {
    const char *c = (const char *)p + EL_PREFETCH;
    for (int32_t i = 0; i < bytes; i += 64) _mm_prefetch(c + i, _MM_HINT_T0);
}

EL_INLINE void el_write_rows(__m512 v, int32_t n_rows, float *y) {
    if (n_rows == EL_TILE_ROWS) {
        _mm512_storeu_ps(y, v);
    } else {
        float rows[EL_TILE_ROWS];
        _mm512_storeu_ps(rows, v);
        memcpy(y, rows, (size_t)n_rows * sizeof(float));
    }
}

EL_INLINE void el_write_columns(const __m512 *acc, int32_t n_rows, float *const *y, size_t y_off,
                                const int nc) {
    EL_UNROLL
    for (int c = 0; c < nc; c++) el_write_rows(acc[c], n_rows, y[c] + y_off);
}

/* Columns x[0 .. NC-1] over the whole K. scratch: mm's. */
typedef void el_tile_fn(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t n_rows,
                        const void *const *x, float *const *y, size_t y_off, void *scratch);

/* Spread n columns evenly over as few tile calls as possible. */
static inline void el_mm_groups(el_tile_fn *const *streamed, el_tile_fn *const *tile, const void *panel,
                                int32_t k, size_t quant_bytes, int32_t n_rows, const void *const *x,
                                int32_t n, float *const *y, size_t y_off, void *scratch) {
    const uint8_t *quants = panel;
    if (n <= EL_STREAMED) tile = streamed;
    for (int32_t left = (n + EL_GROUP - 1) / EL_GROUP, c = 0; left > 0; left--) {
        const int32_t width = (n - c + left - 1) / left;
        tile[width - 1](quants, quants + quant_bytes, k, n_rows, x + c, y + c, y_off, scratch);
        c += width;
    }
}

/* mm of a type from inline functions <name>_tile and <name>_streamed (..., nc); quant_bytes: of `block` columns of a
 * panel. */
#define EL_TILE_FUNCTION(name, form, nc)                                                                  \
    static void name##_##form##_##nc(const uint8_t *quants, const uint8_t *extras, int32_t k,             \
                                     int32_t n_rows, const void *const *x, float *const *y, size_t y_off, \
                                     void *scratch) {                                                     \
        name##_##form(quants, extras, k, n_rows, x, y, y_off, scratch, nc);                               \
    }
#define EL_MM_FUNCTION(name, block, quant_bytes)                                                         \
    EL_TILE_FUNCTION(name, streamed, 1)                                                                  \
    EL_TILE_FUNCTION(name, streamed, 2)                                                                  \
    EL_TILE_FUNCTION(name, tile, 1)                                                                      \
    EL_TILE_FUNCTION(name, tile, 2)                                                                      \
    EL_TILE_FUNCTION(name, tile, 3)                                                                      \
    EL_TILE_FUNCTION(name, tile, 4)                                                                      \
    EL_TILE_FUNCTION(name, tile, 5)                                                                      \
    EL_TILE_FUNCTION(name, tile, 6)                                                                      \
    EL_TILE_FUNCTION(name, tile, 7)                                                                      \
    EL_TILE_FUNCTION(name, tile, 8)                                                                      \
    static void mm_##name(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n, \
                          float *const *y, size_t y_off, void *scratch) {                                \
        static el_tile_fn *const streamed[EL_STREAMED] = {name##_streamed_1, name##_streamed_2};         \
        static el_tile_fn *const tiles[EL_GROUP] = {name##_tile_1, name##_tile_2, name##_tile_3,         \
                                                    name##_tile_4, name##_tile_5, name##_tile_6,         \
                                                    name##_tile_7, name##_tile_8};                       \
        el_mm_groups(streamed, tiles, panel, k, (size_t)(k / (block)) * (quant_bytes), n_rows, x, n, y,  \
                     y_off, scratch);                                                                    \
    }

/* Fill the table's entries of one family. */
void el_avx512_vnni_matmul_legacy(el_kernels *table);
void el_avx512_vnni_matmul_kquants(el_kernels *table);
void el_avx512_vnni_matmul_float(el_kernels *table);

#endif
