/* AVX2 matmul of the k-quants: Q4_K, Q6_K. Formats and formulas: kernels.h.
 *
 * The int16 sums of a 32- or 16-block meet their scale in vpmaddwd, whose dwords hold (scale, scale) of a row: the
 * result is the exact int32 term of S. */
#include "avx2_matmul.h"

/* Extras of an expanded block, as offsets. Dwords of rows: int16 pairs. */
enum {
    Q4_SCALES = 0,   /* [8 32-blocks][16 rows] (sc, sc) */
    Q4_MINIMA = 512, /* [4 pairs of 32-blocks][16 rows] (mn of 2j, mn of 2j + 1) */
    Q4_D = 768,      /* f32 d[16], dmin[16] */
    Q4_EXTRA = 896,
    Q6_SCALES = 0,   /* [16 16-blocks][16 rows] (sc, sc) */
    Q6_PAIRS = 1024, /* [8 32-blocks][16 rows] (sc of 2j, sc of 2j + 1) */
    Q6_D = 1536,     /* f32 d[16] */
    Q6_EXTRA = 1600
};

/* Bytes 8h .. 8h+7 of the 16 at p, each in both words of its row's dword: unsigned in the low byte of a word ... */
EL_INLINE __m256i twice_u8(const uint8_t *p, const int h) {
    const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    const __m256i first = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, /* */
                                           4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
    return _mm256_shuffle_epi8(v, _mm256_add_epi8(first, _mm256_set1_epi16((short)(8 * h))));
}

/* ... or signed. */
EL_INLINE __m256i twice_i8(const uint8_t *p, const int h) {
    const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    const __m256i first = _mm256_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, /* */
                                           -1, 4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7);
    const __m256i index = _mm256_add_epi8(first, _mm256_set1_epi16((short)(8 * h * 256)));
    return _mm256_srai_epi16(_mm256_shuffle_epi8(v, index), 8);
}

/* 16 bytes as words. */
EL_INLINE __m256i words_u8(const uint8_t *p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
}

/* Bytes 8h .. 8h+7 of two arrays of 16, as the pairs of words of 8 dwords. */
EL_INLINE __m256i pair_i8(const uint8_t *p, const uint8_t *second, const int h) {
    const __m128i a = _mm_loadu_si128((const __m128i *)p), b = _mm_loadu_si128((const __m128i *)second);
    return _mm256_cvtepi8_epi16(h ? _mm_unpackhi_epi8(a, b) : _mm_unpacklo_epi8(a, b));
}

/* (sums[0], sums[1]) in every dword. */
EL_INLINE __m256i broadcast_words(const int16_t *sums) {
    int32_t v;
    memcpy(&v, sums, 4);
    return _mm256_set1_epi32(v);
}

/* The columns of a call. */
EL_INLINE void columns(const el_tile_call *t, el_column *col, const int nc) {
    EL_UNROLL
    for (int c = 0; c < nc; c++) col[c] = el_column_a256(t->x[c], t->k, t->block0);
}

/* ---- Q4_K -------------------------------------------------------------------------------------------------------
 * 8 steps fit into int16: 8 * 2 * 15 * 127 = 30,480. The sums of a 32-block stay pairs of int16. */

/* 32-block j of block b. Packed: 8 rows of low or high (odd) nibbles; expanded: 8 steps. */
EL_INLINE void q4_k_dot(const uint8_t *quants, const el_column *col, int32_t b, int32_t j, el_sums sum,
                        const int nc, const int packed, const int odd) {
    el_sums_clear(sum, nc);
    EL_UNROLL
    for (int s = 0; s < 8; s++) {
        __m256i w0 = el_load(quants + 64 * s), w1 = el_load(quants + 64 * s + 32);
        if (packed) {
            w0 = odd ? el_high_nibbles(w0) : el_low_nibbles(w0);
            w1 = odd ? el_high_nibbles(w1) : el_low_nibbles(w1);
        }
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m256i q = el_broadcast4(col[c].q + 256 * b + 32 * j + 4 * s);
            el_sums_add(sum, c, w0, w1, q);
        }
    }
}

/* The float part of block b: S of 8 rows, their minima (pairs of words), d and dmin. */
EL_INLINE __m256 q4_k_chain(__m256i S, const __m256i mn[4], __m256 d, __m256 dmin, const el_column *col,
                            int32_t b, __m256 acc) {
    const int16_t *sums = col->sum32 + 8 * b;
    const __m256 dx = _mm256_broadcast_ss(col->d + b);
    __m256i m = _mm256_madd_epi16(mn[0], broadcast_words(sums));
    EL_UNROLL
    for (int j = 1; j < 4; j++)
        m = _mm256_add_epi32(m, _mm256_madd_epi16(mn[j], broadcast_words(sums + 2 * j)));
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(S), _mm256_mul_ps(d, dx), acc);
    return _mm256_fnmadd_ps(_mm256_cvtepi32_ps(m), _mm256_mul_ps(dmin, dx), acc);
}

EL_INLINE void q4_k_streamed(const el_tile_call *t, const int nc) {
    const int32_t distance = nc == 1 ? EL_PREFETCH_NEAR : EL_PREFETCH_TWO;
    const uint8_t *quants = t->quants, *extras = t->extras;
    const int32_t n_blocks = t->n_blocks;
    __m256i *sums = t->sums;
    float *acc = t->acc;
    el_column col[EL_GROUP];
    columns(t, col, nc);
    for (int32_t b = 0; b < n_blocks; b++) {
        for (int32_t j = 0; j < 8; j += 2, quants += 512) {
            el_sums sum;
            el_prefetch(quants, 512, distance);
            q4_k_dot(quants, col, b, j, sum, nc, 1, 0);
            sums = el_sums_store(sums, sum, nc);
            q4_k_dot(quants, col, b, j + 1, sum, nc, 1, 1);
            sums = el_sums_store(sums, sum, nc);
        }
    }
    sums = t->sums;
    for (int32_t b = 0; b < n_blocks; b++, extras += 320, sums += 16 * nc) {
        el_prefetch(extras, 320, distance);
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i mn[4], S[EL_GROUP];
            EL_UNROLL
            for (int j = 0; j < 4; j++) mn[j] = words_u8(extras + 128 + 32 * j + 16 * h);
            EL_UNROLL
            for (int c = 0; c < nc; c++) S[c] = _mm256_setzero_si256();
            EL_UNROLL
            for (int j = 0; j < 8; j++) {
                const __m256i sc = twice_u8(extras + 16 * j, h);
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    const __m256i sum = _mm256_load_si256(sums + 2 * nc * j + 2 * c + h);
                    S[c] = _mm256_add_epi32(S[c], _mm256_madd_epi16(sum, sc));
                }
            }
            const __m256 d = el_load_f16(extras + 256 + 16 * h), dmin = el_load_f16(extras + 288 + 16 * h);
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                float *a = acc + 16 * c + 8 * h;
                _mm256_store_ps(a, q4_k_chain(S[c], mn, d, dmin, &col[c], b, _mm256_load_ps(a)));
            }
        }
    }
}

EL_INLINE void q4_k_tile(const el_tile_call *t, const int nc, const int packed) {
    const int32_t n_blocks = t->n_blocks, lines = t->lines;
    const uint8_t *quants = t->quants, *extras = t->extras;
    const char *ahead = t->ahead;
    float *acc = t->acc;
    el_column col[EL_GROUP];
    columns(t, col, nc);
    for (int32_t b = 0; b < n_blocks; b++) {
        el_sums total;
        el_sums_clear(total, nc);
        for (int32_t j = 0; j < 8; j += 2) {
            EL_UNROLL
            for (int odd = 0; odd < 2; odd++) {
                el_sums sum;
                ahead = el_prefetch_ahead(ahead, lines);
                q4_k_dot(packed ? quants : quants + 512 * odd, col, b, j + odd, sum, nc, packed, odd);
                EL_UNROLL
                for (int h = 0; h < 2; h++) {
                    const __m256i sc = packed ? twice_u8(extras + 16 * (j + odd), h)
                                              : el_load(extras + Q4_SCALES + 64 * (j + odd) + 32 * h);
                    EL_UNROLL
                    for (int c = 0; c < nc; c++) {
                        total[c][h] = _mm256_add_epi32(total[c][h], _mm256_madd_epi16(sum[c][h], sc));
                    }
                }
            }
            quants += packed ? 512 : 1024;
        }
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            const uint8_t *d_at = packed ? extras + 256 + 16 * h : extras + Q4_D + 32 * h;
            const uint8_t *dmin_at = packed ? extras + 288 + 16 * h : extras + Q4_D + 64 + 32 * h;
            const __m256 d = packed ? el_load_f16(d_at) : _mm256_load_ps((const float *)d_at);
            const __m256 dmin = packed ? el_load_f16(dmin_at) : _mm256_load_ps((const float *)dmin_at);
            __m256i mn[4];
            EL_UNROLL
            for (int j = 0; j < 4; j++) {
                mn[j] = packed ? words_u8(extras + 128 + 32 * j + 16 * h)
                               : el_load(extras + Q4_MINIMA + 64 * j + 32 * h);
            }
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                float *a = acc + 16 * c + 8 * h;
                _mm256_store_ps(a, q4_k_chain(total[c][h], mn, d, dmin, &col[c], b, _mm256_load_ps(a)));
            }
        }
        extras += packed ? 320 : Q4_EXTRA;
        EL_FENCE();
    }
}

EL_INLINE void q4_k_packed(const el_tile_call *t, const int nc) { q4_k_tile(t, nc, 1); }
EL_INLINE void q4_k_expanded(const el_tile_call *t, const int nc) { q4_k_tile(t, nc, 0); }

static void q4_k_expand(const uint8_t *quants, const uint8_t *extras, int32_t n_blocks, uint8_t *to_quants,
                        uint8_t *to_extras) {
    for (int32_t i = 0; i < n_blocks * 4; i++, quants += 512, to_quants += 1024) {
        el_prefetch(quants, 512, EL_PREFETCH_FAR);
        EL_UNROLL
        for (int t = 0; t < 16; t++) {
            const __m256i v = el_load(quants + 32 * t);
            el_store(to_quants + 32 * t, el_low_nibbles(v));
            el_store(to_quants + 512 + 32 * t, el_high_nibbles(v));
        }
    }
    for (int32_t b = 0; b < n_blocks; b++, extras += 320, to_extras += Q4_EXTRA) {
        for (int h = 0; h < 2; h++) {
            for (int j = 0; j < 8; j++) {
                el_store(to_extras + Q4_SCALES + 64 * j + 32 * h, twice_u8(extras + 16 * j, h));
            }
            for (int j = 0; j < 4; j++) {
                el_store(to_extras + Q4_MINIMA + 64 * j + 32 * h, words_u8(extras + 128 + 32 * j + 16 * h));
            }
            _mm256_store_ps((float *)(to_extras + Q4_D + 32 * h), el_load_f16(extras + 256 + 16 * h));
            _mm256_store_ps((float *)(to_extras + Q4_D + 64 + 32 * h), el_load_f16(extras + 288 + 16 * h));
        }
    }
}

/* ---- Q6_K -------------------------------------------------------------------------------------------------------
 * 2 steps fit into int16: 2 * 2 * 63 * 127 = 32,004. The offset of 32 leaves as 32 * sum_j sc[j] sum16[j]. */

/* The crumb i (bits 2i, 2i+1) of each byte, moved to bits 4 and 5. */
EL_INLINE __m256i top_bits(__m256i v, const int i) {
    const __m256i moved = i < 2 ? _mm256_slli_epi16(v, 4 - 2 * i) : _mm256_srli_epi16(v, 2 * i - 4);
    return _mm256_and_si256(moved, _mm256_set1_epi8(0x30));
}

/* Step t (0..3) of 16-block u (0, 1): nibbles of a 32-block and its two rows of top bits. */
EL_INLINE __m256i q6_k_weights(const uint8_t *nibbles, const uint8_t *top, const int u, const int t,
                               const int h) {
    const __m256i v = el_load(nibbles + 64 * t + 32 * h);
    return _mm256_or_si256(u ? el_high_nibbles(v) : el_low_nibbles(v),
                           top_bits(el_load(top + 64 * u + 32 * h), t));
}

/* sum += (u of 16-block `u` of 32-block j of block b) * q * scale; scale: pairs of int16. Packed: `quants` is the block's
 * nibbles of the 32-block, `top` its rows of top bits; expanded: the 16-block's 4 steps. */
EL_INLINE void q6_k_dot(const uint8_t *quants, const uint8_t *top, const el_column *col, int32_t b, int32_t j,
                        const __m256i scale[2], el_sums sum, const int nc, const int packed, const int u) {
    EL_UNROLL
    for (int s = 0; s < 4; s += 2) { /* two steps at a time */
        __m256i w[2][2];
        EL_UNROLL
        for (int i = 0; i < 2; i++) {
            EL_UNROLL
            for (int h = 0; h < 2; h++) {
                w[i][h] =
                    packed ? q6_k_weights(quants, top, u, s + i, h) : el_load(quants + 64 * (s + i) + 32 * h);
            }
        }
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const int8_t *q = col[c].q + 256 * b + 32 * j + 16 * u + 4 * s;
            const __m256i q0 = el_broadcast4(q), q1 = el_broadcast4(q + 4);
            EL_UNROLL
            for (int h = 0; h < 2; h++) {
                const __m256i pair =
                    _mm256_add_epi16(_mm256_maddubs_epi16(w[0][h], q0), _mm256_maddubs_epi16(w[1][h], q1));
                sum[c][h] = _mm256_add_epi32(sum[c][h], _mm256_madd_epi16(pair, scale[h]));
                EL_PIN(sum[c][h]);
            }
        }
    }
}

EL_INLINE void q6_k_streamed(const el_tile_call *t, const int nc) {
    const int32_t distance = nc == 1 ? EL_PREFETCH_MIDDLE : EL_PREFETCH_TWO;
    const __m256i ones[2] = {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
    const uint8_t *quants = t->quants, *extras = t->extras;
    const int32_t n_blocks = t->n_blocks;
    __m256i *sums = t->sums;
    float *acc = t->acc;
    el_column col[EL_GROUP];
    columns(t, col, nc);
    for (int32_t b = 0; b < n_blocks; b++, quants += 3072) {
        for (int32_t j = 0; j < 8; j++) { /* the block's 3 KiB are one stream for the prefetches */
            const uint8_t *nibbles = quants + 256 * j, *top = quants + 2048 + 128 * j;
            el_prefetch(quants + 384 * j, 384, distance);
            EL_UNROLL
            for (int u = 0; u < 2; u++) {
                el_sums sum;
                el_sums_clear(sum, nc);
                q6_k_dot(nibbles, top, col, b, j, ones, sum, nc, 1, u);
                sums = el_sums_store(sums, sum, nc);
            }
        }
    }
    sums = t->sums;
    for (int32_t b = 0; b < n_blocks; b++, extras += 288, sums += 32 * nc) {
        el_prefetch(extras, 288, distance);
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i S[EL_GROUP];
            EL_UNROLL
            for (int c = 0; c < nc; c++) S[c] = _mm256_setzero_si256();
            for (int32_t j = 0; j < 16; j++) {
                const __m256i sc =
                    _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(extras + 16 * j + 8 * h)));
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    const __m256i offset = _mm256_set1_epi32(32 * col[c].sum16[16 * b + j]);
                    const __m256i i =
                        _mm256_sub_epi32(_mm256_load_si256(sums + 2 * nc * j + 2 * c + h), offset);
                    S[c] = _mm256_add_epi32(S[c], _mm256_mullo_epi32(i, sc));
                }
            }
            const __m256 d = el_load_f16(extras + 256 + 16 * h);
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                const __m256 dx = _mm256_broadcast_ss(col[c].d + b);
                float *a = acc + 16 * c + 8 * h;
                _mm256_store_ps(
                    a, _mm256_fmadd_ps(_mm256_cvtepi32_ps(S[c]), _mm256_mul_ps(d, dx), _mm256_load_ps(a)));
            }
        }
    }
}

EL_INLINE void q6_k_tile(const el_tile_call *t, const int nc, const int packed) {
    const int32_t n_blocks = t->n_blocks, lines = t->lines;
    const uint8_t *quants = t->quants, *extras = t->extras;
    const char *ahead = t->ahead;
    float *acc = t->acc;
    el_column col[EL_GROUP];
    columns(t, col, nc);
    for (int32_t b = 0; b < n_blocks; b++) {
        el_sums total;
        el_sums_clear(total, nc);
        for (int32_t j = 0; j < 8; j++) {
            const uint8_t *at = quants + (packed ? 256 : 512) * j, *top = quants + 2048 + 128 * j;
            ahead = el_prefetch_ahead(ahead, lines);
            EL_UNROLL
            for (int u = 0; u < 2; u++) {
                __m256i sc[2];
                EL_UNROLL
                for (int h = 0; h < 2; h++) {
                    sc[h] = packed ? twice_i8(extras + 16 * (2 * j + u), h)
                                   : el_load(extras + Q6_SCALES + 64 * (2 * j + u) + 32 * h);
                }
                q6_k_dot(packed ? at : at + 256 * u, top, col, b, j, sc, total, nc, packed, u);
            }
        }
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i offset[EL_GROUP];
            EL_UNROLL
            for (int c = 0; c < nc; c++) offset[c] = _mm256_setzero_si256();
            EL_UNROLL
            for (int j = 0; j < 8; j++) {
                const __m256i pair = packed ? pair_i8(extras + 32 * j, extras + 32 * j + 16, h)
                                            : el_load(extras + Q6_PAIRS + 64 * j + 32 * h);
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    const __m256i sums = broadcast_words(col[c].sum16 + 16 * b + 2 * j);
                    offset[c] = _mm256_add_epi32(offset[c], _mm256_madd_epi16(pair, sums));
                }
            }
            const __m256 d = packed ? el_load_f16(extras + 256 + 16 * h)
                                    : _mm256_load_ps((const float *)(extras + Q6_D + 32 * h));
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                const __m256i i = _mm256_sub_epi32(total[c][h], _mm256_slli_epi32(offset[c], 5));
                const __m256 dx = _mm256_broadcast_ss(col[c].d + b);
                float *a = acc + 16 * c + 8 * h;
                _mm256_store_ps(
                    a, _mm256_fmadd_ps(_mm256_cvtepi32_ps(i), _mm256_mul_ps(d, dx), _mm256_load_ps(a)));
            }
        }
        quants += packed ? 3072 : 4096;
        extras += packed ? 288 : Q6_EXTRA;
        EL_FENCE();
    }
}

EL_INLINE void q6_k_packed(const el_tile_call *t, const int nc) { q6_k_tile(t, nc, 1); }
EL_INLINE void q6_k_expanded(const el_tile_call *t, const int nc) { q6_k_tile(t, nc, 0); }

static void q6_k_expand(const uint8_t *quants, const uint8_t *extras, int32_t n_blocks, uint8_t *to_quants,
                        uint8_t *to_extras) {
    for (int32_t b = 0; b < n_blocks; b++) {
        for (int j = 0; j < 8; j++) {
            const uint8_t *nibbles = quants + 256 * j, *top = quants + 2048 + 128 * j;
            el_prefetch(nibbles, 256, EL_PREFETCH_FAR);
            el_prefetch(top, 128, EL_PREFETCH_FAR);
            EL_UNROLL
            for (int s = 0; s < 8; s++) {
                EL_UNROLL
                for (int h = 0; h < 2; h++) {
                    el_store(to_quants + 512 * j + 64 * s + 32 * h,
                             q6_k_weights(nibbles, top, s / 4, s % 4, h));
                }
            }
        }
        for (int h = 0; h < 2; h++) {
            for (int j = 0; j < 16; j++) {
                el_store(to_extras + Q6_SCALES + 64 * j + 32 * h, twice_i8(extras + 16 * j, h));
            }
            for (int j = 0; j < 8; j++) {
                el_store(to_extras + Q6_PAIRS + 64 * j + 32 * h,
                         pair_i8(extras + 32 * j, extras + 32 * j + 16, h));
            }
            _mm256_store_ps((float *)(to_extras + Q6_D + 32 * h), el_load_f16(extras + 256 + 16 * h));
        }
        quants += 3072;
        extras += 288;
        to_quants += 4096;
        to_extras += Q6_EXTRA;
    }
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */
EL_TILE_FUNCTIONS(q4_k)
EL_TILE_FUNCTIONS(q6_k)

static const el_mm_type Q4_K = {.block = 256,
                                .quant_bytes = 2048,
                                .extra_bytes = 320,
                                .sums = 8,
                                .packed_columns = 8,
                                .chunk = 8,
                                .expanded_quants = 4096,
                                .expanded_extras = Q4_EXTRA,
                                .expand = q4_k_expand,
                                EL_TILE_TABLES(q4_k)};
static const el_mm_type Q6_K = {.block = 256,
                                .quant_bytes = 3072,
                                .extra_bytes = 288,
                                .sums = 16,
                                .packed_columns = 4,
                                .chunk = 8,
                                .expanded_quants = 4096,
                                .expanded_extras = Q6_EXTRA,
                                .expand = q6_k_expand,
                                EL_TILE_TABLES(q6_k)};

EL_MM_FUNCTION(mm_q4_k, Q4_K)
EL_MM_FUNCTION(mm_q6_k, Q6_K)

/* ---- pack -------------------------------------------------------------------------------------------------------
 * Q4_K in the file: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima, u8 qs[128]. Byte i of the c-th 32 bytes of qs
 * holds weight 64c + i (low nibble) and 64c + 32 + i: its dword t is what row t of chunk c of the tile wants. */

/* v: 4 bytes per row. Byte i of all 16 rows to to[16 i ..]. */
EL_INLINE void store_bytes_by_row(__m256i low, __m256i high, uint8_t *to) {
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

static void pack_q4_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const __m256i low6 = _mm256_set1_epi8(0x3f), low4 = _mm256_set1_epi8(0x0f), top2 = _mm256_set1_epi8(0x30);
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 144);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 256 * 2048;
    for (int32_t b = 0; b < k / 256; b++, quants += 2048, extras += 320, el_pack_next(&r)) {
        for (int i = 0; i < 8; i++) el_transpose_store(&r, 16 + 16 * (size_t)i, quants + 256 * i);
        __m256i d[2], sc[2][2], mn[2][2]; /* [4 32-blocks][8 rows] */
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i t[4];
            el_transpose_8(&r, 8 * h, 0, t);
            d[h] = t[0];
            sc[0][h] = _mm256_and_si256(t[1], low6);
            mn[0][h] = _mm256_and_si256(t[2], low6);
            sc[1][h] = _mm256_or_si256(_mm256_and_si256(t[3], low4),
                                       _mm256_and_si256(_mm256_srli_epi32(t[1], 2), top2));
            mn[1][h] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(t[3], 4), low4),
                                       _mm256_and_si256(_mm256_srli_epi32(t[2], 2), top2));
        }
        EL_UNROLL
        for (int i = 0; i < 2; i++) {
            store_bytes_by_row(sc[i][0], sc[i][1], extras + 64 * i);
            el_store(extras + 128 + 64 * i, el_low_words(mn[i][0], mn[i][1]));
            el_store(extras + 160 + 64 * i, el_high_words(mn[i][0], mn[i][1]));
        }
        el_store(extras + 256, el_low_words(d[0], d[1]));
        el_store(extras + 288, el_high_words(d[0], d[1]));
    }
}

/* Q6_K in the file: u8 ql[128], u8 qh[64], i8 scales[16], f16 d. Of the 128 weights 128g .. : weight l (0..31) of
 * 32-block 4g + i has its low bits in ql[64g + 32 (i % 2) + l] (low nibble for i < 2), its top bits in
 * qh[32g + l] at bits 2i. */
static void pack_q6_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const __m256i low = _mm256_set1_epi8(0x0f), low2 = _mm256_set1_epi8(0x33);
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 210);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 256 * 3072;
    for (int32_t b = 0; b < k / 256; b++, quants += 3072, extras += 288, el_pack_next(&r)) {
        for (int half = 0; half < 4; half++) { /* g = half / 2, rows 8 (half % 2) .. */
            const int g = half / 2, h = half % 2;
            uint8_t *to = quants + 1024 * g + 32 * h, *top = quants + 2048 + 512 * g + 32 * h;
            EL_UNROLL
            for (int i = 0; i < 2; i++) { /* 32-blocks 4g + i and 4g + 2 + i */
                __m256i t[4], u[4];
                el_transpose_8(&r, 8 * h, 64 * (size_t)g + 32 * (size_t)i, t);
                el_transpose_8(&r, 8 * h, 64 * (size_t)g + 32 * (size_t)i + 16, u);
                EL_UNROLL
                for (int s = 0; s < 4; s++) { /* steps s and s + 4 share a row */
                    el_store(to + 256 * i + 64 * s,
                             _mm256_or_si256(_mm256_and_si256(t[s], low),
                                             _mm256_slli_epi16(_mm256_and_si256(u[s], low), 4)));
                    el_store(to + 256 * (i + 2) + 64 * s,
                             _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(t[s], 4), low),
                                             _mm256_andnot_si256(low, u[s])));
                }
            }
            EL_UNROLL
            for (int u = 0; u < 2; u++) { /* 16-blocks: 4 steps x 4 crumbs (of four 32-blocks), transposed */
                __m256i t[4], v[4];
                el_transpose_8(&r, 8 * h, 128 + 32 * (size_t)g + 16 * (size_t)u, t);
                EL_UNROLL
                for (int s = 0; s < 2; s++) { /* crumbs 0 1 of steps s, s + 2; crumbs 2 3 */
                    v[s] = _mm256_or_si256(_mm256_and_si256(t[s], low),
                                           _mm256_slli_epi16(_mm256_and_si256(t[s + 2], low), 4));
                    v[s + 2] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(t[s], 4), low),
                                               _mm256_andnot_si256(low, t[s + 2]));
                }
                EL_UNROLL
                for (int s = 0; s < 4; s += 2) { /* crumb s, then crumb s + 1, of all steps */
                    const __m256i even = _mm256_or_si256(
                        _mm256_and_si256(v[s], low2), _mm256_slli_epi16(_mm256_and_si256(v[s + 1], low2), 2));
                    const __m256i odd = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v[s], 2), low2),
                                                        _mm256_andnot_si256(low2, v[s + 1]));
                    el_store(top + 128 * s + 64 * u, even);
                    el_store(top + 128 * (s + 1) + 64 * u, odd);
                }
            }
        }
        __m256i t[2][4];
        el_transpose_8(&r, 0, 192, t[0]);
        el_transpose_8(&r, 8, 192, t[1]);
        EL_UNROLL
        for (int i = 0; i < 4; i++) store_bytes_by_row(t[0][i], t[1][i], extras + 64 * i);
        el_store(extras + 256, el_high_words(el_gather_8(&r, 0, 206), el_gather_8(&r, 8, 206)));
    }
    el_pack_end(panel, (size_t)k / 256 * 3360);
}

void el_avx2_matmul_kquants(el_kernels *table) {
    table->mm[EL_Q4_K] = mm_q4_k;
    table->mm[EL_Q6_K] = mm_q6_k;
    table->pack[EL_Q4_K] = pack_q4_k;
    table->pack[EL_Q6_K] = pack_q6_k;
}
