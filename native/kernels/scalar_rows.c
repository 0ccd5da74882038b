/* Row operations and selection from logits. */
#include "fp.h"
#include "scalar.h"

/* ---- norms --------------------------------------------------------------------------------------------------------- */

static void rms_norm(const float *x, const float *w, const float *b, float eps, int32_t n, float *y) {
    float p[16] = {0};
    for (int32_t i = 0; i < n; i++) p[i % 16] = el_fma(x[i], x[i], p[i % 16]);
    float inv = 1.0f / el_sqrt(el_fold16(p) / (float)n + eps);
    for (int32_t i = 0; i < n; i++) {
        float v = x[i] * inv;
        if (w) v = v * w[i];
        if (b) v = v + b[i];
        y[i] = v;
    }
}

static void layer_norm(const float *x, const float *w, const float *b, float eps, int32_t n, float *y) {
    float p[16] = {0};
    for (int32_t i = 0; i < n; i++) p[i % 16] += x[i];
    float mean = el_fold16(p) / (float)n;
    for (int i = 0; i < 16; i++) p[i] = 0.0f;
    for (int32_t i = 0; i < n; i++) p[i % 16] = el_fma(x[i] - mean, x[i] - mean, p[i % 16]);
    float inv = 1.0f / el_sqrt(el_fold16(p) / (float)n + eps);
    for (int32_t i = 0; i < n; i++) {
        float v = (x[i] - mean) * inv;
        if (w) v = v * w[i];
        if (b) v = v + b[i];
        y[i] = v;
    }
}

/* ---- activations ---------------------------------------------------------------------------------------------------- */

/* EL_ACT_SWIGLU_OAI needs two inputs: it exists as a gate only. */
static float activate(int32_t kind, float x) {
    switch (kind) {
    case EL_ACT_SILU: return el_silu(x);
    case EL_ACT_GELU_TANH: return el_gelu_tanh(x);
    case EL_ACT_GELU_ERF: return el_gelu_erf(x);
    case EL_ACT_RELU: return el_relu(x);
    case EL_ACT_RELU2: return el_relu(x) * el_relu(x);
    case EL_ACT_SIGMOID: return el_sigmoid(x);
    default: return x;
    }
}

static void act(int32_t kind, const float *x, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i++) y[i] = activate(kind, x[i]);
}

static void glu(int32_t kind, const float *gate, const float *up, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i++) {
        y[i] = kind == EL_ACT_SWIGLU_OAI ? el_swiglu_oai(gate[i], up[i]) : activate(kind, gate[i]) * up[i];
    }
}

/* ---- elementwise ---------------------------------------------------------------------------------------------------- */

static void add(const float *a, const float *b, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

static void scale(const float *x, float f, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i++) y[i] = x[i] * f;
}

static void axpy(const float *x, float f, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i++) y[i] = el_fma(x[i], f, y[i]);
}

static void softcap(const float *x, float cap, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i++) y[i] = el_softcap1(x[i], cap);
}

static void rope(float *x, int32_t n_rot, int32_t mode, const float *cos, const float *sin) {
    const int32_t half = n_rot / 2;
    for (int32_t i = 0; i < half; i++) {
        float *x0 = mode == 0 ? x + 2 * i : x + i;
        float *x1 = mode == 0 ? x + 2 * i + 1 : x + half + i;
        float a = *x0, b = *x1;
        *x0 = el_fma(a, cos[i], -(b * sin[i]));
        *x1 = el_fma(a, sin[i], b * cos[i]);
    }
}

/* ---- selection ------------------------------------------------------------------------------------------------------ */

static int before(float value, int32_t id, float other_value, int32_t other_id) {
    return value > other_value || (value == other_value && id < other_id);
}

static void top_k(const float *x, int32_t n, int32_t id0, int32_t k, int32_t *ids, float *vals,
                  int32_t *have) {
    int32_t count = *have;
    for (int32_t i = 0; i < n; i++) {
        int32_t id = id0 + i;
        if (count == k && (k == 0 || !before(x[i], id, vals[k - 1], ids[k - 1]))) continue;
        int32_t lo = 0, hi = count; /* the first entry that x[i] goes before */
        while (lo < hi) {
            int32_t mid = (lo + hi) / 2;
            if (before(x[i], id, vals[mid], ids[mid])) {
                hi = mid;
            } else {
                lo = mid + 1;
            }
        }
        if (count < k) count++;
        memmove(ids + lo + 1, ids + lo, (size_t)(count - 1 - lo) * sizeof *ids);
        memmove(vals + lo + 1, vals + lo, (size_t)(count - 1 - lo) * sizeof *vals);
        ids[lo] = id;
        vals[lo] = x[i];
    }
    *have = count;
}

/* A segment of nothing but -inf has l = 0, so that it adds nothing to a fold. */
static void lse_segment(const float *x, int32_t n, float *m, float *l) {
    const float minus_inf = el_float(0xff800000u);
    float max = minus_inf, p[16] = {0};
    for (int32_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    *m = max;
    *l = 0.0f;
    if (max == minus_inf) return;
    for (int32_t i = 0; i < n; i++) p[i % 16] += el_exp(x[i] - max);
    *l = el_fold16(p);
}

static int32_t nonfinite(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (!el_is_finite(x[i])) return 1;
    }
    return 0;
}

void el_scalar_row_kernels(el_kernels *table) {
    table->rms_norm = rms_norm;
    table->layer_norm = layer_norm;
    table->glu = glu;
    table->act = act;
    table->add = add;
    table->scale = scale;
    table->axpy = axpy;
    table->softcap = softcap;
    table->rope = rope;
    table->top_k = top_k;
    table->lse_segment = lse_segment;
    table->nonfinite = nonfinite;
}
