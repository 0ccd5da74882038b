/* AVX2 matmul of F16, BF16 and F32 weights: one fma chain over k per output, lanes are rows. A block is one k. */
#include "avx2_matmul.h"

/* Bytes of 8 weights. */
EL_INLINE int32_t bytes_of_8(const int type) { return type == EL_F32 ? 32 : 16; }

/* 16 weights at p as floats (exact). Those of BF16 come out as rows 0..3, 8..11 and 4..7, 12..15: two unpacks are half the
 * work of keeping the order. */
EL_INLINE void load_floats(const int type, const uint8_t *p, __m256 w[2]) {
    if (type == EL_BF16) {
        const __m256i halves = el_load(p), zero = _mm256_setzero_si256();
        w[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, halves));
        w[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, halves));
    } else if (type == EL_F16) {
        w[0] = el_load_f16(p);
        w[1] = el_load_f16(p + 16);
    } else {
        w[0] = _mm256_load_ps((const float *)p);
        w[1] = _mm256_load_ps((const float *)(p + 32));
    }
}

/* From the order of load_floats to that of the rows, and back. */
EL_INLINE void reorder(const int type, __m256 w[2]) {
    if (type != EL_BF16) return;
    const __m256 first = _mm256_permute2f128_ps(w[0], w[1], 0x20);
    w[1] = _mm256_permute2f128_ps(w[0], w[1], 0x31);
    w[0] = first;
}

/* acc stays in registers. type: that of the weights at t->quants. */
EL_INLINE void float_tile(const el_tile_call *t, const int nc, const int type, const int from_panel) {
    const int32_t bytes = bytes_of_8(type);
    const uint8_t *w = t->quants;
    __m256 sum[EL_GROUP][2];
    const float *col[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        col[c] = (const float *)t->x[c] + t->block0;
        sum[c][0] = _mm256_load_ps(t->acc + 16 * c);
        sum[c][1] = _mm256_load_ps(t->acc + 16 * c + 8);
        reorder(type, sum[c]);
    }
    for (int32_t i = 0; i < t->n_blocks; i++, w += 2 * bytes) {
        if (from_panel && (bytes == 32 || i % 2 == 0)) el_prefetch(w, 64, EL_PREFETCH_FAR);
        __m256 v[2];
        load_floats(type, w, v);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m256 x = _mm256_broadcast_ss(col[c] + i);
            sum[c][0] = _mm256_fmadd_ps(v[0], x, sum[c][0]);
            sum[c][1] = _mm256_fmadd_ps(v[1], x, sum[c][1]);
        }
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        reorder(type, sum[c]);
        _mm256_store_ps(t->acc + 16 * c, sum[c][0]);
        _mm256_store_ps(t->acc + 16 * c + 8, sum[c][1]);
    }
}

/* F32 is never expanded. */
EL_INLINE void expand(const int type, const uint8_t *quants, int32_t n_blocks, uint8_t *to_quants) {
    const int32_t bytes = 2 * bytes_of_8(type);
    for (int32_t i = 0; i < n_blocks; i++) {
        if (i * bytes % 64 == 0) el_prefetch(quants + i * bytes, 64, EL_PREFETCH_FAR);
        __m256 v[2];
        load_floats(type, quants + i * bytes, v);
        reorder(type, v);
        _mm256_store_ps((float *)(to_quants + 64 * i), v[0]);
        _mm256_store_ps((float *)(to_quants + 64 * i + 32), v[1]);
    }
}

#define FLOAT_TYPE(name, type, quant, to_quant, columns_packed)                                           \
    EL_INLINE void name##_streamed(const el_tile_call *t, const int nc) { float_tile(t, nc, type, 1); }   \
    EL_INLINE void name##_packed(const el_tile_call *t, const int nc) { float_tile(t, nc, type, 1); }     \
    EL_INLINE void name##_expanded(const el_tile_call *t, const int nc) { float_tile(t, nc, EL_F32, 0); } \
    static void name##_expand(const el_tile_call *t, uint8_t *to_quants, uint8_t *to_extras) {            \
        (void)to_extras;                                                                                  \
        expand(type, t->quants, t->n_blocks, to_quants);                                                  \
    }                                                                                                     \
    EL_TILE_FUNCTIONS(name)                                                                               \
    static const el_mm_type name##_type = {.block = 1,                                                    \
                                           .quant_bytes = quant,                                          \
                                           .extra_bytes = 0,                                              \
                                           .sums = 0,                                                     \
                                           .packed_columns = columns_packed,                              \
                                           .chunk = 256,                                                  \
                                           .expanded_quants = to_quant,                                   \
                                           .expanded_extras = 0,                                          \
                                           .expand = name##_expand,                                       \
                                           EL_TILE_TABLES(name)};                                         \
    EL_MM_FUNCTION(mm_##name, name##_type)

FLOAT_TYPE(f16, EL_F16, 32, 64, 16)
FLOAT_TYPE(bf16, EL_BF16, 32, 64, 16)
FLOAT_TYPE(f32, EL_F32, 64, 0, INT32_MAX)

/* ---- pack ------------------------------------------------------------------------------------------------------- */

/* The last k % 4 or k % 8 columns, from column k0 on. size: bytes of an element. */
static void pack_tail(const void *rows, size_t row_stride, int32_t n_rows, int32_t k0, int32_t k, size_t size,
                      uint8_t *panel) {
    memset(panel + (size_t)k0 * 16 * size, 0, (size_t)(k - k0) * 16 * size);
    for (int32_t r = 0; r < n_rows; r++) {
        for (int32_t i = k0; i < k; i++) {
            memcpy(panel + ((size_t)i * 16 + (size_t)r) * size,
                   (const uint8_t *)rows + (size_t)r * row_stride + (size_t)i * size, size);
        }
    }
}

static void pack_f32(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 16);
    uint8_t *to = panel;
    for (int32_t i = 0; i + 4 <= k; i += 4, to += 256, el_pack_next(&r)) el_transpose_store(&r, 0, to);
    pack_tail(rows, row_stride, n_rows, k / 4 * 4, k, 4, panel);
}

/* 16 rows x 8 halves: words of pairs of rows, then dwords, then qwords. Lane 0 holds rows 0..7, lane 1 rows 8..15. */
static void pack_16_bits(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 16);
    uint8_t *to = panel;
    for (int32_t i = 0; i + 8 <= k; i += 8, to += 256, el_pack_next(&r)) {
        __m256i a[8], b[8];
        EL_UNROLL
        for (int j = 0; j < 8; j++) a[j] = el_load_pair(r.p[j], r.p[j + 8]);
        EL_UNROLL
        for (int j = 0; j < 4; j++) { /* b[2j], b[2j+1]: columns 0..3 and 4..7 of rows 2j, 2j+1 */
            b[2 * j] = _mm256_unpacklo_epi16(a[2 * j], a[2 * j + 1]);
            b[2 * j + 1] = _mm256_unpackhi_epi16(a[2 * j], a[2 * j + 1]);
        }
        EL_UNROLL
        for (int j = 0; j < 2; j++) { /* a[4j + c]: columns 2c, 2c+1 of rows 4j .. 4j+3 */
            a[4 * j] = _mm256_unpacklo_epi32(b[4 * j], b[4 * j + 2]);
            a[4 * j + 1] = _mm256_unpackhi_epi32(b[4 * j], b[4 * j + 2]);
            a[4 * j + 2] = _mm256_unpacklo_epi32(b[4 * j + 1], b[4 * j + 3]);
            a[4 * j + 3] = _mm256_unpackhi_epi32(b[4 * j + 1], b[4 * j + 3]);
        }
        EL_UNROLL
        for (int c = 0; c < 4; c++) {
            el_store(to + 64 * c, _mm256_unpacklo_epi64(a[c], a[4 + c]));
            el_store(to + 64 * c + 32, _mm256_unpackhi_epi64(a[c], a[4 + c]));
        }
    }
    pack_tail(rows, row_stride, n_rows, k / 8 * 8, k, 2, panel);
    el_pack_end(panel, (size_t)k * 32);
}

void el_avx2_matmul_float(el_kernels *table) {
    table->mm[EL_F16] = mm_f16;
    table->mm[EL_BF16] = mm_bf16;
    table->mm[EL_F32] = mm_f32;
    table->pack[EL_F16] = pack_16_bits;
    table->pack[EL_BF16] = pack_16_bits;
    table->pack[EL_F32] = pack_f32;
}
