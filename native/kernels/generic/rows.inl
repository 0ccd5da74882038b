/* Row operations (kernels.h). The lanes past a row's end are +0 in loads and never stored. Adding +0 to a
 * partial sum that began at +0 leaves it as it is, so sums need a mask only where a lane past the end would
 * not be +0. */

static void rms_norm(const float *x, const float *w, const float *b, float eps, int32_t n, float *y) {
    vf16 sum = vf_zero();
    for (int32_t i = 0; i < n; i += 16) {
        vf16 v = vf_load_some(x + i, n - i);
        sum = vf_fma(v, v, sum);
    }
    const vf16 r = vf_set1(1.0f / el_sqrt(vf_fold16(sum) / (float)n + eps));
    for (int32_t i = 0; i < n; i += 16) {
        vf16 v = vf_mul(vf_load_some(x + i, n - i), r);
        if (w) v = vf_mul(v, vf_load_some(w + i, n - i));
        if (b) v = vf_add(v, vf_load_some(b + i, n - i));
        vf_store_some(y + i, v, n - i);
    }
}

static void layer_norm(const float *x, const float *w, const float *b, float eps, int32_t n, float *y) {
    vf16 sum = vf_zero();
    for (int32_t i = 0; i < n; i += 16) sum = vf_add(sum, vf_load_some(x + i, n - i));
    const vf16 mean = vf_set1(vf_fold16(sum) / (float)n);
    sum = vf_zero();
    for (int32_t i = 0; i < n; i += 16) {
        vf16 v = vf_sub(vf_load_some(x + i, n - i), mean);
        if (n - i < 16) v = vf_keep(vm_range(0, n - i), v);
        sum = vf_fma(v, v, sum);
    }
    const vf16 r = vf_set1(1.0f / el_sqrt(vf_fold16(sum) / (float)n + eps));
    for (int32_t i = 0; i < n; i += 16) {
        vf16 v = vf_mul(vf_sub(vf_load_some(x + i, n - i), mean), r);
        if (w) v = vf_mul(v, vf_load_some(w + i, n - i));
        if (b) v = vf_add(v, vf_load_some(b + i, n - i));
        vf_store_some(y + i, v, n - i);
    }
}

static void add(const float *a, const float *b, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i += 16) {
        vf_store_some(y + i, vf_add(vf_load_some(a + i, n - i), vf_load_some(b + i, n - i)), n - i);
    }
}

static void scale(const float *x, float f, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i += 16) {
        vf_store_some(y + i, vf_mul(vf_load_some(x + i, n - i), vf_set1(f)), n - i);
    }
}

static void axpy(const float *x, float f, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i += 16) {
        vf_store_some(y + i, vf_fma(vf_load_some(x + i, n - i), vf_set1(f), vf_load_some(y + i, n - i)),
                      n - i);
    }
}

static void softcap(const float *x, float cap, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i += 16) {
        vf_store_some(y + i, vf_softcap(vf_load_some(x + i, n - i), vf_set1(cap)), n - i);
    }
}

/* ---- activations --------------------------------------------------------------------------------------- */

EL_INLINE vf16 activate(const int32_t kind, vf16 x) {
    switch (kind) {
    case EL_ACT_SILU: return vf_silu(x);
    case EL_ACT_GELU_TANH: return vf_gelu_tanh(x);
    case EL_ACT_GELU_ERF: return vf_gelu_erf(x);
    case EL_ACT_RELU: return vf_relu(x);
    case EL_ACT_RELU2: return vf_mul(vf_relu(x), vf_relu(x));
    case EL_ACT_SIGMOID: return vf_sigmoid(x);
    default: return x;
    }
}

EL_INLINE void act_row(const int32_t kind, const float *x, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i += 16)
        vf_store_some(y + i, activate(kind, vf_load_some(x + i, n - i)), n - i);
}

EL_INLINE void glu_row(const int32_t kind, const float *gate, const float *up, int32_t n, float *y) {
    for (int32_t i = 0; i < n; i += 16) {
        vf16 g = vf_load_some(gate + i, n - i), u = vf_load_some(up + i, n - i);
        vf_store_some(y + i, kind == EL_ACT_SWIGLU_OAI ? vf_swiglu_oai(g, u) : vf_mul(activate(kind, g), u),
                      n - i);
    }
}

/* One loop per activation: the kind is a constant inside. */
static void act(int32_t kind, const float *x, int32_t n, float *y) {
    switch (kind) {
    case EL_ACT_SILU: act_row(EL_ACT_SILU, x, n, y); break;
    case EL_ACT_GELU_TANH: act_row(EL_ACT_GELU_TANH, x, n, y); break;
    case EL_ACT_GELU_ERF: act_row(EL_ACT_GELU_ERF, x, n, y); break;
    case EL_ACT_RELU: act_row(EL_ACT_RELU, x, n, y); break;
    case EL_ACT_RELU2: act_row(EL_ACT_RELU2, x, n, y); break;
    case EL_ACT_SIGMOID: act_row(EL_ACT_SIGMOID, x, n, y); break;
    default: act_row(EL_ACT_NONE, x, n, y); break;
    }
}

static void glu(int32_t kind, const float *gate, const float *up, int32_t n, float *y) {
    switch (kind) {
    case EL_ACT_SILU: glu_row(EL_ACT_SILU, gate, up, n, y); break;
    case EL_ACT_GELU_TANH: glu_row(EL_ACT_GELU_TANH, gate, up, n, y); break;
    case EL_ACT_GELU_ERF: glu_row(EL_ACT_GELU_ERF, gate, up, n, y); break;
    case EL_ACT_RELU: glu_row(EL_ACT_RELU, gate, up, n, y); break;
    case EL_ACT_RELU2: glu_row(EL_ACT_RELU2, gate, up, n, y); break;
    case EL_ACT_SIGMOID: glu_row(EL_ACT_SIGMOID, gate, up, n, y); break;
    case EL_ACT_SWIGLU_OAI: glu_row(EL_ACT_SWIGLU_OAI, gate, up, n, y); break;
    default: glu_row(EL_ACT_NONE, gate, up, n, y); break;
    }
}

/* ---- rotation ------------------------------------------------------------------------------------------ */

static inline void rotate(vf16 *a, vf16 *b, vf16 c, vf16 s) {
    vf16 x = *a, y = *b;
    *a = vf_fma(x, c, vf_neg(vf_mul(y, s)));
    *b = vf_fma(x, s, vf_mul(y, c));
}

static void rope(float *x, int32_t n_rot, int32_t mode, const float *cos, const float *sin) {
    const int32_t half = n_rot / 2;
    for (int32_t i = 0; i < half; i += 16) {
        const int32_t n = half - i;
        const vf16 c = vf_load_some(cos + i, n), s = vf_load_some(sin + i, n);
        vf16 a, b;
        if (mode == 0) {
            float *first = x + 2 * i, *second = first + 16;
            const int32_t n_first = least(2 * n, 16), n_second = most(2 * n - 16, 0);
            vf_unzip(vf_load_some(first, n_first), vf_load_some(second, n_second), &a, &b);
            rotate(&a, &b, c, s);
            vf_zip(a, b, &a, &b);
            vf_store_some(first, a, n_first);
            vf_store_some(second, b, n_second);
        } else {
            a = vf_load_some(x + i, n);
            b = vf_load_some(x + half + i, n);
            rotate(&a, &b, c, s);
            vf_store_some(x + i, a, n);
            vf_store_some(x + half + i, b, n);
        }
    }
}
