/* Matmul of the k-quants at levels avx2 and avx_vnni. Formats and formulas: kernels.h.
 *
 * Two bodies, by how many weights share a scale: Q4_K, Q5_K and IQ4_XS 32, Q2_K, Q3_K, Q6_K and IQ2 16; `type` is a
 * constant wherever a function is inlined. IQ4_XS stands for IQ3_XXS and IQ3_S too, IQ2 (EL_IQ2_S) for all IQ1 and IQ2: they
 * differ in values only. The int16 sums of some steps meet their scale in vpmaddwd, whose dwords hold (scale, scale) of
 * a row: the result is the exact int32 term of S. As many steps are summed as fit into int16, two products a step:
 *
 *   Q2_K  4 steps: 4 * 2 *  3 * 127 =  3,048        Q4_K  8 steps: 8 * 2 * 15 * 127 = 30,480
 *   Q3_K  4 steps: 4 * 2 *  7 * 127 =  7,112        Q5_K  4 steps: 4 * 2 * 31 * 127 = 31,496
 *   Q6_K  2 steps: 2 * 2 * 63 * 127 = 32,004        IQ2   1 step:  1 * 2 * 86 * 127 = 21,844 (43 added to its values)
 *
 * With vpdpbusd sums and scales are int32. Those of IQ4_XS always are: its weights are values of 8 bits, within 127, and
 * lend the activations their sign.
 */

/* The columns of a call. */
EL_INLINE void columns(const el_tile_call *t, el_column *col, const int nc) {
    EL_UNROLL
    for (int c = 0; c < nc; c++) col[c] = el_column_a256(t->x[c], t->k, t->block0);
}

/* (sums[0], sums[1]) in every dword. */
EL_INLINE __m256i broadcast_words(const int16_t *sums) {
    int32_t v;
    memcpy(&v, sums, 4);
    return _mm256_set1_epi32(v);
}

/* What is added to the values of IQ2: their largest magnitude, so that they are not negative. */
enum { IQ2_OFFSET = 43 };

EL_INLINE int has_values(const int type) { return type == EL_IQ4_XS || type == EL_IQ2_S; }

/* The values of a call's type, for _mm256_shuffle_epi8. */
EL_INLINE __m256i values_of(const int type, const el_tile_call *t) {
    if (!has_values(type)) return _mm256_setzero_si256();
    const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)t->values->of));
    return type == EL_IQ2_S ? _mm256_add_epi8(v, _mm256_set1_epi8(IQ2_OFFSET)) : v;
}

/* 8 halves, times the unit of the type's values. */
EL_INLINE __m256 load_d(const int type, const el_tile_call *t, const uint8_t *f16) {
    const __m256 d = el_load_f16(f16);
    return has_values(type) ? _mm256_mul_ps(d, _mm256_broadcast_ss(&t->values->unit)) : d;
}

/* 8 scales of the panel (f16) or of an expanded one (f32). */
EL_INLINE __m256 load_scales(const int type, const el_tile_call *t, const uint8_t *f16, const uint8_t *f32,
                             const int packed) {
    return packed ? load_d(type, t, f16) : _mm256_load_ps((const float *)f32);
}

/* ---- scales of 32: Q4_K, Q5_K, IQ4_XS ------------------------------------------------------------------------------------- */

/* Extras of an expanded block, as offsets. Dwords of rows: int16 pairs. */
enum {
    WIDE_SCALES = 0,   /* [8 32-blocks][16 rows] as wide_scales gives them */
    WIDE_MINIMA = 512, /* [4 pairs of 32-blocks][16 rows] (mn of 2j, mn of 2j + 1) */
    WIDE_D = 768,      /* f32 d[16], dmin[16] */
    WIDE_EXTRA = 896
};

/* Bytes of a packed pair of 32-blocks, and into how many sums a 32-block goes. */
EL_INLINE int32_t pair_bytes(const int type) { return type == EL_Q5_K ? 640 : 512; }
EL_INLINE int parts_of_32(const int type) { return type == EL_Q5_K && !EL_DPBUSD ? 2 : 1; }

EL_INLINE int32_t wide_extras(const int type) { return type == EL_IQ4_XS ? 160 : 320; }
EL_INLINE int32_t wide_d(const int type) { return type == EL_IQ4_XS ? 128 : 256; }

/* Bytes 8h .. 8h+7 of the 16 at p as the scales of wide_scaled. */
EL_INLINE __m256i wide_scales(const int type, const uint8_t *p, const int h) {
    if (type == EL_IQ4_XS) return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * h)));
    if (EL_DPBUSD) return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * h)));
    const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    const __m256i first = _mm256_setr_epi8(0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, /* */
                                           4, -1, 4, -1, 5, -1, 5, -1, 6, -1, 6, -1, 7, -1, 7, -1);
    return _mm256_shuffle_epi8(v, _mm256_add_epi8(first, _mm256_set1_epi16((short)(8 * h))));
}

/* 16 bytes as words. */
EL_INLINE __m256i words_u8(const uint8_t *p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
}

EL_INLINE __m256i wide_scaled(const int type, __m256i sum, __m256i sc) {
    return type == EL_IQ4_XS ? _mm256_mullo_epi32(sum, sc) : el_sums_scaled(sum, sc);
}

/* Step s of the low (0) or high (1: odd) 32-block of a packed pair, half h of the rows. IQ4_XS: signed; its nibbles are
 * steps s and s + 4 of a 32-block. */
EL_INLINE __m256i wide_weights(const int type, __m256i values, const uint8_t *pair, const int odd,
                               const int s, const int h) {
    if (type == EL_IQ4_XS) {
        const __m256i v = el_load(pair + 256 * odd + 64 * (s % 4) + 32 * h);
        return _mm256_shuffle_epi8(values, s < 4 ? el_low_nibbles(v) : el_high_nibbles(v));
    }
    const __m256i v = el_load(pair + 64 * s + 32 * h), w = odd ? el_high_nibbles(v) : el_low_nibbles(v);
    if (type == EL_Q4_K) return w;
    return _mm256_or_si256(w, el_bit(el_load(pair + 512 + 64 * odd + 32 * h), s, 4));
}

/* Add one step of signed weights as int32. */
EL_INLINE __m256i wide_signed(__m256i sum, __m256i w, __m256i q) {
    const __m256i u = _mm256_abs_epi8(w), s = _mm256_sign_epi8(q, w);
#if EL_DPBUSD
    return el_dpbusd_256(sum, u, s);
#else
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
#endif
}

/* Sums of a part of 32-block j of block b. quants: packed a pair, expanded the 32-block's 8 steps. */
EL_INLINE void wide_dot(const int type, __m256i values, const uint8_t *quants, const el_column *col,
                        int32_t b, int32_t j, el_sums sum, const int nc, const int packed, const int odd,
                        const int part) {
    el_sums_clear(sum, nc);
    EL_UNROLL
    for (int i = 0; i < 8 / parts_of_32(type); i++) {
        const int s = part * 4 + i;
        const __m256i w0 = packed ? wide_weights(type, values, quants, odd, s, 0) : el_load(quants + 64 * s);
        const __m256i w1 =
            packed ? wide_weights(type, values, quants, odd, s, 1) : el_load(quants + 64 * s + 32);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m256i q = el_broadcast4(col[c].q + 256 * b + 32 * j + 4 * s);
            if (type == EL_IQ4_XS) {
                sum[c][0] = wide_signed(sum[c][0], w0, q);
                sum[c][1] = wide_signed(sum[c][1], w1, q);
                EL_PIN(sum[c][0]);
                EL_PIN(sum[c][1]);
            } else {
                el_sums_add(sum, c, w0, w1, q);
            }
        }
    }
}

/* The float part of block b: S of 8 rows, their minima (pairs of words), d and dmin. IQ4_XS has no minima. */
EL_INLINE __m256 wide_chain(const int type, __m256i S, const __m256i mn[4], __m256 d, __m256 dmin,
                            const el_column *col, int32_t b, __m256 acc) {
    const int16_t *sums = col->sum32 + 8 * b;
    const __m256 dx = _mm256_broadcast_ss(col->d + b);
    if (type == EL_IQ4_XS) return _mm256_fmadd_ps(_mm256_cvtepi32_ps(S), _mm256_mul_ps(d, dx), acc);
    __m256i m = _mm256_madd_epi16(mn[0], broadcast_words(sums));
    EL_UNROLL
    for (int j = 1; j < 4; j++)
        m = _mm256_add_epi32(m, _mm256_madd_epi16(mn[j], broadcast_words(sums + 2 * j)));
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(S), _mm256_mul_ps(d, dx), acc);
    return _mm256_fnmadd_ps(_mm256_cvtepi32_ps(m), _mm256_mul_ps(dmin, dx), acc);
}

EL_INLINE void wide_streamed(const el_tile_call *t, const int nc, const int type) {
    const int32_t distance = t->distance, pair = pair_bytes(type);
    const int parts = parts_of_32(type);
    const uint8_t *quants = t->quants, *extras = t->extras;
    const int32_t n_blocks = t->n_blocks;
    __m256i *sums = t->sums;
    float *acc = t->acc;
    const __m256i values = values_of(type, t);
    el_column col[EL_GROUP];
    columns(t, col, nc);
    for (int32_t b = 0; b < n_blocks; b++) {
        for (int32_t j = 0; j < 8; j += 2, quants += pair) {
            el_prefetch(quants, pair, distance);
            EL_UNROLL
            for (int i = 0; i < 2 * parts; i++) {
                el_sums sum;
                wide_dot(type, values, quants, col, b, j + i / parts, sum, nc, 1, i / parts, i % parts);
                sums = el_sums_store(sums, sum, nc);
            }
        }
    }
    sums = t->sums;
    for (int32_t b = 0; b < n_blocks; b++, extras += wide_extras(type), sums += 16 * nc * parts) {
        el_prefetch(extras, wide_extras(type), distance);
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i mn[4], S[EL_GROUP];
            EL_UNROLL
            for (int j = 0; j < 4; j++) {
                mn[j] = type == EL_IQ4_XS ? _mm256_setzero_si256() : words_u8(extras + 128 + 32 * j + 16 * h);
            }
            EL_UNROLL
            for (int c = 0; c < nc; c++) S[c] = _mm256_setzero_si256();
            EL_UNROLL
            for (int j = 0; j < 8; j++) {
                const __m256i sc = wide_scales(type, extras + 16 * j, h);
                EL_UNROLL
                for (int i = 0; i < nc * parts; i++) {
                    const __m256i sum = _mm256_load_si256(sums + 2 * nc * parts * j + 2 * i + h);
                    S[i % nc] = _mm256_add_epi32(S[i % nc], wide_scaled(type, sum, sc));
                }
            }
            const __m256 d = load_d(type, t, extras + wide_d(type) + 16 * h);
            const __m256 dmin = type == EL_IQ4_XS ? d : el_load_f16(extras + 288 + 16 * h);
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                float *a = acc + 16 * c + 8 * h;
                _mm256_store_ps(a, wide_chain(type, S[c], mn, d, dmin, &col[c], b, _mm256_load_ps(a)));
            }
        }
    }
}

EL_INLINE void wide_tile(const el_tile_call *t, const int nc, const int type, const int packed) {
    const int32_t n_blocks = t->n_blocks, lines = t->lines;
    const int parts = parts_of_32(type);
    const uint8_t *quants = t->quants, *extras = t->extras;
    const char *ahead = t->ahead;
    float *acc = t->acc;
    const __m256i values = values_of(type, t);
    el_column col[EL_GROUP];
    columns(t, col, nc);
    for (int32_t b = 0; b < n_blocks; b++) {
        el_sums total;
        el_sums_clear(total, nc);
        for (int32_t j = 0; j < 8; j += 2) {
            EL_UNROLL
            for (int i = 0; i < 2 * parts; i++) {
                const int odd = i / parts;
                el_sums sum;
                if (i % parts == 0) ahead = el_prefetch_ahead(ahead, lines);
                wide_dot(type, values, packed ? quants : quants + 512 * odd, col, b, j + odd, sum, nc, packed,
                         odd, i % parts);
                EL_UNROLL
                for (int h = 0; h < 2; h++) {
                    const __m256i sc = packed ? wide_scales(type, extras + 16 * (j + odd), h)
                                              : el_load(extras + WIDE_SCALES + 64 * (j + odd) + 32 * h);
                    EL_UNROLL
                    for (int c = 0; c < nc; c++) {
                        total[c][h] = _mm256_add_epi32(total[c][h], wide_scaled(type, sum[c][h], sc));
                    }
                }
            }
            quants += packed ? pair_bytes(type) : 1024;
        }
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256 d =
                load_scales(type, t, extras + wide_d(type) + 16 * h, extras + WIDE_D + 32 * h, packed);
            const __m256 dmin = type == EL_IQ4_XS ? d
                                                  : load_scales(type, t, extras + 288 + 16 * h,
                                                                extras + WIDE_D + 64 + 32 * h, packed);
            __m256i mn[4];
            EL_UNROLL
            for (int j = 0; j < 4; j++) {
                mn[j] = type == EL_IQ4_XS ? _mm256_setzero_si256()
                        : packed          ? words_u8(extras + 128 + 32 * j + 16 * h)
                                          : el_load(extras + WIDE_MINIMA + 64 * j + 32 * h);
            }
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                float *a = acc + 16 * c + 8 * h;
                _mm256_store_ps(a, wide_chain(type, total[c][h], mn, d, dmin, &col[c], b, _mm256_load_ps(a)));
            }
        }
        extras += packed ? wide_extras(type) : WIDE_EXTRA;
        EL_FENCE();
    }
}

EL_INLINE void wide_expand(const int type, const el_tile_call *t, uint8_t *to_quants, uint8_t *to_extras) {
    const __m256i values = values_of(type, t);
    const uint8_t *quants = t->quants, *extras = t->extras;
    const int32_t n_blocks = t->n_blocks;
    for (int32_t i = 0; i < n_blocks * 4; i++, quants += pair_bytes(type), to_quants += 1024) {
        el_prefetch(quants, pair_bytes(type), EL_PREFETCH_FAR);
        EL_UNROLL
        for (int s = 0; s < 16; s++) {
            el_store(to_quants + 32 * s, wide_weights(type, values, quants, 0, s / 2, s % 2));
            el_store(to_quants + 512 + 32 * s, wide_weights(type, values, quants, 1, s / 2, s % 2));
        }
    }
    for (int32_t b = 0; b < n_blocks; b++, extras += wide_extras(type), to_extras += WIDE_EXTRA) {
        for (int h = 0; h < 2; h++) {
            for (int j = 0; j < 8; j++) {
                el_store(to_extras + WIDE_SCALES + 64 * j + 32 * h, wide_scales(type, extras + 16 * j, h));
            }
            for (int j = 0; j < 4 && type != EL_IQ4_XS; j++) {
                el_store(to_extras + WIDE_MINIMA + 64 * j + 32 * h, words_u8(extras + 128 + 32 * j + 16 * h));
            }
            _mm256_store_ps((float *)(to_extras + WIDE_D + 32 * h),
                            load_d(type, t, extras + wide_d(type) + 16 * h));
            if (type == EL_IQ4_XS) continue;
            _mm256_store_ps((float *)(to_extras + WIDE_D + 64 + 32 * h), el_load_f16(extras + 288 + 16 * h));
        }
    }
}

/* ---- scales of 16: Q2_K, Q3_K, Q6_K, IQ2 -------------------------------------------------------------------------------
 * What the offset of 4, 32 or 43 adds to S is 4, 32 or 43 * sum_j sc[j] sum16[j]. Minima of Q2_K: M = sum_j mn[j] sum16[j]. Both
 * are a "second sum" of pairs of words, (sc of 2j, sc of 2j + 1) or (mn, mn), times pairs of activation sums. */

/* Extras of an expanded block, as offsets. Dwords of rows: int16 pairs. */
enum {
    NARROW_SCALES = 0,   /* [16 16-blocks][16 rows] as scale_of gives them */
    NARROW_PAIRS = 1024, /* [8 32-blocks][16 rows] of the second sum */
    NARROW_D = 1536,     /* f32 d[16], dmin[16] */
    NARROW_EXTRA = 1664
};

EL_INLINE int32_t narrow_quants(const int type) {
    return type == EL_Q2_K ? 1024 : type == EL_Q6_K ? 3072 : 1536;
}
EL_INLINE int32_t narrow_extras(const int type) { return type == EL_Q2_K ? 320 : 288; }

/* The steps whose sums fit. */
EL_INLINE int steps_of(const int type) {
    return EL_DPBUSD ? 4 : type == EL_Q6_K ? 2 : type == EL_IQ2_S ? 1 : 4;
}

/* The bytes of 16-blocks 2j and 2j + 1 of 8 rows as the words of their dwords. */
EL_INLINE __m256i byte_pairs(const int type, const uint8_t *extras, int32_t j, const int h) {
    const __m128i a = _mm_loadu_si128((const __m128i *)(extras + 32 * j));
    const __m128i b = _mm_loadu_si128((const __m128i *)(extras + 32 * j + 16));
    const __m128i v = h ? _mm_unpackhi_epi8(a, b) : _mm_unpacklo_epi8(a, b);
    return type == EL_Q2_K ? _mm256_cvtepu8_epi16(v) : _mm256_cvtepi8_epi16(v);
}

/* Of these: the scales of 16-block u for el_sums_scaled, and the pair of the second sum. */
EL_INLINE __m256i scale_of(const int type, __m256i pairs, const int u) {
    const __m256i low = _mm256_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13, /* */
                                         0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13);
    if (type == EL_Q2_K) pairs = _mm256_and_si256(pairs, _mm256_set1_epi16(15));
    if (EL_DPBUSD) return _mm256_srai_epi32(u ? pairs : _mm256_slli_epi32(pairs, 16), 16);
    return _mm256_shuffle_epi8(pairs, u ? _mm256_add_epi8(low, _mm256_set1_epi8(2)) : low);
}
EL_INLINE __m256i second_of(const int type, __m256i pairs) {
    return type == EL_Q2_K ? _mm256_srli_epi16(pairs, 4) : pairs;
}

/* Step t (0..3) of 16-block u (0, 1) of 32-block j of a packed block, half h of the rows. */
EL_INLINE __m256i narrow_weights(const int type, __m256i values, const uint8_t *quants, int32_t j,
                                 const int u, const int t, const int h) {
    if (type == EL_Q6_K) {
        const __m256i v = el_load(quants + 256 * j + 64 * t + 32 * h);
        const __m256i top = el_load(quants + 2048 + 128 * j + 64 * u + 32 * h);
        return _mm256_or_si256(u ? el_high_nibbles(v) : el_low_nibbles(v), el_crumb(top, t, 4));
    }
    const uint8_t *at = quants + (type == EL_Q2_K ? 128 : 192) * j + 32 * h;
    const __m256i low = el_crumb(el_load(at + 64 * u), t, 0);
    if (type == EL_Q2_K) return low;
    const __m256i w = _mm256_or_si256(low, el_bit(el_load(at + 128), 4 * u + t, 2));
    return type == EL_IQ2_S ? _mm256_shuffle_epi8(values, w) : w;
}

/* Steps s .. s + n-1 of 16-block u of 32-block j of block b, one sum. Expanded: `quants` are the 16-block's 4 steps. */
EL_INLINE void narrow_dot(const int type, __m256i values, const uint8_t *quants, const el_column *col,
                          int32_t b, int32_t j, el_sums sum, const int nc, const int packed, const int u,
                          const int s, const int n) {
    el_sums_clear(sum, nc);
    EL_UNROLL
    for (int i = s; i < s + n; i++) {
        const __m256i w0 =
            packed ? narrow_weights(type, values, quants, j, u, i, 0) : el_load(quants + 64 * i);
        const __m256i w1 =
            packed ? narrow_weights(type, values, quants, j, u, i, 1) : el_load(quants + 64 * i + 32);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m256i q = el_broadcast4(col[c].q + 256 * b + 32 * j + 16 * u + 4 * i);
            el_sums_add(sum, c, w0, w1, q);
        }
    }
}

/* total += (u of 16-block `u` of 32-block j of block b) * q * scale. */
EL_INLINE void narrow_add(const int type, __m256i values, const uint8_t *quants, const el_column *col,
                          int32_t b, int32_t j, const __m256i scale[2], el_sums total, const int nc,
                          const int packed, const int u) {
    const int n = steps_of(type);
    EL_UNROLL
    for (int s = 0; s < 4; s += n) {
        el_sums sum;
        narrow_dot(type, values, quants, col, b, j, sum, nc, packed, u, s, n);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            EL_UNROLL
            for (int h = 0; h < 2; h++) {
                total[c][h] = _mm256_add_epi32(total[c][h], el_sums_scaled(sum[c][h], scale[h]));
                EL_PIN(total[c][h]);
            }
        }
    }
}

/* The float part of block b: S and the second sum of 8 rows. */
EL_INLINE __m256 narrow_chain(const int type, __m256i S, __m256i second, __m256 d, __m256 dmin, __m256 dx,
                              __m256 acc) {
    if (type == EL_Q3_K) S = _mm256_sub_epi32(S, _mm256_slli_epi32(second, 2));
    if (type == EL_Q6_K) S = _mm256_sub_epi32(S, _mm256_slli_epi32(second, 5));
    if (type == EL_IQ2_S) S = _mm256_sub_epi32(S, _mm256_mullo_epi32(second, _mm256_set1_epi32(IQ2_OFFSET)));
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(S), _mm256_mul_ps(d, dx), acc);
    if (type != EL_Q2_K) return acc;
    return _mm256_fnmadd_ps(_mm256_cvtepi32_ps(second), _mm256_mul_ps(dmin, dx), acc);
}

EL_INLINE void narrow_streamed(const el_tile_call *t, const int nc, const int type) {
    const int32_t distance = t->distance;
    const __m256i ones[2] = {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
    const int32_t eighth = narrow_quants(type) / 8; /* a block's bytes are one stream for the prefetches */
    const uint8_t *quants = t->quants, *extras = t->extras;
    const int32_t n_blocks = t->n_blocks;
    __m256i *sums = t->sums;
    const int whole =
        steps_of(type) < 4; /* several sums of int16 make one of int32, else they wait as they are */
    float *acc = t->acc;
    const __m256i values = values_of(type, t);
    el_column col[EL_GROUP];
    columns(t, col, nc);
    for (int32_t b = 0; b < n_blocks; b++, quants += narrow_quants(type)) {
        for (int32_t j = 0; j < 8; j++) {
            el_prefetch(quants + eighth * j, eighth, distance);
            EL_UNROLL
            for (int u = 0; u < 2; u++) {
                el_sums sum;
                if (whole) {
                    el_sums_clear(sum, nc);
                    narrow_add(type, values, quants, col, b, j, ones, sum, nc, 1, u);
                } else {
                    narrow_dot(type, values, quants, col, b, j, sum, nc, 1, u, 0, 4);
                }
                sums = el_sums_store(sums, sum, nc);
            }
        }
    }
    sums = t->sums;
    for (int32_t b = 0; b < n_blocks; b++, extras += narrow_extras(type), sums += 32 * nc) {
        el_prefetch(extras, narrow_extras(type), distance);
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i S[EL_GROUP], second[EL_GROUP];
            EL_UNROLL
            for (int c = 0; c < nc; c++) S[c] = second[c] = _mm256_setzero_si256();
            for (int32_t j = 0; j < 8; j++) {
                const __m256i pairs = byte_pairs(type, extras, j, h), other = second_of(type, pairs);
                EL_UNROLL
                for (int u = 0; u < 2; u++) {
                    const __m256i sc = scale_of(type, pairs, u);
                    EL_UNROLL
                    for (int c = 0; c < nc; c++) {
                        const __m256i sum = _mm256_load_si256(sums + 2 * nc * (2 * j + u) + 2 * c + h);
                        const __m256i term = whole ? _mm256_mullo_epi32(sum, _mm256_srai_epi32(sc, 16))
                                                   : el_sums_scaled(sum, sc);
                        S[c] = _mm256_add_epi32(S[c], term);
                    }
                }
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    const __m256i x = broadcast_words(col[c].sum16 + 16 * b + 2 * j);
                    second[c] = _mm256_add_epi32(second[c], _mm256_madd_epi16(other, x));
                }
            }
            const __m256 d = load_d(type, t, extras + 256 + 16 * h);
            const __m256 dmin = type == EL_Q2_K ? el_load_f16(extras + 288 + 16 * h) : d;
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                const __m256 dx = _mm256_broadcast_ss(col[c].d + b);
                float *a = acc + 16 * c + 8 * h;
                _mm256_store_ps(a, narrow_chain(type, S[c], second[c], d, dmin, dx, _mm256_load_ps(a)));
            }
        }
    }
}

EL_INLINE void narrow_tile(const el_tile_call *t, const int nc, const int type, const int packed) {
    const int32_t n_blocks = t->n_blocks, lines = t->lines;
    const uint8_t *quants = t->quants, *extras = t->extras;
    const char *ahead = t->ahead;
    float *acc = t->acc;
    const __m256i values = values_of(type, t);
    el_column col[EL_GROUP];
    columns(t, col, nc);
    for (int32_t b = 0; b < n_blocks; b++) {
        el_sums total;
        el_sums_clear(total, nc);
        for (int32_t j = 0; j < 8; j++) {
            ahead = el_prefetch_ahead(ahead, lines);
            EL_UNROLL
            for (int u = 0; u < 2; u++) {
                __m256i sc[2];
                EL_UNROLL
                for (int h = 0; h < 2; h++) {
                    sc[h] = packed ? scale_of(type, byte_pairs(type, extras, j, h), u)
                                   : el_load(extras + NARROW_SCALES + 64 * (2 * j + u) + 32 * h);
                }
                narrow_add(type, values, packed ? quants : quants + 512 * j + 256 * u, col, b, j, sc, total,
                           nc, packed, u);
            }
        }
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i second[EL_GROUP];
            EL_UNROLL
            for (int c = 0; c < nc; c++) second[c] = _mm256_setzero_si256();
            EL_UNROLL
            for (int j = 0; j < 8; j++) {
                const __m256i pairs = packed ? second_of(type, byte_pairs(type, extras, j, h))
                                             : el_load(extras + NARROW_PAIRS + 64 * j + 32 * h);
                EL_UNROLL
                for (int c = 0; c < nc; c++) {
                    const __m256i x = broadcast_words(col[c].sum16 + 16 * b + 2 * j);
                    second[c] = _mm256_add_epi32(second[c], _mm256_madd_epi16(pairs, x));
                }
            }
            const __m256 d = load_scales(type, t, extras + 256 + 16 * h, extras + NARROW_D + 32 * h, packed);
            const __m256 dmin = type == EL_Q2_K ? load_scales(type, t, extras + 288 + 16 * h,
                                                              extras + NARROW_D + 64 + 32 * h, packed)
                                                : d;
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                const __m256 dx = _mm256_broadcast_ss(col[c].d + b);
                float *a = acc + 16 * c + 8 * h;
                _mm256_store_ps(a,
                                narrow_chain(type, total[c][h], second[c], d, dmin, dx, _mm256_load_ps(a)));
            }
        }
        quants += packed ? narrow_quants(type) : 4096;
        extras += packed ? narrow_extras(type) : NARROW_EXTRA;
        EL_FENCE();
    }
}

EL_INLINE void narrow_expand(const int type, const el_tile_call *t, uint8_t *to_quants, uint8_t *to_extras) {
    const __m256i values = values_of(type, t);
    const uint8_t *quants = t->quants, *extras = t->extras;
    const int32_t eighth = narrow_quants(type) / 8, n_blocks = t->n_blocks;
    for (int32_t b = 0; b < n_blocks; b++) {
        for (int j = 0; j < 8; j++) {
            el_prefetch(quants + eighth * j, eighth, EL_PREFETCH_FAR);
            EL_UNROLL
            for (int s = 0; s < 8; s++) {
                EL_UNROLL
                for (int h = 0; h < 2; h++) {
                    el_store(to_quants + 512 * j + 64 * s + 32 * h,
                             narrow_weights(type, values, quants, j, s / 4, s % 4, h));
                }
            }
        }
        for (int h = 0; h < 2; h++) {
            for (int j = 0; j < 8; j++) {
                const __m256i pairs = byte_pairs(type, extras, j, h);
                el_store(to_extras + NARROW_SCALES + 128 * j + 32 * h, scale_of(type, pairs, 0));
                el_store(to_extras + NARROW_SCALES + 128 * j + 64 + 32 * h, scale_of(type, pairs, 1));
                el_store(to_extras + NARROW_PAIRS + 64 * j + 32 * h, second_of(type, pairs));
            }
            float *d = (float *)(to_extras + NARROW_D + 32 * h);
            _mm256_store_ps(d, load_d(type, t, extras + 256 + 16 * h));
            if (type == EL_Q2_K) _mm256_store_ps(d + 16, el_load_f16(extras + 288 + 16 * h));
        }
        quants += narrow_quants(type);
        extras += narrow_extras(type);
        to_quants += 4096;
        to_extras += NARROW_EXTRA;
    }
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */
#define KQUANT_TYPE(name, type, body)                                                                     \
    EL_INLINE void name##_streamed(const el_tile_call *t, const int nc) { body##_streamed(t, nc, type); } \
    EL_INLINE void name##_packed(const el_tile_call *t, const int nc) { body##_tile(t, nc, type, 1); }    \
    EL_INLINE void name##_expanded(const el_tile_call *t, const int nc) { body##_tile(t, nc, type, 0); }  \
    static void name##_expand(const el_tile_call *t, uint8_t *to_quants, uint8_t *to_extras) {            \
        body##_expand(type, t, to_quants, to_extras);                                                     \
    }                                                                                                     \
    EL_TILE_FUNCTIONS(name)

/* mm_<name> with the functions of KQUANT_TYPE(code, ...). */
#define KQUANT_MM(name, code, its_values, quant, extra, n_sums, columns_packed, to_extra, streams_ahead) \
    static const el_mm_type name##_type = {.block = 256,                                                 \
                                           .quant_bytes = quant,                                         \
                                           .extra_bytes = extra,                                         \
                                           .sums = n_sums,                                               \
                                           .packed_columns = columns_packed,                             \
                                           .chunk = 8,                                                   \
                                           .distance = streams_ahead,                                    \
                                           .expanded_quants = 4096,                                      \
                                           .expanded_extras = to_extra,                                  \
                                           .values = its_values,                                         \
                                           .expand = code##_expand,                                      \
                                           EL_TILE_TABLES(code)};                                        \
    EL_MM_FUNCTIONS(mm_##name, name##_type)

KQUANT_TYPE(q2_k, EL_Q2_K, narrow)
KQUANT_TYPE(q3_k, EL_Q3_K, narrow)
KQUANT_TYPE(q4_k, EL_Q4_K, wide)
KQUANT_TYPE(q5_k, EL_Q5_K, wide)
KQUANT_TYPE(q6_k, EL_Q6_K, narrow)
KQUANT_TYPE(iq2, EL_IQ2_S, narrow)
KQUANT_TYPE(iq4_xs, EL_IQ4_XS, wide)

KQUANT_MM(q2_k, q2_k, NULL, 1024, 320, 16, 8, NARROW_EXTRA, EL_PREFETCH_MIDDLE)
KQUANT_MM(q3_k, q3_k, NULL, 1536, 288, 16, 4, NARROW_EXTRA, EL_PREFETCH_MIDDLE)
KQUANT_MM(q4_k, q4_k, NULL, 2048, 320, 8, 8, WIDE_EXTRA, EL_PREFETCH_NEAR)
KQUANT_MM(q5_k, q5_k, NULL, 2560, 320, 16, 4, WIDE_EXTRA, EL_PREFETCH_MIDDLE)
KQUANT_MM(q6_k, q6_k, NULL, 3072, 288, 16, 4, NARROW_EXTRA, EL_PREFETCH_MIDDLE)
KQUANT_MM(iq1, iq2, &EL_IQ1_VALUES, 1536, 288, 16, 4, NARROW_EXTRA, EL_PREFETCH_MIDDLE)
KQUANT_MM(iq2, iq2, &EL_IQ2_VALUES, 1536, 288, 16, 4, NARROW_EXTRA, EL_PREFETCH_MIDDLE)
KQUANT_MM(iq3_xxs, iq4_xs, &EL_IQ3_XXS_VALUES, 2048, 160, 8, 4, WIDE_EXTRA, EL_PREFETCH_MIDDLE)
KQUANT_MM(iq3_s, iq4_xs, &EL_IQ3_S_VALUES, 2048, 160, 8, 4, WIDE_EXTRA, EL_PREFETCH_MIDDLE)
KQUANT_MM(iq4_xs, iq4_xs, &EL_IQ4_XS_VALUES, 2048, 160, 8, 4, WIDE_EXTRA, EL_PREFETCH_MIDDLE)

static void set_kquants(el_kernels *table) {
    el_set_mm(table, EL_Q2_K, mm_q2_k, mm_q2_k_far);
    el_set_mm(table, EL_TQ1_0, mm_q2_k, mm_q2_k_far); /* the same panels */
    el_set_mm(table, EL_TQ2_0, mm_q2_k, mm_q2_k_far);
    el_set_mm(table, EL_Q3_K, mm_q3_k, mm_q3_k_far);
    el_set_mm(table, EL_Q4_K, mm_q4_k, mm_q4_k_far);
    el_set_mm(table, EL_Q5_K, mm_q5_k, mm_q5_k_far);
    el_set_mm(table, EL_Q6_K, mm_q6_k, mm_q6_k_far);
    el_set_mm(table, EL_IQ1_S, mm_iq1, mm_iq1_far); /* the same panels */
    el_set_mm(table, EL_IQ1_M, mm_iq1, mm_iq1_far);
    el_set_mm(table, EL_IQ2_XXS, mm_iq2, mm_iq2_far);
    el_set_mm(table, EL_IQ2_XS, mm_iq2, mm_iq2_far);
    el_set_mm(table, EL_IQ2_S, mm_iq2, mm_iq2_far);
    el_set_mm(table, EL_IQ3_XXS, mm_iq3_xxs, mm_iq3_xxs_far);
    el_set_mm(table, EL_IQ3_S, mm_iq3_s, mm_iq3_s_far);
    el_set_mm(table, EL_IQ4_XS, mm_iq4_xs, mm_iq4_xs_far);
}
