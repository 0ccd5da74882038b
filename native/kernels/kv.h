/* The formats of the KV cache: numbers and squares (kernels.h has the layouts). Integer and exact float operations
 * without branches per value, so that each level compiles these bodies to its own vectors and all give the same bits. */
#ifndef EL_KV_H
#define EL_KV_H

#include "fp.h"
#include "kernels.h"

/* ---- numbers ----------------------------------------------------------------------------------------------------------- */

/* fp8 with `m` mantissa bits: the code of |x| for a finite x, without saturation. Below the smallest normal number the sum
 * with a power of two leaves x in units of the smallest subnormal in its last bits. */
static inline int32_t el_fp8_code(int32_t a, int32_t m, int32_t bias) {
    const int32_t shift = 23 - m, odd = (a >> shift) & 1;
    const int32_t normal = ((a + (1 << (shift - 1)) - 1 + odd) >> shift) - ((127 - bias) << m);
    const float unit = el_float((uint32_t)(127 + 1 - bias - m + 23) << 23);
    const int32_t subnormal = (int32_t)(el_bits(el_float((uint32_t)a) + unit) - el_bits(unit));
    return a < (128 - bias) << 23 ? subnormal : normal;
}

static inline uint8_t el_f32_to_e4m3(float x) {
    const uint32_t u = el_bits(x);
    const int32_t a = (int32_t)(u & 0x7fffffffu), finite = a < 0x7f800000 ? a : 0;
    int32_t code = el_fp8_code(finite, 3, 7);
    code = code < 0x7e ? code : 0x7e;
    return (uint8_t)(u >> 31 << 7 | (uint32_t)(a < 0x7f800000 ? code : 0x7f));
}

static inline uint8_t el_f32_to_e5m2(float x) {
    const uint32_t u = el_bits(x);
    const int32_t a = (int32_t)(u & 0x7fffffffu), finite = a < 0x7f800000 ? a : 0;
    int32_t code = el_fp8_code(finite, 2, 15);
    code = code < 0x7b ? code : 0x7b;
    code = a == 0x7f800000 ? 0x7c : code;
    return (uint8_t)(u >> 31 << 7 | (uint32_t)(a > 0x7f800000 ? 0x7f : code));
}

/* e4m3 is f16 with other exponents but for its one nan: the value times 2^-8. */
static inline float el_e4m3_to_f32(uint8_t b) {
    const uint32_t sign = (uint32_t)(b & 0x80) << 8, rest = b & 0x7f;
    return el_f16_to_f32((uint16_t)(sign | (rest == 0x7f ? 0x7e00 : rest << 7))) * 256.0f;
}
static inline float el_e5m2_to_f32(uint8_t b) { return el_f16_to_f32((uint16_t)(b << 8)); }

/* ---- squares: one token's 32 dims -------------------------------------------------------------------------------------- */

/* What is below 2^-120 (2^-112) becomes zeros of 8 (16) bits: 127 (32767) by a smaller float overflows. */
enum { EL_TINY = 0x03800000, EL_TINY_16 = 0x07800000, EL_INF = 0x7f800000, EL_BF16_NAN = 0x7fc0 };

/* How many of `dim` dims are in square number `square`. */
static inline int32_t el_kv_rest(int32_t dim, int32_t square) {
    const int32_t rest = dim - square * EL_SQUARE;
    return rest < EL_SQUARE ? rest : EL_SQUARE;
}
/* The n <= 32 dims of x, the others zero; returns the bits of the largest |x|. */
static inline int32_t el_kv_dims(const float *x, int32_t n, float to[EL_SQUARE]) {
    int32_t largest = 0;
    for (int32_t i = 0; i < EL_SQUARE; i++) to[i] = 0.0f;
    memcpy(to, x, (size_t)n * sizeof *x);
    for (int32_t i = 0; i < EL_SQUARE; i++) {
        const int32_t a = (int32_t)(el_bits(to[i]) & 0x7fffffffu);
        largest = a > largest ? a : largest;
    }
    return largest;
}

/* A positive float rounded up to bf16. */
static inline uint16_t el_bf16_up(float x) { return (uint16_t)((el_bits(x) + 0xffff) >> 16); }

static inline void el_kv_scaled(const float *x, float factor, int32_t high, int8_t q[EL_SQUARE]) {
    for (int32_t i = 0; i < EL_SQUARE; i++) {
        const int32_t v = el_rint(x[i] * factor);
        q[i] = (int8_t)(v < high ? v : high);
    }
}

/* q8_0: q and the scale. */
static inline uint16_t el_kv_q8(const float *x, int32_t n, int8_t q[EL_SQUARE]) {
    float dims[EL_SQUARE];
    const int32_t a = el_kv_dims(x, n, dims);
    if (a < EL_TINY || a >= EL_INF) {
        memset(q, 0, EL_SQUARE);
        return a < EL_TINY ? 0 : EL_BF16_NAN;
    }
    const uint16_t d = el_bf16_up(el_float((uint32_t)a) / 127.0f);
    el_kv_scaled(dims, 1.0f / el_bf16_to_f32(d), 127, q);
    return d;
}

/* q4_0: u - 8, -8 to 7, and the scale. */
static inline uint16_t el_kv_q4(const float *x, int32_t n, int8_t q[EL_SQUARE]) {
    float dims[EL_SQUARE];
    const int32_t a = el_kv_dims(x, n, dims);
    if (a < EL_TINY || a >= EL_INF) {
        memset(q, 0, EL_SQUARE);
        return a < EL_TINY ? 0 : EL_BF16_NAN;
    }
    uint32_t negative = 0; /* some x is -amax */
    for (int32_t i = 0; i < EL_SQUARE; i++) negative |= el_bits(dims[i]) == (0x80000000u | (uint32_t)a);
    uint16_t d = el_bf16_up(el_float((uint32_t)a) / 8.0f);
    if (!negative) d |= 0x8000;
    el_kv_scaled(dims, 1.0f / el_bf16_to_f32(d), 7, q);
    return d;
}

/* The query's 32 dims of a square as int16, and their scale. */
static inline float el_kv_query(const float *x, int32_t n, int16_t q[EL_SQUARE]) {
    float dims[EL_SQUARE];
    const int32_t a = el_kv_dims(x, n, dims);
    if (a < EL_TINY_16 || a >= EL_INF) {
        memset(q, 0, EL_SQUARE * sizeof *q);
        return a < EL_TINY_16 ? 0.0f : el_bf16_to_f32(EL_BF16_NAN);
    }
    const float amax = el_float((uint32_t)a), factor = 32767.0f / amax;
    for (int32_t i = 0; i < EL_SQUARE; i++) q[i] = (int16_t)el_rint(dims[i] * factor);
    return amax / 32767.0f;
}

#endif
