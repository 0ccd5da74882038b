/* The vector vocabulary at the avx512 levels; simd_avx2.h states what the names mean. Needs F, DQ and F16C.
 *
 * SIMDe lacks some conversions and reads all 16 lanes in masked loads: the emulated library (tests only)
 * does those on 256-bit halves. */
#ifndef EL_SIMD_AVX512_H
#define EL_SIMD_AVX512_H

#include "simd_x86.h"

#include <stdint.h>
#include <string.h>

/* Register tiles: rows x 16 or 32 lanes; 8 x 2 sums, 2 columns and a broadcast, of 32 registers. */
enum { VX_LANES = 16, VX_ROWS_16 = 8, VX_ROWS_32 = 8 };
#define VX_EACH_16(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define VX_EACH_32(X) VX_EACH_16(X)
#define VX_ROWS_Q8    12 /* rows x 2 sums, 4 registers of columns and a broadcast */
#define VX_EACH_Q8(X) VX_EACH_16(X) X(9) X(10) X(11) X(12)

typedef __m512 vx;
typedef __m512 vf16;
typedef __mmask16 vm16;

/* ---- what differs under emulation ---------------------------------------------------------------------- */

static inline vf16 vf_bits(__m512i x) { return _mm512_castsi512_ps(x); }
static inline __m512i vf_int(vf16 x) { return _mm512_castps_si512(x); }
static inline __m256 vf_low(vf16 x) { return _mm512_castps512_ps256(x); }
static inline __m256 vf_high(vf16 x) {
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
}

/* Lanes lo..hi-1. */
static inline vm16 vm_range(int32_t lo, int32_t hi) {
    const uint32_t below_lo = lo <= 0 ? 0 : (1u << (lo < 16 ? lo : 16)) - 1;
    const uint32_t below_hi = hi <= 0 ? 0 : (1u << (hi < 16 ? hi : 16)) - 1;
    return (vm16)(below_hi & ~below_lo);
}

#if defined(EDGELLM_EMULATE_AVX512)

static inline vf16 vf_join(__m256 low, __m256 high) {
    return _mm512_castpd_ps(
        _mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(low)), _mm256_castps_pd(high), 1));
}
static inline vf16 vf_load_f16(const uint16_t *p) {
    return vf_join(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                   _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
static inline void vf_store_f16(uint16_t *p, vf16 x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(vf_low(x), _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(vf_high(x), _MM_FROUND_TO_NEAREST_INT));
}
static inline vf16 vf_load_n(const float *p, int32_t n) {
    float x[16] = {0};
    memcpy(x, p, (size_t)(n < 0 ? 0 : n) * sizeof x[0]);
    return _mm512_loadu_ps(x);
}
static inline void vf_store_n(float *p, vf16 x, int32_t n) {
    float y[16];
    _mm512_storeu_ps(y, x);
    memcpy(p, y, (size_t)(n < 0 ? 0 : n) * sizeof y[0]);
}
static inline vf16 vf_round(vf16 x) {
    enum { MODE = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return vf_join(_mm256_round_ps(vf_low(x), MODE), _mm256_round_ps(vf_high(x), MODE));
}
static inline __m512i vf_to_int(vf16 x) {
    return vf_int(vf_join(_mm256_castsi256_ps(_mm256_cvtps_epi32(vf_low(x))),
                          _mm256_castsi256_ps(_mm256_cvtps_epi32(vf_high(x)))));
}

#else

static inline vf16 vf_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void vf_store_f16(uint16_t *p, vf16 x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
static inline vf16 vf_load_n(const float *p, int32_t n) { return _mm512_maskz_loadu_ps(vm_range(0, n), p); }
static inline void vf_store_n(float *p, vf16 x, int32_t n) { _mm512_mask_storeu_ps(p, vm_range(0, n), x); }
static inline vf16 vf_round(vf16 x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline __m512i vf_to_int(vf16 x) { return _mm512_cvtps_epi32(x); }

#endif

/* ---- the rest ------------------------------------------------------------------------------------------ */

static inline vf16 vf_zero(void) { return _mm512_setzero_ps(); }
static inline vf16 vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vf16 vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vf_store(float *p, vf16 x) { _mm512_storeu_ps(p, x); }

static inline vf16 vf_add(vf16 x, vf16 y) { return _mm512_add_ps(x, y); }
static inline vf16 vf_sub(vf16 x, vf16 y) { return _mm512_sub_ps(x, y); }
static inline vf16 vf_mul(vf16 x, vf16 y) { return _mm512_mul_ps(x, y); }
static inline vf16 vf_div(vf16 x, vf16 y) { return _mm512_div_ps(x, y); }
static inline vf16 vf_max(vf16 x, vf16 y) { return _mm512_max_ps(x, y); }
static inline vf16 vf_min(vf16 x, vf16 y) { return _mm512_min_ps(x, y); }
static inline vf16 vf_fma(vf16 x, vf16 y, vf16 z) { return _mm512_fmadd_ps(x, y, z); }

static inline __m512i vf_sign(void) { return _mm512_set1_epi32(INT32_MIN); }
static inline vf16 vf_neg(vf16 x) { return vf_bits(_mm512_xor_si512(vf_int(x), vf_sign())); }
static inline vf16 vf_abs(vf16 x) { return vf_bits(_mm512_andnot_si512(vf_sign(), vf_int(x))); }
/* |x| with the sign of y. */
static inline vf16 vf_copysign(vf16 x, vf16 y) {
    return vf_bits(
        _mm512_or_si512(_mm512_andnot_si512(vf_sign(), vf_int(x)), _mm512_and_si512(vf_sign(), vf_int(y))));
}

static inline uint32_t vm_bits(vm16 m) { return m; }
static inline int32_t vm_any(vm16 m) { return m != 0; }
static inline vm16 vf_lt(vf16 x, vf16 y) { return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ); }
static inline vm16 vf_le(vf16 x, vf16 y) { return _mm512_cmp_ps_mask(x, y, _CMP_LE_OQ); }
/* m ? x : y */
static inline vf16 vf_select(vm16 m, vf16 x, vf16 y) { return _mm512_mask_mov_ps(y, m, x); }
/* m ? x : +0 and m ? +0 : x */
static inline vf16 vf_keep(vm16 m, vf16 x) { return _mm512_maskz_mov_ps(m, x); }
static inline vf16 vf_drop(vm16 m, vf16 x) { return _mm512_maskz_mov_ps((vm16)~m, x); }

/* y * 2^n for integers n in -126..127 */
#if defined(EDGELLM_EMULATE_AVX512)
static inline vf16 vf_scale2(vf16 y, vf16 n) {
    return vf_mul(y, vf_bits(_mm512_slli_epi32(_mm512_add_epi32(vf_to_int(n), _mm512_set1_epi32(127)), 23)));
}
#else
static inline vf16 vf_scale2(vf16 y, vf16 n) { return _mm512_scalef_ps(y, n); }
#endif

/* The larger of non-negative floats or nans, as their bits are ordered: a nan comes last. */
static inline vf16 vf_max_bits(vf16 x, vf16 y) { return vf_bits(_mm512_max_epu32(vf_int(x), vf_int(y))); }
static inline uint32_t vf_largest_bits(vf16 x) { return largest_bits(vf_low(x), vf_high(x)); }

/* fold16's tree. */
static inline float vf_fold16(vf16 x) {
    __m256 p = _mm256_add_ps(vf_low(x), vf_high(x));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
/* The largest of 16 floats, none of them a nan; of +0 and -0 either. */
static inline float vf_largest(vf16 x) {
    __m256 p = _mm256_max_ps(vf_low(x), vf_high(x));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* 16 pairs to and from 16 first and 16 second halves: (x, y) = 32 consecutive floats. */
static inline void vf_unzip(vf16 x, vf16 y, vf16 *even, vf16 *odd) {
    const __m512i i = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    *even = _mm512_permutex2var_ps(x, i, y);
    *odd = _mm512_permutex2var_ps(x, _mm512_add_epi32(i, _mm512_set1_epi32(1)), y);
}
static inline void vf_zip(vf16 even, vf16 odd, vf16 *x, vf16 *y) {
    const __m512i i = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *x = _mm512_permutex2var_ps(even, i, odd);
    *y = _mm512_permutex2var_ps(even, _mm512_add_epi32(i, _mm512_set1_epi32(8)), odd);
}

/* Formats of the KV cache. */
static inline vf16 vf_load_bf16(const uint16_t *p) {
    return vf_bits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline vf16 vf_from_f16(__m256i h) { return _mm512_cvtph_ps(h); }
static inline vf16 vf_from_i8(__m128i q) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)); }

/* Integers for products of int16. */
typedef __m512i vi;
static inline vi vi_zero(void) { return _mm512_setzero_si512(); }
static inline vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
static inline vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi vi_even(vi x) { return _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8); }
static inline vi vi_odd(vi x) { return _mm512_srai_epi16(x, 8); }
#if defined(__AVX512VNNI__) || defined(EDGELLM_EMULATE_AVX512)
static inline vi vi_dot(vi sum, vi x, vi y) {
    sum = _mm512_dpwssd_epi32(sum, x, y);
    EL_PIN_512(sum); /* gcc moves the sums of a loop about */
    return sum;
}
#else
static inline vi vi_dot(vi sum, vi x, vi y) { return _mm512_add_epi32(sum, _mm512_madd_epi16(x, y)); }
#endif
#if defined(EDGELLM_EMULATE_AVX512)
static inline void vf_store_quads(int16_t *p, vf16 x, vf16 y) {
    store_quads(p, vf_low(x), vf_high(x));
    store_quads(p + 16, vf_low(y), vf_high(y));
}
#else
static inline void vf_store_quads(int16_t *p, vf16 x, vf16 y) {
    /* Words of pairs: 4 of x and 4 of y in each 128 bits. */
    static const uint16_t order[32] = {0, 2, 1, 3, 8,  10, 9,  11, 16, 18, 17, 19, 24, 26, 25, 27,
                                       4, 6, 5, 7, 12, 14, 13, 15, 20, 22, 21, 23, 28, 30, 29, 31};
    const __m512i pairs = _mm512_packs_epi32(_mm512_cvtps_epi32(x), _mm512_cvtps_epi32(y));
    _mm512_storeu_si512(p, _mm512_permutexvar_epi16(_mm512_loadu_si512(order), pairs));
}
#endif
static inline vx vx_from_int(vi x) { return _mm512_cvtepi32_ps(x); }
static inline vx vx_mul(vx x, vx y) { return vf_mul(x, y); }
static inline vx vx_load_bf16(const uint16_t *p) { return vf_load_bf16(p); }

static inline vx vx_set1(float x) { return vf_set1(x); }
static inline vx vx_load(const float *p) { return vf_load(p); }
static inline void vx_store(float *p, vx x) { vf_store(p, x); }
static inline vx vx_fma(vx a, vx b, vx c) { return vf_fma(a, b, c); }
static inline vx vx_load_f16(const uint16_t *p) { return vf_load_f16(p); }

#include "simd_x86_kv.h"

#endif
