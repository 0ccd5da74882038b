/* AVX2 quantisation of activations: A16 and A256 (kernels.h).
 *
 * vcvtps2dq rounds as rintf does. No clamp is needed: |x| * (127 / amax) exceeds 127 by less than rounding to an
 * integer forgives. */
#include "avx2_matmul.h"

enum { ABS_MASK = 0x7fffffff, INF_BITS = 0x7f800000, TINY_BITS = 0x03800000 /* 2^-120 */ };

/* Maximum of the sign-cleared bits of 16 floats, per lane. */
EL_INLINE __m256i abs_max_16(const float *x) {
    const __m256i mask = _mm256_set1_epi32(ABS_MASK);
    return _mm256_max_epi32(_mm256_and_si256(el_load(x), mask), _mm256_and_si256(el_load(x + 8), mask));
}

/* Maximum of the sign-cleared bits of 32 floats, per lane. */
EL_INLINE __m256i abs_max_32(const float *x) { return _mm256_max_epi32(abs_max_16(x), abs_max_16(x + 16)); }

EL_INLINE int32_t max_of(__m256i v) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1)));
}

/* 32 values in order, each 16 with its own id. */
EL_INLINE __m256i round_32(const float *x, __m256 id0, __m256 id1) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), id0));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), id0));
    const __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 16), id1));
    const __m256i d = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 24), id1));
    const __m256i v = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Sums of 8 consecutive values, each + 1024, in the four qwords. */
EL_INLINE __m256i sums_of_8(__m256i q) {
    return _mm256_sad_epu8(_mm256_xor_si256(q, _mm256_set1_epi8(-128)), _mm256_setzero_si256());
}

/* Scales of 8 blocks from their maxima: d and 1/d, 0 for tiny and non-finite blocks. Returns the non-finite lanes. */
EL_INLINE int32_t scales(__m256i amax, __m256 *d, __m256 *id) {
    const __m256i bad = _mm256_cmpgt_epi32(amax, _mm256_set1_epi32(INF_BITS - 1));
    const __m256i none = _mm256_or_si256(bad, _mm256_cmpgt_epi32(_mm256_set1_epi32(TINY_BITS), amax));
    const __m256 a = _mm256_castsi256_ps(amax), n127 = _mm256_set1_ps(127);
    *d = _mm256_andnot_ps(_mm256_castsi256_ps(none), _mm256_div_ps(a, n127));
    *id = _mm256_andnot_ps(_mm256_castsi256_ps(none), _mm256_div_ps(n127, a));
    return _mm256_movemask_ps(_mm256_castsi256_ps(bad));
}

static int32_t quantize_a16(const float *x, int32_t k, void *row) {
    int8_t *q = row;
    float *to_d = (float *)((char *)row + el_act_q_bytes(k)), *to_s = to_d + k / 16;
    int32_t *to_sum = (int32_t *)(to_s + k / 32);
    int32_t any_bad = 0;
    for (int32_t j0 = 0; j0 < k / 16; j0 += 8, x += 128, q += 128) { /* 8 blocks of 16, in pairs */
        const int32_t n = k / 16 - j0 < 8 ? k / 16 - j0 : 8;
        int32_t amax[8] = {0}, sums[8] = {0};
        float d[8], id[8];
        for (int32_t j = 0; j < n; j++) amax[j] = max_of(abs_max_16(x + 16 * j));
        __m256 vd, vid;
        const int32_t bad = scales(el_load(amax), &vd, &vid);
        any_bad |= bad;
        _mm256_storeu_ps(d, vd);
        _mm256_storeu_ps(id, vid);
        for (int32_t j = 0; j < n; j += 2) {
            __m256i v = round_32(x + 16 * j, _mm256_broadcast_ss(id + j), _mm256_broadcast_ss(id + j + 1));
            if ((bad >> j) & 3) { /* 0 * inf would be NaN */
                const __m128i none = _mm_setzero_si128();
                if ((bad >> j) & 1) v = _mm256_inserti128_si256(v, none, 0);
                if ((bad >> j) & 2) v = _mm256_inserti128_si256(v, none, 1);
            }
            el_store(q + 16 * j, v);
            const __m256i p = sums_of_8(v);
            const __m256i both = _mm256_add_epi64(p, _mm256_unpackhi_epi64(p, p));
            sums[j] = _mm_cvtsi128_si32(_mm256_castsi256_si128(both)) - 2048;
            sums[j + 1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(both, 1)) - 2048;
        }
        memcpy(to_d + j0, d, (size_t)n * 4);
        memcpy(to_sum + j0, sums, (size_t)n * 4);
        float s[8];
        _mm256_storeu_ps(s, _mm256_mul_ps(vd, _mm256_cvtepi32_ps(el_load(sums))));
        for (int32_t j = 0; j < n; j += 2) {
            const __m128 s1 = _mm_set_ss((float)sums[j + 1]);
            _mm_store_ss(to_s + (j0 + j) / 2, _mm_fmadd_ss(s1, _mm_load_ss(d + j + 1), _mm_load_ss(s + j)));
        }
    }
    return any_bad != 0;
}

static int32_t quantize_a256(const float *x, int32_t k, void *row) {
    int8_t *q = row;
    float *to_d = (float *)((char *)row + el_act_q_bytes(k));
    int16_t *sum16 = (int16_t *)(to_d + k / 256), *sum32 = sum16 + k / 16;
    int32_t any_bad = 0;
    for (int32_t b = 0; b < k / 256; b++, x += 256, q += 256, sum16 += 16, sum32 += 8) {
        __m256i m = abs_max_32(x);
        for (int32_t i = 1; i < 8; i++) m = _mm256_max_epi32(m, abs_max_32(x + 32 * i));
        __m256 d, id;
        if (scales(_mm256_set1_epi32(max_of(m)), &d, &id)) {
            any_bad = 1;
            memset(q, 0, 256);
            memset(sum16, 0, 32);
            memset(sum32, 0, 16);
            to_d[b] = 0;
            continue;
        }
        to_d[b] = _mm256_cvtss_f32(d);
        for (int32_t i = 0; i < 8; i += 4) { /* 4 blocks of 32 */
            __m256i p = _mm256_setzero_si256();
            EL_UNROLL
            for (int j = 0; j < 4; j++) { /* word j of a qword: 8-sums of block i + j */
                const __m256i v = round_32(x + 32 * (i + j), id, id);
                el_store(q + 32 * (i + j), v);
                p = _mm256_or_si256(p, _mm256_slli_epi64(sums_of_8(v), 16 * j));
            }
            p = _mm256_add_epi16(p, _mm256_shuffle_epi32(p, 0x4e)); /* lane l: 16-block l of the four */
            p = _mm256_sub_epi16(p, _mm256_set1_epi16(2048));
            const __m128i first = _mm256_castsi256_si128(p), second = _mm256_extracti128_si256(p, 1);
            _mm_storeu_si128((__m128i *)(sum16 + 2 * i), _mm_unpacklo_epi16(first, second));
            _mm_storel_epi64((__m128i *)(sum32 + i), _mm_add_epi16(first, second));
        }
    }
    return any_bad;
}

void el_avx2_matmul_quantize(el_kernels *table) {
    table->quantize[EL_ACT_A16] = quantize_a16;
    table->quantize[EL_ACT_A256] = quantize_a256;
}
