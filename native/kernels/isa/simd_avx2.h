/* The vector vocabulary at level avx2; simd_avx512.h has the same names.
 *
 *   vx     one register of floats, VX_LANES of them: the unit of register tiles
 *   vf16   16 floats, here two registers. Lane i of an accumulator is partial sum i of a fold16.
 *   vm16   16 lane masks
 *
 * Pointers may have any alignment. Functions named _n touch n elements (0..16) and nothing beyond; loads
 * fill the other lanes with +0. vf_max and vf_min are `a > b ? a : b` and `a < b ? a : b`, so the second
 * operand when one is a nan. */
#ifndef EL_SIMD_AVX2_H
#define EL_SIMD_AVX2_H

#include "simd_x86.h"

#include <stdint.h>
#include <string.h>

/* Register tiles: rows x 16 lanes (6 x 2 sums, 2 columns and a broadcast fill the 16 registers) or rows x
 * 32 lanes. */
enum { VX_LANES = 8, VX_ROWS_16 = 6, VX_ROWS_32 = 3 };
#define VX_EACH_16(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define VX_EACH_32(X) X(1) X(2) X(3)
#define VX_ROWS_Q8    4 /* rows x 2 sums of int32, 4 registers of columns */
#define VX_EACH_Q8(X) X(1) X(2) X(3) X(4)

typedef __m256 vx;

static inline vx vx_set1(float x) { return _mm256_set1_ps(x); }
static inline vx vx_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vx_store(float *p, vx x) { _mm256_storeu_ps(p, x); }
static inline vx vx_fma(vx a, vx b, vx c) { return _mm256_fmadd_ps(a, b, c); }
static inline vx vx_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

typedef struct vf16 {
    __m256 a, b;
} vf16;

typedef struct vm16 {
    __m256 a, b;
} vm16;

static inline vf16 vf_pair(__m256 a, __m256 b) { return (vf16){a, b}; }
static inline vf16 vf_zero(void) { return vf_pair(_mm256_setzero_ps(), _mm256_setzero_ps()); }
static inline vf16 vf_set1(float x) { return vf_pair(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
static inline vf16 vf_load(const float *p) { return vf_pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
static inline void vf_store(float *p, vf16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

/* Lanes lo..hi-1. */
static inline vm16 vm_range(int32_t lo, int32_t hi) {
    __m256i i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), j = _mm256_add_epi32(i, _mm256_set1_epi32(8));
    __m256i first = _mm256_set1_epi32(lo - 1), end = _mm256_set1_epi32(hi);
    return (vm16){
        _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(i, first), _mm256_cmpgt_epi32(end, i))),
        _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(j, first), _mm256_cmpgt_epi32(end, j)))};
}
static inline uint32_t vm_bits(vm16 m) {
    return (uint32_t)_mm256_movemask_ps(m.a) | (uint32_t)_mm256_movemask_ps(m.b) << 8;
}
static inline int32_t vm_any(vm16 m) { return _mm256_movemask_ps(_mm256_or_ps(m.a, m.b)) != 0; }

static inline vf16 vf_load_n(const float *p, int32_t n) {
    vm16 m = vm_range(0, n);
    return vf_pair(_mm256_maskload_ps(p, _mm256_castps_si256(m.a)),
                   _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b)));
}
static inline void vf_store_n(float *p, vf16 x, int32_t n) {
    vm16 m = vm_range(0, n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), x.a);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), x.b);
}
static inline vf16 vf_load_f16(const uint16_t *p) { return vf_pair(vx_load_f16(p), vx_load_f16(p + 8)); }
static inline void vf_store_f16(uint16_t *p, vf16 x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

/* Formats of the KV cache. */
static inline vx vx_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline vf16 vf_load_bf16(const uint16_t *p) { return vf_pair(vx_load_bf16(p), vx_load_bf16(p + 8)); }
static inline vf16 vf_from_f16(__m256i h) {
    return vf_pair(_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
                   _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
}
static inline vf16 vf_from_i8(__m128i q) {
    return vf_pair(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)),
                   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(q, q))));
}

static inline vf16 vf_add(vf16 x, vf16 y) {
    return vf_pair(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b));
}
static inline vf16 vf_sub(vf16 x, vf16 y) {
    return vf_pair(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b));
}
static inline vf16 vf_mul(vf16 x, vf16 y) {
    return vf_pair(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b));
}
static inline vf16 vf_div(vf16 x, vf16 y) {
    return vf_pair(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b));
}
static inline vf16 vf_max(vf16 x, vf16 y) {
    return vf_pair(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b));
}
static inline vf16 vf_min(vf16 x, vf16 y) {
    return vf_pair(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b));
}
static inline vf16 vf_fma(vf16 x, vf16 y, vf16 z) {
    return vf_pair(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}

static inline vf16 vf_neg(vf16 x) {
    __m256 s = _mm256_set1_ps(-0.0f);
    return vf_pair(_mm256_xor_ps(x.a, s), _mm256_xor_ps(x.b, s));
}
static inline vf16 vf_abs(vf16 x) {
    __m256 s = _mm256_set1_ps(-0.0f);
    return vf_pair(_mm256_andnot_ps(s, x.a), _mm256_andnot_ps(s, x.b));
}
/* |x| with the sign of y. */
static inline vf16 vf_copysign(vf16 x, vf16 y) {
    __m256 s = _mm256_set1_ps(-0.0f);
    return vf_pair(_mm256_or_ps(_mm256_andnot_ps(s, x.a), _mm256_and_ps(s, y.a)),
                   _mm256_or_ps(_mm256_andnot_ps(s, x.b), _mm256_and_ps(s, y.b)));
}

static inline vm16 vf_lt(vf16 x, vf16 y) {
    return (vm16){_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)};
}
static inline vm16 vf_le(vf16 x, vf16 y) {
    return (vm16){_mm256_cmp_ps(x.a, y.a, _CMP_LE_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LE_OQ)};
}
/* m ? x : y */
static inline vf16 vf_select(vm16 m, vf16 x, vf16 y) {
    return vf_pair(_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b));
}
/* m ? x : +0 and m ? +0 : x */
static inline vf16 vf_keep(vm16 m, vf16 x) {
    return vf_pair(_mm256_and_ps(m.a, x.a), _mm256_and_ps(m.b, x.b));
}
static inline vf16 vf_drop(vm16 m, vf16 x) {
    return vf_pair(_mm256_andnot_ps(m.a, x.a), _mm256_andnot_ps(m.b, x.b));
}

/* The nearest integers, ties to even. */
static inline vf16 vf_round(vf16 x) {
    enum { MODE = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return vf_pair(_mm256_round_ps(x.a, MODE), _mm256_round_ps(x.b, MODE));
}
static inline __m256 vx_exp2i(__m256 n) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
/* y * 2^n for integers n in -126..127 */
static inline vf16 vf_scale2(vf16 y, vf16 n) { return vf_mul(y, vf_pair(vx_exp2i(n.a), vx_exp2i(n.b))); }

/* The larger of non-negative floats or nans, as their bits are ordered: a nan comes last. */
static inline __m256 vx_max_bits(__m256 x, __m256 y) {
    return _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(x), _mm256_castps_si256(y)));
}
static inline vf16 vf_max_bits(vf16 x, vf16 y) {
    return vf_pair(vx_max_bits(x.a, y.a), vx_max_bits(x.b, y.b));
}
static inline uint32_t vf_largest_bits(vf16 x) { return largest_bits(x.a, x.b); }

/* fold16's tree. */
static inline float vf_fold16(vf16 x) {
    __m256 p = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
/* The largest of 16 floats, none of them a nan; of +0 and -0 either. */
static inline float vf_largest(vf16 x) {
    __m256 p = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* Integers for products of int16: VX_LANES pairs in a register. */
typedef __m256i vi;
static inline vi vi_zero(void) { return _mm256_setzero_si256(); }
static inline vi vi_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
/* Of each four int8 the first and third, the second and fourth, as pairs of int16. */
static inline vi vi_even(vi x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); }
static inline vi vi_odd(vi x) { return _mm256_srai_epi16(x, 8); }
/* sum + x0 * y0 + x1 * y1 */
#if defined(el_dpwssd_256)
static inline vi vi_dot(vi sum, vi x, vi y) { return el_dpwssd_256(sum, x, y); }
#else
static inline vi vi_dot(vi sum, vi x, vi y) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x, y));
    EL_PIN(sum);
    return sum;
}
#endif
static inline void vf_store_quads(int16_t *p, vf16 x, vf16 y) {
    store_quads(p, x.a, x.b);
    store_quads(p + 16, y.a, y.b);
}
static inline vx vx_from_int(vi x) { return _mm256_cvtepi32_ps(x); }
static inline vx vx_mul(vx x, vx y) { return _mm256_mul_ps(x, y); }

/* 16 pairs to and from 16 first and 16 second halves: (x, y) = 32 consecutive floats. */
static inline __m256 vx_gather_quads(__m256 p) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(p), _MM_SHUFFLE(3, 1, 2, 0)));
}
static inline void vf_unzip(vf16 x, vf16 y, vf16 *even, vf16 *odd) {
    *even = vf_pair(vx_gather_quads(_mm256_shuffle_ps(x.a, x.b, _MM_SHUFFLE(2, 0, 2, 0))),
                    vx_gather_quads(_mm256_shuffle_ps(y.a, y.b, _MM_SHUFFLE(2, 0, 2, 0))));
    *odd = vf_pair(vx_gather_quads(_mm256_shuffle_ps(x.a, x.b, _MM_SHUFFLE(3, 1, 3, 1))),
                   vx_gather_quads(_mm256_shuffle_ps(y.a, y.b, _MM_SHUFFLE(3, 1, 3, 1))));
}
static inline vf16 vx_zip(__m256 even, __m256 odd) {
    __m256 lo = _mm256_unpacklo_ps(even, odd), hi = _mm256_unpackhi_ps(even, odd);
    return vf_pair(_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31));
}
static inline void vf_zip(vf16 even, vf16 odd, vf16 *x, vf16 *y) {
    *x = vx_zip(even.a, odd.a);
    *y = vx_zip(even.b, odd.b);
}

#include "simd_x86_kv.h"

#endif
