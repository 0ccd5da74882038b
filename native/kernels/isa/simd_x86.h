/* The x86 intrinsics. Files that are compiled for SIMDe (SIMDE_ENABLE_NATIVE_ALIASES, set by CMake for the AVX-512 files
 * of the emulated library alone) get the AVX-512 names from SIMDe, which builds each from 256-bit instructions. */
#ifndef EL_SIMD_X86_H
#define EL_SIMD_X86_H

#define EL_INLINE static inline __attribute__((always_inline))

#if defined(EDGELLM_EMULATE_AVX512) && defined(SIMDE_ENABLE_NATIVE_ALIASES)
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

/* What SIMDe 0.7.4 lacks, from two 256-bit halves. */
#define EL_SIMDE_FLOATS(low, high)   _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1)
#define EL_SIMDE_INTEGERS(low, high) _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1)

EL_INLINE __m512 el_simde_cvtepi32_ps(__m512i v) {
    return EL_SIMDE_FLOATS(_mm256_cvtepi32_ps(_mm512_castsi512_si256(v)),
                           _mm256_cvtepi32_ps(_mm512_extracti64x4_epi64(v, 1)));
}
EL_INLINE __m512 el_simde_cvtph_ps(__m256i v) {
    return EL_SIMDE_FLOATS(_mm256_cvtph_ps(_mm256_castsi256_si128(v)),
                           _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
}
EL_INLINE __m512i el_simde_cvtepu8_epi32(__m128i v) {
    return EL_SIMDE_INTEGERS(_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(v, v)));
}
EL_INLINE __m512i el_simde_cvtepi8_epi32(__m128i v) {
    return EL_SIMDE_INTEGERS(_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v)));
}
EL_INLINE __m512i el_simde_cvtepu16_epi32(__m256i v) {
    return EL_SIMDE_INTEGERS(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)),
                             _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)));
}
EL_INLINE __m512i el_simde_cvtepu8_epi16(__m256i v) {
    return EL_SIMDE_INTEGERS(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(v)),
                             _mm256_cvtepu8_epi16(_mm256_extracti128_si256(v, 1)));
}

/* What it has, but in a form that takes minutes to compile. The products of even and of odd bytes fit into int16. */
EL_INLINE __m256i el_simde_dpbusd_256(__m256i sum, __m256i u, __m256i s) {
    const __m256i even = _mm256_set1_epi16(0x00ff), ones = _mm256_set1_epi16(1);
    const __m256i a = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_and_si256(even, u), s), ones);
    const __m256i b = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_andnot_si256(even, u), s), ones);
    return _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
}
EL_INLINE __m512i el_simde_dpbusd(__m512i sum, __m512i u, __m512i s) {
    return EL_SIMDE_INTEGERS(el_simde_dpbusd_256(_mm512_castsi512_si256(sum), _mm512_castsi512_si256(u),
                                                 _mm512_castsi512_si256(s)),
                             el_simde_dpbusd_256(_mm512_extracti64x4_epi64(sum, 1),
                                                 _mm512_extracti64x4_epi64(u, 1),
                                                 _mm512_extracti64x4_epi64(s, 1)));
}
EL_INLINE __m512i el_simde_dpwssd(__m512i sum, __m512i a, __m512i b) {
    const __m256i low = _mm256_madd_epi16(_mm512_castsi512_si256(a), _mm512_castsi512_si256(b));
    const __m256i high = _mm256_madd_epi16(_mm512_extracti64x4_epi64(a, 1), _mm512_extracti64x4_epi64(b, 1));
    return _mm512_add_epi32(sum, EL_SIMDE_INTEGERS(low, high));
}
#undef _mm512_dpbusd_epi32
#undef _mm512_dpwssd_epi32
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtph_ps
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu8_epi16
#undef _mm512_cvtepu16_epi32
#define _mm512_dpbusd_epi32(sum, u, s) el_simde_dpbusd(sum, u, s)
#define _mm512_dpwssd_epi32(sum, a, b) el_simde_dpwssd(sum, a, b)
#define _mm512_cvtepi32_ps(v)          el_simde_cvtepi32_ps(v)
#define _mm512_cvtph_ps(v)             el_simde_cvtph_ps(v)
#define _mm512_cvtepu8_epi32(v)        el_simde_cvtepu8_epi32(v)
#define _mm512_cvtepi8_epi32(v)        el_simde_cvtepi8_epi32(v)
#define _mm512_cvtepu8_epi16(v)        el_simde_cvtepu8_epi16(v)
#define _mm512_cvtepu16_epi32(v)       el_simde_cvtepu16_epi32(v)
#else
#include <immintrin.h>
#endif

/* 16 floats to the nearest int16 (they must fit), the second and third of each four exchanged. */
EL_INLINE void store_quads(int16_t *p, __m256 low, __m256 high) {
    const __m256i swap = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2,
                                          3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(low), _mm256_cvtps_epi32(high));
    const __m256i all = _mm256_permute4x64_epi64(pairs, _MM_SHUFFLE(3, 1, 2, 0));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_shuffle_epi8(all, swap));
}

/* Unroll the loop that follows completely: its bound is a constant once inlined. */
#if defined(__clang__)
#define EL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define EL_UNROLL _Pragma("GCC unroll 16")
#endif

/* Compute v here: keeps the compiler from reordering a chain of integer additions, which costs it the registers. */
#define EL_PIN(v) __asm__("" : "+x"(v))

/* Leave memory as written so far: keeps accumulators that live in memory from being copied to registers and back. */
#define EL_FENCE() __asm__ volatile("" ::: "memory")

#endif
