/* AVX2 matmul of the 32-block types: mm is avx2_matmul_legacy.inl, pack is here. */
#include "avx2_matmul.h"

#include "avx2_matmul_legacy.inl"

/* ---- pack -------------------------------------------------------------------------------------------------------
 * File blocks: f16 d; f16 m where there are minima; u32 of fifth bits in Q5_0 and Q5_1; i8 q[32] in Q8_0, u8 qs[16] in the
 * others. Byte j of qs holds weight j (low nibble) and j + 16: dword t of qs is what row t of the tile wants. */
static void pack_q8_0(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 34);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 32 * 512;
    for (int32_t b = 0; b < k / 32; b++, quants += 512, extras += 32, el_pack_next(&r)) {
        el_transpose_store(&r, 2, quants);
        el_transpose_store(&r, 18, quants + 256);
        el_store(extras, el_low_words(el_gather_8(&r, 0, 0), el_gather_8(&r, 8, 0)));
    }
    el_pack_end(panel, (size_t)k / 32 * 544);
}

/* Exchange, in every dword, the bits under `mask` with those `shift` above them. */
#define SWAP_BITS(v, shift, mask)                                                                        \
    do {                                                                                                 \
        const __m256i swap_ =                                                                            \
            _mm256_and_si256(_mm256_xor_si256(_mm256_srli_epi32(v, shift), v), _mm256_set1_epi32(mask)); \
        v = _mm256_xor_si256(v, _mm256_xor_si256(swap_, _mm256_slli_epi32(swap_, shift)));               \
    } while (0)

/* Bit 4s + i of each dword to bit 8i + s. As bit numbers s2 s1 s0 i1 i0 -> i1 i0 s2 s1 s0: four exchanges. */
EL_INLINE __m256i spread_bits(__m256i v) {
    SWAP_BITS(v, 15, 0x0000aaaa); /* s2 with i0: s2 s1 s0 i1 i0 -> i0 s1 s0 i1 s2 */
    SWAP_BITS(v, 14, 0x0000cccc); /* i0 with i1: -> i1 s1 s0 i0 s2 */
    SWAP_BITS(v, 6, 0x00cc00cc);  /* s1 with i0: -> i1 i0 s0 s1 s2 */
    SWAP_BITS(v, 3, 0x0a0a0a0a);  /* s0 with s2: -> i1 i0 s2 s1 s0 */
    return v;
}

/* The types of nibbles. */
EL_INLINE void pack_nibbles(const int type, const void *rows, size_t row_stride, int32_t n_rows, int32_t k,
                            void *panel) {
    const size_t scales = has_min(type) ? 4 : 2, fifth = has_fifth(type) ? 4 : 0;
    const int32_t n_blocks = k / 32, to_quants = quant_bytes(type), to_extras = extra_bytes(type);
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, scales + fifth + 16);
    uint8_t *quants = panel, *extras = quants + (size_t)n_blocks * (size_t)to_quants;
    for (int32_t b = 0; b < n_blocks; b++, quants += to_quants, extras += to_extras, el_pack_next(&r)) {
        el_transpose_store(&r, scales + fifth, quants);
        if (fifth) {
            el_store(quants + 256, spread_bits(el_gather_8(&r, 0, scales)));
            el_store(quants + 288, spread_bits(el_gather_8(&r, 8, scales)));
        }
        const __m256i low = el_gather_8(&r, 0, 0), high = el_gather_8(&r, 8, 0);
        el_store(extras, el_low_words(low, high));
        if (has_min(type)) el_store(extras + 32, el_high_words(low, high));
    }
    el_pack_end(panel, (size_t)n_blocks * (size_t)(to_quants + to_extras));
}

#define PACK_NIBBLES(name, type)                                                                           \
    static void pack_##name(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) { \
        pack_nibbles(type, rows, row_stride, n_rows, k, panel);                                            \
    }

PACK_NIBBLES(q4_0, EL_Q4_0)
PACK_NIBBLES(q4_1, EL_Q4_1)
PACK_NIBBLES(q5_0, EL_Q5_0)
PACK_NIBBLES(q5_1, EL_Q5_1)

/* u8 e, u8 qs[16]. */
static void pack_mxfp4(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, 17);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 32 * 256;
    for (int32_t b = 0; b < k / 32; b++, quants += 256, extras += 16, el_pack_next(&r)) {
        el_transpose_store(&r, 1, quants);
        for (int i = 0; i < EL_TILE_ROWS; i++) extras[i] = *r.p[i];
    }
    el_pack_end(panel, (size_t)k / 32 * 272);
}

void el_avx2_matmul_legacy(el_kernels *table) {
    set_legacy(table);
    table->pack[EL_Q8_0] = pack_q8_0;
    table->pack[EL_Q4_0] = pack_q4_0;
    table->pack[EL_Q4_1] = pack_q4_1;
    table->pack[EL_Q5_0] = pack_q5_0;
    table->pack[EL_Q5_1] = pack_q5_1;
    table->pack[EL_IQ4_NL] = pack_q4_0; /* the same bytes */
    table->pack[EL_MXFP4] = pack_mxfp4;
}
