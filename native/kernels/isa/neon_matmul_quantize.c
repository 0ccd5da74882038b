/* Quantisation of activations at level neon: A16 and A256 (kernels.h).
 *
 * vcvtn rounds to nearest even as rintf does. No clamp is needed: |x| * (127 / amax) exceeds 127 by less than rounding to
 * an integer forgives. */
#include "neon_matmul.h"

enum { INF_BITS = 0x7f800000, TINY_BITS = 0x03800000 /* 2^-120 */ };

/* Maximum of the sign-cleared bits of 16 floats, per lane. */
EL_INLINE uint32x4_t abs_max_16(const float *x) {
    uint32x4_t m = vdupq_n_u32(0);
    EL_UNROLL
    for (int i = 0; i < 4; i++) {
        m = vmaxq_u32(m, vbicq_u32(vreinterpretq_u32_f32(vld1q_f32(x + 4 * i)), vdupq_n_u32(0x80000000u)));
    }
    return m;
}

/* d and 127 / amax of a block, 0 if it is tiny or not finite. Returns whether it is not finite. */
EL_INLINE int32_t scales(uint32_t amax, float *d, float *id) {
    float a;
    memcpy(&a, &amax, sizeof a);
    const int32_t none = amax >= INF_BITS || amax < TINY_BITS;
    *d = none ? 0.0f : a / 127.0f;
    *id = none ? 0.0f : 127.0f / a;
    return amax >= INF_BITS;
}

EL_INLINE int8x16_t round_16(const float *x, float id) {
    int32x4_t v[4];
    EL_UNROLL
    for (int i = 0; i < 4; i++) v[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), id));
    const int16x8_t low = vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3]));
    return vcombine_s8(vmovn_s16(low), vmovn_s16(high));
}

static int32_t quantize_a16(const float *x, int32_t k, void *row) {
    int8_t *q = row;
    float *d = (float *)((char *)row + el_act_q_bytes(k)), *s = d + k / 16;
    int32_t *sum = (int32_t *)(s + k / 32), bad = 0;
    for (int32_t j = 0; j < k / 16; j++) {
        float id;
        const int32_t is_bad = scales(vmaxvq_u32(abs_max_16(x + 16 * j)), &d[j], &id);
        /* 0 * inf would be nan, whose integer is 0 here too */
        const int8x16_t v = is_bad ? vdupq_n_s8(0) : round_16(x + 16 * j, id);
        vst1q_s8(q + 16 * j, v);
        sum[j] = vaddlvq_s8(v);
        bad |= is_bad;
    }
    for (int32_t b = 0; b < k / 32; b++) {
        s[b] = __builtin_fmaf((float)sum[2 * b + 1], d[2 * b + 1], (float)sum[2 * b] * d[2 * b]);
    }
    return bad;
}

static int32_t quantize_a256(const float *x, int32_t k, void *row) {
    int8_t *q = row;
    float *d = (float *)((char *)row + el_act_q_bytes(k));
    int16_t *sum16 = (int16_t *)(d + k / 256), *sum32 = sum16 + k / 16;
    int32_t bad = 0;
    for (int32_t b = 0; b < k / 256; b++, x += 256, q += 256, sum16 += 16, sum32 += 8) {
        uint32x4_t m = abs_max_16(x);
        for (int32_t i = 1; i < 16; i++) m = vmaxq_u32(m, abs_max_16(x + 16 * i));
        float id;
        const int32_t is_bad = scales(vmaxvq_u32(m), &d[b], &id);
        bad |= is_bad;
        for (int32_t i = 0; i < 16; i++) {
            const int8x16_t v = is_bad ? vdupq_n_s8(0) : round_16(x + 16 * i, id);
            vst1q_s8(q + 16 * i, v);
            sum16[i] = vaddlvq_s8(v);
        }
        for (int32_t i = 0; i < 8; i++) sum32[i] = (int16_t)(sum16[2 * i] + sum16[2 * i + 1]);
    }
    return bad;
}

void el_neon_matmul_quantize(el_kernels *table) {
    table->quantize[EL_ACT_A16] = quantize_a16;
    table->quantize[EL_ACT_A256] = quantize_a256;
}
