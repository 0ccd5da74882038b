/* What the matmul files of levels avx2 and avx_vnni share: columns, sums, the driver of mm, transposes for pack.
 *
 * How mm works. A tile call multiplies up to 4 columns by all 16 rows over some consecutive blocks of the panel, and
 * continues the float chains it finds in `acc`. There are three forms, from few columns to many:
 *
 *   streamed  1 or 2 columns. The panel is read as it lies, first all quants, then all extras: memory sees one ascending
 *             stream, worth 20 % of the bandwidth. Integer sums wait in scratch until their scales come by.
 *   packed    more. Blocks are unpacked in registers, quants and extras of a block together.
 *   expanded  many. The panel is first unpacked into scratch (u8 weights, f32 scales), in chunks that stay in the cache
 *             while every group of columns uses them.
 *
 * packed and expanded prefetch the next panel, evenly spread over their work.
 *
 * Weights are the unsigned operand, activations (one broadcast dword = 4 k) the signed one; offsets (u - 16, u - 32) leave
 * through the activation sums. Level avx2 multiplies with vpmaddubsw, whose int16 saturate: the products of several steps
 * are added as int16, as many as provably fit. Level avx_vnni (EL_DPBUSD 1) includes the same bodies and multiplies with
 * vpdpbusd: its sums are exact in int32 from the start.
 */
#ifndef EL_AVX2_MATMUL_H
#define EL_AVX2_MATMUL_H

#ifndef EL_DPBUSD
#define EL_DPBUSD 0
#endif

#define EL_MATMUL 1
#include "pack_rows.h"
#include "simd_x86.h"

#include "../kernels.h"
#include "../qblocks.h"

#include <string.h>

enum {
    EL_GROUP = 4,           /* columns of a tile call */
    EL_STREAMED = 2,        /* columns of a streamed call */
    EL_BATCH_COLUMNS = 512, /* columns whose accumulators fit into scratch */
    EL_SUM_BYTES = 32768,   /* integer sums of a streamed call at most */
    EL_PREFETCH_NEAR =
        1024, /* bytes ahead of a streamed call, one column: the processor's own prefetch does the rest */
    EL_PREFETCH_MIDDLE = 2048, /* types that take longer to unpack */
    EL_PREFETCH_TWO = 4096,    /* two columns */
    EL_PREFETCH_FAR = 8192,    /* where computing takes longer than reading */
    EL_FARTHER = 4 /* times as far, one column, in mm_far: what suits differs between processors */
};

/* ---- columns ---------------------------------------------------------------------------------------------------- */

/* One column of activations from some block on. d, sum: per 16 and s per 32 (A16); d per 256, sum16, sum32 (A256). */
typedef struct el_column {
    const int8_t *q;
    const float *d, *s;
    const int32_t *sum;
    const int16_t *sum16, *sum32;
} el_column;

EL_INLINE el_column el_column_a16(const void *row, int32_t k, int32_t block) {
    return (el_column){.q = (const int8_t *)row + (ptrdiff_t)block * 32,
                       .d = el_a16_d(row, k) + (ptrdiff_t)block * 2,
                       .s = el_a16_s(row, k) + block,
                       .sum = el_a16_sum(row, k) + (ptrdiff_t)block * 2};
}

EL_INLINE el_column el_column_a256(const void *row, int32_t k, int32_t block) {
    return (el_column){.q = (const int8_t *)row + (ptrdiff_t)block * 256,
                       .d = el_a256_d(row, k) + block,
                       .sum16 = el_a256_sum16(row, k) + (ptrdiff_t)block * 16,
                       .sum32 = el_a256_sum32(row, k) + (ptrdiff_t)block * 8};
}

/* 4 activations, k .. k+3, in every dword. */
EL_INLINE __m256i el_broadcast4(const int8_t *q) {
    int32_t v;
    memcpy(&v, q, 4);
    return _mm256_set1_epi32(v);
}

EL_INLINE __m256i el_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

EL_INLINE void el_store(void *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }

/* 8 halves at p. */
EL_INLINE __m256 el_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }

/* el_e8m0_half of 8 bytes. */
EL_INLINE __m256 el_e8m0_half_8(__m128i bytes) {
    const __m256i e = _mm256_cvtepu8_epi32(bytes), two = _mm256_set1_epi32(2);
    const __m256i normal =
        _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23); /* <= 0 below two */
    const __m256i low = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), _mm256_min_epi32(e, two));
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, low));
}

EL_INLINE void el_prefetch(const void *p, int32_t bytes, int32_t distance) {
    const char *c = (const char *)p + distance;
    for (int32_t i = 0; i < bytes; i += 64) _mm_prefetch(c + i, _MM_HINT_T0);
}

/* ---- integer sums ----------------------------------------------------------------------------------------------- */

/* sum[c][h] of column c and half h (8 of the 16 rows). */
typedef __m256i el_sums[EL_GROUP][2];

EL_INLINE void el_sums_clear(el_sums sum, const int nc) {
    EL_UNROLL
    for (int c = 0; c < nc; c++) sum[c][0] = sum[c][1] = _mm256_setzero_si256();
}

/* Put sums aside until their scales come by: [..][c][h]. */
EL_INLINE __m256i *el_sums_store(__m256i *to, const el_sums sum, const int nc) {
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        _mm256_store_si256(to++, sum[c][0]);
        _mm256_store_si256(to++, sum[c][1]);
    }
    return to;
}

/* Add one step, as int32 (EL_DPBUSD) or int16: unsigned weights of 8 rows times 4 activations. */
EL_INLINE __m256i el_dot4(__m256i sum, __m256i w, __m256i q) {
#if EL_DPBUSD
    return el_dpbusd_256(sum, w, q);
#else
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, q));
#endif
}

/* The same for 16 rows and column c. */
EL_INLINE void el_sums_add(el_sums sum, const int c, __m256i w0, __m256i w1, __m256i q) {
    sum[c][0] = el_dot4(sum[c][0], w0, q);
    sum[c][1] = el_dot4(sum[c][1], w1, q);
    EL_PIN(sum[c][0]);
    EL_PIN(sum[c][1]);
}

/* Sums of el_dot4 times the scales of their rows, as int32. sc: an int32 (EL_DPBUSD) or twice an int16 in every dword. */
EL_INLINE __m256i el_sums_scaled(__m256i sum, __m256i sc) {
    return EL_DPBUSD ? _mm256_mullo_epi32(sum, sc) : _mm256_madd_epi16(sum, sc);
}

/* el_int8_peak_fn. */
static inline int64_t el_multiply_only(int32_t rounds) {
    enum { CHAINS = 12 };
    const __m256i w = _mm256_set1_epi32(el_unknown_zero()), q = _mm256_set1_epi32(el_unknown_zero());
    __m256i sum[CHAINS];
    EL_UNROLL
    for (int i = 0; i < CHAINS; i++) sum[i] = w;
    for (int32_t r = 0; r < rounds; r++) {
        EL_UNROLL
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = el_dot4(sum[i], w, q);
            EL_PIN(sum[i]);
        }
    }
    EL_UNROLL
    for (int i = 1; i < CHAINS; i++) sum[0] = _mm256_or_si256(sum[0], sum[i]);
    return (int64_t)rounds * CHAINS * 32 + _mm256_extract_epi32(sum[0], 0);
}

/* el_read_fn. */
static inline uint64_t el_read_only(const void *memory, size_t bytes) {
    const char *p = memory;
    __m256i all[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                      _mm256_setzero_si256()};
    for (size_t i = 0; i < bytes; i += 128) {
        _mm_prefetch(p + i + EL_READ_AHEAD, _MM_HINT_T0);
        _mm_prefetch(p + i + EL_READ_AHEAD + 64, _MM_HINT_T0);
        EL_UNROLL
        for (size_t j = 0; j < 4; j++) {
            all[j] = _mm256_or_si256(all[j], _mm256_load_si256((const __m256i *)(const void *)(p + i) + j));
        }
    }
    all[0] = _mm256_or_si256(_mm256_or_si256(all[0], all[1]), _mm256_or_si256(all[2], all[3]));
    _Alignas(32) uint64_t words[4];
    _mm256_store_si256((__m256i *)(void *)words, all[0]);
    return words[0] | words[1] | words[2] | words[3];
}

EL_INLINE __m256i el_low_nibbles(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
EL_INLINE __m256i el_high_nibbles(__m256i v) { return el_low_nibbles(_mm256_srli_epi16(v, 4)); }

/* Bit s of each byte, moved to bit `to`. */
EL_INLINE __m256i el_bit(__m256i v, const int s, const int to) {
    return _mm256_and_si256(s < to ? _mm256_slli_epi16(v, to - s) : _mm256_srli_epi16(v, s - to),
                            _mm256_set1_epi8((char)(1 << to)));
}

/* The crumb i (bits 2i, 2i+1) of each byte, moved to bits `to` and `to` + 1. */
EL_INLINE __m256i el_crumb(__m256i v, const int i, const int to) {
    return _mm256_and_si256(2 * i < to ? _mm256_slli_epi16(v, to - 2 * i) : _mm256_srli_epi16(v, 2 * i - to),
                            _mm256_set1_epi8((char)(3 << to)));
}

/* ---- float chains ----------------------------------------------------------------------------------------------- */

typedef __m256 el_chains[EL_GROUP][2];

EL_INLINE void el_chains_load(el_chains to, const float *acc, const int nc) {
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        to[c][0] = _mm256_load_ps(acc + 16 * c);
        to[c][1] = _mm256_load_ps(acc + 16 * c + 8);
    }
}

EL_INLINE void el_chains_store(const el_chains from, float *acc, const int nc) {
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        _mm256_store_ps(acc + 16 * c, from[c][0]);
        _mm256_store_ps(acc + 16 * c + 8, from[c][1]);
    }
}

/* ---- the driver ------------------------------------------------------------------------------------------------- */

/* Columns x[0 .. NC-1] times n_blocks blocks of the panel from block0 on. quants and extras: of block0. */
typedef struct el_tile_call {
    const uint8_t *quants, *extras; /* in the panel's form or the expanded one */
    int32_t k, block0, n_blocks;
    const void *const *x;
    float *acc;        /* [NC][16] */
    __m256i *sums;     /* streamed: room for the integer sums .. */
    int32_t distance;  /* .. and bytes ahead to prefetch */
    const char *ahead; /* the others: prefetch `lines` lines per 32 columns of K from here on */
    int32_t lines;
    const el_values *values; /* of types whose quants are numbers of values */
} el_tile_call;

typedef void el_tile_fn(const el_tile_call *t);

typedef struct el_mm_type {
    int32_t block, quant_bytes, extra_bytes;  /* of a block in the panel */
    int32_t sums;                             /* integer sums a block has per row and column */
    int32_t packed_columns;                   /* up to here expanding does not pay */
    int32_t chunk;                            /* blocks of K that all columns use before the next */
    int32_t distance;                         /* bytes ahead of a streamed call, one column */
    int32_t expanded_quants, expanded_extras; /* bytes of a block; quants 0: the panel's serve */
    const el_values *values;
    void (*expand)(const el_tile_call *t, uint8_t *to_quants, uint8_t *to_extras);
    el_tile_fn *streamed[EL_STREAMED], *packed[EL_GROUP], *expanded[EL_GROUP]; /* by NC - 1 */
} el_mm_type;

/* Prefetch `lines` lines and move on. */
EL_INLINE const char *el_prefetch_ahead(const char *p, int32_t lines) {
    for (int32_t i = 0; i < lines; i++, p += 64) _mm_prefetch(p, _MM_HINT_T0);
    return p;
}

/* The tile functions of a type, from inline functions <name>_<form>(t, nc), and their places in an el_mm_type. */
#define EL_TILE_FUNCTION(name, form, nc) \
    static void name##_##form##_##nc(const el_tile_call *t) { name##_##form(t, nc); }
#define EL_TILE_FUNCTIONS(name)         \
    EL_TILE_FUNCTION(name, streamed, 1) \
    EL_TILE_FUNCTION(name, streamed, 2) \
    EL_TILE_FUNCTION(name, packed, 1)   \
    EL_TILE_FUNCTION(name, packed, 2)   \
    EL_TILE_FUNCTION(name, packed, 3)   \
    EL_TILE_FUNCTION(name, packed, 4)   \
    EL_TILE_FUNCTION(name, expanded, 1) \
    EL_TILE_FUNCTION(name, expanded, 2) \
    EL_TILE_FUNCTION(name, expanded, 3) \
    EL_TILE_FUNCTION(name, expanded, 4)
#define EL_TILE_TABLES(name)                                                        \
    .streamed = {name##_streamed_1, name##_streamed_2},                             \
    .packed = {name##_packed_1, name##_packed_2, name##_packed_3, name##_packed_4}, \
    .expanded = {name##_expanded_1, name##_expanded_2, name##_expanded_3, name##_expanded_4}
#define EL_MM_FUNCTION(function, type)                                                                  \
    static void function(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n, \
                         float *const *y, size_t y_off, void *scratch) {                                \
        el_mm_blocks(&type, 1, panel, k, n_rows, x, n, y, y_off, scratch);                              \
    }
#define EL_MM_FUNCTIONS(function, type)                                                            \
    EL_MM_FUNCTION(function, type)                                                                 \
    static void function##_far(const void *panel, int32_t k, int32_t n_rows, const void *const *x, \
                               int32_t n, float *const *y, size_t y_off, void *scratch) {          \
        el_mm_blocks(&type, EL_FARTHER, panel, k, n_rows, x, n, y, y_off, scratch);                \
    }

EL_INLINE void el_set_mm(el_kernels *table, int32_t qtype, el_mm_fn *mm, el_mm_fn *far) {
    table->mm[qtype] = mm;
    table->mm_far[qtype] = far;
}

/* Write n_rows floats of each column. */
static inline void el_mm_store(const float *acc, int32_t n_rows, int32_t n, float *const *y, size_t y_off) {
    for (int32_t c = 0; c < n; c++, acc += EL_TILE_ROWS) {
        float *to = y[c] + y_off;
        if (n_rows == EL_TILE_ROWS) {
            _mm256_storeu_ps(to, _mm256_load_ps(acc));
            _mm256_storeu_ps(to + 8, _mm256_load_ps(acc + 8));
        } else {
            memcpy(to, acc, (size_t)n_rows * sizeof(float));
        }
    }
}

static inline void el_mm_streamed(const el_mm_type *t, const el_tile_call *all, int32_t n_blocks, int32_t n) {
    const int32_t fit = t->sums ? EL_SUM_BYTES / (EL_STREAMED * 64) / t->sums : n_blocks;
    el_tile_call call = *all;
    for (int32_t b = 0; b < n_blocks; b += fit) {
        call.block0 = b;
        call.n_blocks = n_blocks - b < fit ? n_blocks - b : fit;
        t->streamed[n - 1](&call);
        call.quants += (size_t)fit * (size_t)t->quant_bytes;
        call.extras += (size_t)fit * (size_t)t->extra_bytes;
    }
}

/* Packed or expanded. acc and x of `all` are those of the first column. */
static inline void el_mm_tiled(const el_mm_type *t, const el_tile_call *all, int32_t n_blocks, int32_t n,
                               size_t panel_bytes, uint8_t *scratch) {
    const int expand = n > t->packed_columns;
    const int32_t chunk = t->chunk, all_groups = (n + EL_GROUP - 1) / EL_GROUP;
    uint8_t *extras = scratch, *quants = extras + chunk * t->expanded_extras;
    const char *ahead = (const char *)all->quants + panel_bytes, *ahead_end = ahead + panel_bytes;
    const int32_t times = all_groups * (all->k / 32);
    const int32_t lines = times ? (int32_t)(panel_bytes / 64) / times + 1 : 0;
    for (int32_t b = 0; b < n_blocks; b += chunk) {
        el_tile_call call = *all;
        call.block0 = b;
        call.n_blocks = n_blocks - b < chunk ? n_blocks - b : chunk;
        call.quants += (size_t)b * (size_t)t->quant_bytes;
        call.extras += (size_t)b * (size_t)t->extra_bytes;
        if (expand) {
            t->expand(&call, quants, extras);
            if (t->expanded_quants) call.quants = quants;
            call.extras = extras;
        }
        for (int32_t c = 0, groups = all_groups; groups > 0; groups--) {
            const int32_t width = (n - c + groups - 1) / groups; /* evenly shared */
            call.x = all->x + c;
            call.acc = all->acc + (size_t)c * EL_TILE_ROWS;
            call.ahead = ahead;
            call.lines = ahead < ahead_end ? lines : 0;
            (expand ? t->expanded : t->packed)[width - 1](&call);
            ahead += (ptrdiff_t)call.lines * 64 * (call.n_blocks * t->block / 32);
            c += width;
        }
    }
}

/* mm of every type: el_mm_fn's arguments. times: as far as the type's distance one column's prefetches go. Scratch:
 * accumulators, then integer sums or what was expanded. */
static inline void el_mm_blocks(const el_mm_type *t, int32_t times, const void *panel, int32_t k,
                                int32_t n_rows, const void *const *x, int32_t n, float *const *y,
                                size_t y_off, void *scratch) {
    const int32_t n_blocks = k / t->block;
    const size_t quant_bytes = (size_t)n_blocks * (size_t)t->quant_bytes;
    const size_t panel_bytes = (quant_bytes + (size_t)n_blocks * (size_t)t->extra_bytes + 63) & ~(size_t)63;
    float *acc = scratch;
    uint8_t *rest = (uint8_t *)(acc + EL_BATCH_COLUMNS * EL_TILE_ROWS);
    for (int32_t c0 = 0; c0 < n; c0 += EL_BATCH_COLUMNS) {
        const int32_t nc = n - c0 < EL_BATCH_COLUMNS ? n - c0 : EL_BATCH_COLUMNS;
        const el_tile_call call = {.quants = panel,
                                   .extras = (const uint8_t *)panel + quant_bytes,
                                   .k = k,
                                   .x = x + c0,
                                   .acc = acc,
                                   .sums = (__m256i *)rest,
                                   .distance = nc == 1 ? times * t->distance : EL_PREFETCH_TWO,
                                   .values = t->values};
        for (int32_t i = 0; i < nc * 2; i++) _mm256_store_ps(acc + 8 * i, _mm256_setzero_ps());
        if (nc <= EL_STREAMED) {
            el_mm_streamed(t, &call, n_blocks, nc);
        } else {
            el_mm_tiled(t, &call, n_blocks, nc, panel_bytes, rest);
        }
        el_mm_store(acc, n_rows, nc, y + c0, y_off);
    }
}

/* ---- pack ------------------------------------------------------------------------------------------------------- */

EL_INLINE __m256i el_load_pair(const uint8_t *low, const uint8_t *high) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)low)),
                                   _mm_loadu_si128((const __m128i *)high), 1);
}

/* 8 rows (from row0 on) x 16 bytes at `offset` of the block: t[i] = dword i of each row. */
EL_INLINE void el_transpose_8(const el_pack_rows *r, int32_t row0, size_t offset, __m256i t[4]) {
    const __m256i a = el_load_pair(r->p[row0] + offset, r->p[row0 + 4] + offset);
    const __m256i b = el_load_pair(r->p[row0 + 1] + offset, r->p[row0 + 5] + offset);
    const __m256i c = el_load_pair(r->p[row0 + 2] + offset, r->p[row0 + 6] + offset);
    const __m256i d = el_load_pair(r->p[row0 + 3] + offset, r->p[row0 + 7] + offset);
    const __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b);
    const __m256i cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
    t[0] = _mm256_unpacklo_epi64(ab0, cd0);
    t[1] = _mm256_unpackhi_epi64(ab0, cd0);
    t[2] = _mm256_unpacklo_epi64(ab1, cd1);
    t[3] = _mm256_unpackhi_epi64(ab1, cd1);
}

/* The same for 16 rows, written as 4 rows of 64 bytes. */
EL_INLINE void el_transpose_store(const el_pack_rows *r, size_t offset, uint8_t *to) {
    for (int32_t half = 0; half < 2; half++) {
        __m256i t[4];
        el_transpose_8(r, half * 8, offset, t);
        for (int32_t i = 0; i < 4; i++) el_store(to + 64 * i + 32 * half, t[i]);
    }
}

EL_INLINE __m128i el_load_dword(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, 4);
    return _mm_cvtsi32_si128(v);
}

/* The dword at `offset` of 8 rows. */
EL_INLINE __m256i el_gather_8(const el_pack_rows *r, int32_t row0, size_t offset) {
    const uint8_t *const *p = r->p + row0;
    const __m128i a = _mm_unpacklo_epi32(el_load_dword(p[0] + offset), el_load_dword(p[1] + offset));
    const __m128i b = _mm_unpacklo_epi32(el_load_dword(p[2] + offset), el_load_dword(p[3] + offset));
    const __m128i c = _mm_unpacklo_epi32(el_load_dword(p[4] + offset), el_load_dword(p[5] + offset));
    const __m128i d = _mm_unpacklo_epi32(el_load_dword(p[6] + offset), el_load_dword(p[7] + offset));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi64(a, b)), _mm_unpacklo_epi64(c, d),
                                   1);
}

/* Of 16 dwords (a: rows 0..7, b: rows 8..15) the low or the high words, in row order. */
EL_INLINE __m256i el_low_words(__m256i a, __m256i b) {
    const __m256i mask = _mm256_set1_epi32(0xffff);
    const __m256i w = _mm256_packus_epi32(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
    return _mm256_permute4x64_epi64(w, 0xd8);
}

EL_INLINE __m256i el_high_words(__m256i a, __m256i b) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16)),
                                    0xd8);
}

/* 4 bytes per row (low: rows 0..7). Byte i of all 16 rows to to[16 i ..]. */
EL_INLINE void el_store_bytes_by_row(__m256i low, __m256i high, uint8_t *to) {
    const __m256i by_byte = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, /* */
                                             0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m256i by_lane = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i a =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(low, by_byte), by_lane); /* qword i: rows 0..7 */
    const __m256i b = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(high, by_byte), by_lane);
    const __m256i even = _mm256_unpacklo_epi64(a, b),
                  odd = _mm256_unpackhi_epi64(a, b); /* bytes 0 2, bytes 1 3 */
    el_store(to, _mm256_permute2x128_si256(even, odd, 0x20));
    el_store(to + 32, _mm256_permute2x128_si256(even, odd, 0x31));
}

/* Fill the table's entries of one family. */
void el_avx_vnni_matmul_legacy(el_kernels *table);
void el_avx_vnni_matmul_kquants(el_kernels *table);
void el_avx2_matmul_legacy(el_kernels *table);
void el_avx2_matmul_kquants(el_kernels *table);
void el_avx2_matmul_kquants_pack(el_kernels *table);
void el_avx2_matmul_codebooks_pack(el_kernels *table);
void el_avx2_matmul_float(el_kernels *table);
void el_avx2_matmul_quantize(el_kernels *table);

#endif
