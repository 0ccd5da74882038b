/* The vector vocabulary's loads of 16 values of the KV cache: the same at all x86 levels, on vf_from_f16 and vf_from_i8. */
#ifndef EL_SIMD_X86_KV_H
#define EL_SIMD_X86_KV_H

EL_INLINE __m128i load_16_bytes(const void *p) { return _mm_loadu_si128((const __m128i *)p); }

EL_INLINE vf16 vf_load_i8(const void *p) { return vf_from_i8(load_16_bytes(p)); }

/* Nibbles of 16 bytes less 8: the low ones (shift 0) or the high ones (shift 4). */
EL_INLINE vf16 vf_load_nibbles(const uint8_t *p, int32_t shift) {
    const __m128i bytes = _mm_srl_epi16(load_16_bytes(p), _mm_cvtsi32_si128(shift));
    return vf_from_i8(_mm_sub_epi8(_mm_and_si128(bytes, _mm_set1_epi8(15)), _mm_set1_epi8(8)));
}

EL_INLINE vf16 vf_load_e5m2(const uint8_t *p) {
    return vf_from_f16(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_16_bytes(p)), 8));
}

/* As el_e4m3_to_f32 in kv.h. */
EL_INLINE vf16 vf_load_e4m3(const uint8_t *p) {
    const __m256i b = _mm256_cvtepu8_epi16(load_16_bytes(p)), low = _mm256_set1_epi16(0x7f);
    const __m256i rest = _mm256_and_si256(b, low), sign = _mm256_slli_epi16(_mm256_andnot_si256(low, b), 8);
    const __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(rest, low), _mm256_set1_epi16(0x7e00));
    const __m256i half = _mm256_or_si256(_mm256_or_si256(sign, nan), _mm256_slli_epi16(rest, 7));
    return vf_mul(vf_from_f16(half), vf_set1(256.0f));
}

#endif
