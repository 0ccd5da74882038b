/* AVX2 matmul of F16 and F32 weights: one fma chain over k per output, lanes are rows. A block is one k. */
#include "avx2_matmul.h"

/* acc stays in registers. is_f16: halves are converted on the way (exact). */
EL_INLINE void float_tile(const el_tile_call *t, const int nc, const int is_f16, const int from_panel) {
    const int bytes = is_f16 ? 32 : 64;
    const uint8_t *w = t->quants;
    __m256 sum[EL_GROUP][2];
    const float *col[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        col[c] = (const float *)t->x[c] + t->block0;
        sum[c][0] = _mm256_load_ps(t->acc + 16 * c);
        sum[c][1] = _mm256_load_ps(t->acc + 16 * c + 8);
    }
    for (int32_t i = 0; i < t->n_blocks; i++, w += bytes) {
        if (from_panel && (!is_f16 || i % 2 == 0)) el_prefetch(w, 64, EL_PREFETCH_FAR);
        const __m256 w0 = is_f16 ? el_load_f16(w) : _mm256_load_ps((const float *)w);
        const __m256 w1 = is_f16 ? el_load_f16(w + 16) : _mm256_load_ps((const float *)(w + 32));
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m256 v = _mm256_broadcast_ss(col[c] + i);
            sum[c][0] = _mm256_fmadd_ps(w0, v, sum[c][0]);
            sum[c][1] = _mm256_fmadd_ps(w1, v, sum[c][1]);
        }
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        _mm256_store_ps(t->acc + 16 * c, sum[c][0]);
        _mm256_store_ps(t->acc + 16 * c + 8, sum[c][1]);
    }
}

EL_INLINE void f16_streamed(const el_tile_call *t, const int nc) { float_tile(t, nc, 1, 1); }
EL_INLINE void f16_packed(const el_tile_call *t, const int nc) { float_tile(t, nc, 1, 1); }
EL_INLINE void f16_expanded(const el_tile_call *t, const int nc) { float_tile(t, nc, 0, 0); }
EL_INLINE void f32_streamed(const el_tile_call *t, const int nc) { float_tile(t, nc, 0, 1); }
EL_INLINE void f32_packed(const el_tile_call *t, const int nc) { float_tile(t, nc, 0, 1); }
EL_INLINE void f32_expanded(const el_tile_call *t, const int nc) { float_tile(t, nc, 0, 1); }

static void f16_expand(const uint8_t *quants, const uint8_t *extras, int32_t n_blocks, uint8_t *to_quants,
                       uint8_t *to_extras) {
    (void)extras;
    (void)to_extras;
    for (int32_t i = 0; i < n_blocks * 2; i++) {
        if (i % 4 == 0) el_prefetch(quants + 16 * i, 64, EL_PREFETCH_FAR);
        _mm256_store_ps((float *)(to_quants + 32 * i), el_load_f16(quants + 16 * i));
    }
}

static void f32_expand(const uint8_t *quants, const uint8_t *extras, int32_t n_blocks, uint8_t *to_quants,
                       uint8_t *to_extras) {
    (void)quants;
    (void)extras;
    (void)n_blocks;
    (void)to_quants;
    (void)to_extras;
}

EL_TILE_FUNCTIONS(f16)
EL_TILE_FUNCTIONS(f32)

static const el_mm_type F16 = {.block = 1,
                               .quant_bytes = 32,
                               .extra_bytes = 0,
                               .sums = 0,
                               .packed_columns = 16,
                               .chunk = 256,
                               .expanded_quants = 64,
                               .expanded_extras = 0,
                               .expand = f16_expand,
                               EL_TILE_TABLES(f16)};
static const el_mm_type F32 = {.block = 1,
                               .quant_bytes = 64,
                               .extra_bytes = 0,
                               .sums = 0,
                               .packed_columns = INT32_MAX,
                               .chunk = 256,
                               .expanded_quants = 0,
                               .expanded_extras = 0,
                               .expand = f32_expand,
                               EL_TILE_TABLES(f32)};

EL_MM_FUNCTION(mm_f16, F16)
EL_MM_FUNCTION(mm_f32, F32)

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
static void pack_f16(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
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
    table->mm[EL_F32] = mm_f32;
    table->pack[EL_F16] = pack_f16;
    table->pack[EL_F32] = pack_f32;
}
