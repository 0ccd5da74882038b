/* attn_segment, attn_fold, and the stores into pages. */
#include "check.h"

#include "fp.h"

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
    N_RANGES
} ranges;
static const char *const RANGE_NAMES[N_RANGES] = {"full",     "tail",       "causal", "window",
                                                  "one page", "some empty", "random"};

typedef struct segment {
    el_attn_segment a;
    const float *q[EL_ATTN_ROWS];
    int32_t lo[EL_ATTN_ROWS], hi[EL_ATTN_ROWS];
    const void *k_pages[EL_SEG_PAGES], *v_pages[EL_SEG_PAGES];
    uint8_t seen[EL_SEGMENT];
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
        default: lo = random_below(c, 257), hi = lo + random_below(c, 257 - lo);
        }
        s->lo[r] = lo;
        s->hi[r] = hi;
    }
    memset(s->seen, 0, sizeof s->seen);
    for (int32_t r = 0; r < n; r++) memset(s->seen + s->lo[r], 1, (size_t)(s->hi[r] - s->lo[r]));
}

/* One element: a value where some row sees the position, nan bits where none does. */
static void put(check *c, uint8_t *array, int32_t type, size_t i, float value, int32_t is_seen) {
    if (type == EL_KV_F16) {
        uint16_t h = is_seen ? el_f32_to_f16(value) : (uint16_t)(0x7c01u | (random_bits(c) & 0x83ffu));
        memcpy(array + 2 * i, &h, 2);
    } else {
        uint32_t u = is_seen ? el_bits(value) : 0x7f800001u | (random_bits(c) & 0x807fffffu);
        memcpy(array + 4 * i, &u, 4);
    }
}

static size_t element_size(int32_t type) { return type == EL_KV_F16 ? 2 : 4; }

/* q, k, v and the page lists. The patterns MAX and SPIKE make scores so far apart that weights vanish. */
static void make_data(check *c, segment *s, pattern p) {
    el_attn_segment *a = &s->a;
    size_t dims = (size_t)a->k_dim, stride = dims + PAD;
    float *q = place(c, Q_A, stride * 4 * (size_t)a->n_q, 0), x[256];
    fill_floats(c, p == P_WILD ? P_RANDOM : p, q, stride * (size_t)a->n_q);
    for (int32_t r = 0; r < a->n_q; r++) s->q[r] = q + stride * (size_t)r;

    size_t k_bytes = dims * 32 * element_size(a->k_type),
           v_bytes = (size_t)a->v_dim * 32 * element_size(a->v_type);
    uint8_t *k = place_aligned(c, K_A, k_bytes * EL_SEG_PAGES),
            *v = place_aligned(c, V_A, v_bytes * EL_SEG_PAGES);
    for (int32_t page = 0; page < EL_SEG_PAGES; page++) {
        /* pages in reverse order in memory: they are not contiguous in the cache either */
        uint8_t *kp = k + k_bytes * (size_t)(EL_SEG_PAGES - 1 - page);
        uint8_t *vp = v + v_bytes * (size_t)(EL_SEG_PAGES - 1 - page);
        int32_t used = 0;
        for (int32_t i = 0; i < 32; i++) {
            int32_t is_seen = s->seen[32 * page + i];
            used |= is_seen;
            fill_floats(c, p, x, dims);
            if (p == P_RANDOM && random_below(c, 4) == 0) {
                for (size_t e = 0; e < dims; e++) x[e] *= 20;
            }
            for (size_t e = 0; e < dims; e++) put(c, kp, a->k_type, e * 32 + (size_t)i, x[e], is_seen);
            fill_floats(c, p == P_MAX ? P_RANDOM : p, x, (size_t)a->v_dim);
            for (size_t d = 0; d < (size_t)a->v_dim; d++) {
                put(c, vp, a->v_type, (size_t)i * (size_t)a->v_dim + d, x[d], is_seen);
            }
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
    el_attn_segment *a = &s->a;
    set_case(c, "n_q %d, k_dim %d %s, v_dim %d %s, softcap %g, ranges %s, data %s", a->n_q, a->k_dim,
             a->k_type ? "f32" : "f16", a->v_dim, a->v_type ? "f32" : "f16", (double)a->softcap,
             RANGE_NAMES[kind], pattern_name(p));
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
                    s.a.k_type = turn % 2;
                    s.a.v_type = turn / 2 % 2;
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
        s.a.k_type = random_below(c, 2);
        s.a.v_type = random_below(c, 2);
        if (!compare_segment(c, &s, (ranges)(turn % N_RANGES), patterns[turn % 7])) return;
    }
    for (int32_t n = 1; n <= EL_ATTN_ROWS; n++) { /* every number of rows */
        s.a = (el_attn_segment){.n_q = n, .k_dim = 64, .v_dim = 64, .scale = 0.125f};
        if (!compare_segment(c, &s, (ranges)(n % N_RANGES), P_RANDOM)) return;
    }
}

/* Scalar against softmax in double. */
void check_attn_meaning(check *c) {
    segment s;
    memset(&s, 0, sizeof s);
    for (int32_t turn = 0; turn < 40; turn++) {
        el_attn_segment *a = &s.a;
        *a = (el_attn_segment){
            .n_q = 1 + turn % 5, .k_dim = 64, .v_dim = 80, .k_type = turn % 2, .v_type = turn / 2 % 2};
        a->scale = 0.125f;
        a->softcap = turn % 4 == 3 ? 20.0f : 0.0f;
        set_case(c, "turn %d against double", turn);
        make_ranges(c, &s, (ranges)(turn % N_RANGES));
        make_data(c, &s, P_RANDOM);
        run_segment(c, c->scalar, &s, 0);
        for (int32_t r = 0; r < a->n_q; r++) {
            double w[EL_SEGMENT], m = -INFINITY, l = 0;
            for (int32_t p = s.lo[r]; p < s.hi[r]; p++) {
                double dot = 0;
                for (int32_t e = 0; e < 64; e++) {
                    size_t i = (size_t)e * 32 + (size_t)(p % 32);
                    const void *page = s.k_pages[p / 32];
                    dot += s.q[r][e] * (double)(a->k_type ? ((const float *)page)[i]
                                                          : el_f16_to_f32(((const uint16_t *)page)[i]));
                }
                w[p] = dot * 0.125;
                if (a->softcap > 0) w[p] = 20 * tanh(w[p] / 20);
                m = fmax(m, w[p]);
            }
            for (int32_t p = s.lo[r]; p < s.hi[r]; p++) l += w[p] = exp(w[p] - m);
            int32_t is_empty = s.lo[r] == s.hi[r];
            if (is_empty ? a->m[r] != -INFINITY || a->l[r] != 0
                         : !(fabs(a->m[r] - m) < 1e-3 && fabs(a->l[r] / l - 1) < 1e-3)) {
                fail(c, "row %d: m %g, l %g; expected %g, %g", r, (double)a->m[r], (double)a->l[r], m, l);
                return;
            }
            for (int32_t d = 0; d < 80; d++) {
                double want = 0, size = 1e-30;
                for (int32_t p = s.lo[r]; p < s.hi[r]; p++) {
                    size_t i = (size_t)(p % 32) * 80 + (size_t)d;
                    const void *page = s.v_pages[p / 32];
                    double v =
                        a->v_type ? ((const float *)page)[i] : el_f16_to_f32(((const uint16_t *)page)[i]);
                    want += w[p] * v;
                    size += w[p] * fabs(v);
                }
                double got = a->o[r * 80 + d];
                if (!(fabs(got - want) <= 1e-3 * size)) {
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
    for (int32_t turn = 0; turn < 3000; turn++) {
        int32_t type = turn & 1, is_v = turn >> 1 & 1, dim = 4 * (1 + turn % 64), slot = random_below(c, 32);
        size_t bytes = (size_t)dim * 32 * element_size(type);
        set_case(c, "%s %s, dim %d, slot %d", is_v ? "V" : "K", type ? "f32" : "f16", dim, slot);
        float *x = place(c, Q_A, 4 * (size_t)dim, 4 * (size_t)random_below(c, 16));
        fill_floats(c, turn % 3 ? P_WILD : P_RANDOM, x, (size_t)dim);
        for (int32_t i = 0; turn % 3 == 2 && i < dim;
             i++) { /* the range of halves, rounding cases and overflow */
            x[i] = el_float((random_bits(c) & 0x80001fffu) |
                            (uint32_t)random_below(c, 0x20000) * 0x1000u % 0x48000000u);
        }
        uint8_t *want = place_aligned(c, PAGE_A, bytes), *got = place_aligned(c, PAGE_B, bytes);
        memset(want, 0x55, bytes);
        memset(got, 0x55, bytes);
        (is_v ? c->scalar->v_store : c->scalar->k_store)[type](x, dim, slot, want);
        (is_v ? c->level->v_store : c->level->k_store)[type](x, dim, slot, got);
        if (!same_bytes(c, "page", want, got, bytes) || !untouched(c, PAGE_B, "the page")) return;
    }
}
