/* What the matmul files of levels avx512 and avx512_vnni share.
 *
 * The lanes of a zmm are the panel's 16 rows. The activations, 4 k at a time, are broadcast. With VNNI (EL_VNNI 1) weights
 * are vpdpbusd's unsigned operand; products and sums are exact in int32. Without it they are vpmaddubsw's, whose int16
 * saturate: el_dot4 adds as int16 what provably fits. There are three forms, from few columns to many:
 *
 *   streamed  1 or 2 columns: first all quants, then all extras, so that memory sees one ascending stream; the sums
 *             wait in scratch. (Two interleaved streams cost 20 % of the bandwidth at level avx2.)
 *   tile      up to 8 columns, unpacked on the way, integer sums and float chains in registers, the whole K in one call.
 *   expanded  many columns, types whose unpacking takes long: some blocks are unpacked into scratch, and stay in the cache
 *             while all columns use them; the chains wait in scratch meanwhile.
 *
 * pack is that of the AVX2 level, and so is quantize of A256.
 */
#ifndef EL_AVX512_MATMUL_H
#define EL_AVX512_MATMUL_H

#ifndef EL_VNNI
#define EL_VNNI 0
#endif

#define EL_MATMUL 1
#include "simd_x86.h"

#include "../kernels.h"
#include "../qblocks.h"

#include <string.h>

enum {
    EL_GROUP = 8,       /* columns of a tile call */
    EL_STREAMED = 2,    /* columns of a streamed call */
    EL_NARROW = 7,      /* columns of an expanded tile call, from .. */
    EL_WIDE = 10,       /* .. to */
    EL_MANY = 24,       /* columns from which on expanding pays */
    EL_BATCH = 256,     /* columns whose chains fit into scratch */
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

/* a * b + c in every dword, modulo 2^32: a plan may read activations that nothing has written. */
EL_INLINE __m512i el_times_plus(int32_t a, int32_t b, int32_t c) {
    return _mm512_set1_epi32((int32_t)((uint32_t)a * (uint32_t)b + (uint32_t)c));
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

/* el_e8m0_half of 16 bytes. */
EL_INLINE __m512 el_e8m0_half_16(__m128i bytes) {
    const __m512i e = _mm512_cvtepu8_epi32(bytes), two = _mm512_set1_epi32(2);
    const __m512i normal =
        _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23); /* <= 0 below two */
    const __m512i low = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), _mm512_min_epi32(e, two));
    return _mm512_castsi512_ps(_mm512_max_epi32(normal, low));
}

/* 16 values with `zero` added, for _mm512_shuffle_epi8. */
EL_INLINE __m512i el_value_table(const int8_t *values, const int zero) {
    const __m128i v = _mm_loadu_si128((const __m128i *)values);
    return _mm512_broadcast_i32x4(_mm_add_epi8(v, _mm_set1_epi8((char)zero)));
}
EL_INLINE __m512i el_values_of(const int8_t *values, const int zero, __m512i nibbles) {
    return _mm512_shuffle_epi8(el_value_table(values, zero), nibbles);
}

/* ---- integer sums of n steps (at most 8) of weights 0..top; top -1: signed weights ---- */

/* The steps fit into int16: two products of at most top * 127 each. */
EL_INLINE int el_fits_int16(const int top, const int n) { return top >= 0 && 2 * n * top * 127 <= 32767; }

/* The sum to start with, where `start` is to be part of it. */
EL_INLINE __m512i el_dot_begin(const int top, const int n, __m512i start) {
    return !EL_VNNI && el_fits_int16(top, n) ? _mm512_setzero_si512() : start;
}

/* One step. Without VNNI: two products of a signed weight and of a byte within 127 fit too, 2 * 128 * 127 = 32,512. */
EL_INLINE __m512i el_dot4(const int top, const int n, __m512i sum, __m512i w, __m512i q) {
#if EL_VNNI
    (void)top;
    (void)n;
    return _mm512_dpbusd_epi32(sum, w, q);
#else
    if (top < 0) { /* |w| and the activation with w's sign */
        q = _mm512_mask_sub_epi8(q, _mm512_movepi8_mask(w), _mm512_setzero_si512(), q);
        w = _mm512_abs_epi8(w);
    }
    const __m512i p = _mm512_maddubs_epi16(w, q);
    if (el_fits_int16(top, n)) return _mm512_add_epi16(sum, p);
    return _mm512_add_epi32(sum, _mm512_madd_epi16(p, _mm512_set1_epi16(1)));
#endif
}

/* el_int8_peak_fn. */
static inline int64_t el_multiply_only(int32_t rounds) {
    enum { CHAINS = 16 };
    const __m512i w = _mm512_set1_epi32(el_unknown_zero()), q = _mm512_set1_epi32(el_unknown_zero());
    __m512i sum[CHAINS];
    EL_UNROLL
    for (int i = 0; i < CHAINS; i++) sum[i] = w;
    for (int32_t r = 0; r < rounds; r++) {
        EL_UNROLL
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = el_dot4(15, 8, sum[i], w, q);
            EL_PIN_512(sum[i]);
        }
    }
    _Alignas(64) int32_t sums[16];
    EL_UNROLL
    for (int i = 1; i < CHAINS; i++) sum[0] = _mm512_or_si512(sum[0], sum[i]);
    _mm512_store_si512(sums, sum[0]);
    return (int64_t)rounds * CHAINS * 64 + sums[0];
}

/* el_read_fn. */
static inline uint64_t el_read_only(const void *memory, size_t bytes) {
    const char *p = memory;
    __m512i all[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                      _mm512_setzero_si512()};
    for (size_t i = 0; i < bytes; i += 256) {
        EL_UNROLL
        for (size_t j = 0; j < 4; j++) {
            _mm_prefetch(p + i + 64 * j + EL_READ_AHEAD, _MM_HINT_T0);
            all[j] = _mm512_or_si512(all[j], _mm512_load_si512(p + i + 64 * j));
        }
    }
    all[0] = _mm512_or_si512(_mm512_or_si512(all[0], all[1]), _mm512_or_si512(all[2], all[3]));
    _Alignas(64) uint64_t words[8];
    _mm512_store_si512(words, all[0]);
    for (int i = 1; i < 8; i++) words[0] |= words[i];
    return words[0];
}

/* The sum as int32, `start` included. */
EL_INLINE __m512i el_dot_end(const int top, const int n, __m512i sum, __m512i start) {
    if (EL_VNNI || !el_fits_int16(top, n)) return sum;
    return _mm512_add_epi32(start, _mm512_madd_epi16(sum, _mm512_set1_epi16(1)));
}

/* sum + the two products of the words of every dword. */
EL_INLINE __m512i el_add_pairs(__m512i sum, __m512i a, __m512i b) {
#if EL_VNNI
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
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

/* Columns x[0 .. NC-1] over the whole K. values: of types whose quants are numbers of values. scratch: mm's. */
typedef void el_tile_fn(const el_values *values, const uint8_t *quants, const uint8_t *extras, int32_t k,
                        int32_t n_rows, const void *const *x, float *const *y, size_t y_off, void *scratch);

/* Spread n columns evenly over as few tile calls as possible. */
static inline void el_mm_groups(el_tile_fn *const *streamed, el_tile_fn *const *tile, const el_values *values,
                                const void *panel, int32_t k, size_t quant_bytes, int32_t n_rows,
                                const void *const *x, int32_t n, float *const *y, size_t y_off,
                                void *scratch) {
    const uint8_t *quants = panel;
    if (n <= EL_STREAMED) tile = streamed;
    for (int32_t left = (n + EL_GROUP - 1) / EL_GROUP, c = 0; left > 0; left--) {
        const int32_t width = (n - c + left - 1) / left;
        tile[width - 1](values, quants, quants + quant_bytes, k, n_rows, x + c, y + c, y_off, scratch);
        c += width;
    }
}

/* ---- many columns: panels expanded into scratch ---- */

/* Columns x[0 .. NC-1] over n_blocks expanded blocks from block b on; acc: their chains so far, [NC][16]. */
typedef void el_expanded_fn(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t b,
                            int32_t n_blocks, const void *const *x, float *acc);

typedef struct el_expansion {
    int32_t block, chunk;             /* columns of a block; blocks that all columns use before the next */
    int32_t quant_bytes, extra_bytes; /* of a block of the panel */
    int32_t to_quants, to_extras;     /* of an expanded one */
    void (*expand)(const el_values *values, const uint8_t *quants, const uint8_t *extras, int32_t n_blocks,
                   uint8_t *to_quants, uint8_t *to_extras);
    el_expanded_fn *tiles[EL_WIDE - EL_NARROW + 1]; /* by columns */
} el_expansion;

static inline void el_mm_expanded(const el_expansion *t, const el_values *values, const uint8_t *panel,
                                  int32_t k, int32_t n_rows, const void *const *x, int32_t n, float *const *y,
                                  size_t y_off, void *scratch) {
    const int32_t n_blocks = k / t->block, n_groups = (n + EL_WIDE - 1) / EL_WIDE;
    float *acc = scratch;
    uint8_t *quants = (uint8_t *)(acc + EL_BATCH * EL_TILE_ROWS);
    uint8_t *extras = quants + (ptrdiff_t)t->chunk * t->to_quants;
    const uint8_t *panel_extras = panel + (size_t)n_blocks * (size_t)t->quant_bytes;
    for (int32_t c = 0; c < n; c++) _mm512_storeu_ps(acc + c * EL_TILE_ROWS, _mm512_setzero_ps());
    for (int32_t b = 0; b < n_blocks; b += t->chunk) {
        const int32_t here = n_blocks - b < t->chunk ? n_blocks - b : t->chunk;
        t->expand(values, panel + (size_t)b * (size_t)t->quant_bytes,
                  panel_extras + (size_t)b * (size_t)t->extra_bytes, here, quants, extras);
        for (int32_t left = n_groups, c = 0; left > 0; left--) {
            const int32_t width = (n - c + left - 1) / left;
            t->tiles[width - EL_NARROW](quants, extras, k, b, here, x + c, acc + c * EL_TILE_ROWS);
            c += width;
        }
    }
    for (int32_t c = 0; c < n; c++)
        el_write_rows(_mm512_loadu_ps(acc + c * EL_TILE_ROWS), n_rows, y[c] + y_off);
}

/* As many of the n columns as are worth it, EL_BATCH at a time; how many that were. t NULL: none. */
static inline int32_t el_mm_many(const el_expansion *t, const el_values *values, const void *panel, int32_t k,
                                 int32_t n_rows, const void *const *x, int32_t n, float *const *y,
                                 size_t y_off, void *scratch) {
    int32_t done = 0;
    while (t && n - done >= EL_MANY) {
        const int32_t left = n - done;
        const int32_t here = left <= EL_BATCH ? left : left < 2 * EL_BATCH ? left / 2 : EL_BATCH;
        el_mm_expanded(t, values, panel, k, n_rows, x + done, here, y + done, y_off, scratch);
        done += here;
    }
    return done;
}

/* mm of a type from inline functions <name>_tile and <name>_streamed (..., nc); quant_bytes: of `block` columns of a
 * panel. mm_<name> of el_values: EL_MM_VALUES after EL_MM_TILES. */
#define EL_TILE_FUNCTION(name, form, nc)                                                                    \
    static void name##_##form##_##nc(const el_values *values, const uint8_t *quants, const uint8_t *extras, \
                                     int32_t k, int32_t n_rows, const void *const *x, float *const *y,      \
                                     size_t y_off, void *scratch) {                                         \
        name##_##form(values, quants, extras, k, n_rows, x, y, y_off, scratch, nc);                         \
    }
#define EL_EXPANDED_FUNCTION(name, nc)                                                                   \
    static void name##_expanded_##nc(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t b, \
                                     int32_t n_blocks, const void *const *x, float *acc) {               \
        name##_expanded(quants, extras, k, b, n_blocks, x, acc, nc);                                     \
    }
/* <name>_expansion from inline functions <name>_expand and <name>_expanded (..., nc). */
#define EL_EXPANSION(name, columns, blocks, quants, extras, expanded_quants, expanded_extras) \
    EL_EXPANDED_FUNCTION(name, 7)                                                             \
    EL_EXPANDED_FUNCTION(name, 8)                                                             \
    EL_EXPANDED_FUNCTION(name, 9)                                                             \
    EL_EXPANDED_FUNCTION(name, 10)                                                            \
    static const el_expansion name##_expansion = {                                            \
        columns,         blocks,                                                              \
        quants,          extras,                                                              \
        expanded_quants, expanded_extras,                                                     \
        name##_expand,   {name##_expanded_7, name##_expanded_8, name##_expanded_9, name##_expanded_10}};
#define EL_MM_TILES(name)                                                                           \
    EL_TILE_FUNCTION(name, streamed, 1)                                                             \
    EL_TILE_FUNCTION(name, streamed, 2)                                                             \
    EL_TILE_FUNCTION(name, tile, 1)                                                                 \
    EL_TILE_FUNCTION(name, tile, 2)                                                                 \
    EL_TILE_FUNCTION(name, tile, 3)                                                                 \
    EL_TILE_FUNCTION(name, tile, 4)                                                                 \
    EL_TILE_FUNCTION(name, tile, 5)                                                                 \
    EL_TILE_FUNCTION(name, tile, 6)                                                                 \
    EL_TILE_FUNCTION(name, tile, 7)                                                                 \
    EL_TILE_FUNCTION(name, tile, 8)                                                                 \
    static el_tile_fn *const name##_of_few[EL_STREAMED] = {name##_streamed_1, name##_streamed_2};   \
    static el_tile_fn *const name##_tiles[EL_GROUP] = {name##_tile_1, name##_tile_2, name##_tile_3, \
                                                       name##_tile_4, name##_tile_5, name##_tile_6, \
                                                       name##_tile_7, name##_tile_8};
#define EL_MM_VALUES(name, tiles, expansion, values, block, quant_bytes)                                     \
    static void mm_##name(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n,     \
                          float *const *y, size_t y_off, void *scratch) {                                    \
        const int32_t done = el_mm_many(expansion, values, panel, k, n_rows, x, n, y, y_off, scratch);       \
        if (done == n) return;                                                                               \
        el_mm_groups(tiles##_of_few, tiles##_tiles, values, panel, k, (size_t)(k / (block)) * (quant_bytes), \
                     n_rows, x + done, n - done, y + done, y_off, scratch);                                  \
    }
#define EL_MM_FUNCTION(name, expansion, block, quant_bytes) \
    EL_MM_TILES(name)                                       \
    EL_MM_VALUES(name, name, expansion, NULL, block, quant_bytes)

/* Fill the table's entries of one family. */
void el_avx512_matmul_legacy(el_kernels *table);
void el_avx512_matmul_kquants(el_kernels *table);
void el_avx512_matmul_float(el_kernels *table);
void el_avx512_matmul_quantize(el_kernels *table);
void el_avx512_vnni_matmul_legacy(el_kernels *table);
void el_avx512_vnni_matmul_kquants(el_kernels *table);

#endif
