/* AVX-512 matmul, with and without VNNI, of the 32-block types: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL,
 * MXFP4. Formats and formulas: kernels.h.
 *
 * One body serves them all; `type` is a constant wherever it is inlined. A "part" is 16 weights of a block: steps 0..3 or
 * 4..7, in the packed nibbles the low or the high ones. Unsigned weights: Q8_0 and IQ4_NL w + 128 (without VNNI
 * they stay signed), Q5_0 w + 16, MXFP4 w + 12, Q4_0 w + 8, the others w; what that adds leaves through the activation sum, with which the integer sum
 * starts.
 *
 * With VNNI the high nibbles of Q4_0 and Q4_1 are not shifted: their sum is 16 times too large, and starts with the bits of a
 * float whose last bit counts 1/16. Read as a float, it is too large by that float, exactly: a subtraction takes the
 * place of the conversion. */

/* What distinguishes the types. */
EL_INLINE int has_min(const int type) { return type == EL_Q4_1 || type == EL_Q5_1; }
EL_INLINE int has_fifth(const int type) { return type == EL_Q5_0 || type == EL_Q5_1; }
EL_INLINE int32_t quant_bytes(const int type) { return type == EL_Q8_0 ? 512 : has_fifth(type) ? 320 : 256; }
EL_INLINE int is_8_bit(const int type) { return type == EL_Q8_0 || type == EL_IQ4_NL; }
EL_INLINE int32_t extra_bytes(const int type) { return has_min(type) ? 64 : type == EL_MXFP4 ? 16 : 32; }

EL_INLINE int32_t zero_point(const int type) {
    if (is_8_bit(type)) return EL_VNNI ? 128 : 0;
    return type == EL_Q5_0 ? 16 : type == EL_Q4_0 ? 8 : type == EL_MXFP4 ? 12 : 0;
}

/* The sum of this part is read as a float, UNSHIFTED too large. */
EL_INLINE int is_unshifted(const int type, const int part) {
    return EL_VNNI && part && (type == EL_Q4_0 || type == EL_Q4_1);
}
enum { UNSHIFTED_BITS = 0x49400000 };
static const float UNSHIFTED = 786432.0f; /* 1.5 * 2^19; the sums are within 2^18 */

/* Largest weight, -1 for signed ones. */
EL_INLINE int top_of(const int type) {
    if (is_8_bit(type)) return EL_VNNI ? 255 : -1;
    return has_fifth(type) ? 31 : type == EL_MXFP4 ? 24 : 15;
}

/* Step i of a part. */
EL_INLINE __m512i weights(const int type, const uint8_t *quants, const int part, const int i) {
    if (type == EL_Q8_0) {
        const __m512i v = el_load(quants + 256 * part + 64 * i);
        return EL_VNNI ? _mm512_xor_si512(v, _mm512_set1_epi8(-128)) : v;
    }
    const __m512i v = el_load(quants + 64 * i);
    if (is_unshifted(type, part)) return _mm512_and_si512(v, _mm512_set1_epi8((char)0xf0));
    const __m512i w = part ? el_high_nibbles(v) : el_low_nibbles(v);
    if (type == EL_IQ4_NL) return el_values_of(EL_IQ4_VALUES, zero_point(type), w);
    if (type == EL_MXFP4) return el_values_of(EL_MXFP4_VALUES, zero_point(type), w);
    return has_fifth(type) ? _mm512_or_si512(w, el_bit(el_load(quants + 256), 4 * part + i, 4)) : w;
}

/* sum[c] = sum w q over a part of block b. */
EL_INLINE void dot(const int type, const uint8_t *quants, const void *const *x, int32_t k, int32_t b,
                   const int part, __m512i *sum, const int nc) {
    const int top = top_of(type), zero = zero_point(type), unshifted = is_unshifted(type, part);
    __m512i start[EL_GROUP];
    EL_UNROLL
    for (int c = 0; c < nc; c++) {
        start[c] = el_times_plus(el_a16_sum(x[c], k)[2 * b + part], unshifted ? -16 * zero : -zero,
                                 unshifted ? UNSHIFTED_BITS : 0);
        sum[c] = el_dot_begin(top, 4, start[c]);
    }
    EL_UNROLL
    for (int i = 0; i < 4; i++) {
        const __m512i w = weights(type, quants, part, i);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            const int8_t *q = (const int8_t *)x[c] + 32 * b + 16 * part + 4 * i;
            sum[c] = el_dot4(top, 4, sum[c], w, el_broadcast4(q));
        }
    }
    EL_UNROLL
    for (int c = 0; c < nc; c++) sum[c] = el_dot_end(top, 4, sum[c], start[c]);
}

/* The scaled sum of a part, on top of the first part's. */
EL_INLINE __m512 scaled(const int type, __m512i sum, const void *x, int32_t k, int32_t b, const int part,
                        __m512 first) {
    const __m512 f = is_unshifted(type, part)
                         ? _mm512_sub_ps(_mm512_castsi512_ps(sum), _mm512_set1_ps(UNSHIFTED))
                         : _mm512_cvtepi32_ps(sum);
    const __m512 dx = _mm512_set1_ps(el_a16_d(x, k)[2 * b + part]);
    return part ? _mm512_fmadd_ps(f, dx, first) : _mm512_mul_ps(f, dx);
}

/* The chain of a column: both parts of block b. */
EL_INLINE __m512 chain(const int type, __m512 v, const uint8_t *extras, const void *x, int32_t k, int32_t b,
                       __m512 acc) {
    acc = _mm512_fmadd_ps(
        v, type == EL_MXFP4 ? el_e8m0_half_16(_mm_loadu_si128((const __m128i *)extras)) : el_load_f16(extras),
        acc);
    if (has_min(type))
        acc = _mm512_fmadd_ps(el_load_f16(extras + 32), _mm512_set1_ps(el_a16_s(x, k)[b]), acc);
    return acc;
}

EL_INLINE void prefetch_extras(const int type, const uint8_t *extras, int32_t b) {
    if (b % (64 / extra_bytes(type)) == 0) el_prefetch(extras, 64);
}

EL_INLINE void tile(const int type, const uint8_t *quants, const uint8_t *extras, int32_t k, int32_t n_rows,
                    const void *const *x, float *const *y, size_t y_off, const int nc) {
    __m512 acc[EL_GROUP];
    el_clear(acc, nc);
    for (int32_t b = 0; b < k / 32; b++, quants += quant_bytes(type), extras += extra_bytes(type)) {
        el_prefetch(quants, quant_bytes(type));
        prefetch_extras(type, extras, b);
        __m512 v[EL_GROUP];
        el_clear(v, nc);
        EL_UNROLL
        for (int part = 0; part < 2; part++) {
            __m512i sum[EL_GROUP];
            dot(type, quants, x, k, b, part, sum, nc);
            EL_UNROLL
            for (int c = 0; c < nc; c++) v[c] = scaled(type, sum[c], x[c], k, b, part, v[c]);
        }
        EL_UNROLL
        for (int c = 0; c < nc; c++) acc[c] = chain(type, v[c], extras, x[c], k, b, acc[c]);
    }
    el_write_columns(acc, n_rows, y, y_off, nc);
}

EL_INLINE void streamed(const int type, const uint8_t *quants, const uint8_t *extras, int32_t k,
                        int32_t n_rows, const void *const *x, float *const *y, size_t y_off, void *scratch,
                        const int nc) {
    __m512i *sums = scratch; /* [block][part][c] */
    for (int32_t b = 0; b < k / 32; b++, quants += quant_bytes(type)) {
        el_prefetch(quants, quant_bytes(type));
        EL_UNROLL
        for (int part = 0; part < 2; part++, sums += nc) {
            __m512i sum[EL_STREAMED];
            dot(type, quants, x, k, b, part, sum, nc);
            EL_UNROLL
            for (int c = 0; c < nc; c++) _mm512_store_si512(sums + c, sum[c]);
        }
    }
    sums = scratch;
    __m512 acc[EL_STREAMED];
    el_clear(acc, nc);
    for (int32_t b = 0; b < k / 32; b++, sums += 2 * nc, extras += extra_bytes(type)) {
        prefetch_extras(type, extras, b);
        EL_UNROLL
        for (int c = 0; c < nc; c++) {
            __m512 v = scaled(type, _mm512_load_si512(sums + c), x[c], k, b, 0, _mm512_setzero_ps());
            v = scaled(type, _mm512_load_si512(sums + nc + c), x[c], k, b, 1, v);
            acc[c] = chain(type, v, extras, x[c], k, b, acc[c]);
        }
    }
    el_write_columns(acc, n_rows, y, y_off, nc);
}

#define LEGACY_TYPE(name, type, quant_bytes)                                                              \
    EL_INLINE void name##_tile(const el_values *values, const uint8_t *quants, const uint8_t *extras,     \
                               int32_t k, int32_t n_rows, const void *const *x, float *const *y,          \
                               size_t y_off, void *scratch, const int nc) {                               \
        (void)values;                                                                                     \
        (void)scratch;                                                                                    \
        tile(type, quants, extras, k, n_rows, x, y, y_off, nc);                                           \
    }                                                                                                     \
    EL_INLINE void name##_streamed(const el_values *values, const uint8_t *quants, const uint8_t *extras, \
                                   int32_t k, int32_t n_rows, const void *const *x, float *const *y,      \
                                   size_t y_off, void *scratch, const int nc) {                           \
        (void)values;                                                                                     \
        streamed(type, quants, extras, k, n_rows, x, y, y_off, scratch, nc);                              \
    }                                                                                                     \
    EL_MM_FUNCTION(name, NULL, 32, quant_bytes)

LEGACY_TYPE(q8_0, EL_Q8_0, 512)
LEGACY_TYPE(q4_0, EL_Q4_0, 256)
LEGACY_TYPE(q4_1, EL_Q4_1, 256)
LEGACY_TYPE(q5_0, EL_Q5_0, 320)
LEGACY_TYPE(q5_1, EL_Q5_1, 320)
LEGACY_TYPE(iq4_nl, EL_IQ4_NL, 256)
LEGACY_TYPE(mxfp4, EL_MXFP4, 256)

static void set_legacy(el_kernels *table) {
    table->mm[EL_Q8_0] = mm_q8_0;
    table->mm[EL_Q4_0] = mm_q4_0;
    table->mm[EL_Q4_1] = mm_q4_1;
    table->mm[EL_Q5_0] = mm_q5_0;
    table->mm[EL_Q5_1] = mm_q5_1;
    table->mm[EL_IQ4_NL] = mm_iq4_nl;
    table->mm[EL_MXFP4] = mm_mxfp4;
}
