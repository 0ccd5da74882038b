/* Matmul of F16, BF16 and F32 weights at level neon: one fma chain over k per output, lanes are rows. A block is one k. */
#include "neon_matmul.h"

enum { F32_BYTES = 64 };

/* Rows 4i .. 4i+3 of the 16 weights at p as floats (exact). */
EL_INLINE float32x4_t load_floats(const int type, const uint8_t *p, const int i) {
    if (type == EL_F32) return vld1q_f32((const float *)p + 4 * i);
    const uint16x4_t h = vld1_u16((const uint16_t *)p + 4 * i);
    if (type == EL_BF16) return vreinterpretq_f32_u32(vshll_n_u16(h, 16));
    return vcvt_f32_f16(vreinterpret_f16_u16(h));
}

EL_INLINE void float_tile(const el_tile_call *t, const int nc, const int type) {
    const int32_t bytes = type == EL_F32 ? F32_BYTES : 32, n_blocks = t->n_blocks;
    const uint8_t *quants = t->quants;
    float32x4_t sum[EL_GROUP][4];
    const float *col[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        col[c] = (const float *)t->x[c] + t->block0;
        EL_UNROLL
        for (int i = 0; i < 4; i++) sum[c][i] = vld1q_f32(t->acc + 16 * c + 4 * i);
    }
    for (int32_t b = 0; b < n_blocks; b++, quants += bytes) {
        float32x4_t w[4];
        EL_UNROLL
        for (int i = 0; i < 4; i++) w[i] = load_floats(type, quants, i);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const float32x4_t x = vld1q_dup_f32(col[c] + b);
            EL_UNROLL
            for (int i = 0; i < 4; i++) sum[c][i] = vfmaq_f32(sum[c][i], w[i], x);
        }
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        EL_UNROLL
        for (int i = 0; i < 4; i++) vst1q_f32(t->acc + 16 * c + 4 * i, sum[c][i]);
    }
}

/* F32 is never expanded. */
EL_INLINE void expand(const int type, const el_tile_call *t, uint8_t *to_quants) {
    for (int32_t b = 0; b < t->n_blocks; b++, to_quants += F32_BYTES) {
        EL_UNROLL
        for (int i = 0; i < 4; i++) {
            vst1q_f32((float *)to_quants + 4 * i, load_floats(type, t->quants + 32 * b, i));
        }
    }
}

#define FLOAT_TYPE(name, type, quant, to_quant, columns_packed)                                        \
    EL_INLINE void name##_packed(const el_tile_call *t, const int nc) { float_tile(t, nc, type); }     \
    EL_INLINE void name##_expanded(const el_tile_call *t, const int nc) { float_tile(t, nc, EL_F32); } \
    static void name##_expand(const el_tile_call *t, uint8_t *to_quants, uint8_t *to_extras) {         \
        (void)to_extras;                                                                               \
        expand(type, t, to_quants);                                                                    \
    }                                                                                                  \
    EL_TILE_FUNCTIONS(name)                                                                            \
    static const el_mm_type name##_type = {.block = 1,                                                 \
                                           .quant_bytes = quant,                                       \
                                           .packed_columns = columns_packed,                           \
                                           .chunk = 256,                                               \
                                           .expanded_quants = to_quant,                                \
                                           .expand = name##_expand,                                    \
                                           EL_TILE_TABLES(name)};                                      \
    EL_MM_FUNCTION(mm_##name, name##_type)

FLOAT_TYPE(f16, EL_F16, 32, F32_BYTES, 8)
FLOAT_TYPE(bf16, EL_BF16, 32, F32_BYTES, 8)
FLOAT_TYPE(f32, EL_F32, 64, 0, INT32_MAX)

void el_neon_matmul_float(el_kernels *table) {
    table->mm[EL_F16] = el_neon_mm_f16;
    table->mm[EL_BF16] = el_neon_mm_bf16;
    table->mm[EL_F32] = el_neon_mm_f32;
}
