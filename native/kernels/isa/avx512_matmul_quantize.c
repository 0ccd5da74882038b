/* AVX-512 quantisation of activations: A16 (kernels.h). A256 is that of level avx2, whose blocks are long enough.
 *
 * 16 blocks at a time, so that their scales share a division; maxima and sums of 16 registers become one register by
 * exchanging parts. vcvtps2dq rounds as rintf does, and no clamp is needed: avx2_matmul_quantize.c. */
#include "simd_avx512.h"

#include "../kernels.h"

enum { ABS_MASK = 0x7fffffff, INF_BITS = 0x7f800000, TINY_BITS = 0x03800000 /* 2^-120 */ };

/* The larger of dwords as signed, or their sum. */
EL_INLINE __m512i join(const int add, __m512i a, __m512i b) {
    return add ? _mm512_add_epi32(a, b) : _mm512_max_epi32(a, b);
}

/* Of four registers, per 128 bits: dword j is what joins the four of register j. */
EL_INLINE __m512i join_dwords(const int add, const __m512i *v) {
    const __m512i a = join(add, _mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    const __m512i b = join(add, _mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    return join(add, _mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Of four registers: dword 4 i + j joins dword j of the four 128-bit lanes of register i. */
EL_INLINE __m512i join_lanes(const int add, const __m512i *v) {
    const __m512i a =
        join(add, _mm512_shuffle_i32x4(v[0], v[1], 0x44), _mm512_shuffle_i32x4(v[0], v[1], 0xee));
    const __m512i b =
        join(add, _mm512_shuffle_i32x4(v[2], v[3], 0x44), _mm512_shuffle_i32x4(v[2], v[3], 0xee));
    return join(add, _mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* Bytes of four registers of dwords within int8, per 128 bits: dword j is of register j. */
EL_INLINE __m512i pack_quads(const __m512i *v) {
    return _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
}

/* n blocks (an even number of at most 4 * quads): q, d, s and sum of each. Returns the blocks that are not finite, by bits. */
EL_INLINE uint32_t quantize_blocks(const int quads, const float *x, int32_t n, int8_t *q, float *d, float *s,
                                   int32_t *sum) {
    const __m512i zero = _mm512_setzero_si512(), mask = _mm512_set1_epi32(ABS_MASK);
    const __m512i rows =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15); /* of pack_quads */
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    __m512i part[4] = {zero, zero, zero, zero};
    EL_UNROLL
    for (int i = 0; i < quads; i++) {
        __m512i v[4];
        EL_UNROLL
        for (int j = 0; j < 4; j++) {
            v[j] = 4 * i + j < n ? _mm512_and_si512(_mm512_loadu_si512(x + 64 * i + 16 * j), mask) : zero;
        }
        part[i] = join_dwords(0, v);
    }
    const __m512i amax = join_lanes(0, part);
    const vm16 bad = _mm512_cmpgt_epi32_mask(amax, _mm512_set1_epi32(INF_BITS - 1));
    const vm16 tiny = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(TINY_BITS), amax);
    const vm16 usable = (vm16) ~(bad | tiny);
    const vf16 a = vf_bits(amax), n127 = vf_set1(127);
    const vf16 vd = vf_keep(usable, vf_div(a, n127));
    float id[16];
    vf_store(id, vf_keep(usable, vf_div(n127, a)));
    EL_UNROLL
    for (int i = 0; i < quads; i++) {
        __m512i v[4];
        EL_UNROLL
        for (int j = 0; j < 4; j++) {
            const int block = 4 * i + j;
            v[j] = block < n ? vf_to_int(vf_mul(vf_load(x + 16 * block), vf_set1(id[block]))) : zero;
            if ((bad >> block) & 1) v[j] = zero; /* 0 * inf would be NaN */
        }
        const __m512i bytes = pack_quads(v);
        const __m512i in_order = _mm512_permutexvar_epi32(rows, bytes);
        if (n >= 4 * i + 4) {
            _mm512_storeu_si512(q + 64 * i, in_order);
        } else {
            memcpy(q + 64 * i, &in_order, 32);
        }
        part[i] = vi_dot(zero, _mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes), _mm512_set1_epi16(1));
    }
    const __m512i sums = join_lanes(1, part);
    const vf16 f = _mm512_cvtepi32_ps(sums);
    const vf16 vs = vf_fma(_mm512_permutexvar_ps(odd, f), _mm512_permutexvar_ps(odd, vd),
                           _mm512_permutexvar_ps(even, vf_mul(f, vd)));
    vf_store_n(d, vd, n);
    vf_store_n((float *)(void *)sum, vf_bits(sums), n);
    vf_store_n(s, vs, n / 2);
    return bad;
}

static int32_t quantize_a16(const float *x, int32_t k, void *row) {
    int8_t *q = row;
    float *d = (float *)((char *)row + el_act_q_bytes(k)), *s = d + k / 16;
    int32_t *sum = (int32_t *)(void *)(s + k / 32);
    uint32_t bad = 0;
    int32_t left = k / 16;
    for (; left >= 16; left -= 16, x += 256, q += 256, d += 16, s += 8, sum += 16) {
        bad |= quantize_blocks(4, x, 16, q, d, s, sum);
    }
    for (; left > 0; left -= 4, x += 64, q += 64, d += 4, s += 2, sum += 4) {
        bad |= quantize_blocks(1, x, left < 4 ? left : 4, q, d, s, sum);
    }
    return bad != 0;
}

void el_avx512_matmul_quantize(el_kernels *table) { table->quantize[EL_ACT_A16] = quantize_a16; }
