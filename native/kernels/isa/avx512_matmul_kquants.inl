/* AVX-512 matmul, with and without VNNI, of the k-quants. Formats and formulas: kernels.h.
 *
 * One body serves them all; `type` is a constant wherever it is inlined. A "part" is what shares a scale: a 32-block of
 * Q4_K and Q5_K, a 16-block of Q2_K, Q3_K, Q6_K and IQ2 (and of IQ4_XS). A "unit" is two parts that share bytes of the panel: the nibbles of
 * two 32-blocks, or a 32-block. The offsets of Q3_K (4), Q6_K (32), IQ2 (43) and, with VNNI, IQ4_XS (128) leave through the activation sum, with which the
 * sum of a part starts. IQ4_XS stands for IQ3_XXS and IQ3_S too, IQ2 (EL_IQ2_S) for all IQ1 and IQ2: they differ in values
 * only. */

/* What distinguishes the types. units: of a block. */
EL_INLINE int has_values(const int type) { return type == EL_IQ4_XS || type == EL_IQ2_S; }
EL_INLINE int has_min(const int type) { return type != EL_Q3_K && type != EL_Q6_K && !has_values(type); }
EL_INLINE int units(const int type) { return type == EL_Q4_K || type == EL_Q5_K ? 4 : 8; }
EL_INLINE int32_t zero_point(const int type) {
    if (type == EL_IQ4_XS) return EL_VNNI ? 128 : 0;
    return type == EL_Q3_K ? 4 : type == EL_Q6_K ? 32 : type == EL_IQ2_S ? 43 : 0;
}
EL_INLINE int top_of(const int type) {
    if (type == EL_IQ4_XS) return EL_VNNI ? 255 : -1;
    if (type == EL_IQ2_S) return 86;
    return type == EL_Q2_K ? 3 : type == EL_Q3_K ? 7 : type == EL_Q4_K ? 15 : type == EL_Q5_K ? 31 : 63;
}
EL_INLINE int32_t extra_bytes(const int type) { return has_min(type) ? 320 : type == EL_IQ4_XS ? 160 : 288; }
EL_INLINE int32_t d_offset(const int type) { return type == EL_IQ4_XS ? 128 : 256; }
EL_INLINE int32_t quant_bytes(const int type) {
    switch (type) {
    case EL_Q2_K: return 1024;
    case EL_Q3_K:
    case EL_IQ2_S: return 1536;
    case EL_Q4_K:
    case EL_IQ4_XS: return 2048;
    case EL_Q5_K: return 2560;
    default: return 3072;
    }
}

/* Step s of a part of unit `i` of a block. table: of the type's values, its offset added. */
EL_INLINE __m512i weights(const int type, __m512i table, const uint8_t *quants, int32_t i, const int part,
                          const int s) {
    if (type == EL_Q4_K || type == EL_Q5_K) {
        const uint8_t *at = quants + (type == EL_Q4_K ? 512 : 640) * i;
        const __m512i v = el_load(at + 64 * s), w = part ? el_high_nibbles(v) : el_low_nibbles(v);
        return type == EL_Q4_K ? w : _mm512_or_si512(w, el_bit(el_load(at + 512 + 64 * part), s, 4));
    }
    if (type == EL_IQ4_XS) {
        const __m512i v = el_load(quants + 256 * i + 64 * s);
        return _mm512_shuffle_epi8(table, part ? el_high_nibbles(v) : el_low_nibbles(v));
    }
    if (type == EL_Q6_K) {
        const __m512i v = el_load(quants + 256 * i + 64 * s);
        const __m512i top = el_load(quants + 2048 + 128 * i + 64 * part);
        return _mm512_or_si512(part ? el_high_nibbles(v) : el_low_nibbles(v), el_crumb(top, s, 4));
    }
    const uint8_t *at = quants + (type == EL_Q2_K ? 128 : 192) * i;
    const __m512i low = el_crumb(el_load(at + 64 * part), s, 0);
    if (type == EL_Q2_K) return low;
    const __m512i w = _mm512_or_si512(low, el_bit(el_load(at + 128), 4 * part + s, 2));
    return type == EL_IQ2_S ? _mm512_shuffle_epi8(table, w) : w;
}

/* sum[c] = sum w q over a part of unit i of block b. */
EL_INLINE void dot(const int type, __m512i table, const uint8_t *quants, const void *const *x, int32_t k,
                   int32_t b, int32_t i, const int part, __m512i *sum, const int nc) {
    const int32_t zero = zero_point(type), n = 128 / units(type), at = 256 * b + n * (2 * i + part);
    const int top = top_of(type), steps = n / 4;
    __m512i start[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        start[c] = _mm512_set1_epi32(zero ? -zero * el_a256_sum16(x[c], k)[at / 16] : 0);
        sum[c] = el_dot_begin(top, steps, start[c]);
    }
    EL_UNROLL
    for (int s = 0; s < steps; s++) {
        const __m512i w = weights(type, table, quants, i, part, s);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            sum[c] = el_dot4(top, steps, sum[c], w, el_broadcast4((const int8_t *)x[c] + at + 4 * s));
        }
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) sum[c] = el_dot_end(top, steps, sum[c], start[c]);
}

/* Scales of part i of a block. Both parts of a unit of IQ4_XS have the same. */
EL_INLINE __m512i scales(const int type, const uint8_t *extras, int32_t i) {
    const __m128i v = _mm_loadu_si128((const __m128i *)(extras + 16 * (type == EL_IQ4_XS ? i / 2 : i)));
    if (type == EL_Q2_K) return _mm512_cvtepu8_epi32(_mm_and_si128(v, _mm_set1_epi8(15)));
    return has_min(type) ? _mm512_cvtepu8_epi32(v) : _mm512_cvtepi8_epi32(v);
}

/* Minima of both parts of unit i as the words of the rows' dwords. */
EL_INLINE __m512i minima_pairs(const int type, const uint8_t *extras, int32_t i) {
    if (type != EL_Q2_K)
        return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(extras + 128 + 32 * i)));
    const __m128i a = _mm_loadu_si128((const __m128i *)(extras + 32 * i));
    const __m128i b = _mm_loadu_si128((const __m128i *)(extras + 32 * i + 16));
    const __m256i v =
        _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi8(a, b)), _mm_unpackhi_epi8(a, b), 1);
    return _mm512_srli_epi16(_mm512_cvtepu8_epi16(v), 4);
}

EL_INLINE __m512i table_of(const int type, const el_values *values) {
    return has_values(type) ? el_value_table(values->of, zero_point(type)) : _mm512_setzero_si512();
}

/* The float part of block b; total: S of each column. */
EL_INLINE void chain(const int type, const el_values *values, const uint8_t *extras, const void *const *x,
                     int32_t k, int32_t b, const __m512i *total, __m512 *acc, const int nc) {
    const int n = has_min(type) ? units(type) : 0;
    const __m512 halves = el_load_f16(extras + d_offset(type));
    const __m512 d = has_values(type) ? _mm512_mul_ps(halves, _mm512_set1_ps(values->unit)) : halves;
    __m512i minima[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) minima[c] = _mm512_setzero_si512();
    EL_UNROLL
    for (int i = 0; i < n; i++) {
        const __m512i mn = minima_pairs(type, extras, i);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const int16_t *sums = type == EL_Q2_K ? el_a256_sum16(x[c], k) : el_a256_sum32(x[c], k);
            minima[c] = el_add_pairs(minima[c], mn, el_broadcast4(sums + 2 * n * b + 2 * i));
        }
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        const __m512 dx = _mm512_set1_ps(el_a256_d(x[c], k)[b]);
        acc[c] = el_chain(total[c], d, dx, acc[c]);
        if (has_min(type)) {
            const __m512 dmin = el_load_f16(extras + 288);
            acc[c] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(minima[c]), _mm512_mul_ps(dmin, dx), acc[c]);
        }
    }
}

EL_INLINE void tile(const int type, const el_values *values, const uint8_t *quants, const uint8_t *extras,
                    int32_t k, int32_t n_rows, const void *const *x, float *const *y, size_t y_off,
                    const int nc) {
    const int32_t unit = quant_bytes(type) / units(type);
    const __m512i table = table_of(type, values);
    __m512 acc[EL_GROUP];
    el_clear(acc, nc);
    for (int32_t b = 0; b < k / 256; b++, quants += quant_bytes(type), extras += extra_bytes(type)) {
        el_prefetch(extras, extra_bytes(type));
        __m512i total[EL_GROUP];
        EL_UNROLL
        for (int c = 0; c < nc; c++) total[c] = _mm512_setzero_si512();
        for (int32_t i = 0; i < units(type); i++) {
            el_prefetch(quants + unit * i, unit);
            EL_UNROLL
            for (int part = 0; part < 2; part++) {
                __m512i sum[EL_GROUP];
                dot(type, table, quants, x, k, b, i, part, sum, nc);
                const __m512i sc = scales(type, extras, 2 * i + part);
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    total[c] = _mm512_add_epi32(total[c], _mm512_mullo_epi32(sum[c], sc));
                }
            }
        }
        chain(type, values, extras, x, k, b, total, acc, nc);
    }
    el_write_columns(acc, n_rows, y, y_off, nc);
}

EL_INLINE void streamed(const int type, const el_values *values, const uint8_t *quants, const uint8_t *extras,
                        int32_t k, int32_t n_rows, const void *const *x, float *const *y, size_t y_off,
                        void *scratch, const int nc) {
    const int32_t unit = quant_bytes(type) / units(type);
    const __m512i table = table_of(type, values);
    __m512i *sums = scratch; /* [block][part][c] */
    for (int32_t b = 0; b < k / 256; b++, quants += quant_bytes(type)) {
        for (int32_t i = 0; i < units(type); i++) { /* a block's bytes are one stream for the prefetches */
            el_prefetch(quants + unit * i, unit);
            EL_UNROLL
            for (int part = 0; part < 2; part++, sums += nc) {
                __m512i sum[EL_STREAMED];
                dot(type, table, quants, x, k, b, i, part, sum, nc);
                EL_UNROLL
                for (int c = 0; c < nc; c++) _mm512_store_si512(sums + c, sum[c]);
            }
        }
    }
    sums = scratch;
    __m512 acc[EL_STREAMED];
    el_clear(acc, nc);
    for (int32_t b = 0; b < k / 256; b++, extras += extra_bytes(type)) {
        el_prefetch(extras, extra_bytes(type));
        __m512i total[EL_STREAMED];
        EL_UNROLL
        for (int c = 0; c < nc; c++) total[c] = _mm512_setzero_si512();
        EL_UNROLL
        for (int i = 0; i < 2 * units(type); i++, sums += nc) {
            const __m512i sc = scales(type, extras, i);
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                total[c] = _mm512_add_epi32(total[c], _mm512_mullo_epi32(_mm512_load_si512(sums + c), sc));
            }
        }
        chain(type, values, extras, x, k, b, total, acc, nc);
    }
    el_write_columns(acc, n_rows, y, y_off, nc);
}

/* ---- expanded: weights as bytes, [part][step][64]; of a part its scales; of two parts pairs of minima or of scales ---- */

/* Parts here are 32-blocks where a scale belongs to 32. */
EL_INLINE int expanded_parts(const int type) {
    return type == EL_Q4_K || type == EL_Q5_K || type == EL_IQ4_XS ? 8 : 16;
}
/* Offset of d; dmin follows. */
EL_INLINE int expanded_d(const int type) { return 96 * expanded_parts(type); }

/* Sums of 16 products fit into int16, and so are multiplied by their scale and added in one instruction. */
EL_INLINE int is_small(const int type) {
    return EL_VNNI && top_of(type) >= 0 && 16 * 127 * top_of(type) <= 32767;
}

EL_INLINE void expand(const int type, const el_values *values, const uint8_t *quants, const uint8_t *extras,
                      int32_t n_blocks, uint8_t *to_quants, uint8_t *to_extras) {
    const int parts = expanded_parts(type), unit = quant_bytes(type) / units(type);
    const __m512i table = table_of(type, values);
    for (int32_t b = 0; b < n_blocks; b++) {
        for (int32_t i = 0; i < units(type); i++) {
            const int steps = 32 / units(type);
            el_prefetch(quants + unit * i, unit);
            EL_UNROLL
            for (int s = 0; s < 2 * steps; s++) {
                _mm512_store_si512(to_quants + 64 * (2 * steps * i + s),
                                   weights(type, table, quants, i, s / steps, s % steps));
            }
        }
        for (int32_t i = 0; i < parts; i++) {
            const __m512i sc = scales(type, extras, type == EL_IQ4_XS ? 2 * i : i);
            _mm512_store_si512(to_extras + 64 * i,
                               is_small(type) ? _mm512_and_si512(sc, _mm512_set1_epi32(0xffff)) : sc);
        }
        for (int32_t i = 0; i < parts / 2; i++) {
            __m512i pairs;
            if (has_min(type)) {
                pairs = minima_pairs(type, extras, i);
            } else {
                const __m512i low = _mm512_and_si512(el_load(to_extras + 128 * i), _mm512_set1_epi32(0xffff));
                pairs = _mm512_or_si512(low, _mm512_slli_epi32(el_load(to_extras + 128 * i + 64), 16));
            }
            _mm512_store_si512(to_extras + 64 * (parts + i), pairs);
        }
        const __m512 halves = el_load_f16(extras + d_offset(type));
        float *d = (float *)(to_extras + expanded_d(type));
        _mm512_storeu_ps(d, has_values(type) ? _mm512_mul_ps(halves, _mm512_set1_ps(values->unit)) : halves);
        if (has_min(type)) _mm512_storeu_ps(d + 16, el_load_f16(extras + 288));
        quants += quant_bytes(type);
        extras += extra_bytes(type);
        to_quants += 4096;
        to_extras += expanded_d(type) + 128;
    }
}

/* total + sum * scale. */
EL_INLINE __m512i add_scaled(const int type, __m512i total, __m512i sum, __m512i sc) {
    if (is_small(type)) return el_add_pairs(total, sum, sc);
    return _mm512_add_epi32(total, _mm512_mullo_epi32(sum, sc));
}

EL_INLINE void expanded(const int type, const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t b,
                        int32_t n_blocks, const void *const *x, float *acc, const int nc) {
    const int parts = expanded_parts(type), steps = 64 / parts, top = top_of(type), zero = zero_point(type);
    const int n = is_small(type) ? 4 : steps;
    for (const int32_t end = b + n_blocks; b < end; b++) {
        __m512i total[EL_WIDE], second[EL_WIDE];
        EL_UNROLL
        for (int c = 0; c < nc; c++) total[c] = second[c] = _mm512_setzero_si512();
        for (int32_t i = 0; i < parts; i++) {
            const __m512i sc = el_load(extras + 64 * i);
            EL_UNROLL
            for (int from = 0; from < steps; from += n) {
                __m512i sum[EL_WIDE];
                EL_UNROLL
                for (int c = 0; c < nc; c++) sum[c] = _mm512_setzero_si512();
                EL_UNROLL
                for (int s = from; s < from + n; s++) {
                    const __m512i w = el_load(quants + 64 * s);
                    EL_UNROLL
                    for (int c = 0; c < nc; c++) {
                        const int8_t *q = (const int8_t *)x[c] + 256 * b + 4 * steps * i + 4 * s;
                        sum[c] = el_dot4(top, n, sum[c], w, el_broadcast4(q));
                    }
                }
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    sum[c] = el_dot_end(top, n, sum[c], _mm512_setzero_si512());
                    total[c] = add_scaled(type, total[c], sum[c], sc);
                }
            }
            quants += 64 * steps;
        }
        if (has_min(type) || zero) {
            for (int32_t i = 0; i < parts / 2; i++) {
                const __m512i pairs = el_load(extras + 64 * (parts + i));
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    const int16_t *sums = parts == 16 ? el_a256_sum16(x[c], k) : el_a256_sum32(x[c], k);
                    second[c] = el_add_pairs(second[c], pairs, el_broadcast4(sums + parts * b + 2 * i));
                }
            }
        }
        const float *d = (const float *)(extras + expanded_d(type));
        const __m512 scale = _mm512_loadu_ps(d);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m512 dx = _mm512_set1_ps(el_a256_d(x[c], k)[b]);
            float *a = acc + EL_TILE_ROWS * c;
            if (!has_min(type) && zero) {
                total[c] = _mm512_sub_epi32(total[c], _mm512_mullo_epi32(second[c], _mm512_set1_epi32(zero)));
            }
            __m512 v = el_chain(total[c], scale, dx, _mm512_loadu_ps(a));
            if (has_min(type)) {
                v = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(second[c]),
                                     _mm512_mul_ps(_mm512_loadu_ps(d + 16), dx), v);
            }
            _mm512_storeu_ps(a, v);
        }
        extras += expanded_d(type) + 128;
    }
}

#define KQUANT_TYPE(name, type, quant, extra, n_parts)                                                    \
    EL_INLINE void name##_tile(const el_values *values, const uint8_t *quants, const uint8_t *extras,     \
                               int32_t k, int32_t n_rows, const void *const *x, float *const *y,          \
                               size_t y_off, void *scratch, const int nc) {                               \
        (void)scratch;                                                                                    \
        tile(type, values, quants, extras, k, n_rows, x, y, y_off, nc);                                   \
    }                                                                                                     \
    EL_INLINE void name##_streamed(const el_values *values, const uint8_t *quants, const uint8_t *extras, \
                                   int32_t k, int32_t n_rows, const void *const *x, float *const *y,      \
                                   size_t y_off, void *scratch, const int nc) {                           \
        streamed(type, values, quants, extras, k, n_rows, x, y, y_off, scratch, nc);                      \
    }                                                                                                     \
    EL_INLINE void name##_expanded(const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t b,    \
                                   int32_t n_blocks, const void *const *x, float *acc, const int nc) {    \
        expanded(type, quants, extras, k, b, n_blocks, x, acc, nc);                                       \
    }                                                                                                     \
    static void name##_expand(const el_values *values, const uint8_t *quants, const uint8_t *extras,      \
                              int32_t n_blocks, uint8_t *to_quants, uint8_t *to_extras) {                 \
        expand(type, values, quants, extras, n_blocks, to_quants, to_extras);                             \
    }                                                                                                     \
    EL_MM_TILES(name)                                                                                     \
    EL_EXPANSION(name, 256, 4, quant, extra, 4096, 96 * (n_parts) + 128)

KQUANT_TYPE(q2_k, EL_Q2_K, 1024, 320, 16)
KQUANT_TYPE(q3_k, EL_Q3_K, 1536, 288, 16)
KQUANT_TYPE(q4_k, EL_Q4_K, 2048, 320, 8)
KQUANT_TYPE(q5_k, EL_Q5_K, 2560, 320, 8)
KQUANT_TYPE(q6_k, EL_Q6_K, 3072, 288, 16)
KQUANT_TYPE(iq2, EL_IQ2_S, 1536, 288, 16)
KQUANT_TYPE(iq4_xs, EL_IQ4_XS, 2048, 160, 8)

EL_MM_VALUES(q2_k, q2_k, &q2_k_expansion, NULL, 256, 1024)
EL_MM_VALUES(q3_k, q3_k, &q3_k_expansion, NULL, 256, 1536)
EL_MM_VALUES(q4_k, q4_k, &q4_k_expansion, NULL, 256, 2048)
EL_MM_VALUES(q5_k, q5_k, &q5_k_expansion, NULL, 256, 2560)
EL_MM_VALUES(q6_k, q6_k, &q6_k_expansion, NULL, 256, 3072)
EL_MM_VALUES(iq1, iq2, &iq2_expansion, &EL_IQ1_VALUES, 256, 1536)
EL_MM_VALUES(iq2, iq2, &iq2_expansion, &EL_IQ2_VALUES, 256, 1536)
EL_MM_VALUES(iq3_xxs, iq4_xs, &iq4_xs_expansion, &EL_IQ3_XXS_VALUES, 256, 2048)
EL_MM_VALUES(iq3_s, iq4_xs, &iq4_xs_expansion, &EL_IQ3_S_VALUES, 256, 2048)
EL_MM_VALUES(iq4_xs, iq4_xs, &iq4_xs_expansion, &EL_IQ4_XS_VALUES, 256, 2048)

static void set_kquants(el_kernels *table) {
    table->mm[EL_Q2_K] = mm_q2_k;
    table->mm[EL_TQ1_0] = table->mm[EL_TQ2_0] = mm_q2_k; /* the same panels */
    table->mm[EL_Q3_K] = mm_q3_k;
    table->mm[EL_Q4_K] = mm_q4_k;
    table->mm[EL_Q5_K] = mm_q5_k;
    table->mm[EL_Q6_K] = mm_q6_k;
    table->mm[EL_IQ1_S] = table->mm[EL_IQ1_M] = mm_iq1; /* the same panels */
    table->mm[EL_IQ2_XXS] = table->mm[EL_IQ2_XS] = table->mm[EL_IQ2_S] = mm_iq2;
    table->mm[EL_IQ3_XXS] = mm_iq3_xxs;
    table->mm[EL_IQ3_S] = mm_iq3_s;
    table->mm[EL_IQ4_XS] = mm_iq4_xs;
}
