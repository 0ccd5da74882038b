/* Row operations: norms, activations, elementwise, rope. */
#include "check.h"

#include "fp.h"

#include <math.h>
#include <string.h>

enum { X_A, W_A, B_A, Y_A, Y_B, UP_A, MAX_SMALL = 300 };

static const int32_t LARGE[] = {576, 640, 1000, 1024, 1536, 2048, 4099};
enum { N_LARGE = sizeof LARGE / sizeof *LARGE };

/* Calls f(c, n, pattern) for n = 1..300 and some large n, with every pattern; stops at the first 0. */
static void for_each_size(check *c, int32_t (*f)(check *, int32_t, pattern)) {
    for (int32_t p = 0; p < N_PATTERNS; p++) {
        for (int32_t n = 1; n <= MAX_SMALL; n++) {
            if (!f(c, n, (pattern)p)) return;
        }
        for (int32_t i = 0; i < N_LARGE; i++) {
            if (!f(c, LARGE[i], (pattern)p)) return;
        }
    }
}

/* A float array at a random multiple of 4 bytes, filled. */
static float *input(check *c, int32_t arena, int32_t n, pattern p) {
    float *x = place(c, arena, 4 * (size_t)n, 4 * (size_t)random_below(c, 16));
    fill_floats(c, p, x, (size_t)n);
    return x;
}

static float *output(check *c, int32_t arena, int32_t n) {
    float *y = place(c, arena, 4 * (size_t)n, 4 * (size_t)random_below(c, 16));
    for (int32_t i = 0; i < n; i++) y[i] = 12345.0f;
    return y;
}

static int32_t same_output(check *c, const float *want, const float *got, int32_t n) {
    return same_floats(c, "y", want, got, (size_t)n) && untouched(c, Y_B, "y");
}

/* ---- norms ---------------------------------------------------------------------------------------------------------- */

static int32_t norm_case(check *c, int32_t is_layer, int32_t n, pattern p) {
    int32_t has_w = random_below(c, 4) > 0, has_b = random_below(c, 2), in_place = random_below(c, 2);
    float eps = random_below(c, 2) ? 1e-5f : 1e-6f, *x = input(c, X_A, n, p);
    const float *w = has_w ? input(c, W_A, n, P_RANDOM) : NULL,
                *b = has_b ? input(c, B_A, n, P_RANDOM) : NULL;
    float *want = output(c, Y_A, n), *got = output(c, Y_B, n);
    set_case(c, "n %d, %s%s%s%s", n, pattern_name(p), has_w ? ", weight" : "", has_b ? ", bias" : "",
             in_place ? ", in place" : "");
    (is_layer ? c->scalar->layer_norm : c->scalar->rms_norm)(x, w, b, eps, n, want);
    if (in_place) memcpy(got, x, 4 * (size_t)n);
    (is_layer ? c->level->layer_norm : c->level->rms_norm)(in_place ? got : x, w, b, eps, n, got);
    return same_output(c, want, got, n);
}

static int32_t rms_case(check *c, int32_t n, pattern p) { return norm_case(c, 0, n, p); }
static int32_t layer_case(check *c, int32_t n, pattern p) { return norm_case(c, 1, n, p); }
void check_rms_norm(check *c) { for_each_size(c, rms_case); }
void check_layer_norm(check *c) { for_each_size(c, layer_case); }

/* Scalar against double, both norms. */
void check_norm_meaning(check *c) {
    for (int32_t n = 1; n <= 2048; n = n * 2 + n % 3) {
        const float *x = input(c, X_A, n, P_RANDOM), *w = input(c, W_A, n, P_RANDOM),
                    *b = input(c, B_A, n, P_RANDOM);
        float *y = output(c, Y_A, n);
        for (int32_t is_layer = 0; is_layer < 2; is_layer++) {
            double mean = 0, squares = 0;
            for (int32_t i = 0; i < n; i++) mean += is_layer ? (double)x[i] / n : 0;
            for (int32_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean) / n;
            set_case(c, "%s, n %d against double", is_layer ? "layer norm" : "rms norm", n);
            (is_layer ? c->scalar->layer_norm : c->scalar->rms_norm)(x, w, b, 1e-3f, n, y);
            for (int32_t i = 0; i < n; i++) {
                double want = (x[i] - mean) / sqrt(squares + 1e-3) * w[i] + b[i];
                if (!(fabs(y[i] - want) <=
                      3e-6 * (fabs((x[i] - mean) / sqrt(squares + 1e-3) * w[i]) + fabs((double)b[i]) + 1))) {
                    fail(c, "y[%d] is %.9g, expected %.9g", i, (double)y[i], want);
                    return;
                }
            }
        }
    }
}

/* ---- activations ---------------------------------------------------------------------------------------------------- */

static int32_t glu_case(check *c, int32_t n, pattern p) {
    for (int32_t kind = EL_ACT_NONE; kind <= EL_ACT_SWIGLU_OAI; kind++) {
        int32_t in_place = random_below(c, 3); /* 1: y is gate, 2: y is up */
        float *gate = input(c, X_A, n, p), *up = input(c, UP_A, n, p), *want = output(c, Y_A, n),
              *got = output(c, Y_B, n);
        for (int32_t i = 0; i < n; i++) gate[i] *= 6;
        set_case(c, "activation %d, n %d, %s, in place %d", kind, n, pattern_name(p), in_place);
        c->scalar->glu(kind, gate, up, n, want);
        if (in_place) memcpy(got, in_place == 1 ? gate : up, 4 * (size_t)n);
        c->level->glu(kind, in_place == 1 ? got : gate, in_place == 2 ? got : up, n, got);
        if (!same_output(c, want, got, n)) return 0;
    }
    return 1;
}

static int32_t act_case(check *c, int32_t n, pattern p) {
    for (int32_t kind = EL_ACT_NONE; kind < EL_ACT_SWIGLU_OAI; kind++) {
        int32_t in_place = random_below(c, 2);
        float *x = input(c, X_A, n, p), *want = output(c, Y_A, n), *got = output(c, Y_B, n);
        for (int32_t i = 0; i < n; i++) x[i] *= 6;
        set_case(c, "activation %d, n %d, %s, in place %d", kind, n, pattern_name(p), in_place);
        c->scalar->act(kind, x, n, want);
        if (in_place) memcpy(got, x, 4 * (size_t)n);
        c->level->act(kind, in_place ? got : x, n, got);
        if (!same_output(c, want, got, n)) return 0;
    }
    return 1;
}

void check_glu(check *c) { for_each_size(c, glu_case); }
void check_act(check *c) { for_each_size(c, act_case); }

/* ---- elementwise ---------------------------------------------------------------------------------------------------- */

static int32_t elementwise_case(check *c, int32_t n, pattern p) {
    static const char *const names[] = {"add", "scale", "axpy", "softcap"};
    size_t bytes = 4 * (size_t)n;
    for (int32_t op = 0; op < 4; op++) {
        int32_t in_place = random_below(c, 2);
        float f = op == 3 ? 30.0f : random_normal(c);
        float *x = input(c, X_A, n, p), *b = input(c, UP_A, n, P_RANDOM), *want = output(c, Y_A, n),
              *got = output(c, Y_B, n);
        set_case(c, "%s, n %d, %s, in place %d, factor %g", names[op], n, pattern_name(p), in_place,
                 (double)f);
        if (op == 2) fill_floats(c, p, want, (size_t)n);
        memcpy(got, op == 2 ? want : x, bytes);
        const float *source = in_place && op != 2 ? got : x;
        switch (op) {
        case 0: c->scalar->add(x, b, n, want), c->level->add(source, b, n, got); break;
        case 1: c->scalar->scale(x, f, n, want), c->level->scale(source, f, n, got); break;
        case 2: c->scalar->axpy(x, f, n, want), c->level->axpy(x, f, n, got); break;
        default: c->scalar->softcap(x, f, n, want), c->level->softcap(source, f, n, got);
        }
        if (!same_output(c, want, got, n)) return 0;
    }
    return 1;
}

void check_elementwise(check *c) { for_each_size(c, elementwise_case); }

void check_rope(check *c) {
    for (int32_t p = 0; p < N_PATTERNS; p++) {
        for (int32_t n_rot = 2; n_rot <= 512; n_rot += n_rot < 140 ? 2 : 12) {
            for (int32_t mode = 0; mode < 2; mode++) {
                size_t bytes = 4 * (size_t)n_rot;
                const float *cosines = input(c, W_A, n_rot / 2, P_RANDOM),
                            *sines = input(c, B_A, n_rot / 2, P_RANDOM);
                float *want = input(c, Y_A, n_rot, (pattern)p), *got = output(c, Y_B, n_rot);
                memcpy(got, want, bytes);
                set_case(c, "n_rot %d, mode %d, %s", n_rot, mode, pattern_name((pattern)p));
                c->scalar->rope(want, n_rot, mode, cosines, sines);
                c->level->rope(got, n_rot, mode, cosines, sines);
                if (!same_output(c, want, got, n_rot)) return;
            }
        }
    }
}
