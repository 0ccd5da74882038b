/* Matmul of the 32-block types at levels avx2 and avx_vnni: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1,
 * IQ4_NL, MXFP4. Formats and formulas: kernels.h.
 *
 * One body serves them all; `type` is a constant wherever it is inlined. Per 16 weights (a "part" of a block: steps 0..3
 * or 4..7, in the packed nibbles the low or the high ones):
 *
 *   Q8_0  |w| <= 128 is vpmaddubsw's unsigned operand, the activation takes w's sign. 2 * 128 * 127 fits into int16,
 *         for one step: the sums are int32.
 *   Q4_x  4 * 2 * 15 * 127 = 15,240: the 4 steps are added as int16, two sums a row.
 *   Q5_x  4 * 2 * 31 * 127 = 31,496: likewise.
 *
 *   MXFP4 the values that nibbles stand for, + 12: 4 * 2 * 24 * 127 = 24,384: likewise.
 *   IQ4_NL  values of 8 bits, within 127: as Q8_0.
 *
 * With vpdpbusd all sums are int32, and Q8_0 and IQ4_NL are w + 128. The offsets leave through the activation sum.
 */

/* What distinguishes the types. */
EL_INLINE int has_min(const int type) { return type == EL_Q4_1 || type == EL_Q5_1; }
EL_INLINE int has_fifth(const int type) { return type == EL_Q5_0 || type == EL_Q5_1; }
EL_INLINE int32_t quant_bytes(const int type) { return type == EL_Q8_0 ? 512 : has_fifth(type) ? 320 : 256; }
EL_INLINE int has_values(const int type) { return type == EL_IQ4_NL || type == EL_MXFP4; }
EL_INLINE int32_t extra_bytes(const int type) { return has_min(type) ? 64 : type == EL_MXFP4 ? 16 : 32; }

/* Weights stay signed and lend the activations their sign, in sums of int32. */
EL_INLINE int is_signed(const int type) { return (type == EL_Q8_0 || type == EL_IQ4_NL) && !EL_DPBUSD; }

/* What is added to the others to make them unsigned. */
EL_INLINE int zero_point(const int type) {
    if (type == EL_Q8_0 || type == EL_IQ4_NL) return EL_DPBUSD ? 128 : 0;
    return type == EL_Q4_0 ? 8 : type == EL_Q5_0 ? 16 : type == EL_MXFP4 ? 12 : 0;
}

/* Values in place of nibbles, zero_point added. */
EL_INLINE __m256i values_of(const int type, __m256i nibbles) {
    const int8_t *values = type == EL_MXFP4 ? EL_MXFP4_VALUES : EL_IQ4_VALUES;
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)values));
    return _mm256_shuffle_epi8(_mm256_add_epi8(table, _mm256_set1_epi8((char)zero_point(type))), nibbles);
}

/* Scales of 8 rows, half h of a block's 16, from the panel. */
EL_INLINE __m256 load_scales(const int type, const uint8_t *extras, const int h) {
    if (type != EL_MXFP4) return el_load_f16(extras + 16 * h);
    return el_e8m0_half_8(_mm_loadl_epi64((const __m128i *)(extras + 8 * h)));
}

/* Step i of a part, half h of the rows, of a packed block. */
EL_INLINE __m256i packed_weights(const int type, const uint8_t *quants, const int part, const int i,
                                 const int h) {
    if (type == EL_Q8_0) {
        const __m256i v = el_load(quants + 64 * (4 * part + i) + 32 * h);
        return EL_DPBUSD ? _mm256_xor_si256(v, _mm256_set1_epi8(-128)) : v;
    }
    const __m256i v = el_load(quants + 64 * i + 32 * h), w = part ? el_high_nibbles(v) : el_low_nibbles(v);
    if (has_values(type)) return values_of(type, w);
    if (!has_fifth(type)) return w;
    return _mm256_or_si256(w, el_bit(el_load(quants + 256 + 32 * h), 4 * part + i, 4));
}

/* Add step i of a part of block b. */
EL_INLINE void add_step(const int type, const int packed, const uint8_t *quants, const el_column *col,
                        int32_t b, const int part, const int i, el_sums sum, const int nc) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i w[2], u[2];
    EL_UNROLL
    for (int h = 0; h < 2; h++) {
        w[h] = packed || type == EL_Q8_0 ? packed_weights(type, quants, part, i, h)
                                         : el_load(quants + 64 * (4 * part + i) + 32 * h);
        u[h] = is_signed(type) ? _mm256_abs_epi8(w[h]) : w[h];
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        const __m256i q = el_broadcast4(col[c].q + 32 * b + 16 * part + 4 * i);
        if (is_signed(type)) {
            EL_UNROLL
            for (int h = 0; h < 2; h++) {
                const __m256i p = _mm256_maddubs_epi16(u[h], _mm256_sign_epi8(q, w[h]));
                sum[c][h] = _mm256_add_epi32(sum[c][h], _mm256_madd_epi16(p, ones));
                EL_PIN(sum[c][h]);
            }
        } else {
            el_sums_add(sum, c, u[0], u[1], q);
        }
    }
}

/* What a part's int32 sums have too much. */
EL_INLINE __m256i offset(const int type, const int32_t *sum) {
    const __m256i v = _mm256_set1_epi32(*sum);
    switch (zero_point(type)) {
    case 8: return _mm256_slli_epi32(v, 3);
    case 12: return _mm256_slli_epi32(_mm256_add_epi32(v, _mm256_slli_epi32(v, 1)), 2);
    case 16: return _mm256_slli_epi32(v, 4);
    case 128: return _mm256_slli_epi32(v, 7);
    default: return _mm256_setzero_si256();
    }
}

/* (f32)i of a part's sums, i = sum w q of 8 rows. */
EL_INLINE __m256 whole(const int type, __m256i sum, __m256i off) {
    if (!EL_DPBUSD && !is_signed(type)) sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
    if (zero_point(type)) sum = _mm256_sub_epi32(sum, off);
    return _mm256_cvtepi32_ps(sum);
}

EL_INLINE void columns(const el_tile_call *t, el_column *col, const int nc) {
    EL_UNROLL
    for (int c = 0; c < nc; c++) col[c] = el_column_a16(t->x[c], t->k, t->block0);
}

EL_INLINE void streamed(const el_tile_call *t, const int nc, const int type) {
    const int32_t distance = t->distance;
    const int32_t n_blocks = t->n_blocks;
    const uint8_t *quants = t->quants, *extras = t->extras;
    __m256i *sums = t->sums;
    el_column col[EL_GROUP];
    columns(t, col, nc);
    for (int32_t b = 0; b < n_blocks; b++, quants += quant_bytes(type)) {
        el_prefetch(quants, quant_bytes(type), distance);
        el_sums sum[2];
        el_sums_clear(sum[0], nc);
        el_sums_clear(sum[1], nc);
        EL_UNROLL
        for (int i = 0; i < 4; i++) { /* both parts of a row of nibbles */
            add_step(type, 1, quants, col, b, 0, i, sum[0], nc);
            add_step(type, 1, quants, col, b, 1, i, sum[1], nc);
        }
        sums = el_sums_store(sums, sum[0], nc);
        sums = el_sums_store(sums, sum[1], nc);
    }
    sums = t->sums;
    el_chains acc;
    el_chains_load(acc, t->acc, nc);
    for (int32_t b = 0; b < n_blocks; b++, extras += extra_bytes(type), sums += 4 * nc) {
        if (b % (64 / extra_bytes(type)) == 0) el_prefetch(extras, 64, distance);
        const __m256 d[2] = {load_scales(type, extras, 0), load_scales(type, extras, 1)};
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m256 dx0 = _mm256_broadcast_ss(col[c].d + 2 * b),
                         dx1 = _mm256_broadcast_ss(col[c].d + 2 * b + 1);
            const __m256i off0 = offset(type, col[c].sum + 2 * b),
                          off1 = offset(type, col[c].sum + 2 * b + 1);
            EL_UNROLL
            for (int h = 0; h < 2; h++) {
                const __m256 first = _mm256_mul_ps(whole(type, sums[2 * c + h], off0), dx0);
                const __m256 both = _mm256_fmadd_ps(whole(type, sums[2 * nc + 2 * c + h], off1), dx1, first);
                acc[c][h] = _mm256_fmadd_ps(both, d[h], acc[c][h]);
                if (has_min(type)) {
                    const __m256 m = el_load_f16(extras + 32 + 16 * h);
                    acc[c][h] = _mm256_fmadd_ps(m, _mm256_broadcast_ss(col[c].s + b), acc[c][h]);
                }
            }
        }
    }
    el_chains_store(acc, t->acc, nc);
}

/* Scales (i 0) or minima (1) of a block, half h of the 16 rows. */
EL_INLINE __m256 extra(const int type, const uint8_t *extras, const int i, const int h, const int packed) {
    if (!packed) return _mm256_load_ps((const float *)(extras + 64 * i + 32 * h));
    return i ? el_load_f16(extras + 32 + 16 * h) : load_scales(type, extras, h);
}

EL_INLINE void tile(const el_tile_call *t, const int nc, const int type, const int packed) {
    const int32_t n_blocks = t->n_blocks, lines = t->lines;
    const uint8_t *quants = t->quants, *extras = t->extras;
    const char *ahead = t->ahead;
    float *acc = t->acc;
    el_column col[EL_GROUP];
    columns(t, col, nc);
    for (int32_t b = 0; b < n_blocks; b++) {
        ahead = el_prefetch_ahead(ahead, lines);
        __m256 v[EL_GROUP][2], d[2], m[2];
        EL_UNROLL
        for (int part = 0; part < 2; part++) {
            el_sums sum;
            el_sums_clear(sum, nc);
            EL_UNROLL
            for (int i = 0; i < 4; i++) add_step(type, packed, quants, col, b, part, i, sum, nc);
            EL_UNROLL
            for (int c = 0; c < nc; c++) {
                const __m256 dx = _mm256_broadcast_ss(col[c].d + 2 * b + part);
                const __m256i off = offset(type, col[c].sum + 2 * b + part);
                EL_UNROLL
                for (int h = 0; h < 2; h++) {
                    const __m256 f = whole(type, sum[c][h], off);
                    v[c][h] = part ? _mm256_fmadd_ps(f, dx, v[c][h]) : _mm256_mul_ps(f, dx);
                }
            }
        }
        EL_UNROLL
        for (int h = 0; h < 2; h++) {
            d[h] = extra(type, extras, 0, h, packed);
            EL_PIN(d[h]);
            if (has_min(type)) {
                m[h] = extra(type, extras, 1, h, packed);
                EL_PIN(m[h]);
            }
        }
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const __m256 sx = _mm256_broadcast_ss(col[c].s + b);
            EL_UNROLL
            for (int h = 0; h < 2; h++) {
                float *a = acc + 16 * c + 8 * h;
                v[c][h] = _mm256_fmadd_ps(v[c][h], d[h], _mm256_load_ps(a));
                if (has_min(type)) v[c][h] = _mm256_fmadd_ps(m[h], sx, v[c][h]);
                _mm256_store_ps(a, v[c][h]);
            }
        }
        quants += packed ? quant_bytes(type) : 512;
        extras += packed ? extra_bytes(type) : has_min(type) ? 128 : 64;
        EL_FENCE();
    }
}

/* Expand n_blocks blocks; Q8_0 is read where it lies. */
EL_INLINE void expand(const int type, const uint8_t *quants, const uint8_t *extras, int32_t n_blocks,
                      uint8_t *to_quants, uint8_t *to_extras) {
    for (int32_t b = 0; b < n_blocks && type != EL_Q8_0; b++, quants += quant_bytes(type), to_quants += 512) {
        el_prefetch(quants, quant_bytes(type), EL_PREFETCH_FAR);
        EL_UNROLL
        for (int s = 0; s < 8; s++) {
            el_store(to_quants + 64 * s, packed_weights(type, quants, s / 4, s % 4, 0));
            el_store(to_quants + 64 * s + 32, packed_weights(type, quants, s / 4, s % 4, 1));
        }
    }
    for (int32_t b = 0; b < n_blocks; b++, extras += extra_bytes(type)) {
        for (int i = 0; i < (has_min(type) ? 4 : 2); i++, to_extras += 32) {
            _mm256_store_ps((float *)to_extras, extra(type, extras, i / 2, i % 2, 1));
        }
    }
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */
#define LEGACY_TYPE(name, type, quant, extra, to_quant, to_extra, columns_packed)                         \
    EL_INLINE void name##_streamed(const el_tile_call *t, const int nc) { streamed(t, nc, type); }        \
    EL_INLINE void name##_packed(const el_tile_call *t, const int nc) { tile(t, nc, type, 1); }           \
    EL_INLINE void name##_expanded(const el_tile_call *t, const int nc) { tile(t, nc, type, 0); }         \
    static void name##_expand(const el_tile_call *t, uint8_t *to_quants, uint8_t *to_extras) {            \
        expand(type, t->quants, t->extras, t->n_blocks, to_quants, to_extras);                            \
    }                                                                                                     \
    EL_TILE_FUNCTIONS(name)                                                                               \
    static const el_mm_type name##_type = {.block = 32,                                                   \
                                           .quant_bytes = quant,                                          \
                                           .extra_bytes = extra,                                          \
                                           .sums = 2,                                                     \
                                           .packed_columns = columns_packed,                              \
                                           .chunk = 64,                                                   \
                                           .distance =                                                    \
                                               (type) == EL_Q8_0 ? EL_PREFETCH_NEAR : EL_PREFETCH_MIDDLE, \
                                           .expanded_quants = to_quant,                                   \
                                           .expanded_extras = to_extra,                                   \
                                           .expand = name##_expand,                                       \
                                           EL_TILE_TABLES(name)};                                         \
    EL_MM_FUNCTIONS(mm_##name, name##_type)

LEGACY_TYPE(q8_0, EL_Q8_0, 512, 32, 0, 64, 4)
LEGACY_TYPE(q4_0, EL_Q4_0, 256, 32, 512, 64, 12)
LEGACY_TYPE(q4_1, EL_Q4_1, 256, 64, 512, 128, 12)
LEGACY_TYPE(q5_0, EL_Q5_0, 320, 32, 512, 64, 8)
LEGACY_TYPE(q5_1, EL_Q5_1, 320, 64, 512, 128, 8)
LEGACY_TYPE(iq4_nl, EL_IQ4_NL, 256, 32, 512, 64, 8)
LEGACY_TYPE(mxfp4, EL_MXFP4, 256, 16, 512, 64, 8)

static void set_legacy(el_kernels *table) {
    el_set_mm(table, EL_Q8_0, mm_q8_0, mm_q8_0_far);
    el_set_mm(table, EL_Q4_0, mm_q4_0, mm_q4_0_far);
    el_set_mm(table, EL_Q4_1, mm_q4_1, mm_q4_1_far);
    el_set_mm(table, EL_Q5_0, mm_q5_0, mm_q5_0_far);
    el_set_mm(table, EL_Q5_1, mm_q5_1, mm_q5_1_far);
    el_set_mm(table, EL_IQ4_NL, mm_iq4_nl, mm_iq4_nl_far);
    el_set_mm(table, EL_MXFP4, mm_mxfp4, mm_mxfp4_far);
}
