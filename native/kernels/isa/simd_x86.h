/* The x86 intrinsics. In the emulated library (EDGELLM_EMULATE_AVX512, set by CMake for its AVX-512 and AVX-VNNI files) the
 * AVX-512 names stand for 256-bit instructions: in matmul files (EL_MATMUL) those of avx512_halves.h, else those of
 * avx512_simde.h. */
#ifndef EL_SIMD_X86_H
#define EL_SIMD_X86_H

#include "loops.h"

#if defined(EDGELLM_EMULATE_AVX512) && defined(EL_MATMUL)
#include "avx512_halves.h"
#elif defined(EDGELLM_EMULATE_AVX512)
#include "avx512_simde.h"
#else
#include <immintrin.h>
#include <stdint.h>

/* sum + the four products of the bytes of every dword, u unsigned, s signed, or of the two of its words; exact. In the encoding of AVX-VNNI, or, for
 * tests on processors that lack it, in that of AVX-512 VL and VNNI. */
#if defined(__AVXVNNI__)
#define el_dpbusd_256(sum, u, s) _mm256_dpbusd_avx_epi32(sum, u, s)
#define el_dpwssd_256(sum, x, y) _mm256_dpwssd_avx_epi32(sum, x, y)
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define el_dpbusd_256(sum, u, s) _mm256_dpbusd_epi32(sum, u, s)
#define el_dpwssd_256(sum, x, y) _mm256_dpwssd_epi32(sum, x, y)
#endif
#endif

/* 16 floats to the nearest int16 (they must fit), the second and third of each four exchanged. */
EL_INLINE void store_quads(int16_t *p, __m256 low, __m256 high) {
    const __m256i swap = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15, 0, 1, 4, 5, 2,
                                          3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(low), _mm256_cvtps_epi32(high));
    const __m256i all = _mm256_permute4x64_epi64(pairs, _MM_SHUFFLE(3, 1, 2, 0));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_shuffle_epi8(all, swap));
}

/* The largest of 16 dwords, unsigned. */
EL_INLINE uint32_t largest_bits(__m256 low, __m256 high) {
    const __m256i p = _mm256_max_epu32(_mm256_castps_si256(low), _mm256_castps_si256(high));
    __m128i q = _mm_max_epu32(_mm256_castsi256_si128(p), _mm256_extracti128_si256(p, 1));
    q = _mm_max_epu32(q, _mm_unpackhi_epi64(q, q));
    q = _mm_max_epu32(q, _mm_shuffle_epi32(q, 1));
    return (uint32_t)_mm_cvtsi128_si32(q);
}

/* Compute v here: keeps the compiler from reordering a chain of integer additions, which costs it the registers. */
#define EL_PIN(v) __asm__("" : "+x"(v))

/* The same for a __m512i; emulated, that is a struct. */
#if defined(EDGELLM_EMULATE_AVX512)
#define EL_PIN_512(v) ((void)(v))
#else
#define EL_PIN_512(v) __asm__("" : "+v"(v))
#endif

#endif
