/* pack, mm, quantize, dequant. */
#include "check.h"

#include "fp.h"

#include <math.h>
#include <string.h>

enum { ROWS_A, PANEL_A, PANEL_B, X_A, Y_A, Y_B, SCRATCH_A, ACT_A, ACT_B, ROW_A, MAX_N = 600 };

static const int32_t KS[] = {32, 64, 256, 512, 576, 640, 1024, 1536, 2048};
static const int32_t FLOAT_KS[] = {1, 3, 33,
                                   100}; /* more, for F16, BF16 and F32, whose blocks are single elements */
static const int32_t NS[] = {1, 2, 3, 4, 5, 7, 8, 13, 16, 33, 64};
enum {
    N_KS = sizeof KS / sizeof *KS,
    N_FLOAT_KS = sizeof FLOAT_KS / sizeof *FLOAT_KS,
    N_NS = sizeof NS / sizeof *NS
};

/* The i-th contraction size for the type, 0 where it does not apply, -1 past the last. */
static int32_t k_at(int32_t qtype, int32_t i) {
    if (i < N_KS) return KS[i] % qtype_block(qtype) ? 0 : KS[i];
    if (i < N_KS + N_FLOAT_KS) return qtype_block(qtype) == 1 ? FLOAT_KS[i - N_KS] : 0;
    return -1;
}

/* 16 file rows of arena ROWS_A, `stride` bytes apart, the last ending at the forbidden page. */
static uint8_t *make_rows(check *c, pattern p, int32_t qtype, int32_t k, int32_t n_rows, size_t stride,
                          size_t gap) {
    size_t bytes = qtype_row_bytes(qtype, k);
    uint8_t *rows = place(c, ROWS_A, (size_t)(n_rows - 1) * stride + bytes, gap);
    for (int32_t r = 0; r < n_rows; r++) fill_row(c, p, qtype, k, rows + (size_t)r * stride);
    return rows;
}

/* ---- pack ---------------------------------------------------------------------------------------------------------- */

void check_pack(check *c, int32_t qtype) {
    const el_tile *t = el_tile_of(qtype);
    for (int32_t i = 0, k; (k = k_at(qtype, i)) >= 0; i++) {
        for (int32_t n_rows = 1; k > 0 && n_rows <= 16; n_rows++) {
            size_t payload = (size_t)(k / t->block) * (size_t)(t->quant_bytes + t->extra_bytes);
            size_t stride = qtype_row_bytes(qtype, k) + (size_t)random_below(c, 4),
                   gap = (size_t)random_below(c, 4);
            set_case(c, "k %d, n_rows %d, row_stride %zu, rows at 4n%+d bytes", k, n_rows, stride, -(int)gap);
            uint8_t *rows = make_rows(c, P_RANDOM, qtype, k, n_rows, stride, gap);
            void *want = place_aligned(c, PANEL_A, el_panel_bytes(t, k));
            void *got = place_aligned(c, PANEL_B, el_panel_bytes(t, k));
            memset(want, 0x11, el_panel_bytes(t, k));
            memset(got, 0x22, el_panel_bytes(t, k));
            c->scalar->pack[qtype](rows, stride, n_rows, k, want);
            c->level->pack[qtype](rows, stride, n_rows, k, got);
            if (!same_bytes(c, "panel", want, got, payload) || !untouched(c, PANEL_B, "the panel")) return;
        }
    }
}

/* ---- mm ------------------------------------------------------------------------------------------------------------ */

typedef struct mm_case {
    int32_t qtype, k, n_rows, n;
    const void *x[MAX_N];
    float *y[MAX_N];
    size_t x_stride, y_stride, y_off;
} mm_case;

static size_t act_bytes(const el_tile *t, int32_t k) {
    if (t->act < 0) return ((size_t)k * 4 + 63) & ~(size_t)63;
    return t->act == EL_ACT_A16 ? el_a16_bytes(k) : el_a256_bytes(k);
}

/* Activation rows of arena X_A, each its own pattern if p is N_PATTERNS. */
static void make_activations(check *c, mm_case *m, pattern p) {
    const el_tile *t = el_tile_of(m->qtype);
    m->x_stride = act_bytes(t, m->k);
    char *x = place_aligned(c, X_A, m->x_stride * (size_t)m->n);
    memset(x, 0x7e, m->x_stride * (size_t)m->n); /* what lies between and behind the arrays is anything */
    float *row = place(c, ROW_A, (size_t)m->k * 4, 0);
    for (int32_t i = 0; i < m->n; i++) {
        fill_floats(c, p == N_PATTERNS ? (pattern)random_below(c, N_PATTERNS) : p, row, (size_t)m->k);
        m->x[i] = x + m->x_stride * (size_t)i;
        if (t->act < 0) {
            memcpy(x + m->x_stride * (size_t)i, row, (size_t)m->k * 4);
        } else {
            c->scalar->quantize[t->act](row, m->k, x + m->x_stride * (size_t)i);
        }
    }
}

/* Runs a kernel into arena `where`; all of it is filled with a pattern first. */
static const float *run_mm(check *c, el_mm_fn *mm, mm_case *m, const void *panel, int32_t where) {
    m->y_stride = (size_t)m->n_rows + m->y_off + 3;
    float *y = place(c, where, m->y_stride * 4 * (size_t)m->n, 0);
    for (size_t i = 0; i < m->y_stride * (size_t)m->n; i++) y[i] = el_float(0x40490fdbu);
    for (int32_t i = 0; i < m->n; i++) m->y[i] = y + m->y_stride * (size_t)i;
    void *scratch = place_aligned(c, SCRATCH_A, el_mm_scratch_bytes(m->k));
    mm(panel, m->k, m->n_rows, m->x, m->n, m->y, m->y_off, scratch);
    return y;
}

static int32_t compare_mm(check *c, mm_case *m, pattern pw, pattern px) {
    if (left_out(c)) return 1;
    const el_tile *t = el_tile_of(m->qtype);
    set_case(c, "k %d, n %d, n_rows %d, weights %s, activations %s", m->k, m->n, m->n_rows, pattern_name(pw),
             px == N_PATTERNS ? "mixed" : pattern_name(px));
    m->y_off = (size_t)random_below(c, 20);
    size_t stride = qtype_row_bytes(m->qtype, m->k);
    uint8_t *rows = make_rows(c, pw, m->qtype, m->k, m->n_rows, stride, (size_t)random_below(c, 4));
    void *panel = place_aligned(c, PANEL_A, el_panel_bytes(t, m->k));
    c->scalar->pack[m->qtype](rows, stride, m->n_rows, m->k, panel);
    make_activations(c, m, px);
    const float *want = run_mm(c, c->scalar->mm[m->qtype], m, panel, Y_A);
    if (c->level->mm_far[m->qtype]) {
        const uint64_t digest = c->digest; /* of what every level has */
        const float *far = run_mm(c, c->level->mm_far[m->qtype], m, panel, Y_B);
        if (!same_floats(c, "y of mm_far", want, far, m->y_stride * (size_t)m->n)) return 0;
        c->digest = digest;
    }
    const float *got = run_mm(c, c->level->mm[m->qtype], m, panel, Y_B);
    return same_floats(c, "y", want, got, m->y_stride * (size_t)m->n) && untouched(c, Y_B, "y") &&
           untouched(c, SCRATCH_A, "scratch") && untouched(c, PANEL_A, "the panel") && untouched(c, X_A, "x");
}

void check_mm(check *c, int32_t qtype) {
    mm_case m = {.qtype = qtype};
    /* every pair of patterns on few shapes */
    for (int32_t pw = 0; pw < N_PATTERNS; pw++) {
        for (int32_t px = 0; px <= N_PATTERNS; px++) {
            static const int32_t ns[] = {1, 3, 5, 24};
            for (int32_t j = 0; j < (int32_t)(sizeof ns / sizeof *ns); j++) {
                m.k = random_below(c, 2) ? 256 : 512;
                m.n = ns[j];
                m.n_rows = 1 + random_below(c, 16);
                if (!compare_mm(c, &m, (pattern)pw, (pattern)px)) return;
            }
        }
    }
    /* every shape on few patterns */
    for (int32_t i = 0; (m.k = k_at(qtype, i)) >= 0; i++) {
        for (int32_t j = 0; m.k > 0 && j < N_NS; j++) {
            for (int32_t turn = 0; turn < 3; turn++) {
                m.n = NS[j];
                m.n_rows = turn ? 1 + (i + 5 * j + 7 * turn) % 16 : 16;
                if (!compare_mm(c, &m, turn == 2 ? P_ALTERNATE : P_RANDOM, turn == 1 ? N_PATTERNS : P_RANDOM))
                    return;
            }
        }
    }
    /* long rows */
    for (m.n = 1; m.n <= 9; m.n += 4) {
        m.k = 11008;
        m.n_rows = 16;
        if (!compare_mm(c, &m, P_RANDOM, P_RANDOM)) return;
    }
    /* every width that groups of columns may have, and more than one batch of columns */
    for (int32_t j = 14; j < 50; j++) {
        static const int32_t batches[] = {255, 256, 257, 300, 511, 513, 530, 600};
        m.n = j < 42 ? j : batches[j - 42];
        m.k = j % 3 ? 512 : 1536;
        m.n_rows = j % 2 ? 16 : 1 + random_below(c, 16);
        if (!compare_mm(c, &m, P_RANDOM, N_PATTERNS)) return;
    }
    /* every number of rows */
    for (m.n_rows = 1; m.n_rows <= 16; m.n_rows++) {
        for (m.n = 1; m.n <= 6; m.n++) {
            m.k = 512;
            if (!compare_mm(c, &m, P_RANDOM, P_RANDOM)) return;
        }
    }
}

/* ---- quantize ------------------------------------------------------------------------------------------------------ */

/* Compares the arrays of two activation rows, not what lies between them. */
static int32_t same_activation(check *c, int32_t format, int32_t k, const void *want, const void *got) {
    size_t n = (size_t)k;
    if (!same_bytes(c, "q", want, got, n)) return 0;
    if (format == EL_ACT_A16) {
        return same_floats(c, "d", el_a16_d(want, k), el_a16_d(got, k), n / 16) &&
               same_floats(c, "s", el_a16_s(want, k), el_a16_s(got, k), n / 32) &&
               same_ints(c, "sum", el_a16_sum(want, k), el_a16_sum(got, k), n / 16);
    }
    return same_floats(c, "d", el_a256_d(want, k), el_a256_d(got, k), n / 256) &&
           same_bytes(c, "sum16", el_a256_sum16(want, k), el_a256_sum16(got, k), n / 16 * 2) &&
           same_bytes(c, "sum32", el_a256_sum32(want, k), el_a256_sum32(got, k), n / 32 * 2);
}

/* x of one case: pattern, or with one value that is not finite. Special: ties, and the largest of a block at its edges. */
static void make_row(check *c, int32_t special, pattern p, float *x, int32_t k) {
    static const uint32_t not_finite[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffffffffu, 0x7f800001u};
    fill_floats(c, p, x, (size_t)k);
    if (special == 1) x[random_below(c, k)] = el_float(not_finite[random_below(c, 5)]);
    if (special == 2) { /* x * id falls on halves: round to even */
        for (int32_t i = 0; i < k; i++) x[i] = 0.5f * (float)(random_below(c, 507) - 253);
        for (int32_t i = 0; i < k; i += 32) x[i + random_below(c, 32)] = 127.0f;
    }
    if (special == 3) { /* around the threshold 2^-120 */
        for (int32_t i = 0; i < k; i++)
            x[i] = el_float(((127u - 120u) << 23) - 3u + (uint32_t)random_below(c, 4));
        x[random_below(c, k)] = el_float(((127u - 120u) << 23) + (uint32_t)random_below(c, 2) - 1u);
    }
}

void check_quantize(check *c, int32_t format) {
    for (int32_t i = 0; i < N_KS; i++) {
        int32_t k = KS[i];
        if (format == EL_ACT_A256 && k % 256) continue;
        size_t bytes = format == EL_ACT_A16 ? el_a16_bytes(k) : el_a256_bytes(k);
        for (int32_t turn = 0; turn < 12 * N_PATTERNS; turn++) {
            pattern p = (pattern)(turn % N_PATTERNS);
            int32_t special = turn / N_PATTERNS % 4;
            size_t gap = 4 * (size_t)random_below(c, 16);
            set_case(c, "k %d, %s, special %d, x %zu bytes off alignment", k, pattern_name(p), special,
                     (64 - gap) % 64);
            float *x = place(c, ROW_A, (size_t)k * 4, gap);
            make_row(c, special, p, x, k);
            void *want = place_aligned(c, ACT_A, bytes), *got = place_aligned(c, ACT_B, bytes);
            memset(want, 0x11, bytes);
            memset(got, 0x22, bytes);
            int32_t a = c->scalar->quantize[format](x, k, want), b = c->level->quantize[format](x, k, got);
            if (!same_ints(c, "result", &a, &b, 1) || !same_activation(c, format, k, want, got)) return;
            if (!untouched(c, ACT_B, "the row")) return;
        }
    }
}

/* The scalar kernel against the definition: bounds of q, exact sums, error at most half a step, the two special cases. */
void check_quantize_meaning(check *c, int32_t format) {
    int32_t k = 512, block = format == EL_ACT_A16 ? 16 : 256;
    for (int32_t turn = 0; turn < 400; turn++) {
        pattern p = (pattern)(turn % N_PATTERNS);
        float *x = place(c, ROW_A, (size_t)k * 4, 4);
        int8_t *q = place_aligned(c, ACT_A, format == EL_ACT_A16 ? el_a16_bytes(k) : el_a256_bytes(k));
        set_case(c, "%s", pattern_name(p));
        make_row(c, turn / N_PATTERNS % 4, p, x, k);
        int32_t bad = c->scalar->quantize[format](x, k, q), any_bad = 0;
        const float *d = (const float *)(q + el_act_q_bytes(k));
        for (int32_t b = 0; b < k / block; b++) {
            double amax = 0;
            int32_t block_bad = 0;
            for (int32_t i = b * block; i < (b + 1) * block; i++) {
                block_bad |= !isfinite(x[i]);
                if (fabs((double)x[i]) > amax) amax = fabs((double)x[i]);
            }
            any_bad |= block_bad;
            int32_t zero = block_bad || amax < ldexp(1, -120);
            if (zero ? d[b] != 0.0f : fabs((double)d[b] * 127 - amax) > amax * 1e-6 + ldexp(127, -150)) {
                fail(c, "block %d: scale %g, largest value %g", b, (double)d[b], amax);
                return;
            }
            for (int32_t i = b * block; i < (b + 1) * block; i++) {
                double want = zero ? 0 : (double)x[i] * 127 / amax;
                if (q[i] < -127 || fabs(want - q[i]) > 0.5001) {
                    fail(c, "q[%d] is %d, expected about %g", i, q[i], want);
                    return;
                }
            }
        }
        if (bad != any_bad) fail(c, "result is %d, expected %d", bad, any_bad);
        for (int32_t j = 0; j < k / 16 && !c->failed; j++) {
            int32_t sum = 0, sum32 = 0;
            for (int32_t i = 0; i < 16; i++) sum += q[16 * j + i];
            for (int32_t i = 0; i < 32; i++) sum32 += q[32 * (j / 2) + i];
            int32_t ok =
                format == EL_ACT_A16
                    ? el_a16_sum(q, k)[j] == sum &&
                          (j % 2 == 0 ||
                           el_a16_s(q, k)[j / 2] == el_fma((float)sum, d[j], (float)(sum32 - sum) * d[j - 1]))
                    : el_a256_sum16(q, k)[j] == sum && el_a256_sum32(q, k)[j / 2] == sum32;
            if (!ok) fail(c, "sums of 16-block %d are wrong", j);
        }
        if (c->failed) return;
    }
}

/* ---- the meaning of scalar mm and dequant --------------------------------------------------------------------------- */

static double weight_value(parts w) { return w.d * w.scale * w.u - w.dmin * w.minimum; }
static double weight_size(parts w) { return fabs(w.d * w.scale * w.u) + fabs(w.dmin * w.minimum); }

/* y against sum w x in double, weights and activations taken from their bytes; the bound counts one rounding per fma. */
static int32_t compare_to_double(check *c, const mm_case *m, const uint8_t *rows, size_t stride) {
    const el_tile *t = el_tile_of(m->qtype);
    int32_t step = t->act == EL_ACT_A16 ? 16 : 256;
    for (int32_t i = 0; i < m->n; i++) {
        for (int32_t r = 0; r < m->n_rows; r++) {
            double want = 0, size = 0;
            for (int32_t k = 0; k < m->k; k++) {
                parts w = row_parts(m->qtype, rows + (size_t)r * stride, k);
                double x = t->act < 0 ? (double)((const float *)m->x[i])[k]
                                      : (double)((const int8_t *)m->x[i])[k] *
                                            (double)el_a16_d(m->x[i], m->k)[k / step];
                want += weight_value(w) * x;
                size += weight_size(w) * fabs(x);
            }
            int32_t roundings = 4 + 4 * (m->k / t->block);
            double bound = size * roundings * ldexp(1, -24) + ldexp(m->k, -140),
                   got = m->y[i][m->y_off + (size_t)r];
            if (!(fabs(got - want) <= bound)) {
                fail(c, "y[%d] of column %d is %.9g, expected %.9g within %.3g", r, i, got, want, bound);
                return 0;
            }
        }
    }
    return 1;
}

/* One block, d = dx = 1: y is the integer sum itself, or an exact part of it. With d = 0 and a minimum of 1 it is the sum of minima. */
static int32_t compare_to_integers(check *c, mm_case *m, int32_t minima, pattern pw) {
    const el_tile *t = el_tile_of(m->qtype);
    m->k = t->block;
    m->n = 3;
    m->n_rows = 16;
    set_case(c, "one block, %s, weights %s", minima ? "d = 0, minimum 1" : "d = 1, minimum 0",
             pattern_name(pw));
    size_t stride = qtype_row_bytes(m->qtype, m->k);
    uint8_t *rows = make_rows(c, pw, m->qtype, m->k, 16, stride, 1);
    for (int32_t r = 0; r < 16; r++) {
        set_scales(m->qtype, m->k, rows + (size_t)r * stride, minima ? 0 : 0x3c00, minima ? 0x3c00 : 0);
    }
    void *panel = place_aligned(c, PANEL_A, el_panel_bytes(t, m->k));
    c->scalar->pack[m->qtype](rows, stride, 16, m->k, panel);
    char *x = place_aligned(c, X_A, 3 * act_bytes(t, m->k));
    float *row = place(c, ROW_A, (size_t)m->k * 4, 0);
    for (int32_t i = 0; i < 3; i++) {
        for (int32_t k = 0; k < m->k; k++) row[k] = i == 0 ? 127.0f : (float)(random_below(c, 255) - 127);
        for (int32_t k = random_below(c, 16); k < m->k; k += 16) row[k] = 127.0f; /* every scale is 1 */
        m->x[i] = x + act_bytes(t, m->k) * (size_t)i;
        c->scalar->quantize[t->act](row, m->k, x + act_bytes(t, m->k) * (size_t)i);
    }
    run_mm(c, c->scalar->mm[m->qtype], m, panel, Y_A);
    for (int32_t i = 0; i < 3; i++) {
        for (int32_t r = 0; r < 16; r++) {
            int64_t want = 0;
            parts w = {0};
            for (int32_t k = 0; k < m->k; k++) {
                w = row_parts(m->qtype, rows + (size_t)r * stride, k);
                int64_t q = ((const int8_t *)m->x[i])[k];
                want += minima ? (w.dmin < 0 ? q : -q) * w.minimum : q * w.scale * w.u;
            }
            float y = (float)want * (minima ? 1.0f : (float)w.d); /* d is a power of two where it is not 1 */
            if (!same_values(c, "y", &y, &m->y[i][m->y_off + (size_t)r], 1)) return 0;
        }
    }
    return 1;
}

void check_mm_meaning(check *c, int32_t qtype) {
    static const pattern weights[] = {P_RANDOM, P_MAX, P_MIN, P_ALTERNATE, P_ZERO};
    const el_tile *t = el_tile_of(qtype);
    mm_case m = {.qtype = qtype};
    for (size_t i = 0; t->act >= 0 && i < sizeof weights / sizeof *weights; i++) {
        if (!compare_to_integers(c, &m, 0, weights[i])) return;
        if (qtype_has_minima(qtype) && !compare_to_integers(c, &m, 1, weights[i])) return;
    }
    for (int32_t turn = 0; turn < 24; turn++) {
        m.k = turn % 2 ? 512 : t->block == 32 ? 576 : 1024;
        m.n = 1 + turn % 3;
        m.n_rows = 1 + random_below(c, 16);
        m.y_off = (size_t)random_below(c, 9);
        set_case(c, "k %d, n %d, n_rows %d against double", m.k, m.n, m.n_rows);
        size_t stride = qtype_row_bytes(qtype, m.k) + 1;
        uint8_t *rows = make_rows(c, turn == 5 ? P_DENORMAL : P_RANDOM, qtype, m.k, m.n_rows, stride, 2);
        void *panel = place_aligned(c, PANEL_A, el_panel_bytes(t, m.k));
        c->scalar->pack[qtype](rows, stride, m.n_rows, m.k, panel);
        make_activations(c, &m, turn % 4 == 3 ? P_SPIKE : P_RANDOM);
        run_mm(c, c->scalar->mm[m.qtype], &m, panel, Y_A);
        if (!compare_to_double(c, &m, rows, stride)) return;
    }
}

void check_dequant_meaning(check *c, int32_t qtype) {
    for (int32_t turn = 0; turn < 4 * N_PATTERNS; turn++) {
        int32_t k = turn & 1 ? 256 : 1024;
        pattern p = (pattern)(turn % N_PATTERNS);
        uint8_t *row = make_rows(c, p, qtype, k, 1, 0, (size_t)(turn % 4));
        float *y = place(c, Y_A, (size_t)k * 4, 0);
        set_case(c, "k %d, %s", k, pattern_name(p));
        c->level->dequant[qtype](row, k, y);
        for (int32_t i = 0; i < k; i++) {
            parts w = row_parts(qtype, row, i);
            if (!(fabs((double)y[i] - weight_value(w)) <= weight_size(w) * ldexp(1, -23) + ldexp(1, -149))) {
                fail(c, "y[%d] is %.9g, expected %.9g", i, (double)y[i], weight_value(w));
                return;
            }
        }
        if (!untouched(c, Y_A, "y")) return;
    }
}

/* How much it does differs from level to level; that it is as much as asked for does not. */
void check_int8_peak(check *c) {
    const int64_t one = c->level->int8_peak(1);
    set_case(c, "%lld multiply-adds a round", (long long)one);
    if (one <= 0 || c->level->int8_peak(0) != 0 || c->level->int8_peak(1000) != 1000 * one) {
        fail(c, "not in proportion to the rounds");
    }
}

/* Every word is read, and none behind the last: one bit in one word at a time. */
void check_read(check *c) {
    enum { WORDS = 96, AFTER = 32 };
    static _Alignas(64) uint64_t memory[WORDS + AFTER];
    for (size_t i = 0; i < WORDS; i++) {
        memset(memory, 0, sizeof memory);
        memset(memory + WORDS, 255, AFTER * sizeof *memory);
        memory[i] = (uint64_t)1 << (i % 64);
        const uint64_t found = c->level->read(memory, WORDS * sizeof *memory);
        set_case(c, "word %zu is %llx", i, (unsigned long long)memory[i]);
        if (found != memory[i]) {
            fail(c, "found %llx", (unsigned long long)found);
            return;
        }
    }
}
