/* AVX2 packing of IQ1 to IQ3 into panels: what codebooks.c does for a row, for 8 rows in the dwords of a vector. */
#include "avx2_matmul.h"

#include "../codebooks.inl"

/* The 8 rows' dwords at `offset`, `offset` + 4, ..: 4 n of them, 16 n bytes of a block. */
EL_INLINE void load_dwords(const el_pack_rows *r, const int h, size_t offset, __m256i *to, const int n) {
    EL_UNROLL
    for (int i = 0; i < n; i++) el_transpose_8(r, 8 * h, offset + 16 * (size_t)i, to + 4 * i);
}

EL_INLINE __m256i and_u32(__m256i v, uint32_t mask) {
    return _mm256_and_si256(v, _mm256_set1_epi32((int32_t)mask));
}

EL_INLINE __m256i byte_of(__m256i v, const int i) { return and_u32(_mm256_srli_epi32(v, 8 * i), 255); }

/* v shifted left by n, right where n is negative. */
EL_INLINE __m256i shifted(__m256i v, const int n) {
    return n < 0 ? _mm256_srli_epi32(v, -n) : _mm256_slli_epi32(v, n);
}

/* The entries of a book at byte i of v, with the bits of `top`; in the low words, the high ones are anything. */
EL_INLINE __m256i entries(const uint16_t *book, __m256i v, const int i, __m256i top) {
    const __m256i index = _mm256_or_si256(byte_of(v, i), top);
    return _mm256_i32gather_epi32((const int *)(const void *)book, index, 2);
}

/* Exchange the bits of v under `mask` with those n above. */
EL_INLINE __m256i exchange(__m256i v, const int n, uint32_t mask) {
    const __m256i differ = and_u32(_mm256_xor_si256(v, _mm256_srli_epi32(v, n)), mask);
    return _mm256_xor_si256(v, _mm256_xor_si256(differ, _mm256_slli_epi32(differ, n)));
}

/* The nibbles of two entries as bytes, b's on top of a's. */
EL_INLINE __m256i bytes_of(__m256i a, __m256i b) {
    const __m256i by_pair = _mm256_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15, /* */
                                             0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    const __m256i both = _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
    return exchange(_mm256_shuffle_epi8(both, by_pair), 4, 0x00f000f0);
}

/* The signs of 32 weights, a bit each, as a line of bits: bit 4 h + 2 i + j of byte 2 k + l becomes bit 4 k + 2 l + h of byte
 * 2 i + j. */
EL_INLINE __m256i line_of_signs(__m256i v) {
    const __m256i even = _mm256_setr_epi8(0, 1, 4, 5, 16, 17, 20, 21, 64, 65, 68, 69, 80, 81, 84, 85, /* */
                                          0, 1, 4, 5, 16, 17, 20, 21, 64, 65, 68, 69, 80, 81, 84, 85);
    v = exchange(exchange(v, 14, 0x0000cccc), 7, 0x00aa00aa);
    const __m256i low = _mm256_shuffle_epi8(even, el_low_nibbles(v));
    const __m256i high = _mm256_shuffle_epi8(even, el_high_nibbles(v));
    return _mm256_or_si256(low, _mm256_add_epi8(high, high));
}

/* Four bytes of 7 signs each get an eighth, so that the number of set bits is even. */
EL_INLINE __m256i even_signs(__m256i sevens) {
    __m256i parity = _mm256_xor_si256(sevens, _mm256_srli_epi32(sevens, 4));
    parity = _mm256_xor_si256(parity, _mm256_srli_epi32(parity, 2));
    parity = _mm256_xor_si256(parity, _mm256_srli_epi32(parity, 1));
    return _mm256_or_si256(sevens, _mm256_slli_epi32(and_u32(parity, 0x01010101), 7));
}

/* 28 bits as a line of signs: four times 7 and their eighth. */
EL_INLINE __m256i line_of_sevens(__m256i v) {
    v = _mm256_or_si256(and_u32(v, 0x3fff), _mm256_slli_epi32(and_u32(v, 0xfffc000), 2));
    v = _mm256_or_si256(and_u32(v, 0x007f007f), _mm256_slli_epi32(and_u32(v, 0x3f803f80), 1));
    return line_of_signs(even_signs(v));
}

/* 2 s + 1 of four bytes. */
EL_INLINE __m256i odd(__m256i s) { return _mm256_or_si256(_mm256_add_epi8(s, s), _mm256_set1_epi8(1)); }

/* 2 s + 1 of the nibbles of bytes i and i + 1. */
EL_INLINE __m256i odd_nibbles(__m256i v, const int i) {
    const __m256i twice = _mm256_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13, /* */
                                           0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13);
    v = _mm256_shuffle_epi8(_mm256_srli_epi32(v, 8 * i), twice);
    return odd(_mm256_or_si256(and_u32(v, 0x000f000f), and_u32(_mm256_srli_epi32(v, 4), 0x0f000f00)));
}

/* 8 rows of a block. */
typedef struct rows_of_8 {
    __m256i there;     /* all bits of the rows that there are */
    uint8_t *quants;   /* their half of the lines */
    __m256i scales[4]; /* out: byte i of scales[q] that of group 4 q + i */
    __m256i d;         /* out: in the low words */
} rows_of_8;

EL_INLINE void put_line(const rows_of_8 *to, const int line, __m256i v) {
    el_store(to->quants + 64 * line, _mm256_and_si256(v, to->there));
}

/* 32-block j of three bits. */
EL_INLINE void put_three_bits(const rows_of_8 *to, const int j, const __m256i e[4], __m256i third) {
    put_line(to, 3 * j, bytes_of(e[0], e[1]));
    put_line(to, 3 * j + 1, bytes_of(e[2], e[3]));
    put_line(to, 3 * j + 2, third);
}

/* Line t (0..3) of 32-block j of nibbles. */
EL_INLINE void put_nibbles(const rows_of_8 *to, const int j, const int t, __m256i e, __m256i e4,
                           __m256i signs) {
    const __m256i sign = and_u32(shifted(signs, 3 - t), 0x88888888);
    put_line(to, 4 * j + t, _mm256_or_si256(bytes_of(e, e4), sign));
}

EL_INLINE void rows_iq2_xxs(const el_pack_rows *r, const int h, rows_of_8 *to) {
    const __m256i none = _mm256_setzero_si256();
    __m256i q[16];
    to->d = el_gather_8(r, 8 * h, 0);
    load_dwords(r, h, 2, q, 4);
    EL_UNROLL
    for (int j = 0; j < 8; j++) {
        __m256i e[4];
        EL_UNROLL
        for (int i = 0; i < 4; i++) e[i] = entries(IQ2_XXS_BOOK, q[2 * j], i, none);
        put_three_bits(to, j, e, line_of_sevens(q[2 * j + 1]));
    }
    EL_UNROLL
    for (int j = 0; j < 4; j++) { /* one scale for two groups */
        const __m256i a = _mm256_srli_epi32(q[4 * j + 1], 28), b = _mm256_srli_epi32(q[4 * j + 3], 28);
        const __m256i both = _mm256_or_si256(a, _mm256_slli_epi32(b, 16));
        to->scales[j] = odd(_mm256_or_si256(both, _mm256_slli_epi32(both, 8)));
    }
}

EL_INLINE void rows_iq2_xs(const el_pack_rows *r, const int h, rows_of_8 *to) {
    __m256i q[16];
    to->d = el_gather_8(r, 8 * h, 0);
    load_dwords(r, h, 2, q, 4);
    EL_UNROLL
    for (int j = 0; j < 8; j++) { /* words: 9 bits of index, 7 signs */
        const __m256i a = q[2 * j], b = q[2 * j + 1];
        const __m256i sevens = _mm256_packus_epi16(and_u32(_mm256_srli_epi32(a, 9), 0x007f007f),
                                                   and_u32(_mm256_srli_epi32(b, 9), 0x007f007f));
        const __m256i pairs =
            _mm256_unpacklo_epi16(sevens, _mm256_unpackhi_epi64(sevens, sevens)); /* by row */
        const __m256i e[4] = {
            entries(IQ2_XS_BOOK, a, 0, and_u32(a, 256)),
            entries(IQ2_XS_BOOK, a, 2, and_u32(_mm256_srli_epi32(a, 16), 256)),
            entries(IQ2_XS_BOOK, b, 0, and_u32(b, 256)),
            entries(IQ2_XS_BOOK, b, 2, and_u32(_mm256_srli_epi32(b, 16), 256)),
        };
        put_three_bits(to, j, e, line_of_signs(even_signs(pairs)));
    }
    EL_UNROLL
    for (int j = 0; j < 4; j++)
        to->scales[j] = odd_nibbles(el_gather_8(r, 8 * h, 66 + 4 * (size_t)(j / 2)), 2 * (j % 2));
}

EL_INLINE void rows_iq2_s(const el_pack_rows *r, const int h, rows_of_8 *to) {
    __m256i q[8], signs[8], rest[4]; /* rest: 8 bytes of top bits, 8 of scales */
    to->d = el_gather_8(r, 8 * h, 0);
    load_dwords(r, h, 2, q, 2);
    load_dwords(r, h, 34, signs, 2);
    load_dwords(r, h, 66, rest, 1);
    EL_UNROLL
    for (int j = 0; j < 8; j++) {
        const __m256i top = byte_of(rest[j / 4], j % 4);
        __m256i e[4];
        EL_UNROLL
        for (int i = 0; i < 4; i++)
            e[i] = entries(IQ2_S_BOOK, q[j], i, and_u32(shifted(top, 8 - 2 * i), 0x300));
        put_three_bits(to, j, e, line_of_signs(signs[j]));
    }
    EL_UNROLL
    for (int j = 0; j < 4; j++) to->scales[j] = odd_nibbles(rest[2 + j / 2], 2 * (j % 2));
}

EL_INLINE void rows_iq1_s(const el_pack_rows *r, const int h, rows_of_8 *to) {
    __m256i q[8], rest[4]; /* a word for each 32-block */
    to->d = el_gather_8(r, 8 * h, 0);
    load_dwords(r, h, 2, q, 2);
    load_dwords(r, h, 34, rest, 1);
    EL_UNROLL
    for (int j = 0; j < 8; j++) {
        const __m256i word = _mm256_slli_epi32(rest[j / 2], j % 2 ? 0 : 16); /* in the high half */
        __m256i e[4];
        EL_UNROLL
        for (int i = 0; i < 4; i++)
            e[i] = entries(IQ1_S_BOOK, q[j], i, and_u32(shifted(word, -8 - 3 * i), 0x700));
        put_three_bits(to, j, e, _mm256_srai_epi32(word, 31));
    }
    EL_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m256i s = and_u32(_mm256_srli_epi32(rest[j], 12), 0x00070007);
        to->scales[j] = odd(_mm256_or_si256(s, _mm256_slli_epi32(s, 8)));
    }
}

EL_INLINE void rows_iq1_m(const el_pack_rows *r, const int h, rows_of_8 *to) {
    __m256i q[8], rest[4]; /* a nibble for each entry */
    const __m256i s[2] = {el_gather_8(r, 8 * h, 48), el_gather_8(r, 8 * h, 52)};
    load_dwords(r, h, 0, q, 2);
    load_dwords(r, h, 32, rest, 1);
    EL_UNROLL
    for (int j = 0; j < 8; j++) {
        const __m256i word = _mm256_slli_epi32(rest[j / 2], j % 2 ? 0 : 16); /* in the high half */
        __m256i e[4], minus = _mm256_setzero_si256();
        EL_UNROLL
        for (int i = 0; i < 4; i++) {
            const __m256i is_minus = _mm256_srai_epi32(_mm256_slli_epi32(word, 12 - 4 * i), 31);
            e[i] = entries(IQ1_S_BOOK, q[j], i, and_u32(shifted(word, -8 - 4 * i), 0x700));
            minus = _mm256_or_si256(minus, and_u32(is_minus, 0x03030303u << (2 * i)));
        }
        put_three_bits(to, j, e, minus);
    }
    EL_UNROLL
    for (int j = 0; j < 4; j++) { /* four times 3 bits */
        const __m256i w = _mm256_srli_epi32(s[j / 2], 16 * (j % 2));
        const __m256i low = _mm256_or_si256(and_u32(w, 0x7), and_u32(shifted(w, 5), 0x700));
        const __m256i high =
            _mm256_or_si256(and_u32(shifted(w, 10), 0x70000), and_u32(shifted(w, 15), 0x7000000));
        to->scales[j] = odd(_mm256_or_si256(low, high));
    }
    const __m256i low = _mm256_or_si256(and_u32(shifted(s[0], -12), 0xf), and_u32(shifted(s[0], -24), 0xf0));
    const __m256i high =
        _mm256_or_si256(and_u32(shifted(s[1], -4), 0xf00), and_u32(shifted(s[1], -16), 0xf000));
    to->d = _mm256_or_si256(low, high);
}

EL_INLINE void rows_iq3_xxs(const el_pack_rows *r, const int h, rows_of_8 *to) {
    const __m256i none = _mm256_setzero_si256();
    __m256i q[16], rest[8];
    to->d = el_gather_8(r, 8 * h, 0);
    load_dwords(r, h, 2, q, 4);
    load_dwords(r, h, 66, rest, 2);
    EL_UNROLL
    for (int j = 0; j < 8; j++) {
        const __m256i signs = line_of_sevens(rest[j]);
        EL_UNROLL
        for (int t = 0; t < 4; t++)
            put_nibbles(to, j, t, entries(IQ3_XXS_BOOK, q[2 * j], t, none),
                        entries(IQ3_XXS_BOOK, q[2 * j + 1], t, none), signs);
    }
    EL_UNROLL
    for (int j = 0; j < 2; j++) {
        __m256i s = none;
        EL_UNROLL
        for (int i = 0; i < 4; i++)
            s = _mm256_or_si256(s, _mm256_slli_epi32(_mm256_srli_epi32(rest[4 * j + i], 28), 8 * i));
        to->scales[j] = odd(s);
    }
}

EL_INLINE void rows_iq3_s(const el_pack_rows *r, const int h, rows_of_8 *to) {
    const __m256i top[2] = {el_gather_8(r, 8 * h, 66), el_gather_8(r, 8 * h, 70)};
    __m256i q[16], signs[8];
    to->d = el_gather_8(r, 8 * h, 0);
    load_dwords(r, h, 2, q, 4);
    load_dwords(r, h, 74, signs, 2);
    EL_UNROLL
    for (int j = 0; j < 8; j++) {
        const __m256i bits = byte_of(top[j / 4], j % 4), line = line_of_signs(signs[j]);
        EL_UNROLL
        for (int t = 0; t < 4; t++)
            put_nibbles(to, j, t, entries(IQ3_S_BOOK, q[2 * j], t, and_u32(shifted(bits, 8 - t), 256)),
                        entries(IQ3_S_BOOK, q[2 * j + 1], t, and_u32(shifted(bits, 4 - t), 256)), line);
    }
    const __m256i s = el_gather_8(r, 8 * h, 106);
    to->scales[0] = odd_nibbles(s, 0);
    to->scales[1] = odd_nibbles(s, 2);
}

/* ---- entries ---------------------------------------------------------------------------------------------------- */

typedef void rows_fn(const el_pack_rows *r, const int h, rows_of_8 *to);

/* n_scales: vectors of them. */
EL_INLINE void pack(rows_fn *read, size_t row_bytes, int32_t quant_bytes, const int n_scales,
                    const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const __m256i row = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const int32_t extra_bytes = 64 * n_scales + 32;
    el_pack_rows r;
    el_pack_begin(&r, rows, row_stride, n_rows, row_bytes);
    uint8_t *quants = panel, *extras = quants + (size_t)k / 256 * (size_t)quant_bytes;
    for (int32_t b = 0; b < k / 256; b++, quants += quant_bytes, extras += extra_bytes, el_pack_next(&r)) {
        rows_of_8 half[2];
        for (int h = 0; h < 2; h++) {
            half[h].there = _mm256_cmpgt_epi32(_mm256_set1_epi32(n_rows - 8 * h), row);
            half[h].quants = quants + 32 * h;
            read(&r, h, &half[h]);
        }
        EL_UNROLL
        for (int i = 0; i < n_scales; i++)
            el_store_bytes_by_row(_mm256_and_si256(half[0].scales[i], half[0].there),
                                  _mm256_and_si256(half[1].scales[i], half[1].there), extras + 64 * i);
        el_store(extras + 64 * n_scales, el_low_words(half[0].d, half[1].d));
    }
    el_pack_end(panel, (size_t)k / 256 * (size_t)(quant_bytes + extra_bytes));
}

#define CODEBOOK_TYPE(name, row_bytes, quant_bytes, n_scales)                                              \
    static void pack_##name(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) { \
        pack(rows_##name, row_bytes, quant_bytes, n_scales, rows, row_stride, n_rows, k, panel);           \
    }

CODEBOOK_TYPE(iq1_s, sizeof(el_block_iq1_s), 1536, 4)
CODEBOOK_TYPE(iq1_m, sizeof(el_block_iq1_m), 1536, 4)
CODEBOOK_TYPE(iq2_xxs, sizeof(el_block_iq2_xxs), 1536, 4)
CODEBOOK_TYPE(iq2_xs, sizeof(el_block_iq2_xs), 1536, 4)
CODEBOOK_TYPE(iq2_s, sizeof(el_block_iq2_s), 1536, 4)
CODEBOOK_TYPE(iq3_xxs, sizeof(el_block_iq3_xxs), 2048, 2)
CODEBOOK_TYPE(iq3_s, sizeof(el_block_iq3_s), 2048, 2)

void el_avx2_matmul_codebooks_pack(el_kernels *table) {
    table->pack[EL_IQ1_S] = pack_iq1_s;
    table->pack[EL_IQ1_M] = pack_iq1_m;
    table->pack[EL_IQ2_XXS] = pack_iq2_xxs;
    table->pack[EL_IQ2_XS] = pack_iq2_xs;
    table->pack[EL_IQ2_S] = pack_iq2_s;
    table->pack[EL_IQ3_XXS] = pack_iq3_xxs;
    table->pack[EL_IQ3_S] = pack_iq3_s;
}
