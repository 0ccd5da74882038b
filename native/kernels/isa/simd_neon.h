/* The vector vocabulary at the neon levels; simd_avx2.h states what the names mean. A register holds 4 floats.
 *
 * What NEON's own operations would do otherwise: its maximum keeps a nan or makes it quiet, so vf_max and vf_min are a
 * comparison and a selection. Its conversions of halves and its rounding agree with x86's (FPCR = 0, which a step sees to). */
#ifndef EL_SIMD_NEON_H
#define EL_SIMD_NEON_H

#include "loops.h"

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

/* Register tiles: 6 x 4 sums, 4 columns and a broadcast, or 3 x 8 sums, 3 broadcasts and a column, of 32 registers. */
enum { VX_LANES = 4, VX_ROWS_16 = 6, VX_ROWS_32 = 3 };
#define VX_EACH_16(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define VX_EACH_32(X) X(1) X(2) X(3)
#define VX_ROWS_Q8    5 /* rows x 2 sums of two registers, 4 registers of columns */
#define VX_EACH_Q8(X) X(1) X(2) X(3) X(4) X(5)

typedef float32x4_t vx;

EL_INLINE vx vx_set1(float x) { return vdupq_n_f32(x); }
EL_INLINE vx vx_load(const float *p) { return vld1q_f32(p); }
EL_INLINE void vx_store(float *p, vx x) { vst1q_f32(p, x); }
EL_INLINE vx vx_fma(vx a, vx b, vx c) { return vfmaq_f32(c, a, b); }
EL_INLINE vx vx_mul(vx x, vx y) { return vmulq_f32(x, y); }
EL_INLINE vx vx_from_f16(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
EL_INLINE vx vx_load_f16(const uint16_t *p) { return vx_from_f16(vld1_u16(p)); }
EL_INLINE vx vx_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }

typedef struct vf16 {
    float32x4_t r[4];
} vf16;

typedef struct vm16 {
    uint32x4_t r[4];
} vm16;

/* A function of each register of vf16 x (and y, z). */
#define EL_EACH(type, expression)                     \
    type to;                                          \
    EL_UNROLL                                         \
    for (int i = 0; i < 4; i++) to.r[i] = expression; \
    return to

EL_INLINE vf16 vf_set1(float x) { EL_EACH(vf16, vdupq_n_f32(x)); }
EL_INLINE vf16 vf_zero(void) { return vf_set1(0.0f); }
EL_INLINE vf16 vf_load(const float *p) { EL_EACH(vf16, vld1q_f32(p + 4 * i)); }
EL_INLINE void vf_store(float *p, vf16 x) {
    EL_UNROLL
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.r[i]);
}
EL_INLINE vf16 vf_load_n(const float *p, int32_t n) {
    float x[16] = {0};
    memcpy(x, p, (size_t)(n < 0 ? 0 : n) * sizeof x[0]);
    return vf_load(x);
}
EL_INLINE void vf_store_n(float *p, vf16 x, int32_t n) {
    float y[16];
    vf_store(y, x);
    memcpy(p, y, (size_t)(n < 0 ? 0 : n) * sizeof y[0]);
}
EL_INLINE vf16 vf_load_f16(const uint16_t *p) { EL_EACH(vf16, vx_load_f16(p + 4 * i)); }
EL_INLINE void vf_store_f16(uint16_t *p, vf16 x) {
    EL_UNROLL
    for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.r[i])));
}

/* ---- masks --------------------------------------------------------------------------------------------- */

/* Lanes 4i .. 4i+3: their numbers. */
EL_INLINE int32x4_t vm_lanes(int i) {
    static const int32_t first[4] = {0, 1, 2, 3};
    return vaddq_s32(vld1q_s32(first), vdupq_n_s32(4 * i));
}
/* Lanes lo..hi-1. */
EL_INLINE vm16 vm_range(int32_t lo, int32_t hi) {
    EL_EACH(vm16,
            vandq_u32(vcgeq_s32(vm_lanes(i), vdupq_n_s32(lo)), vcltq_s32(vm_lanes(i), vdupq_n_s32(hi))));
}
EL_INLINE uint32_t vm_bits(vm16 m) {
    static const uint32_t weights[4] = {1, 2, 4, 8};
    const uint32x4_t w = vld1q_u32(weights);
    uint32_t bits = 0;
    EL_UNROLL
    for (int i = 0; i < 4; i++) bits |= vaddvq_u32(vandq_u32(m.r[i], w)) << 4 * i;
    return bits;
}
EL_INLINE int32_t vm_any(vm16 m) {
    return vmaxvq_u32(vorrq_u32(vorrq_u32(m.r[0], m.r[1]), vorrq_u32(m.r[2], m.r[3]))) != 0;
}

/* ---- arithmetic ---------------------------------------------------------------------------------------- */

EL_INLINE vf16 vf_add(vf16 x, vf16 y) { EL_EACH(vf16, vaddq_f32(x.r[i], y.r[i])); }
EL_INLINE vf16 vf_sub(vf16 x, vf16 y) { EL_EACH(vf16, vsubq_f32(x.r[i], y.r[i])); }
EL_INLINE vf16 vf_mul(vf16 x, vf16 y) { EL_EACH(vf16, vmulq_f32(x.r[i], y.r[i])); }
EL_INLINE vf16 vf_div(vf16 x, vf16 y) { EL_EACH(vf16, vdivq_f32(x.r[i], y.r[i])); }
EL_INLINE vf16 vf_fma(vf16 x, vf16 y, vf16 z) { EL_EACH(vf16, vfmaq_f32(z.r[i], x.r[i], y.r[i])); }
/* m ? x : y. The mask is made here: of a comparison that it sees, clang makes NEON's own maximum. */
EL_INLINE float32x4_t vx_select(uint32x4_t m, float32x4_t x, float32x4_t y) {
    __asm__("" : "+w"(m));
    return vbslq_f32(m, x, y);
}
EL_INLINE vf16 vf_max(vf16 x, vf16 y) { EL_EACH(vf16, vx_select(vcgtq_f32(x.r[i], y.r[i]), x.r[i], y.r[i])); }
EL_INLINE vf16 vf_min(vf16 x, vf16 y) { EL_EACH(vf16, vx_select(vcltq_f32(x.r[i], y.r[i]), x.r[i], y.r[i])); }
EL_INLINE vf16 vf_neg(vf16 x) { EL_EACH(vf16, vnegq_f32(x.r[i])); }
EL_INLINE vf16 vf_abs(vf16 x) { EL_EACH(vf16, vabsq_f32(x.r[i])); }
/* |x| with the sign of y. */
EL_INLINE vf16 vf_copysign(vf16 x, vf16 y) {
    EL_EACH(vf16, vbslq_f32(vdupq_n_u32(0x80000000u), y.r[i], x.r[i]));
}

EL_INLINE vm16 vf_lt(vf16 x, vf16 y) { EL_EACH(vm16, vcltq_f32(x.r[i], y.r[i])); }
EL_INLINE vm16 vf_le(vf16 x, vf16 y) { EL_EACH(vm16, vcleq_f32(x.r[i], y.r[i])); }
/* m ? x : y */
EL_INLINE vf16 vf_select(vm16 m, vf16 x, vf16 y) { EL_EACH(vf16, vbslq_f32(m.r[i], x.r[i], y.r[i])); }
/* m ? x : +0 and m ? +0 : x */
EL_INLINE vf16 vf_keep(vm16 m, vf16 x) {
    EL_EACH(vf16, vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x.r[i]), m.r[i])));
}
EL_INLINE vf16 vf_drop(vm16 m, vf16 x) {
    EL_EACH(vf16, vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x.r[i]), m.r[i])));
}

/* The nearest integers, ties to even. */
EL_INLINE vf16 vf_round(vf16 x) { EL_EACH(vf16, vrndnq_f32(x.r[i])); }
/* y * 2^n for integers n in -126..127 */
EL_INLINE vf16 vf_scale2(vf16 y, vf16 n) {
    EL_EACH(vf16, vmulq_f32(y.r[i], vreinterpretq_f32_s32(vshlq_n_s32(
                                        vaddq_s32(vcvtq_s32_f32(n.r[i]), vdupq_n_s32(127)), 23))));
}

/* The larger of non-negative floats or nans, as their bits are ordered: a nan comes last. */
EL_INLINE vf16 vf_max_bits(vf16 x, vf16 y) {
    EL_EACH(vf16,
            vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(x.r[i]), vreinterpretq_u32_f32(y.r[i]))));
}
EL_INLINE uint32_t vf_largest_bits(vf16 x) {
    uint32x4_t top = vreinterpretq_u32_f32(x.r[0]);
    for (int i = 1; i < 4; i++) top = vmaxq_u32(top, vreinterpretq_u32_f32(x.r[i]));
    return vmaxvq_u32(top);
}

/* fold16's tree. */
EL_INLINE float vf_fold16(vf16 x) {
    const float32x4_t p = vaddq_f32(vaddq_f32(x.r[0], x.r[2]), vaddq_f32(x.r[1], x.r[3]));
    return vaddv_f32(vadd_f32(vget_low_f32(p), vget_high_f32(p)));
}
/* The largest of 16 floats, none of them a nan; of +0 and -0 either. */
EL_INLINE float vf_largest(vf16 x) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.r[0], x.r[1]), vmaxq_f32(x.r[2], x.r[3])));
}

/* 16 pairs to and from 16 first and 16 second halves: (x, y) = 32 consecutive floats. */
EL_INLINE void vf_unzip(vf16 x, vf16 y, vf16 *even, vf16 *odd) {
    EL_UNROLL
    for (int i = 0; i < 2; i++) {
        even->r[i] = vuzp1q_f32(x.r[2 * i], x.r[2 * i + 1]);
        odd->r[i] = vuzp2q_f32(x.r[2 * i], x.r[2 * i + 1]);
        even->r[i + 2] = vuzp1q_f32(y.r[2 * i], y.r[2 * i + 1]);
        odd->r[i + 2] = vuzp2q_f32(y.r[2 * i], y.r[2 * i + 1]);
    }
}
EL_INLINE void vf_zip(vf16 even, vf16 odd, vf16 *x, vf16 *y) {
    EL_UNROLL
    for (int i = 0; i < 2; i++) {
        x->r[2 * i] = vzip1q_f32(even.r[i], odd.r[i]);
        x->r[2 * i + 1] = vzip2q_f32(even.r[i], odd.r[i]);
        y->r[2 * i] = vzip1q_f32(even.r[i + 2], odd.r[i + 2]);
        y->r[2 * i + 1] = vzip2q_f32(even.r[i + 2], odd.r[i + 2]);
    }
}

/* ---- products of int16 --------------------------------------------------------------------------------- */

/* Operands: 4 pairs of int16 in `a`. Sums: 8 of int32, those of lanes 0, 1 in `a` and of lanes 2, 3 in `b`, two each. */
typedef struct vi {
    int32x4_t a, b;
} vi;
EL_INLINE vi vi_zero(void) { return (vi){vdupq_n_s32(0), vdupq_n_s32(0)}; }
EL_INLINE vi vi_of(int16x8_t x) { return (vi){vreinterpretq_s32_s16(x), vdupq_n_s32(0)}; }
EL_INLINE vi vi_load(const void *p) { return vi_of(vreinterpretq_s16_s8(vld1q_s8((const int8_t *)p))); }
EL_INLINE vi vi_set1(int32_t x) { return (vi){vdupq_n_s32(x), vdupq_n_s32(0)}; }
/* Of each four int8 the first and third, the second and fourth, as pairs of int16. */
EL_INLINE vi vi_even(vi x) { return vi_of(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(x.a), 8), 8)); }
EL_INLINE vi vi_odd(vi x) { return vi_of(vshrq_n_s16(vreinterpretq_s16_s32(x.a), 8)); }
/* sum + x0 * y0 + x1 * y1 */
EL_INLINE vi vi_dot(vi sum, vi x, vi y) {
    const int16x8_t p = vreinterpretq_s16_s32(x.a), q = vreinterpretq_s16_s32(y.a);
    return (vi){vmlal_s16(sum.a, vget_low_s16(p), vget_low_s16(q)), vmlal_high_s16(sum.b, p, q)};
}
EL_INLINE vx vx_from_int(vi x) { return vcvtq_f32_s32(vpaddq_s32(x.a, x.b)); }

/* 16 floats to the nearest int16 (they must fit), the second and third of each four exchanged. */
EL_INLINE void store_quads(int16_t *p, vf16 x) {
    static const uint8_t swap[16] = {0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15};
    EL_UNROLL
    for (int i = 0; i < 2; i++) {
        const int16x4_t low = vmovn_s32(vcvtnq_s32_f32(x.r[2 * i]));
        const int16x8_t all = vcombine_s16(low, vmovn_s32(vcvtnq_s32_f32(x.r[2 * i + 1])));
        const int8x16_t pairs = vqtbl1q_s8(vreinterpretq_s8_s16(all), vld1q_u8(swap));
        vst1q_s16(p + 8 * i, vreinterpretq_s16_s8(pairs));
    }
}

EL_INLINE void vf_store_quads(int16_t *p, vf16 x, vf16 y) {
    store_quads(p, x);
    store_quads(p + 16, y);
}

/* ---- formats of the KV cache --------------------------------------------------------------------------- */

EL_INLINE vf16 vf_load_bf16(const uint16_t *p) { EL_EACH(vf16, vx_load_bf16(p + 4 * i)); }
/* 16 int16. */
EL_INLINE vf16 vf_from_i16(int16x8_t low, int16x8_t high) {
    return (vf16){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                   vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}
/* 16 halves. */
EL_INLINE vf16 vf_from_f16(uint16x8_t low, uint16x8_t high) {
    return (vf16){{vx_from_f16(vget_low_u16(low)), vx_from_f16(vget_high_u16(low)),
                   vx_from_f16(vget_low_u16(high)), vx_from_f16(vget_high_u16(high))}};
}
/* Nibbles of 16 bytes less 8: the low ones (shift 0) or the high ones (shift 4). */
EL_INLINE vf16 vf_load_nibbles(const uint8_t *p, int32_t shift) {
    const uint8x16_t nibbles = vandq_u8(vshlq_u8(vld1q_u8(p), vdupq_n_s8((int8_t)-shift)), vdupq_n_u8(15));
    const int8x16_t q = vsubq_s8(vreinterpretq_s8_u8(nibbles), vdupq_n_s8(8));
    return vf_from_i16(vmovl_s8(vget_low_s8(q)), vmovl_high_s8(q));
}
EL_INLINE vf16 vf_load_e5m2(const uint8_t *p) {
    const uint8x16_t b = vld1q_u8(p);
    return vf_from_f16(vshll_n_u8(vget_low_u8(b), 8), vshll_high_n_u8(b, 8));
}
/* As el_e4m3_to_f32 in kv.h. */
EL_INLINE uint16x8_t vf_half_of_e4m3(uint16x8_t b) {
    const uint16x8_t low = vdupq_n_u16(0x7f), rest = vandq_u16(b, low);
    const uint16x8_t nan = vandq_u16(vceqq_u16(rest, low), vdupq_n_u16(0x7e00));
    return vorrq_u16(vorrq_u16(vshlq_n_u16(vbicq_u16(b, low), 8), nan), vshlq_n_u16(rest, 7));
}
EL_INLINE vf16 vf_load_e4m3(const uint8_t *p) {
    const uint8x16_t b = vld1q_u8(p);
    return vf_mul(vf_from_f16(vf_half_of_e4m3(vmovl_u8(vget_low_u8(b))), vf_half_of_e4m3(vmovl_high_u8(b))),
                  vf_set1(256.0f));
}

#endif
