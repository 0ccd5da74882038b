/* The AVX-512 names for the vector file of the emulated library: SIMDe's, and what SIMDe 0.7.4 lacks or takes minutes to
 * compile, from two 256-bit halves. */
#ifndef EL_AVX512_SIMDE_H
#define EL_AVX512_SIMDE_H

#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

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
EL_INLINE __m512i el_simde_cvtepi8_epi32(__m128i v) {
    return EL_SIMDE_INTEGERS(_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(v, v)));
}
EL_INLINE __m512i el_simde_cvtepu16_epi32(__m256i v) {
    return EL_SIMDE_INTEGERS(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)),
                             _mm256_cvtepu16_epi32(_mm256_extracti128_si256(v, 1)));
}
EL_INLINE __m512i el_simde_dpwssd(__m512i sum, __m512i a, __m512i b) {
    const __m256i low = _mm256_madd_epi16(_mm512_castsi512_si256(a), _mm512_castsi512_si256(b));
    const __m256i high = _mm256_madd_epi16(_mm512_extracti64x4_epi64(a, 1), _mm512_extracti64x4_epi64(b, 1));
    return _mm512_add_epi32(sum, EL_SIMDE_INTEGERS(low, high));
}
#undef _mm512_dpwssd_epi32
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtph_ps
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_dpwssd_epi32(sum, a, b) el_simde_dpwssd(sum, a, b)
#define _mm512_cvtepi32_ps(v)          el_simde_cvtepi32_ps(v)
#define _mm512_cvtph_ps(v)             el_simde_cvtph_ps(v)
#define _mm512_cvtepi8_epi32(v)        el_simde_cvtepi8_epi32(v)
#define _mm512_cvtepu16_epi32(v)       el_simde_cvtepu16_epi32(v)

#endif
