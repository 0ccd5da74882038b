/* top_k, lse_segment, nonfinite. */
#include "check.h"

#include "fp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { X_A, IDS_A, IDS_B, VALS_A, VALS_B, MAX_LOGITS = 262144 };

typedef enum logits {
    T_RANDOM,
    T_TIES,
    T_ALL_EQUAL,
    T_RISING,
    T_FALLING,
    T_ZEROS,
    T_MASKED,
    N_LOGITS
} logits;
static const char *const LOGIT_NAMES[N_LOGITS] = {"random",  "many ties",           "all equal",  "rising",
                                                  "falling", "zeros of both signs", "mostly -inf"};

static void fill_logits(check *c, logits kind, float *x, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        switch (kind) {
        case T_TIES: x[i] = (float)random_below(c, 7) * 0.5f - 1.0f; break;
        case T_ALL_EQUAL: x[i] = 3.25f; break;
        case T_RISING: x[i] = (float)(i / 3); break;
        case T_FALLING: x[i] = (float)(-i / 3); break;
        case T_ZEROS: x[i] = random_below(c, 2) ? 0.0f : -0.0f; break;
        case T_MASKED: x[i] = random_below(c, 100) ? -INFINITY : random_normal(c); break;
        default: x[i] = random_normal(c) * 5;
        }
    }
}

/* Selects from x in pieces, as the engine does with the vocabulary; the order of the pieces does not matter. */
static int32_t choose(el_top_k_fn *top_k, const float *x, int32_t n, int32_t piece, int32_t is_reversed,
                      int32_t k, int32_t *ids, float *vals) {
    int32_t have = 0, n_pieces = (n + piece - 1) / piece;
    for (int32_t i = 0; i < n_pieces; i++) {
        int32_t first = piece * (is_reversed ? n_pieces - 1 - i : i);
        top_k(x + first, n - first < piece ? n - first : piece, first, k, ids, vals, &have);
    }
    return have;
}

static int32_t top_k_case(check *c, logits kind, int32_t n, int32_t piece, int32_t k) {
    size_t bytes = 4 * (size_t)k, gap = 4 * (size_t)random_below(c, 16);
    int32_t is_reversed = random_below(c, 2);
    set_case(c, "n %d in pieces of %d%s, k %d, %s", n, piece, is_reversed ? " reversed" : "", k,
             LOGIT_NAMES[kind]);
    float *x = place(c, X_A, 4 * (size_t)n, gap), *vals = place(c, VALS_A, bytes, 4),
          *got_vals = place(c, VALS_B, bytes, 4);
    int32_t *ids = place(c, IDS_A, bytes, 4), *got_ids = place(c, IDS_B, bytes, 4);
    fill_logits(c, kind, x, n);
    memset(ids, 0x33, bytes), memset(got_ids, 0x33, bytes), memset(vals, 0x33, bytes),
        memset(got_vals, 0x33, bytes);
    int32_t want = choose(c->scalar->top_k, x, n, piece, is_reversed, k, ids, vals);
    int32_t have = choose(c->level->top_k, x, n, piece, is_reversed, k, got_ids, got_vals);
    return same_ints(c, "have", &want, &have, 1) && same_ints(c, "ids", ids, got_ids, (size_t)want) &&
           same_floats(c, "vals", vals, got_vals, (size_t)want) && untouched(c, IDS_B, "ids") &&
           untouched(c, VALS_B, "vals");
}

void check_top_k(check *c) {
    static const int32_t ns[] = {1, 2, 7, 16, 33, 100, 1000, 1024, 4097, 49152},
                         ks[] = {1, 2, 5, 8, 40, 64, 257, 1000, 1024};
    for (int32_t kind = 0; kind < N_LOGITS; kind++) {
        for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) {
            for (size_t j = 0; j < sizeof ks / sizeof *ks; j++) {
                int32_t piece = j % 3 == 0 ? ns[i] : j % 3 == 1 ? 1024 : 1 + random_below(c, ns[i]);
                if (!top_k_case(c, (logits)kind, ns[i], piece, ks[j])) return;
            }
        }
        if (!top_k_case(c, (logits)kind, MAX_LOGITS, kind % 2 ? 1024 : MAX_LOGITS, 40)) return;
        if (!top_k_case(c, (logits)kind, MAX_LOGITS, 16384, 1024)) return;
    }
    for (int32_t n = 1; n <= 300; n++) { /* every tail */
        if (!top_k_case(c, (logits)(n % N_LOGITS), n, n, 1 + random_below(c, 20))) return;
    }
}

/* Scalar against a full sort, and log-sum-exp against double. */
typedef struct entry {
    float value;
    int32_t id;
} entry;

static int by_rank(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

void check_selection_meaning(check *c) {
    static entry sorted[5000];
    for (int32_t turn = 0; turn < 60; turn++) {
        int32_t n = 1 + random_below(c, 5000), k = 1 + random_below(c, 1024);
        float *x = place(c, X_A, 4 * (size_t)n, 0), vals[EL_MAX_TOP_K], m, l;
        int32_t ids[EL_MAX_TOP_K];
        fill_logits(c, (logits)(turn % N_LOGITS), x, n);
        set_case(c, "n %d, k %d, %s, against a sort", n, k, LOGIT_NAMES[turn % N_LOGITS]);
        for (int32_t i = 0; i < n; i++) sorted[i] = (entry){x[i], i};
        qsort(sorted, (size_t)n, sizeof *sorted, by_rank);
        int32_t have = choose(c->scalar->top_k, x, n, 1 + random_below(c, n), turn & 1, k, ids, vals),
                want = n < k ? n : k;
        if (!same_ints(c, "have", &want, &have, 1)) return;
        for (int32_t i = 0; i < have; i++) {
            if (!same_ints(c, "id by rank", &sorted[i].id, &ids[i], 1) ||
                !same_floats(c, "value", &sorted[i].value, &vals[i], 1)) {
                return;
            }
        }
        double sum = 0;
        int32_t part = n < 1024 ? n : 1024;
        c->scalar->lse_segment(x, part, &m, &l);
        for (int32_t i = 0; i < part; i++) sum += m == -INFINITY ? 0 : exp((double)x[i] - m);
        if (!(fabs(sum - (double)l) <= 1e-5 * sum)) {
            fail(c, "lse_segment: l is %g, expected %g", (double)l, sum);
            return;
        }
    }
}

void check_lse_segment(check *c) {
    for (int32_t kind = 0; kind < N_LOGITS; kind++) {
        for (int32_t n = 1; n <= 1024; n++) {
            float *x = place(c, X_A, 4 * (size_t)n, 4 * (size_t)random_below(c, 16)), want[2], got[2];
            set_case(c, "n %d, %s", n, LOGIT_NAMES[kind]);
            fill_logits(c, (logits)kind, x, n);
            if (n % 50 == 0) {
                for (int32_t i = 0; i < n; i++) x[i] *= 40;
            }
            if (n % 50 == 1) {
                for (int32_t i = 0; i < n; i++) x[i] = -INFINITY;
            }
            c->scalar->lse_segment(x, n, &want[0], &want[1]);
            c->level->lse_segment(x, n, &got[0], &got[1]);
            if (!same_floats(c, "m", &want[0], &got[0], 1) || !same_floats(c, "l", &want[1], &got[1], 1))
                return;
        }
    }
}

void check_nonfinite(check *c) {
    static const uint32_t bad[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0xffffffffu};
    for (int32_t n = 0; n <= 4096; n += n < 300 ? 1 : 211) {
        for (int32_t turn = 0; turn < 40; turn++) {
            float *x = place(c, X_A, 4 * (size_t)n, 4 * (size_t)random_below(c, 16));
            int32_t at = turn % 4 && n ? (turn == 1 ? 0 : turn == 2 ? n - 1 : random_below(c, n)) : -1;
            fill_floats(c, turn & 1 ? P_WILD : P_RANDOM, x, (size_t)n);
            if (at >= 0) x[at] = el_float(bad[random_below(c, 5)]);
            set_case(c, "n %d, %s at %d", n, at < 0 ? "nothing" : "a bad value", at);
            int32_t want = at >= 0, got = c->level->nonfinite(x, n), scalar = c->scalar->nonfinite(x, n);
            if (!same_ints(c, "scalar result", &want, &scalar, 1) || !same_ints(c, "result", &want, &got, 1))
                return;
        }
    }
}
