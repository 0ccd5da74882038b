/* The functions of fp.h: at a level, over the bit patterns, against the scalar functions; and the scalar functions against
 * the definition (double precision; conversions exhaustively).
 */
#include "check.h"

#include "fp.h"

#include <math.h>
#include <string.h>

enum { BATCH = 4096, K_A = 0, V_A, Q_A, SCRATCH_A };

/* ---- a level's functions -------------------------------------------------------------------------------------------- */

typedef struct sweep {
    const char *name;
    void (*level)(const el_kernels *, const float *x, float *y);
    float (*scalar)(float);
} sweep;

static void by_softcap(const el_kernels *t, const float *x, float *y) {
    t->softcap(x, 1.0f, BATCH, y);
} /* 1 * tanh(x / 1) */
static void by_silu(const el_kernels *t, const float *x, float *y) { t->act(EL_ACT_SILU, x, BATCH, y); }
static void by_gelu_tanh(const el_kernels *t, const float *x, float *y) {
    t->act(EL_ACT_GELU_TANH, x, BATCH, y);
}
static void by_gelu_erf(const el_kernels *t, const float *x, float *y) {
    t->act(EL_ACT_GELU_ERF, x, BATCH, y);
}
static void by_relu(const el_kernels *t, const float *x, float *y) { t->act(EL_ACT_RELU, x, BATCH, y); }
static void by_relu2(const el_kernels *t, const float *x, float *y) { t->act(EL_ACT_RELU2, x, BATCH, y); }
static void by_sigmoid(const el_kernels *t, const float *x, float *y) { t->act(EL_ACT_SIGMOID, x, BATCH, y); }
static float relu2(float x) { return el_relu(x) * el_relu(x); }

static const sweep SWEEPS[] = {
    {"tanh", by_softcap, el_tanh},
    {"silu", by_silu, el_silu},
    {"gelu_tanh", by_gelu_tanh, el_gelu_tanh},
    {"gelu_erf", by_gelu_erf, el_gelu_erf},
    {"relu", by_relu, el_relu},
    {"relu2", by_relu2, relu2},
    {"sigmoid", by_sigmoid, el_sigmoid},
};

static int32_t sweep_batch(check *c, const float *x) {
    if (left_out(c)) return 1;
    float want[BATCH], got[BATCH];
    for (size_t s = 0; s < sizeof SWEEPS / sizeof *SWEEPS; s++) {
        set_case(c, "%s of %08x and %d more", SWEEPS[s].name, el_bits(x[0]), BATCH - 1);
        for (int32_t i = 0; i < BATCH; i++) want[i] = SWEEPS[s].scalar(x[i]);
        SWEEPS[s].level(c->level, x, got);
        if (!same_floats(c, "y", want, got, BATCH)) return 0;
    }
    return 1;
}

/* exp of 255 values <= 0, through a segment of attention: position 0 scores 0 and is the maximum, position p scores x[p];
 * V is the identity, so o[p] is the weight exp(x[p]). */
static int32_t exp_batch(check *c, const float *x) {
    if (left_out(c)) return 1;
    float m, l, o[EL_SEGMENT], want[EL_SEGMENT];
    const float *q = place(c, Q_A, 16, 0);
    int32_t lo = 0, hi = EL_SEGMENT;
    float *k = place_aligned(c, K_A, 4 * 32 * 4 * EL_SEG_PAGES);
    const float *v = (const float *)c->arenas[V_A].data;
    const void *k_pages[EL_SEG_PAGES], *v_pages[EL_SEG_PAGES];
    memcpy((float *)q, (float[]){1, 0, 0, 0}, 16);
    memset(k, 0, 4 * 32 * 4 * EL_SEG_PAGES);
    for (int32_t p = 0; p < EL_SEGMENT; p++) {
        k[p / 32 * 128 + p % 32] = p ? x[p] : 0.0f;
        want[p] = el_exp(p ? x[p] : 0.0f);
    }
    for (int32_t i = 0; i < EL_SEG_PAGES; i++) {
        k_pages[i] = k + 128 * i;
        v_pages[i] = v + (size_t)i * 32 * EL_SEGMENT;
    }
    set_case(c, "exp of %08x and 254 more, as weights of attention", el_bits(x[1]));
    el_attn_segment a = {.n_q = 1,
                         .k_dim = 4,
                         .v_dim = EL_SEGMENT,
                         .k_type = EL_KV_F32,
                         .v_type = EL_KV_F32,
                         .q = &q,
                         .lo = &lo,
                         .hi = &hi,
                         .k_pages = k_pages,
                         .v_pages = v_pages,
                         .scale = 1.0f,
                         .m = &m,
                         .l = &l,
                         .o = o,
                         .scratch = place_aligned(c, SCRATCH_A, el_attn_scratch_bytes(4, EL_SEGMENT))};
    c->level->attn_segment(&a);
    return same_floats(c, "weight", want, o, EL_SEGMENT);
}

void check_functions(check *c) {
    const uint64_t step = c->full ? 1 : 257;
    float x[BATCH];
    for (uint64_t u = (uint64_t)random_below(c, (int32_t)step); u <= 0xffffffffu; u += step * BATCH) {
        for (int32_t i = 0; i < BATCH; i++)
            x[i] = el_float((uint32_t)(u + step * (uint64_t)i)); /* may wrap: tested twice */
        if (!sweep_batch(c, x)) return;
    }
    /* every float within 2048 of a point where a function changes its formula */
    static const float edges[] = {0.625f, 1.0f,  1.41421356f, 4.0f,  5.65685425f, 7.0f,
                                  43.5f,  44.0f, 87.0f,       88.0f, 0.0f};
    for (size_t e = 0; e < 2 * sizeof edges / sizeof *edges; e++) {
        uint32_t around = el_bits(edges[e / 2]) | (e & 1 ? 0x80000000u : 0u);
        for (int32_t i = 0; i < BATCH; i++) x[i] = el_float(around - BATCH / 2 + (uint32_t)i);
        if (!sweep_batch(c, x)) return;
    }
    float *v = place_aligned(c, V_A, sizeof(float) * EL_SEGMENT * EL_SEGMENT);
    memset(v, 0, sizeof(float) * EL_SEGMENT * EL_SEGMENT);
    for (int32_t p = 0; p < EL_SEGMENT; p++) v[p * EL_SEGMENT + p] = 1.0f;
    /* from -0 to below -87, and every float around -87, where exp becomes 0 */
    const uint32_t first = 0x80000000u, last = 0xc2b00000u, edge = el_bits(-87.0f);
    for (uint64_t u = first; u <= last; u += step * (EL_SEGMENT - 1)) {
        for (int32_t p = 1; p < EL_SEGMENT; p++) x[p] = el_float((uint32_t)(u + step * (uint64_t)(p - 1)));
        if (!exp_batch(c, x)) return;
    }
    for (uint32_t u = edge - 1024; u < edge + 1024; u += EL_SEGMENT - 1) {
        for (int32_t p = 1; p < EL_SEGMENT; p++) x[p] = el_float(u + (uint32_t)p - 1);
        if (!exp_batch(c, x)) return;
    }
}

/* ---- the meaning of the scalar functions ---------------------------------------------------------------------------- */

static int32_t near(check *c, const char *name, float x, float got, double want, double bound) {
    if (fabs(got - want) <= bound * fabs(want) + ldexp(1, -125)) return 1;
    fail(c, "%s(%.9g) is %.9g, expected %.9g", name, (double)x, (double)got, want);
    return 0;
}

static int32_t accurate(check *c, float x) {
    const double bound = 4 * ldexp(1, -24); /* four half units in the last place */
    if (x != x) return 1;
    double v = x, e = exp(-fabs(v));
    if (v > -87 && v < 88 && !near(c, "exp", x, el_exp(x), exp(v), bound)) return 0;
    if (v < -87 && el_exp(x) != 0.0f) return near(c, "exp", x, el_exp(x), 0, 0);
    if (v > 0 && isfinite(v) && !near(c, "log", x, el_log(x), log(v), bound)) return 0;
    if (fabs(v) < 80 && !near(c, "sigmoid", x, el_sigmoid(x), v < 0 ? e / (1 + e) : 1 / (1 + e), bound))
        return 0;
    return near(c, "tanh", x, el_tanh(x), tanh(v), bound) && near(c, "erf", x, el_erf(x), erf(v), bound);
}

/* The neighbours of every half, and the points between two halves. */
static int32_t half_conversions(check *c) {
    for (uint32_t h = 0; h < 0x10000u; h++) {
        uint32_t exponent = (h >> 10) & 31u, mantissa = h & 1023u;
        double value = exponent ? ldexp(1024 + mantissa, (int)exponent - 25) : ldexp(mantissa, -24);
        float x = el_f16_to_f32((uint16_t)h);
        set_case(c, "half %04x", h);
        if (exponent == 31) {
            uint16_t quiet = mantissa ? (uint16_t)(h | 0x200u) : (uint16_t)h;
            if (mantissa ? x == x : x != (h & 0x8000u ? -INFINITY : INFINITY))
                fail(c, "converts to %g", (double)x);
            if (el_f32_to_f16(x) != quiet) fail(c, "comes back as %04x", el_f32_to_f16(x));
            if (c->failed) return 0;
            continue;
        }
        if (x != (float)(h & 0x8000u ? -value : value) || el_f32_to_f16(x) != h) {
            fail(c, "converts to %g and back to %04x", (double)x, el_f32_to_f16(x));
            return 0;
        }
        double next = exponent ? ldexp(1025 + mantissa, (int)exponent - 25) : ldexp(mantissa + 1, -24);
        float middle = (float)((value + next) / 2), sign = h & 0x8000u ? -1.0f : 1.0f; /* exact */
        uint16_t even = (uint16_t)(h + (h & 1u));
        uint16_t above = el_f32_to_f16(sign * el_float(el_bits(middle) + 1)),
                 below = el_f32_to_f16(sign * el_float(el_bits(middle) - 1));
        if (el_f32_to_f16(sign * middle) != even || above != h + 1 || below != h) {
            fail(c, "around the point above it: %04x %04x %04x", below, el_f32_to_f16(sign * middle), above);
            return 0;
        }
    }
    return 1;
}

/* fma: exact cases that a product and a sum rounded apart get wrong; then, where libm is glibc's, random ones. */
static int32_t fused(check *c) {
    static const struct {
        float a, b, c, want;
    } cases[] = {
        {0x1.000002p0f, 0x1.000002p0f, -0x1.000004p0f, 0x1p-46f},
        {0x1.fffffep0f, 0x1.fffffep0f, -0x1.fffffcp1f, 0x1p-46f},
        {0x1p-100f, 0x1p-100f, 1.0f, 1.0f},
        {0x1.000002p0f, 0x1.000002p-24f, 1.0f, 0x1.000002p0f}, /* just above half a unit: up */
        {0x1.fffffep-1f, 0x1p-24f, 1.0f, 1.0f},                /* just below: down */
        {0x1p0f, 0x1p-24f, 1.0f, 1.0f},                        /* half: to even */
        {0x1p-75f, 0x1p-75f, 0.0f, 0.0f},                      /* half of the smallest: to even */
        {0x1.8p-75f, 0x1p-75f, 0.0f, 0x1p-149f},
        {0x1p100f, 0x1p100f, -INFINITY, -INFINITY},
        {0x1p100f, 0x1p100f, -1.0f, INFINITY},
        {0x1.fffffep127f, 2.0f, -0x1.fffffep127f, 0x1.fffffep127f},
        {-0.0f, 1.0f, -0.0f, -0.0f},
        {1.0f, 1.0f, -1.0f, 0.0f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        set_case(c, "fma(%a, %a, %a)", (double)cases[i].a, (double)cases[i].b, (double)cases[i].c);
        float got = el_fma(cases[i].a, cases[i].b, cases[i].c);
        if (!same_floats(c, "result", &cases[i].want, &got, 1)) return 0;
    }
#if defined(__GLIBC__)
    for (int32_t i = 0; i < (c->full ? 300000000 : 3000000); i++) {
        uint32_t a = random_bits(c), b = random_bits(c), d = random_bits(c);
        if (i & 1) { /* an addend near the product, few bits in the factors: cancellation and ties */
            int32_t e = (int32_t)((a >> 23 & 255) + (b >> 23 & 255)) - 127 + random_below(c, 60) - 30;
            d = (d & 0x807fffffu) | (uint32_t)(e < 0 ? 0 : e > 254 ? 254 : e) << 23;
            a &= 0xfffff000u;
        }
        set_case(c, "fma(%08x, %08x, %08x)", a, b, d);
        float want = fmaf(el_float(a), el_float(b), el_float(d)),
              got = el_fma(el_float(a), el_float(b), el_float(d));
        if (!same_floats(c, "result", &want, &got, 1)) return 0;
    }
#endif
    return 1;
}

void check_functions_meaning(check *c) {
    const uint64_t step = c->full ? 257 : 65537;
    if (!half_conversions(c) || !fused(c)) return;
    for (uint64_t u = 0; u <= 0xffffffffu; u += step) {
        set_case(c, "x = %08x", (uint32_t)u);
        if (!accurate(c, el_float((uint32_t)u))) return;
        uint32_t up = ((uint32_t)u + 0x7fffu + ((uint32_t)u >> 16 & 1)) >> 16; /* bf16, by integers */
        float x = el_float((uint32_t)u);
        if (x == x && el_f32_to_bf16(x) != up)
            return fail(c, "bf16 is %04x, expected %04x", el_f32_to_bf16(x), up);
    }
    set_case(c, "special values");
    const float inf = INFINITY, got[] = {el_exp(-inf),        el_tanh(inf),   el_tanh(-inf), el_erf(inf),
                                         el_erf(-inf),        el_log(0.0f),   el_log(inf),   el_log(1.0f),
                                         el_log(el_float(1)), el_tanh(-0.0f), el_erf(-0.0f)};
    const float want[] = {0, 1, -1, 1, -1, -inf, inf, 0, -103.278929903431851103f, 0, -0.0f};
    if (!same_floats(c, "value", want, got, sizeof want / sizeof *want)) return;
    if (el_log(-1.0f) == el_log(-1.0f)) fail(c, "log(-1) is not nan");
}
