/* The AVX-512 intrinsics that the matmul files use, from two 256-bit halves each, for the emulated library (tests). SIMDe
 * has them too, in a form that takes minutes to compile. Where a processor's instruction differs from the obvious, the
 * comment says how. */
#ifndef EL_AVX512_HALVES_H
#define EL_AVX512_HALVES_H

#include <immintrin.h>
#include <stdint.h>

typedef struct el_halves_i {
    __m256i l, h;
} el_halves_i;
typedef struct el_halves_f {
    __m256 l, h;
} el_halves_f;
#define __m512i el_halves_i
#define __m512  el_halves_f

#define EL_BOTH_I(l, h) ((el_halves_i){l, h})
#define EL_BOTH_F(l, h) ((el_halves_f){l, h})

/* vpdpbusd. The products of even and of odd bytes fit into int16. No inlining: a call compiles in a fraction of the time. */
static __attribute__((noinline, unused)) __m256i el_halves_dpbusd(__m256i sum, __m256i u, __m256i s) {
    const __m256i even = _mm256_set1_epi16(0x00ff), ones = _mm256_set1_epi16(1);
    const __m256i a = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_and_si256(even, u), s), ones);
    const __m256i b = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_andnot_si256(even, u), s), ones);
    return _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
}
#define el_dpbusd_256(sum, u, s) el_halves_dpbusd(sum, u, s)

/* One operand, two, and three of one kind. */
#define EL_HALVES_1(kind, type, name, op) \
    EL_INLINE type el_z_##name(type a) { return EL_BOTH_##kind(op(a.l), op(a.h)); }
#define EL_HALVES_2(kind, type, name, op) \
    EL_INLINE type el_z_##name(type a, type b) { return EL_BOTH_##kind(op(a.l, b.l), op(a.h, b.h)); }
#define EL_HALVES_3(kind, type, name, op)                            \
    EL_INLINE type el_z_##name(type a, type b, type c) {             \
        return EL_BOTH_##kind(op(a.l, b.l, c.l), op(a.h, b.h, c.h)); \
    }
EL_HALVES_1(I, __m512i, abs_epi8, _mm256_abs_epi8)
EL_HALVES_2(I, __m512i, and_si512, _mm256_and_si256)
EL_HALVES_2(I, __m512i, or_si512, _mm256_or_si256)
EL_HALVES_2(I, __m512i, xor_si512, _mm256_xor_si256)
EL_HALVES_2(I, __m512i, add_epi16, _mm256_add_epi16)
EL_HALVES_2(I, __m512i, add_epi32, _mm256_add_epi32)
EL_HALVES_2(I, __m512i, sub_epi32, _mm256_sub_epi32)
EL_HALVES_2(I, __m512i, mullo_epi32, _mm256_mullo_epi32)
EL_HALVES_2(I, __m512i, madd_epi16, _mm256_madd_epi16)
EL_HALVES_2(I, __m512i, maddubs_epi16, _mm256_maddubs_epi16)
EL_HALVES_2(I, __m512i, shuffle_epi8, _mm256_shuffle_epi8)
EL_HALVES_2(I, __m512i, sllv_epi32, _mm256_sllv_epi32)
EL_HALVES_2(I, __m512i, max_epi32, _mm256_max_epi32)
EL_HALVES_2(I, __m512i, min_epi32, _mm256_min_epi32)
EL_HALVES_2(F, __m512, mul_ps, _mm256_mul_ps)
EL_HALVES_2(F, __m512, sub_ps, _mm256_sub_ps)
EL_HALVES_3(F, __m512, fmadd_ps, _mm256_fmadd_ps)
EL_HALVES_3(F, __m512, fnmadd_ps, _mm256_fnmadd_ps)
EL_HALVES_3(I, __m512i, dpbusd_epi32, el_halves_dpbusd)

EL_INLINE __m512i el_z_dpwssd_epi32(__m512i sum, __m512i a, __m512i b) {
    return el_z_add_epi32(sum, el_z_madd_epi16(a, b));
}
/* Lanes of `src` where the mask bit is 0; the mask is kept as the bytes whose sign gives it. */
EL_INLINE __m512i el_z_mask_sub_epi8(__m512i src, __m512i signs, __m512i a, __m512i b) {
    return EL_BOTH_I(_mm256_blendv_epi8(src.l, _mm256_sub_epi8(a.l, b.l), signs.l),
                     _mm256_blendv_epi8(src.h, _mm256_sub_epi8(a.h, b.h), signs.h));
}

#define EL_HALVES_SHIFT(name, op) \
    EL_INLINE __m512i el_z_##name(__m512i a, int n) { return EL_BOTH_I(op(a.l, n), op(a.h, n)); }
EL_HALVES_SHIFT(slli_epi16, _mm256_slli_epi16)
EL_HALVES_SHIFT(srli_epi16, _mm256_srli_epi16)
EL_HALVES_SHIFT(slli_epi32, _mm256_slli_epi32)

#define EL_HALVES_SET1(name, argument, op) \
    EL_INLINE __m512i el_z_##name(argument v) { return EL_BOTH_I(op(v), op(v)); }
EL_HALVES_SET1(set1_epi8, char, _mm256_set1_epi8)
EL_HALVES_SET1(set1_epi16, short, _mm256_set1_epi16)
EL_HALVES_SET1(set1_epi32, int, _mm256_set1_epi32)
EL_INLINE __m512 el_z_set1_ps(float v) { return EL_BOTH_F(_mm256_set1_ps(v), _mm256_set1_ps(v)); }
EL_INLINE __m512i el_z_broadcast_i32x4(__m128i v) {
    return EL_BOTH_I(_mm256_broadcastsi128_si256(v), _mm256_broadcastsi128_si256(v));
}

EL_INLINE __m512i el_z_load(const void *p) {
    const __m256i *from = p;
    return EL_BOTH_I(_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1));
}
EL_INLINE void el_z_store(void *p, __m512i v) {
    __m256i *to = p;
    _mm256_storeu_si256(to, v.l);
    _mm256_storeu_si256(to + 1, v.h);
}
EL_INLINE __m512 el_z_loadu_ps(const float *p) {
    return EL_BOTH_F(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
EL_INLINE void el_z_storeu_ps(float *p, __m512 v) {
    _mm256_storeu_ps(p, v.l);
    _mm256_storeu_ps(p + 8, v.h);
}

EL_INLINE __m512 el_z_castsi512_ps(__m512i v) {
    return EL_BOTH_F(_mm256_castsi256_ps(v.l), _mm256_castsi256_ps(v.h));
}
EL_INLINE __m512 el_z_cvtepi32_ps(__m512i v) {
    return EL_BOTH_F(_mm256_cvtepi32_ps(v.l), _mm256_cvtepi32_ps(v.h));
}
EL_INLINE __m512 el_z_cvtph_ps(__m256i v) {
    return EL_BOTH_F(_mm256_cvtph_ps(_mm256_castsi256_si128(v)),
                     _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
}
#define EL_HALVES_WIDEN(name, argument, low, high, op) \
    EL_INLINE __m512i el_z_##name(argument v) { return EL_BOTH_I(op(low), op(high)); }
EL_HALVES_WIDEN(cvtepu8_epi32, __m128i, v, _mm_unpackhi_epi64(v, v), _mm256_cvtepu8_epi32)
EL_HALVES_WIDEN(cvtepi8_epi32, __m128i, v, _mm_unpackhi_epi64(v, v), _mm256_cvtepi8_epi32)
EL_HALVES_WIDEN(cvtepu16_epi32, __m256i, _mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1),
                _mm256_cvtepu16_epi32)
EL_HALVES_WIDEN(cvtepu8_epi16, __m256i, _mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1),
                _mm256_cvtepu8_epi16)

#define _mm512_abs_epi8(a)               el_z_abs_epi8(a)
#define _mm512_and_si512(a, b)           el_z_and_si512(a, b)
#define _mm512_or_si512(a, b)            el_z_or_si512(a, b)
#define _mm512_xor_si512(a, b)           el_z_xor_si512(a, b)
#define _mm512_add_epi16(a, b)           el_z_add_epi16(a, b)
#define _mm512_add_epi32(a, b)           el_z_add_epi32(a, b)
#define _mm512_sub_epi32(a, b)           el_z_sub_epi32(a, b)
#define _mm512_mullo_epi32(a, b)         el_z_mullo_epi32(a, b)
#define _mm512_madd_epi16(a, b)          el_z_madd_epi16(a, b)
#define _mm512_maddubs_epi16(a, b)       el_z_maddubs_epi16(a, b)
#define _mm512_shuffle_epi8(a, b)        el_z_shuffle_epi8(a, b)
#define _mm512_sllv_epi32(a, b)          el_z_sllv_epi32(a, b)
#define _mm512_max_epi32(a, b)           el_z_max_epi32(a, b)
#define _mm512_min_epi32(a, b)           el_z_min_epi32(a, b)
#define _mm512_sub_ps(a, b)              el_z_sub_ps(a, b)
#define _mm512_mul_ps(a, b)              el_z_mul_ps(a, b)
#define _mm512_fmadd_ps(a, b, c)         el_z_fmadd_ps(a, b, c)
#define _mm512_fnmadd_ps(a, b, c)        el_z_fnmadd_ps(a, b, c)
#define _mm512_dpbusd_epi32(sum, u, s)   el_z_dpbusd_epi32(sum, u, s)
#define _mm512_dpwssd_epi32(sum, a, b)   el_z_dpwssd_epi32(sum, a, b)
#define _mm512_movepi8_mask(a)           (a)
#define _mm512_mask_sub_epi8(s, m, a, b) el_z_mask_sub_epi8(s, m, a, b)
#define _mm512_slli_epi16(a, n)          el_z_slli_epi16(a, n)
#define _mm512_srli_epi16(a, n)          el_z_srli_epi16(a, n)
#define _mm512_slli_epi32(a, n)          el_z_slli_epi32(a, n)
#define _mm512_set1_epi8(v)              el_z_set1_epi8(v)
#define _mm512_set1_epi16(v)             el_z_set1_epi16(v)
#define _mm512_set1_epi32(v)             el_z_set1_epi32(v)
#define _mm512_set1_ps(v)                el_z_set1_ps(v)
#define _mm512_setzero_si512()           el_z_set1_epi32(0)
#define _mm512_setzero_ps()              el_z_set1_ps(0.0f)
#define _mm512_broadcast_i32x4(v)        el_z_broadcast_i32x4(v)
#define _mm512_load_si512(p)             el_z_load(p)
#define _mm512_loadu_si512(p)            el_z_load(p)
#define _mm512_store_si512(p, v)         el_z_store(p, v)
#define _mm512_loadu_ps(p)               el_z_loadu_ps(p)
#define _mm512_storeu_ps(p, v)           el_z_storeu_ps(p, v)
#define _mm512_castsi512_ps(v)           el_z_castsi512_ps(v)
#define _mm512_cvtepi32_ps(v)            el_z_cvtepi32_ps(v)
#define _mm512_cvtph_ps(v)               el_z_cvtph_ps(v)
#define _mm512_cvtepu8_epi32(v)          el_z_cvtepu8_epi32(v)
#define _mm512_cvtepi8_epi32(v)          el_z_cvtepi8_epi32(v)
#define _mm512_cvtepu16_epi32(v)         el_z_cvtepu16_epi32(v)
#define _mm512_cvtepu8_epi16(v)          el_z_cvtepu8_epi16(v)

#endif
