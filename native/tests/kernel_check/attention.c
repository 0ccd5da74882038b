/* attn_segment, attn_fold, and the stores into pages. */
#include "check.h"

#include "fp.h"
#include "kv.h"

#include <math.h>
#include <string.h>

enum { Q_A, K_A, V_A, M_A, M_B, L_A, L_B, O_A, O_B, SCRATCH_A, PAGE_A, PAGE_B, PAD = 3 };

typedef enum ranges {
    R_FULL,
    R_TAIL,
    R_CAUSAL,
    R_WINDOW,
    R_ONE_PAGE,
    R_SOME_EMPTY,
    R_RANDOM,
    N_RANGES,
    R_FAR_APART = N_RANGES, /* each row in one of two pages, or nothing: pages between that none sees */
    R_SAME,                 /* all rows the same, or nothing */
    N_ALL_RANGES
} ranges;
static const char *const RANGE_NAMES[N_ALL_RANGES] = {
    "full", "tail", "causal", "window", "one page", "some empty", "random", "far apart", "same"};

typedef struct segment {
    el_attn_segment a;
    const float *q[EL_ATTN_ROWS];
    int32_t lo[EL_ATTN_ROWS], hi[EL_ATTN_ROWS];
    const void *k_pages[EL_SEG_PAGES], *v_pages[EL_SEG_PAGES];
    uint8_t seen[EL_SEGMENT];
    float *k, *v;      /* [256 positions][256 dims] what was stored, or NULL */
    int32_t is_broken; /* some of q, k, v are not finite */
    float faint;       /* what q and v are multiplied by, or 0 */
} segment;

/* ---- making a case ------------------------------------------------------------------------------------------------- */

static void make_ranges(check *c, segment *s, ranges kind) {
    int32_t n = s->a.n_q, first = random_below(c, EL_SEGMENT - n + 1), window = 1 + random_below(c, 200);
    int32_t page = random_below(c, EL_SEG_PAGES), from = random_below(c, 256),
            tail = 1 + random_below(c, 256);
    for (int32_t r = 0; r < n; r++) {
        int32_t lo = 0, hi = EL_SEGMENT;
        switch (kind) {
        case R_FULL: break;
        case R_TAIL: hi = tail; break;
        case R_CAUSAL: hi = first + r + 1; break;
        case R_WINDOW: hi = first + r + 1, lo = hi > window ? hi - window : 0; break;
        case R_ONE_PAGE:
            lo = 32 * page + random_below(c, 32), hi = lo + 1 + random_below(c, 32 * page + 32 - lo);
            break;
        case R_SOME_EMPTY:
            lo = hi = from;
            if (random_below(c, 3)) hi += random_below(c, 257 - from);
            break;
        case R_FAR_APART:
            lo = 32 * (random_below(c, 2) ? page : from / 32) + random_below(c, 32);
            hi = lo + random_below(c, 33 - lo % 32);
            break;
        case R_SAME:
            lo = hi = from;
            if (random_below(c, 8)) hi = from > tail ? from : tail;
            break;
        default: lo = random_below(c, 257), hi = lo + random_below(c, 257 - lo);
        }
        s->lo[r] = lo;
        s->hi[r] = hi;
    }
    memset(s->seen, 0, sizeof s->seen);
    for (int32_t r = 0; r < n; r++) memset(s->seen + s->lo[r], 1, (size_t)(s->hi[r] - s->lo[r]));
}

const char *kv_name(int32_t type) {
    static const char *const names[EL_KV_TYPES] = {"f16", "f32", "bf16", "q8_0", "q4_0", "e4m3", "e5m2"};
    return names[type];
}

/* Of a broken segment, one number of one vector in eight is inf or nan. */
static void breaks(check *c, const segment *s, float *x, int32_t n) {
    static const float numbers[] = {INFINITY, -INFINITY, NAN};
    if (s->is_broken && random_below(c, 8) == 0) x[random_below(c, n)] = numbers[random_below(c, 3)];
}

/* Around 2^-112, below which int16 are zeros, and around 2^-120, below which int8 are. */
static void make_faint(const segment *s, float *x, size_t n) {
    for (size_t i = 0; s->faint != 0.0f && i < n; i++) x[i] *= s->faint;
}

/* q, k, v and the page lists. The patterns MAX and SPIKE make scores so far apart that weights vanish. */
static void make_data(check *c, segment *s, pattern p) {
    el_attn_segment *a = &s->a;
    size_t dims = (size_t)a->k_dim, stride = dims + PAD;
    float *q = place(c, Q_A, stride * 4 * (size_t)a->n_q, 0), x[256];
    fill_floats(c, p == P_WILD ? P_RANDOM : p, q, stride * (size_t)a->n_q);
    make_faint(s, q, stride * (size_t)a->n_q);
    for (int32_t r = 0; r < a->n_q; r++) {
        breaks(c, s, q + stride * (size_t)r, a->k_dim);
        s->q[r] = q + stride * (size_t)r;
    }

    size_t k_bytes = el_kv_head_bytes(a->k_type, a->k_dim), v_bytes = el_kv_head_bytes(a->v_type, a->v_dim);
    uint8_t *k = place_aligned(c, K_A, k_bytes * EL_SEG_PAGES),
            *v = place_aligned(c, V_A, v_bytes * EL_SEG_PAGES);
    for (int32_t page = 0; page < EL_SEG_PAGES; page++) {
        /* pages in reverse order in memory: they are not contiguous in the cache either */
        uint8_t *kp = k + k_bytes * (size_t)(EL_SEG_PAGES - 1 - page);
        uint8_t *vp = v + v_bytes * (size_t)(EL_SEG_PAGES - 1 - page);
        int32_t used = 0;
        memset(kp, 0xff, k_bytes); /* a nan in every format */
        memset(vp, 0xff, v_bytes);
        for (int32_t i = 0; i < 32; i++) {
            if (!s->seen[32 * page + i]) continue;
            used = 1;
            fill_floats(c, p, x, dims);
            if (p == P_RANDOM && !s->k && random_below(c, 4) == 0) {
                for (size_t e = 0; e < dims; e++) x[e] *= 20;
            }
            if (s->k) memcpy(s->k + (32 * page + i) * 256, x, sizeof x);
            breaks(c, s, x, a->k_dim);
            c->scalar->k_store[a->k_type](x, a->k_dim, i, kp);
            fill_floats(c, p == P_MAX ? P_RANDOM : p, x, (size_t)a->v_dim);
            make_faint(s, x, (size_t)a->v_dim);
            if (s->v) memcpy(s->v + (32 * page + i) * 256, x, sizeof x);
            breaks(c, s, x, a->v_dim);
            c->scalar->v_store[a->v_type](x, a->v_dim, i, vp);
        }
        s->k_pages[page] = used ? kp : NULL;
        s->v_pages[page] = used ? vp : NULL;
    }
    a->q = s->q;
    a->lo = s->lo;
    a->hi = s->hi;
    a->k_pages = s->k_pages;
    a->v_pages = s->v_pages;
}

static void run_segment(check *c, const el_kernels *table, segment *s, int32_t is_second) {
    el_attn_segment *a = &s->a;
    size_t n = (size_t)a->n_q, o_floats = n * (size_t)a->v_dim;
    a->m = place(c, M_A + is_second, n * 4, 8);
    a->l = place(c, L_A + is_second, n * 4, 8);
    a->o = place_aligned(c, O_A + is_second, o_floats * 4);
    memset(a->m, 0x33, n * 4);
    memset(a->l, 0x33, n * 4);
    memset(a->o, 0x33, o_floats * 4);
    a->scratch = place_aligned(c, SCRATCH_A, el_attn_scratch_bytes(a->k_dim, a->v_dim));
    table->attn_segment(a);
}

static int32_t compare_segment(check *c, segment *s, ranges kind, pattern p) {
    if (left_out(c)) return 1;
    el_attn_segment *a = &s->a;
    set_case(c, "n_q %d, k_dim %d %s, v_dim %d %s, softcap %g, ranges %s, data %s%s", a->n_q, a->k_dim,
             kv_name(a->k_type), a->v_dim, kv_name(a->v_type), (double)a->softcap, RANGE_NAMES[kind],
             pattern_name(p), s->is_broken ? ", not all finite" : "");
    make_ranges(c, s, kind);
    make_data(c, s, p);
    size_t n = (size_t)a->n_q;
    run_segment(c, c->scalar, s, 0);
    const float *m = a->m, *l = a->l, *o = a->o;
    run_segment(c, c->level, s, 1);
    return same_floats(c, "m", m, a->m, n) && same_floats(c, "l", l, a->l, n) &&
           same_floats(c, "o", o, a->o, n * (size_t)a->v_dim) && untouched(c, M_B, "m") &&
           untouched(c, L_B, "l") && untouched(c, O_B, "o") && untouched(c, SCRATCH_A, "scratch");
}

void check_attn_segment(check *c) {
    static const int32_t dims[] = {64, 80, 128, 256}, odd_dims[] = {4, 12, 36, 100, 192},
                         n_qs[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33, 64};
    static const pattern patterns[] = {P_RANDOM, P_SPIKE, P_DENORMAL, P_ZERO, P_MAX, P_ALTERNATE, P_WILD};
    segment s;
    int32_t turn = 0;
    memset(&s, 0, sizeof s);
    for (int32_t kd = 0; kd < 4; kd++) {
        for (int32_t vd = 0; vd < 4; vd++) {
            for (int32_t i = 0; i < (int32_t)(sizeof n_qs / sizeof *n_qs); i++) {
                for (int32_t kind = 0; kind < N_RANGES; kind++, turn++) {
                    if ((kd != vd || n_qs[i] > 16) && kind != turn % N_RANGES && (turn / 7) % 3) continue;
                    s.a = (el_attn_segment){.n_q = n_qs[i], .k_dim = dims[kd], .v_dim = dims[vd]};
                    s.a.k_type = turn % EL_KV_TYPES;
                    s.a.v_type = random_below(c, EL_KV_TYPES);
                    s.a.scale = 1.0f / sqrtf((float)dims[kd]);
                    s.a.softcap = turn % 3 == 1 ? 50.0f : 0.0f;
                    pattern p = turn % 2 ? P_RANDOM : patterns[turn / 2 % 7];
                    if (!compare_segment(c, &s, (ranges)kind, p)) return;
                }
            }
        }
    }
    for (turn = 0; turn < 200; turn++) {
        s.a = (el_attn_segment){
            .n_q = 1 + random_below(c, 8), .softcap = turn % 5 == 0 ? 30.0f : 0.0f, .scale = 0.3f};
        s.a.k_dim = odd_dims[random_below(c, 5)];
        s.a.v_dim = odd_dims[random_below(c, 5)];
        s.a.k_type = random_below(c, EL_KV_TYPES);
        s.a.v_type = random_below(c, EL_KV_TYPES);
        if (!compare_segment(c, &s, (ranges)(turn % N_RANGES), patterns[turn % 7])) return;
    }
    for (int32_t n = 1; n <= EL_ATTN_ROWS; n++) { /* every number of rows */
        s.a = (el_attn_segment){.n_q = n, .k_dim = 64, .v_dim = 64, .scale = 0.125f};
        s.a.k_type = s.a.v_type = n % EL_KV_TYPES;
        if (!compare_segment(c, &s, (ranges)(n % N_RANGES), P_RANDOM)) return;
    }
    for (int32_t pair = 0; pair < EL_KV_TYPES * EL_KV_TYPES;
         pair++) { /* every two formats, few rows and many */
        for (int32_t i = 0; i < 3; i++) {
            s.a = (el_attn_segment){
                .n_q = i ? 13 * i : 1 + pair % 8, .k_dim = 64 - 12 * i, .v_dim = 32 + 4 * i};
            s.a.k_type = pair / EL_KV_TYPES;
            s.a.v_type = pair % EL_KV_TYPES;
            s.a.scale = 0.125f;
            if (!compare_segment(c, &s, (ranges)((pair + i) % N_RANGES), patterns[(pair + i) % 7])) return;
        }
    }
}

/* Anything that the header allows: any dims, any two formats, every number of rows, rows that see nothing or nothing in
 * common, inf and nan. Half of them few rows of formats that are read in place, whose loops differ most. */
void check_attn_any(check *c) {
    static const float softcaps[] = {0.0f, 0.0f, 30.0f};
    static const int32_t v_dims[] = {16, 32, 48, 64, 96, 128, 256};
    segment s;
    memset(&s, 0, sizeof s);
    for (int32_t turn = 0; turn < 900; turn++) {
        const int32_t is_few = turn % 2, n_types = is_few ? 2 : EL_KV_TYPES;
        s.is_broken = turn % 5 == 4;
        s.a = (el_attn_segment){.n_q = 1 + random_below(c, is_few ? 16 : EL_ATTN_ROWS),
                                .k_dim = 4 * (1 + random_below(c, 40)),
                                .v_dim = turn % 4 == 1 ? v_dims[random_below(c, 7)]
                                                       : 4 * (1 + random_below(c, 40)),
                                .k_type = random_below(c, n_types),
                                .v_type = random_below(c, n_types),
                                .scale = 0.125f,
                                .softcap = softcaps[random_below(c, 3)]};
        const pattern p = random_below(c, 3) ? P_RANDOM : (pattern)random_below(c, N_PATTERNS);
        if (!compare_segment(c, &s, (ranges)random_below(c, N_ALL_RANGES), p)) return;
    }
    s.is_broken = 0;
    for (int32_t turn = 0; turn < 90; turn++) {
        s.faint = ldexpf(1.0f, -96 - turn % 30);
        s.a = (el_attn_segment){
            .n_q = 1 + random_below(c, EL_ATTN_ROWS), .k_dim = 64, .v_dim = 64, .scale = 0.125f};
        s.a.k_type = s.a.v_type = EL_KV_Q8_0;
        if (!compare_segment(c, &s, (ranges)random_below(c, N_ALL_RANGES), P_RANDOM)) return;
    }
}

/* Scalar against softmax in double over the values before they were stored. */
void check_attn_meaning(check *c) {
    static const double errors[EL_KV_TYPES] = {
        [EL_KV_F16] = 2e-3, [EL_KV_F32] = 2e-4,     [EL_KV_BF16] = 2e-2,   [EL_KV_Q8_0] = 6e-2,
        [EL_KV_Q4_0] = 0.6, [EL_KV_FP8_E4M3] = 0.2, [EL_KV_FP8_E5M2] = 0.4};
    static float k[EL_SEGMENT * 256], v[EL_SEGMENT * 256];
    segment s = {.k = k, .v = v};
    for (int32_t turn = 0; turn < 98; turn++) {
        el_attn_segment *a = &s.a;
        *a = (el_attn_segment){
            .n_q = 1 + turn % 5, .k_dim = 64, .v_dim = 80, .k_type = turn % 7, .v_type = turn / 7 % 7};
        a->scale = 0.125f;
        a->softcap = turn % 4 == 3 ? 20.0f : 0.0f;
        set_case(c, "turn %d against double, K %s, V %s", turn, kv_name(a->k_type), kv_name(a->v_type));
        make_ranges(c, &s, (ranges)(turn % N_RANGES));
        make_data(c, &s, P_RANDOM);
        const double k_error = errors[a->k_type], error = k_error + errors[a->v_type];
        run_segment(c, c->scalar, &s, 0);
        for (int32_t r = 0; r < a->n_q; r++) {
            double w[EL_SEGMENT], m = -INFINITY, l = 0;
            for (int32_t p = s.lo[r]; p < s.hi[r]; p++) {
                double dot = 0;
                for (int32_t e = 0; e < 64; e++) dot += s.q[r][e] * (double)k[p * 256 + e];
                w[p] = dot * 0.125;
                if (a->softcap > 0) w[p] = 20 * tanh(w[p] / 20);
                m = fmax(m, w[p]);
            }
            for (int32_t p = s.lo[r]; p < s.hi[r]; p++) l += w[p] = exp(w[p] - m);
            int32_t is_empty = s.lo[r] == s.hi[r];
            if (is_empty ? a->m[r] != -INFINITY || a->l[r] != 0
                         : !(fabs(a->m[r] - m) < k_error && fabs(a->l[r] / l - 1) < k_error)) {
                fail(c, "row %d: m %g, l %g; expected %g, %g", r, (double)a->m[r], (double)a->l[r], m, l);
                return;
            }
            for (int32_t d = 0; d < 80; d++) {
                double want = 0, size = 1e-30;
                for (int32_t p = s.lo[r]; p < s.hi[r]; p++) {
                    want += w[p] * v[p * 256 + d];
                    size += w[p] * fabs((double)v[p * 256 + d]);
                }
                double got = a->o[r * 80 + d];
                if (!(fabs(got - want) <= error * size)) {
                    fail(c, "row %d: o[%d] is %g, expected %g", r, d, got, want);
                    return;
                }
            }
        }
    }
}

/* ---- fold ----------------------------------------------------------------------------------------------------------- */

static float any_of(check *c, const float *values, int32_t n) {
    int32_t i = random_below(c, n + 4);
    return i < n ? values[i] : random_normal(c) * 10;
}

void check_attn_fold(check *c) {
    static const float maxima[] = {0.0f, -0.0f, 5.0f, -300.0f, 80.0f, 1e30f, -1e30f},
                       sums[] = {0.0f, 1.0f, 256.0f, 1e-30f};
    for (int32_t turn = 0; turn < 4000; turn++) {
        int32_t v_dim = turn < 300 ? turn + 1 : 4 * (1 + random_below(c, 64));
        size_t bytes = 4 * (size_t)v_dim;
        pattern p = turn % 8 ? P_RANDOM : (pattern)(turn / 8 % N_PATTERNS);
        float m = any_of(c, maxima, 7), l = fabsf(any_of(c, sums, 4)), M[2], L[2];
        M[0] = M[1] = random_below(c, 5) ? any_of(c, maxima, 7) : m;
        L[0] = L[1] = fabsf(any_of(c, sums, 4));
        set_case(c, "v_dim %d, M %g, L %g, m %g, l %g, data %s", v_dim, (double)M[0], (double)L[0], (double)m,
                 (double)l, pattern_name(p));
        float *o = place(c, Q_A, bytes, 4 * (size_t)random_below(c, 16)), *want = place(c, O_A, bytes, 0);
        float *got = place(c, O_B, bytes, 4 * (size_t)random_below(c, 16));
        fill_floats(c, p, o, (size_t)v_dim);
        fill_floats(c, p, want, (size_t)v_dim);
        memcpy(got, want, bytes);
        c->scalar->attn_fold(&M[0], &L[0], want, m, l, o, v_dim);
        c->level->attn_fold(&M[1], &L[1], got, m, l, o, v_dim);
        if (!same_floats(c, "M", &M[0], &M[1], 1) || !same_floats(c, "L", &L[0], &L[1], 1)) return;
        if (!same_floats(c, "O", want, got, (size_t)v_dim) || !untouched(c, O_B, "O")) return;
    }
}

/* ---- stores --------------------------------------------------------------------------------------------------------- */

void check_kv_store(check *c) {
    for (int32_t turn = 0; turn < 4200; turn++) {
        int32_t type = turn % EL_KV_TYPES, is_v = turn / EL_KV_TYPES & 1, dim = 4 * (1 + turn % 64),
                slot = random_below(c, 32);
        size_t bytes = el_kv_head_bytes(type, dim);
        set_case(c, "%s %s, dim %d, slot %d", is_v ? "V" : "K", kv_name(type), dim, slot);
        float *x = place(c, Q_A, 4 * (size_t)dim, 4 * (size_t)random_below(c, 16));
        fill_floats(c,
                    turn % 4 == 3   ? P_RANDOM
                    : turn % 4 == 2 ? P_WILD
                                    : (pattern)(turn / 4 % N_PATTERNS),
                    x, (size_t)dim);
        for (int32_t i = 0; turn % 4 == 1 && i < dim;
             i++) { /* subnormal to overflow, and halfway between two */
            x[i] = el_float((random_bits(c) & 0x80001fffu) |
                            (uint32_t)random_below(c, 0x20000) * 0x1000u % 0x48000000u);
            if (random_below(c, 2)) x[i] = el_float(el_bits(x[i]) & 0xfff80000u);
        }
        if (turn % 11 == 10) x[random_below(c, dim)] = random_below(c, 2) ? NAN : -INFINITY;
        uint8_t *want = place_aligned(c, PAGE_A, bytes), *got = place_aligned(c, PAGE_B, bytes);
        memset(want, 0x55, bytes);
        memset(got, 0x55, bytes);
        (is_v ? c->scalar->v_store : c->scalar->k_store)[type](x, dim, slot, want);
        (is_v ? c->level->v_store : c->level->k_store)[type](x, dim, slot, got);
        if (!same_bytes(c, "page", want, got, bytes) || !untouched(c, PAGE_B, "the page")) return;
    }
}

/* ---- what a format keeps -------------------------------------------------------------------------------------------- */

/* The number that the magnitude bits of an fp8 stand for, by its definition. */
static double fp8_number(int32_t code, int32_t mantissa, int32_t bias) {
    int32_t exponent = code >> mantissa, part = code & ((1 << mantissa) - 1);
    return exponent ? ldexp(part + (1 << mantissa), exponent - bias - mantissa)
                    : ldexp(part, 1 - bias - mantissa);
}

/* The nearest fp8 of |x|, ties to the even code, the largest one above it. */
static double nearest_fp8(double x, int32_t mantissa, int32_t bias, int32_t last) {
    int32_t best = 0;
    for (int32_t code = 1; code <= last; code++) {
        double d = fabs(fabs(x) - fp8_number(code, mantissa, bias)),
               old = fabs(fabs(x) - fp8_number(best, mantissa, bias));
        if (d < old || (d == old && code % 2 == 0)) best = code;
    }
    return copysign(fp8_number(best, mantissa, bias), x);
}

/* Whether `got` may stand for x in a row whose 32 dims reach from low to high. */
static int32_t is_kept(int32_t type, double x, double got, double low, double high) {
    const double amax = fmax(-low, high);
    switch (type) {
    case EL_KV_F16: return fabs(got - x) <= fmax(fabs(x) * 0x1p-11, 0x1p-25);
    case EL_KV_F32: return got == x;
    case EL_KV_BF16: return fabs(got - x) <= fabs(x) * 0x1p-8 && el_bits((float)got) << 16 == 0;
    case EL_KV_FP8_E4M3: return got == nearest_fp8(x, 3, 7, 0x7e);
    case EL_KV_FP8_E5M2: return got == nearest_fp8(x, 2, 15, 0x7b);
    case EL_KV_Q8_0: return amax < 0x1p-120 ? got == 0 : fabs(got - x) <= amax / 127 * 0.505;
    default: {
        const double most = -low >= high ? -amax : amax; /* the one that is kept; the other side is clipped */
        const double room = (x > 0) == (most > 0) ? 0.505 : 1.01;
        return amax < 0x1p-120 ? got == 0 : fabs(got - x) <= amax / 8 * room;
    }
    }
}

/* A row that sees one position gives back its V; inf and nan in it give no number. */
void check_kv_meaning(check *c) {
    segment s;
    memset(&s, 0, sizeof s);
    for (int32_t turn = 0; turn < 1400; turn++) {
        const int32_t type = turn % EL_KV_TYPES, p = random_below(c, EL_SEGMENT),
                      dim = 4 * (1 + random_below(c, 24));
        const int32_t broken = turn % 5 == 4 ? random_below(c, dim) : -1;
        el_attn_segment *a = &s.a;
        *a = (el_attn_segment){
            .n_q = 1, .k_dim = 32, .v_dim = dim, .k_type = type, .v_type = type, .scale = 1.0f};
        set_case(c, "%s, turn %d, dim %d, position %d", kv_name(type), turn, dim, p);
        memset(s.seen, 0, sizeof s.seen);
        s.seen[p] = 1;
        s.lo[0] = p;
        s.hi[0] = p + 1;
        make_data(c, &s, P_RANDOM);
        float x[96];
        fill_floats(c, P_RANDOM, x, 96);
        for (int32_t i = 0; i < dim; i++) {
            if (turn % 3)
                x[i] = ldexpf(x[i], random_below(c, turn % 3 == 1 ? 12 : 30) - (turn % 3 == 1 ? 6 : 15));
        }
        if (broken >= 0) x[broken] = turn % 2 ? NAN : INFINITY;
        c->scalar->v_store[type](x, dim, p % 32, (void *)(uintptr_t)s.v_pages[p / 32]);
        run_segment(c, c->scalar, &s, 0);
        for (int32_t i = 0; i < dim; i++) {
            const int32_t scaled = type == EL_KV_Q8_0 || type == EL_KV_Q4_0;
            if (broken == i || (scaled && broken / 32 == i / 32 && broken >= 0)) {
                if (el_is_finite(a->o[i])) {
                    fail(c, "dim %d: %g hides what is not finite", i, (double)a->o[i]);
                    return;
                }
                continue;
            }
            double low = 0, high = 0;
            for (int32_t j = i / 32 * 32; j < dim && j < i / 32 * 32 + 32; j++) {
                low = fmin(low, (double)x[j]);
                high = fmax(high, (double)x[j]);
            }
            if (!is_kept(type, (double)x[i], (double)a->o[i], low, high)) {
                fail(c, "dim %d: %.9g was kept as %.9g", i, (double)x[i], (double)a->o[i]);
                return;
            }
        }
    }
    for (int32_t code = 0; code < 256; code++) { /* every fp8 */
        const int32_t rest = code & 0x7f;
        const double sign = code & 0x80 ? -1 : 1;
        const float a = el_e4m3_to_f32((uint8_t)code), b = el_e5m2_to_f32((uint8_t)code);
        set_case(c, "code %02x", code);
        if (rest == 0x7f ? a == a : (double)a != sign * fp8_number(rest, 3, 7))
            fail(c, "e4m3 is %g", (double)a);
        if (rest > 0x7c    ? b == b
            : rest == 0x7c ? (double)b != sign * INFINITY
                           : (double)b != sign * fp8_number(rest, 2, 15)) {
            fail(c, "e5m2 is %g", (double)b);
        }
        if (c->failed) return;
    }
}
