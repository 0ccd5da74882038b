/* Scalar floating point of edgellm: the functions of docs/numerics.md, operation for operation. Vector kernels repeat
 * these operations lane by lane; where they need a scalar tail they call the functions here. No function uses libm: each
 * result is made of IEEE operations that round once, so it is the same on every machine.
 */
#ifndef EL_FP_H
#define EL_FP_H

#include <stdint.h>
#include <string.h>

static inline uint32_t el_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float el_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float el_abs(float x) { return el_float(el_bits(x) & 0x7fffffffu); }

/* |x| with the sign of s. */
static inline float el_copysign(float x, float s) {
    return el_float((el_bits(x) & 0x7fffffffu) | (el_bits(s) & 0x80000000u));
}

static inline int32_t el_is_finite(float x) { return (el_bits(x) & 0x7f800000u) != 0x7f800000u; }

/* a * b + c rounded once. Without the instruction: the product is exact in double; the sum is rounded to odd in double,
 * after which rounding to float gives the correctly rounded result (double has more than 24 + 2 bits). Some C libraries
 * round fmaf twice, so it is not used; and in this form compilers vectorise it. */
static inline float el_fma(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c);
#else
    double p = (double)a * (double)b;
    double s = p + (double)c;
    double t = s - p;
    double err = (p - (s - t)) + ((double)c - t); /* s + err is the exact sum; nan when s is not finite */
    uint64_t u, e;
    memcpy(&u, &s, sizeof u);
    memcpy(&e, &err, sizeof e);
    uint64_t inward = (u ^ e) >> 63; /* the exact sum is nearer to zero than s */
    uint64_t nonzero = ((e << 1) | (0 - (e << 1))) >> 63;
    uint64_t infinite = (((u << 1) >> 53) + 1) >> 11;
    uint64_t inexact = nonzero & ~infinite;
    u -= inexact & inward & ~u; /* inexact and even: to its odd neighbour nearer to zero, ... */
    u |= inexact;               /* ... or else away from zero */
    memcpy(&s, &u, sizeof s);
    return (float)s;
#endif
}

/* sqrt is a basic IEEE operation; with -fno-math-errno this is one instruction. */
static inline float el_sqrt(float x) { return __builtin_sqrtf(x); }

/* The integer nearest to x, ties to even, for |x| <= 2^22. */
static inline int32_t el_rint(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: the sum's last bit is worth one */
    return (int32_t)(el_bits(x + magic) - el_bits(magic));
}

/* Exact. A signalling nan becomes quiet, as the F16C instruction does. Without branches: compilers vectorise it. */
static inline float el_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, a = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t normal = a + (112u << 23);
    uint32_t subnormal =
        el_bits(el_float(a + (113u << 23)) - el_float(113u << 23)); /* (1 + m) 2^-14 - 2^-14 */
    uint32_t special = a + (224u << 23) + (a > 0x0f800000u ? 0x400000u & ~a : 0);
    uint32_t u = a < 0x00800000u ? subnormal : normal;
    return el_float(sign | (a >= 0x0f800000u ? special : u));
}

/* Nearest, ties to even; above the largest half: infinity; a nan keeps its top ten bits and becomes quiet. */
static inline uint16_t el_f32_to_f16(float x) {
    uint32_t u = el_bits(x), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
    if (a >= 0x47800000u)
        return (uint16_t)(sign | 0x7c00u); /* 2^16; from 65520 on, rounding carries to infinity */
    if (a < 0x38800000u) {                 /* below 2^-14: the result is subnormal, unit 2^-24 */
        const float magic = 0.5f;          /* its last bit is worth 2^-24 */
        return (uint16_t)(sign | (el_bits(el_float(a) + magic) - el_bits(magic)));
    }
    return (uint16_t)(sign | ((a - (112u << 23) + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

static inline float el_bf16_to_f32(uint16_t h) { return el_float((uint32_t)h << 16); }

/* Nearest, ties to even; a nan becomes quiet. */
static inline uint16_t el_f32_to_bf16(float x) {
    uint32_t u = el_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float el_exp(float x) {
    if (x != x) return x;
    if (x < -87.0f) return 0.0f;
    x = 88.0f < x ? 88.0f : x;
    int32_t i = el_rint(x * 1.44269504088896341f);
    float n = (float)i;
    float r = el_fma(n, -0.693359375f, x);
    r = el_fma(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = el_fma(p, r, 1.3981999507e-3f);
    p = el_fma(p, r, 8.3334519073e-3f);
    p = el_fma(p, r, 4.1665795894e-2f);
    p = el_fma(p, r, 1.6666665459e-1f);
    p = el_fma(p, r, 5.0000001201e-1f);
    float y = el_fma(p, r * r, r) + 1.0f;
    return y * el_float((uint32_t)(i + 127) << 23);
}

static inline float el_tanh(float x) {
    float a = el_abs(x);
    if (a < 0.625f) {
        float z = x * x;
        float p = -5.70498872745e-3f;
        p = el_fma(p, z, 2.06390887954e-2f);
        p = el_fma(p, z, -5.37397155531e-2f);
        p = el_fma(p, z, 1.33314422036e-1f);
        p = el_fma(p, z, -3.33332819422e-1f);
        return el_fma(p * z, x, x);
    }
    float t = el_exp(a + a);
    return el_copysign(1.0f - 2.0f / (t + 1.0f), x);
}

/* Below 1: x times Cephes' polynomial in x^2. From 1 on: 1 - exp(-a q(a)), where a q(a) approximates -log(erfc(a)) on
 * [1, 4] (weighted minimax fit of degree 6, error of erf below 4e-10 before rounding); erf(4) rounds to 1. */
static inline float el_erf(float x) {
    float a = el_abs(x);
    if (a < 1.0f) {
        float z = x * x;
        float p = 7.853861353153693e-5f;
        p = el_fma(p, z, -8.010193625184903e-4f);
        p = el_fma(p, z, 5.188327685732524e-3f);
        p = el_fma(p, z, -2.685381193529856e-2f);
        p = el_fma(p, z, 1.128358514861418e-1f);
        p = el_fma(p, z, -3.761262582423300e-1f);
        p = el_fma(p, z, 1.128379165726710f);
        return p * x;
    }
    a = 4.0f < a ? 4.0f : a;
    float q = 1.3962277e-5f;
    q = el_fma(q, a, -3.5059039e-4f);
    q = el_fma(q, a, 3.7574703e-3f);
    q = el_fma(q, a, -2.4010055e-2f);
    q = el_fma(q, a, 1.0653085e-1f);
    q = el_fma(q, a, 6.3496953e-1f);
    q = el_fma(q, a, 1.1286943f);
    return el_copysign(1.0f - el_exp(-(q * a)), x);
}

/* log(0) = -inf, log(x < 0) = nan, log(inf) = inf. Otherwise x = m * 2^e with m in [0.70710677, 1.4142135], f = m - 1,
 * Cephes' polynomial; the scale by 2^23 of a subnormal is exact. */
static inline float el_log(float x) {
    if (x != x) return x;
    if (x == 0.0f) return el_float(0xff800000u);
    if (x < 0.0f) return el_float(0x7fc00000u);
    if (!el_is_finite(x)) return x;
    int32_t e = 0;
    if (x < 1.17549435e-38f) {
        x = x * 8388608.0f;
        e = -23;
    }
    uint32_t u = el_bits(x);
    int32_t shift = (int32_t)(u - 0x3f3504f3u) >> 23; /* exponent relative to [sqrt(1/2), sqrt(2)) */
    e += shift;
    float n = (float)e;
    float f = el_float(u - ((uint32_t)shift << 23)) - 1.0f;
    float z = f * f;
    float p = 7.0376836292e-2f;
    p = el_fma(p, f, -1.1514610310e-1f);
    p = el_fma(p, f, 1.1676998740e-1f);
    p = el_fma(p, f, -1.2420140846e-1f);
    p = el_fma(p, f, 1.4249322787e-1f);
    p = el_fma(p, f, -1.6668057665e-1f);
    p = el_fma(p, f, 2.0000714765e-1f);
    p = el_fma(p, f, -2.4999993993e-1f);
    p = el_fma(p, f, 3.3333331174e-1f);
    float y = (p * f) * z;
    y = el_fma(n, -2.12194440e-4f, y);
    y = el_fma(z, -0.5f, y);
    return el_fma(n, 0.693359375f, f + y);
}

static inline float el_sigmoid(float x) { return 1.0f / (1.0f + el_exp(-x)); }
static inline float el_silu(float x) { return x / (1.0f + el_exp(-x)); }
static inline float el_gelu_tanh(float x) {
    float u = x * el_fma(x * x, 0.044715f, 1.0f);
    return x / (1.0f + el_exp(u * -1.5957691216057308f));
}
static inline float el_gelu_erf(float x) { return (0.5f * x) * (1.0f + el_erf(x * 0.70710678f)); }

/* x > 0 ? x : 0, asked of the bits: for a comparison of floats clang takes AArch64's maximum instruction, which makes a
 * signalling nan quiet instead of 0. */
static inline float el_relu(float x) { return el_bits(x) - 1u < 0x7f800000u ? x : 0.0f; }

/* The gate of SWIGLU_OAI: (g / (1 + exp(-1.702 g))) * (up + 1) with g at most 7 and up within [-7, 7]. */
static inline float el_swiglu_oai(float g, float up) {
    g = 7.0f < g ? 7.0f : g;
    up = 7.0f < up ? 7.0f : up;
    up = up < -7.0f ? -7.0f : up;
    return (g / (1.0f + el_exp(g * -1.702f))) * (up + 1.0f);
}

static inline float el_softcap1(float x, float cap) { return cap * el_tanh(x / cap); }

/* Folds the 16 partial sums of a fold16. */
static inline float el_fold16(float p[16]) {
    for (int i = 0; i < 8; i++) p[i] += p[i + 8];
    for (int i = 0; i < 4; i++) p[i] += p[i + 4];
    for (int i = 0; i < 2; i++) p[i] += p[i + 2];
    return p[0] + p[1];
}

#endif
