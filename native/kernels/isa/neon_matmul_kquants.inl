/* Matmul of the types of 256 at the neon levels: k-quants, IQ4_XS, IQ1 to IQ3. Formats and formulas: kernels.h. One body
 * serves them all; `type` is a constant wherever it is inlined. IQ4_XS stands for IQ3_XXS and IQ3_S too, IQ2 (EL_IQ2_S)
 * for all IQ1 and IQ2: they differ in values only. The integer scales of 32 or 16 k meet their sums in 32 bits. */

/* What distinguishes the types: 16-blocks that share a scale, minima, values in place of numbers. */
EL_INLINE int parts(const int type) {
    return type == EL_Q4_K || type == EL_Q5_K || type == EL_IQ4_XS ? 2 : 1;
}
EL_INLINE int n_groups(const int type) { return 16 / parts(type); }
EL_INLINE int has_min(const int type) { return type == EL_Q4_K || type == EL_Q5_K || type == EL_Q2_K; }
EL_INLINE int has_values(const int type) { return type == EL_IQ4_XS || type == EL_IQ2_S; }
/* Some weights exceed 32. */
EL_INLINE int is_wide(const int type) { return type == EL_Q6_K || has_values(type); }
/* What the quants have too much. */
EL_INLINE int zero_point(const int type) { return type == EL_Q6_K ? 32 : type == EL_Q3_K ? 4 : 0; }
EL_INLINE int32_t quant_bytes(const int type) {
    return type == EL_Q2_K    ? 1024
           : type == EL_Q5_K  ? 2560
           : type == EL_Q6_K  ? 3072
           : parts(type) == 2 ? 2048
                              : 1536;
}
EL_INLINE int32_t extra_bytes(const int type) { return type == EL_IQ4_XS ? 160 : has_min(type) ? 320 : 288; }

/* Expanded blocks: the weights as el_add_16 wants them, [16-block][step][register]; what follows by rows, of 16 groups at
 * most: int32 scales, minima as el_add_steps wants 8 groups at a time, f32 d, dmin. */
enum {
    EXPANDED_QUANTS = 4096,
    PART_BYTES = EL_STEPS * EL_REGS * 16,
    TO_MINIMA = 16 * EL_REGS * 16,
    MINIMA_BYTES = EL_STEPS / 2 * EL_REGS * 16, /* of 8 groups */
    TO_D = TO_MINIMA + 2 * MINIMA_BYTES,
    EXPANDED_EXTRAS = TO_D + 2 * EL_REGS * 16,
};

/* The values of a call's type. */
EL_INLINE int8x16_t values_of(const int type, const el_tile_call *t) {
    return has_values(type) ? vld1q_s8(t->values->of) : vdupq_n_s8(0);
}

/* Line s (4 k of 8) of 32-block 2 pair + odd of a packed block, rows 4 quad .. 4 quad + 3. */
EL_INLINE int8x16_t packed_line(const int type, int8x16_t values, const uint8_t *quants, int32_t pair,
                                const int odd, const int s, const int quad) {
    const int32_t j = 2 * pair + odd;
    uint8x16_t w;
    if (type == EL_Q4_K || type == EL_Q5_K) {
        const uint8_t *at = quants + (type == EL_Q5_K ? 640 : 512) * pair + 16 * quad;
        const uint8x16_t v = vld1q_u8(at + 64 * s);
        if (type == EL_Q5_K) {
            w = el_nibbles_with(v, odd, vld1q_u8(at + 512 + 64 * odd), s, 1);
        } else {
            w = odd ? vshrq_n_u8(v, 4) : el_low_nibbles(v);
        }
    } else if (type == EL_IQ4_XS || type == EL_Q6_K) {
        const uint8x16_t v = vld1q_u8(quants + 256 * j + 64 * (s % 4) + 16 * quad);
        if (type == EL_Q6_K) {
            const uint8x16_t top = vld1q_u8(quants + 2048 + 128 * j + 64 * (s / 4) + 16 * quad);
            w = el_nibbles_with(v, s / 4, top, 2 * (s % 4), 2);
        } else {
            w = s < 4 ? el_low_nibbles(v) : vshrq_n_u8(v, 4);
        }
    } else {
        const uint8_t *at = quants + (type == EL_Q2_K ? 128 : 192) * j + 16 * quad;
        const uint8x16_t v = vld1q_u8(at + 64 * (s / 4));
        w = type == EL_Q2_K ? el_bits_to(v, 2 * (s % 4), 2, 0)
                            : el_crumbs_with(v, s % 4, vld1q_u8(at + 128), s);
    }
    return has_values(type) ? vqtbl1q_s8(values, w) : vreinterpretq_s8_u8(w);
}

/* Step s of 16-block `part` of that 32-block, register i. */
EL_INLINE int8x16_t packed_weights(const int type, int8x16_t values, const uint8_t *quants, int32_t pair,
                                   const int odd, const int part, const int s, const int i) {
    if (!EL_MMLA) return packed_line(type, values, quants, pair, odd, 4 * part + s, i);
    return el_join(packed_line(type, values, quants, pair, odd, 4 * part + 2 * s, i / 2),
                   packed_line(type, values, quants, pair, odd, 4 * part + 2 * s + 1, i / 2), i);
}

/* Integer scales and minima of a group, d and dmin of a block: register i. */
EL_INLINE int32x4_t packed_scale(const int type, const uint8_t *extras, int32_t group, const int i) {
    uint8x16_t v = vld1q_u8(extras + 16 * group);
    if (type == EL_Q2_K) v = el_low_nibbles(v);
    return el_s32_rows(vreinterpretq_s8_u8(v), i);
}
/* Minima of groups 2 pair, 2 pair + 1: those two of every row, 8 rows of half h. */
EL_INLINE uint8x16_t pair_of_minima(const int type, const uint8_t *extras, const int pair, const int h) {
    if (type != EL_Q2_K) return vld1q_u8(extras + 128 + 32 * pair + 16 * h);
    const uint8x16_t a = vshrq_n_u8(vld1q_u8(extras + 32 * pair), 4);
    const uint8x16_t b = vshrq_n_u8(vld1q_u8(extras + 32 * pair + 16), 4);
    return h ? vzip2q_u8(a, b) : vzip1q_u8(a, b);
}
/* Of groups 4 four .. 4 four + 3 and rows 4 quad .. 4 quad + 3: as a line of weights. */
EL_INLINE int8x16_t line_of_minima(const int type, const uint8_t *extras, const int four, const int quad) {
    const int16x8_t a = vreinterpretq_s16_u8(pair_of_minima(type, extras, 2 * four, quad / 2));
    const int16x8_t b = vreinterpretq_s16_u8(pair_of_minima(type, extras, 2 * four + 1, quad / 2));
    return vreinterpretq_s8_s16(quad % 2 ? vzip2q_s16(a, b) : vzip1q_s16(a, b));
}
/* Of groups 8 eight .. 8 eight + 7: step s (of the half that 8 take) and register i, as weights. */
EL_INLINE int8x16_t packed_minima(const int type, const uint8_t *extras, const int eight, const int s,
                                  const int i) {
    if (!EL_MMLA) return line_of_minima(type, extras, 2 * eight + s, i);
    return el_join(line_of_minima(type, extras, 2 * eight, i / 2),
                   line_of_minima(type, extras, 2 * eight + 1, i / 2), i);
}
EL_INLINE float32x4_t packed_d(const int type, const el_tile_call *t, const uint8_t *extras, const int i) {
    const float32x4_t d = el_f16_rows(extras + (type == EL_IQ4_XS ? 128 : 256), i);
    return has_values(type) ? vmulq_f32(d, vld1q_dup_f32(&t->values->unit)) : d;
}
EL_INLINE float32x4_t packed_dmin(const uint8_t *extras, const int i) { return el_f16_rows(extras + 288, i); }

EL_INLINE void clear(el_sums sums, const int units, const int regs) {
    EL_UNROLL
    for (int u = 0; u < units; u++) {
        EL_UNROLL
        for (int r = 0; r < regs; r++) sums[u][r] = vdupq_n_s32(0);
    }
}

/* S of the registers first .. first + regs - 1 for 32-block 2 pair + odd of block b. */
EL_INLINE void add_32(const int type, const int packed, int8x16_t values, const uint8_t *quants,
                      const uint8_t *extras, const el_columns col, int32_t b, int32_t pair, const int odd,
                      const int first, const int units, const int regs, el_sums S) {
    const int32_t j = 2 * pair + odd, zero = packed ? -zero_point(type) : 0;
    el_sums sum;
    EL_UNROLL
    for (int part = 0; part < 2; part++) {
        int8x16_t x[EL_GROUP][2];
        el_weights w;
        EL_UNROLL
        for (int u = 0; u < units; u++) {
            const int32_t i = 16 * b + 2 * j + part;
            const int32x4_t begin =
                zero ? el_unit_s32(zero * el_first(col, u)->sum16[i], zero * el_second(col, u)->sum16[i])
                     : vdupq_n_s32(0);
            EL_UNROLL
            for (int r = 0; r < regs && part % parts(type) == 0; r++) sum[u][r] = begin;
            el_load_acts(col, u, (ptrdiff_t)256 * b + 32 * j + 16 * part, x[u]);
        }
        EL_UNROLL
        for (int s = 0; s < EL_STEPS; s++) {
            EL_UNROLL
            for (int r = 0; r < regs; r++) {
                w[s][r] = packed ? packed_weights(type, values, quants, pair, odd, part, s, first + r)
                                 : vld1q_s8((const int8_t *)quants + PART_BYTES * (2 * j + part) +
                                            16 * (EL_REGS * s + first + r));
            }
        }
        el_add_16(sum, w, x, units, regs, is_wide(type));
        if (part % parts(type) != parts(type) - 1) continue;
        const int32_t group = parts(type) == 2 ? j : 2 * j + part;
        EL_UNROLL
        for (int r = 0; r < regs; r++) {
            const int32x4_t scale =
                packed ? packed_scale(type, extras, group, first + r)
                       : vld1q_s32((const int32_t *)extras + 4 * (EL_REGS * group + first + r));
            EL_UNROLL
            for (int u = 0; u < units; u++) S[u][r] = vmlaq_s32(S[u][r], sum[u][r], scale);
        }
    }
}

/* M of the same registers: the minima of a block times activation sums, whose low bits and others are multiplied apart. */
EL_INLINE void add_minima(const int type, const int packed, const uint8_t *extras, const el_columns col,
                          int32_t b, const int first, const int units, const int regs, el_sums M) {
    enum { HALF = EL_STEPS / 2 };
    el_sums above;
    clear(M, units, regs);
    clear(above, units, regs);
    EL_UNROLL
    for (int eight = 0; eight < n_groups(type) / 8; eight++) {
        int8x16_t x[EL_GROUP][2];
        el_weights w;
        EL_UNROLL
        for (int u = 0; u < units; u++) {
            const el_column *c = el_first(col, u), *e = el_second(col, u);
            if (parts(type) == 2) el_load_act_sums(c->sum32 + 8 * b, e->sum32 + 8 * b, x[u]);
            if (parts(type) == 1)
                el_load_act_sums(c->sum16 + 16 * b + 8 * eight, e->sum16 + 16 * b + 8 * eight, x[u]);
        }
        EL_UNROLL
        for (int s = 0; s < HALF; s++) {
            EL_UNROLL
            for (int r = 0; r < regs; r++) {
                w[s][r] = packed ? packed_minima(type, extras, eight, s, first + r)
                                 : vld1q_s8((const int8_t *)extras + TO_MINIMA + MINIMA_BYTES * eight +
                                            16 * (EL_REGS * s + first + r));
                w[s + HALF][r] = w[s][r];
            }
        }
        el_add_steps(M, w, x, units, regs, 1, 0, HALF);
        el_add_steps(above, w, x, units, regs, 1, HALF, EL_STEPS);
    }
    EL_UNROLL
    for (int u = 0; u < units; u++) {
        EL_UNROLL
        for (int r = 0; r < regs; r++) M[u][r] = vaddq_s32(M[u][r], vshlq_n_s32(above[u][r], 7));
    }
}

EL_INLINE void tile(const el_tile_call *t, const int nc, const int type, const int packed) {
    const int units = el_units(nc), regs = el_regs(nc);
    const int32_t n_blocks = t->n_blocks;
    const uint8_t *quants = t->quants, *extras = t->extras;
    const int8x16_t values = values_of(type, t);
    float *acc = t->acc;
    el_columns col;
    EL_LOAD_COLUMNS(t, nc, el_column_a256, col)
    for (int32_t b = 0; b < n_blocks; b++) {
        float32x4_t dx[EL_GROUP];
        EL_UNROLL
        for (int u = 0; u < units; u++)
            dx[u] = el_unit_f32(el_first(col, u)->d + b, el_second(col, u)->d + b);
        EL_UNROLL
        for (int first = 0; first < EL_REGS; first += regs) {
            el_sums S, M;
            clear(S, units, regs);
            for (int32_t pair = 0; pair < 4; pair++) {
                add_32(type, packed, values, quants, extras, col, b, pair, 0, first, units, regs, S);
                EL_FENCE(); /* one after the other: the registers hold one 32-block's sums and S */
                add_32(type, packed, values, quants, extras, col, b, pair, 1, first, units, regs, S);
            }
            if (has_min(type)) add_minima(type, packed, extras, col, b, first, units, regs, M);
            EL_UNROLL
            for (int r = 0; r < regs; r++) {
                const float *expanded = (const float *)(extras + TO_D) + 4 * (first + r);
                const float32x4_t d = packed ? packed_d(type, t, extras, first + r) : vld1q_f32(expanded);
                const float32x4_t dmin = !has_min(type) ? d
                                         : packed       ? packed_dmin(extras, first + r)
                                                        : vld1q_f32(expanded + 4 * EL_REGS);
                EL_UNROLL
                for (int u = 0; u < units; u++) {
                    float *a = acc + 4 * (EL_REGS * u + first + r);
                    float32x4_t v = vfmaq_f32(vld1q_f32(a), vcvtq_f32_s32(S[u][r]), vmulq_f32(d, dx[u]));
                    if (has_min(type)) v = vfmsq_f32(v, vcvtq_f32_s32(M[u][r]), vmulq_f32(dmin, dx[u]));
                    vst1q_f32(a, v);
                }
            }
            EL_FENCE();
        }
        quants += packed ? quant_bytes(type) : EXPANDED_QUANTS;
        extras += packed ? extra_bytes(type) : EXPANDED_EXTRAS;
    }
}

EL_INLINE void expand_32(const int type, int8x16_t values, const uint8_t *quants, const uint8_t *extras,
                         int32_t pair, const int odd, uint8_t *to_quants, uint8_t *to_extras) {
    const int32_t j = 2 * pair + odd;
    EL_UNROLL
    for (int part = 0; part < 2; part++) {
        int8_t *to = (int8_t *)to_quants + PART_BYTES * (2 * j + part);
        EL_UNROLL
        for (int s = 0; s < EL_STEPS; s++) {
            EL_UNROLL
            for (int i = 0; i < EL_REGS; i++, to += 16) {
                const int8x16_t w = packed_weights(type, values, quants, pair, odd, part, s, i);
                vst1q_s8(to, vsubq_s8(w, vdupq_n_s8((int8_t)zero_point(type))));
            }
        }
    }
    EL_UNROLL
    for (int g = 0; g < 2 / parts(type); g++) {
        const int32_t group = parts(type) == 2 ? j : 2 * j + g;
        EL_UNROLL
        for (int i = 0; i < EL_REGS; i++) {
            vst1q_s32((int32_t *)to_extras + 4 * (EL_REGS * group + i), packed_scale(type, extras, group, i));
        }
    }
}

EL_INLINE void expand(const int type, const el_tile_call *t, uint8_t *to_quants, uint8_t *to_extras) {
    const int8x16_t values = values_of(type, t);
    const int32_t n_blocks = t->n_blocks;
    const uint8_t *quants = t->quants, *extras = t->extras;
    for (int32_t b = 0; b < n_blocks; b++) {
        for (int32_t pair = 0; pair < 4; pair++) {
            expand_32(type, values, quants, extras, pair, 0, to_quants, to_extras);
            expand_32(type, values, quants, extras, pair, 1, to_quants, to_extras);
        }
        EL_UNROLL
        for (int eight = 0; eight < n_groups(type) / 8 && has_min(type); eight++) {
            int8_t *to = (int8_t *)to_extras + TO_MINIMA + MINIMA_BYTES * eight;
            EL_UNROLL
            for (int s = 0; s < EL_STEPS / 2; s++) {
                EL_UNROLL
                for (int i = 0; i < EL_REGS; i++, to += 16)
                    vst1q_s8(to, packed_minima(type, extras, eight, s, i));
            }
        }
        float *d = (float *)(to_extras + TO_D);
        EL_UNROLL
        for (int i = 0; i < EL_REGS; i++) {
            vst1q_f32(d + 4 * i, packed_d(type, t, extras, i));
            if (has_min(type)) vst1q_f32(d + 4 * (EL_REGS + i), packed_dmin(extras, i));
        }
        quants += quant_bytes(type);
        extras += extra_bytes(type);
        to_quants += EXPANDED_QUANTS;
        to_extras += EXPANDED_EXTRAS;
    }
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */
#define KQUANT_TYPE(name, type)                                                                   \
    EL_INLINE void name##_packed(const el_tile_call *t, const int nc) { tile(t, nc, type, 1); }   \
    EL_INLINE void name##_expanded(const el_tile_call *t, const int nc) { tile(t, nc, type, 0); } \
    static void name##_expand(const el_tile_call *t, uint8_t *to_quants, uint8_t *to_extras) {    \
        expand(type, t, to_quants, to_extras);                                                    \
    }                                                                                             \
    EL_TILE_FUNCTIONS(name)

/* mm_<name> with the functions of KQUANT_TYPE(code, ...). */
#define KQUANT_MM(name, code, its_values, quant, extra)                        \
    static const el_mm_type name##_type = {.block = 256,                       \
                                           .quant_bytes = quant,               \
                                           .extra_bytes = extra,               \
                                           .packed_columns = 4,                \
                                           .chunk = 4,                         \
                                           .expanded_quants = 4096,            \
                                           .expanded_extras = EXPANDED_EXTRAS, \
                                           .values = its_values,               \
                                           .expand = code##_expand,            \
                                           EL_TILE_TABLES(code)};              \
    EL_MM_FUNCTION(mm_##name, name##_type)

KQUANT_TYPE(q2_k, EL_Q2_K)
KQUANT_TYPE(q3_k, EL_Q3_K)
KQUANT_TYPE(q4_k, EL_Q4_K)
KQUANT_TYPE(q5_k, EL_Q5_K)
KQUANT_TYPE(q6_k, EL_Q6_K)
KQUANT_TYPE(iq2, EL_IQ2_S)
KQUANT_TYPE(iq4_xs, EL_IQ4_XS)

KQUANT_MM(q2_k, q2_k, NULL, 1024, 320)
KQUANT_MM(q3_k, q3_k, NULL, 1536, 288)
KQUANT_MM(q4_k, q4_k, NULL, 2048, 320)
KQUANT_MM(q5_k, q5_k, NULL, 2560, 320)
KQUANT_MM(q6_k, q6_k, NULL, 3072, 288)
KQUANT_MM(iq1, iq2, &EL_IQ1_VALUES, 1536, 288)
KQUANT_MM(iq2, iq2, &EL_IQ2_VALUES, 1536, 288)
KQUANT_MM(iq3_xxs, iq4_xs, &EL_IQ3_XXS_VALUES, 2048, 160)
KQUANT_MM(iq3_s, iq4_xs, &EL_IQ3_S_VALUES, 2048, 160)
KQUANT_MM(iq4_xs, iq4_xs, &EL_IQ4_XS_VALUES, 2048, 160)

void EL_NAME(matmul_kquants)(el_kernels *table) {
    table->mm[EL_Q2_K] = EL_NAME(mm_q2_k);
    table->mm[EL_TQ1_0] = table->mm[EL_TQ2_0] = EL_NAME(mm_q2_k); /* the same panels */
    table->mm[EL_Q3_K] = EL_NAME(mm_q3_k);
    table->mm[EL_Q4_K] = EL_NAME(mm_q4_k);
    table->mm[EL_Q5_K] = EL_NAME(mm_q5_k);
    table->mm[EL_Q6_K] = EL_NAME(mm_q6_k);
    table->mm[EL_IQ1_S] = table->mm[EL_IQ1_M] = EL_NAME(mm_iq1); /* the same panels */
    table->mm[EL_IQ2_XXS] = table->mm[EL_IQ2_XS] = table->mm[EL_IQ2_S] = EL_NAME(mm_iq2);
    table->mm[EL_IQ3_XXS] = EL_NAME(mm_iq3_xxs);
    table->mm[EL_IQ3_S] = EL_NAME(mm_iq3_s);
    table->mm[EL_IQ4_XS] = EL_NAME(mm_iq4_xs);
}
