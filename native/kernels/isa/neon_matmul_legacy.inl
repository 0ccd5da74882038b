/* Matmul of the 32-block types at the neon levels: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4. Formats and formulas:
 * kernels.h. One body serves them all; `type` is a constant wherever it is inlined. A block has two parts of 16 k, each
 * with a scale of its own in A16: in the packed nibbles the low and the high ones. */

/* What distinguishes the types. */
EL_INLINE int has_min(const int type) { return type == EL_Q4_1 || type == EL_Q5_1; }
EL_INLINE int has_fifth(const int type) { return type == EL_Q5_0 || type == EL_Q5_1; }
EL_INLINE int has_values(const int type) { return type == EL_IQ4_NL || type == EL_MXFP4; }
EL_INLINE int32_t quant_bytes(const int type) { return type == EL_Q8_0 ? 512 : has_fifth(type) ? 320 : 256; }
EL_INLINE int32_t extra_bytes(const int type) { return has_min(type) ? 64 : type == EL_MXFP4 ? 16 : 32; }
/* Some weights exceed 32. */
EL_INLINE int is_wide(const int type) { return type == EL_Q8_0 || type == EL_IQ4_NL; }
/* What the quants have too much. */
EL_INLINE int zero_point(const int type) { return type == EL_Q4_0 ? 8 : type == EL_Q5_0 ? 16 : 0; }

/* Expanded blocks: the weights as el_add_16 wants them, [part][step][register]; scales, then minima, by rows. */
enum { EXPANDED_QUANTS = 512, EXPANDED_SCALES = EL_REGS * 16, PART_BYTES = EL_STEPS * EL_REGS * 16 };

/* Line i (4 k) of a part of a packed block, rows 4 quad .. 4 quad + 3. */
EL_INLINE int8x16_t packed_line(const int type, const uint8_t *quants, const int part, const int i,
                                const int quad) {
    if (type == EL_Q8_0) return vld1q_s8((const int8_t *)quants + 64 * (4 * part + i) + 16 * quad);
    const uint8x16_t v = vld1q_u8(quants + 64 * i + 16 * quad);
    if (has_fifth(type)) {
        const uint8x16_t fifth = vld1q_u8(quants + 256 + 16 * quad);
        return vreinterpretq_s8_u8(el_nibbles_with(v, part, fifth, 4 * part + i, 1));
    }
    const uint8x16_t w = part ? vshrq_n_u8(v, 4) : el_low_nibbles(v);
    if (has_values(type)) return vqtbl1q_s8(vld1q_s8(type == EL_MXFP4 ? EL_MXFP4_VALUES : EL_IQ4_VALUES), w);
    return vreinterpretq_s8_u8(w);
}

/* Step s of a part, register i. */
EL_INLINE int8x16_t packed_weights(const int type, const uint8_t *quants, const int part, const int s,
                                   const int i) {
    if (!EL_MMLA) return packed_line(type, quants, part, s, i);
    return el_join(packed_line(type, quants, part, 2 * s, i / 2),
                   packed_line(type, quants, part, 2 * s + 1, i / 2), i);
}

/* el_e8m0_half of the bytes at p, by rows. */
EL_INLINE float32x4_t e8m0_rows(const uint8_t *p, const int i) {
    const int32x4_t e = vandq_s32(el_s32_rows(vreinterpretq_s8_u8(vld1q_u8(p)), i), vdupq_n_s32(255));
    const int32x4_t normal = vshlq_n_s32(vsubq_s32(e, vdupq_n_s32(1)), 23); /* <= 0 below two */
    const int32x4_t low = vshlq_s32(vdupq_n_s32(0x00200000), vminq_s32(e, vdupq_n_s32(2)));
    return vreinterpretq_f32_s32(vmaxq_s32(normal, low));
}

/* Scales (which 0) or minima (1) of register i. */
EL_INLINE float32x4_t packed_scales(const int type, const uint8_t *extras, const int which, const int i) {
    return type == EL_MXFP4 ? e8m0_rows(extras, i) : el_f16_rows(extras + 32 * which, i);
}
EL_INLINE float32x4_t scales(const int type, const uint8_t *extras, const int packed, const int which,
                             const int i) {
    if (packed) return packed_scales(type, extras, which, i);
    return vld1q_f32((const float *)(extras + EXPANDED_SCALES * which + 16 * i));
}

/* sum += w q of a part of block b, registers first .. first + regs - 1. */
EL_INLINE void add_part(const int type, const int packed, const uint8_t *quants, const el_columns col,
                        int32_t b, const int part, const int first, const int units, const int regs,
                        el_sums sum) {
    int8x16_t x[EL_GROUP][2];
    el_weights w;
    EL_UNROLL
    for (int u = 0; u < units; u++) el_load_acts(col, u, 32 * b + 16 * part, x[u]);
    EL_UNROLL
    for (int s = 0; s < EL_STEPS; s++) {
        EL_UNROLL
        for (int r = 0; r < regs; r++) {
            w[s][r] =
                packed
                    ? packed_weights(type, quants, part, s, first + r)
                    : vld1q_s8((const int8_t *)quants + PART_BYTES * part + 16 * (EL_REGS * s + first + r));
        }
    }
    el_add_16(sum, w, x, units, regs, is_wide(type));
}

EL_INLINE void tile(const el_tile_call *t, const int nc, const int type, const int packed) {
    const int units = el_units(nc), regs = el_regs(nc), zero = packed ? -zero_point(type) : 0;
    const int32_t n_blocks = t->n_blocks;
    const uint8_t *quants = t->quants, *extras = t->extras;
    float *acc = t->acc;
    el_columns col;
    EL_LOAD_COLUMNS(t, nc, el_column_a16, col)
    for (int32_t b = 0; b < n_blocks; b++) {
        float32x4_t dx[EL_GROUP][2], sx[EL_GROUP];
        int32x4_t begin[EL_GROUP][2];
        EL_UNROLL
        for (int u = 0; u < units; u++) {
            const el_column *c = el_first(col, u), *e = el_second(col, u);
            el_unit_two_f32(vld1_f32(c->d + 2 * b), vld1_f32(e->d + 2 * b), dx[u]);
            sx[u] = has_min(type) ? el_unit_f32(c->s + b, e->s + b) : dx[u][0];
            begin[u][0] = begin[u][1] = vdupq_n_s32(0);
            if (zero) {
                el_unit_two_s32(vmul_n_s32(vld1_s32(c->sum + 2 * b), zero),
                                vmul_n_s32(vld1_s32(e->sum + 2 * b), zero), begin[u]);
            }
        }
        EL_UNROLL
        for (int first = 0; first < EL_REGS; first += regs) {
            el_sums sum[2];
            EL_UNROLL
            for (int part = 0; part < 2; part++) {
                EL_UNROLL
                for (int u = 0; u < units; u++) {
                    EL_UNROLL
                    for (int r = 0; r < regs; r++) sum[part][u][r] = begin[u][part];
                }
                add_part(type, packed, quants, col, b, part, first, units, regs, sum[part]);
            }
            EL_UNROLL
            for (int r = 0; r < regs; r++) {
                const float32x4_t d = scales(type, extras, packed, 0, first + r);
                const float32x4_t m = has_min(type) ? scales(type, extras, packed, 1, first + r) : d;
                EL_UNROLL
                for (int u = 0; u < units; u++) {
                    float *a = acc + 4 * (EL_REGS * u + first + r);
                    float32x4_t v = vmulq_f32(vcvtq_f32_s32(sum[0][u][r]), dx[u][0]);
                    v = vfmaq_f32(v, vcvtq_f32_s32(sum[1][u][r]), dx[u][1]);
                    v = vfmaq_f32(vld1q_f32(a), v, d);
                    if (has_min(type)) v = vfmaq_f32(v, m, sx[u]);
                    vst1q_f32(a, v);
                }
            }
            EL_FENCE();
        }
        quants += packed ? quant_bytes(type) : EXPANDED_QUANTS;
        extras += packed ? extra_bytes(type) : (has_min(type) ? 2 : 1) * EXPANDED_SCALES;
    }
}

EL_INLINE void expand(const int type, const el_tile_call *t, uint8_t *to_quants, uint8_t *to_extras) {
    const int32_t n_blocks = t->n_blocks;
    const uint8_t *quants = t->quants, *extras = t->extras;
    for (int32_t b = 0; b < n_blocks; b++, quants += quant_bytes(type)) {
        EL_UNROLL
        for (int part = 0; part < 2; part++) {
            EL_UNROLL
            for (int s = 0; s < EL_STEPS; s++) {
                EL_UNROLL
                for (int i = 0; i < EL_REGS; i++, to_quants += 16) {
                    const int8x16_t w = packed_weights(type, quants, part, s, i);
                    vst1q_s8((int8_t *)to_quants, vsubq_s8(w, vdupq_n_s8((int8_t)zero_point(type))));
                }
            }
        }
    }
    for (int32_t b = 0; b < n_blocks; b++, extras += extra_bytes(type)) {
        EL_UNROLL
        for (int which = 0; which < (has_min(type) ? 2 : 1); which++) {
            EL_UNROLL
            for (int i = 0; i < EL_REGS; i++, to_extras += 16)
                vst1q_f32((float *)to_extras, packed_scales(type, extras, which, i));
        }
    }
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */
#define LEGACY_TYPE(name, type, quant, extra, columns_packed)                                     \
    EL_INLINE void name##_packed(const el_tile_call *t, const int nc) { tile(t, nc, type, 1); }   \
    EL_INLINE void name##_expanded(const el_tile_call *t, const int nc) { tile(t, nc, type, 0); } \
    static void name##_expand(const el_tile_call *t, uint8_t *to_quants, uint8_t *to_extras) {    \
        expand(type, t, to_quants, to_extras);                                                    \
    }                                                                                             \
    EL_TILE_FUNCTIONS(name)                                                                       \
    static const el_mm_type name##_type = {.block = 32,                                           \
                                           .quant_bytes = quant,                                  \
                                           .extra_bytes = extra,                                  \
                                           .packed_columns = columns_packed,                      \
                                           .chunk = 32,                                           \
                                           .expanded_quants = EXPANDED_QUANTS,                    \
                                           .expanded_extras = 2 * EXPANDED_SCALES,                \
                                           .expand = name##_expand,                               \
                                           EL_TILE_TABLES(name)};                                 \
    EL_MM_FUNCTION(mm_##name, name##_type)

LEGACY_TYPE(q8_0, EL_Q8_0, 512, 32, 4)
LEGACY_TYPE(q4_0, EL_Q4_0, 256, 32, 4)
LEGACY_TYPE(q4_1, EL_Q4_1, 256, 64, 4)
LEGACY_TYPE(q5_0, EL_Q5_0, 320, 32, 4)
LEGACY_TYPE(q5_1, EL_Q5_1, 320, 64, 4)
LEGACY_TYPE(iq4_nl, EL_IQ4_NL, 256, 32, 4)
LEGACY_TYPE(mxfp4, EL_MXFP4, 256, 16, 4)

void EL_NAME(matmul_legacy)(el_kernels *table) {
    table->mm[EL_Q8_0] = EL_NAME(mm_q8_0);
    table->mm[EL_Q4_0] = EL_NAME(mm_q4_0);
    table->mm[EL_Q4_1] = EL_NAME(mm_q4_1);
    table->mm[EL_Q5_0] = EL_NAME(mm_q5_0);
    table->mm[EL_Q5_1] = EL_NAME(mm_q5_1);
    table->mm[EL_IQ4_NL] = EL_NAME(mm_iq4_nl);
    table->mm[EL_MXFP4] = EL_NAME(mm_mxfp4);
}
