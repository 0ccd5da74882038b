/* The functions of fp.h on 16 floats: the same operations in each lane, hence the same bits. A branch of
 * fp.h becomes a selection between both results. */

static inline vf16 vf_exp(vf16 x) {
    vm16 zero = vf_lt(x, vf_set1(-87.0f));
    x = vf_min(vf_set1(88.0f), x); /* keeps a nan */
    vf16 n = vf_round(vf_mul(x, vf_set1(1.44269504088896341f)));
    vf16 r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf16 p = vf_set1(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    vf16 y = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set1(1.0f));
    return vf_drop(zero, vf_scale2(y, n));
}

static inline vf16 vf_tanh(vf16 x) {
    vf16 a = vf_abs(x), z = vf_mul(x, x);
    vf16 p = vf_set1(-5.70498872745e-3f);
    p = vf_fma(p, z, vf_set1(2.06390887954e-2f));
    p = vf_fma(p, z, vf_set1(-5.37397155531e-2f));
    p = vf_fma(p, z, vf_set1(1.33314422036e-1f));
    p = vf_fma(p, z, vf_set1(-3.33332819422e-1f));
    vf16 small = vf_fma(vf_mul(p, z), x, x);
    vf16 t = vf_exp(vf_add(a, a));
    vf16 large = vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), vf_add(t, vf_set1(1.0f))));
    return vf_select(vf_lt(a, vf_set1(0.625f)), small, vf_copysign(large, x));
}

static inline vf16 vf_erf(vf16 x) {
    vf16 a = vf_abs(x), z = vf_mul(x, x);
    vf16 p = vf_set1(7.853861353153693e-5f);
    p = vf_fma(p, z, vf_set1(-8.010193625184903e-4f));
    p = vf_fma(p, z, vf_set1(5.188327685732524e-3f));
    p = vf_fma(p, z, vf_set1(-2.685381193529856e-2f));
    p = vf_fma(p, z, vf_set1(1.128358514861418e-1f));
    p = vf_fma(p, z, vf_set1(-3.761262582423300e-1f));
    p = vf_fma(p, z, vf_set1(1.128379165726710f));
    vf16 small = vf_mul(p, x);
    vf16 b = vf_min(vf_set1(4.0f), a);
    vf16 q = vf_set1(1.3962277e-5f);
    q = vf_fma(q, b, vf_set1(-3.5059039e-4f));
    q = vf_fma(q, b, vf_set1(3.7574703e-3f));
    q = vf_fma(q, b, vf_set1(-2.4010055e-2f));
    q = vf_fma(q, b, vf_set1(1.0653085e-1f));
    q = vf_fma(q, b, vf_set1(6.3496953e-1f));
    q = vf_fma(q, b, vf_set1(1.1286943f));
    vf16 large = vf_sub(vf_set1(1.0f), vf_exp(vf_neg(vf_mul(q, b))));
    return vf_select(vf_lt(a, vf_set1(1.0f)), small, vf_copysign(large, x));
}

static inline vf16 vf_sigmoid(vf16 x) {
    return vf_div(vf_set1(1.0f), vf_add(vf_set1(1.0f), vf_exp(vf_neg(x))));
}

static inline vf16 vf_silu(vf16 x) { return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_neg(x)))); }

static inline vf16 vf_gelu_tanh(vf16 x) {
    vf16 u = vf_mul(x, vf_fma(vf_mul(x, x), vf_set1(0.044715f), vf_set1(1.0f)));
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_mul(u, vf_set1(-1.5957691216057308f)))));
}

static inline vf16 vf_gelu_erf(vf16 x) {
    vf16 e = vf_erf(vf_mul(x, vf_set1(0.70710678f)));
    return vf_mul(vf_mul(vf_set1(0.5f), x), vf_add(vf_set1(1.0f), e));
}

static inline vf16 vf_relu(vf16 x) { return vf_max(x, vf_zero()); } /* a nan becomes 0 */

static inline vf16 vf_swiglu_oai(vf16 g, vf16 up) {
    g = vf_min(vf_set1(7.0f), g);
    up = vf_max(vf_set1(-7.0f), vf_min(vf_set1(7.0f), up));
    vf16 s = vf_div(g, vf_add(vf_set1(1.0f), vf_exp(vf_mul(g, vf_set1(-1.702f)))));
    return vf_mul(s, vf_add(up, vf_set1(1.0f)));
}

/* y = cap * tanh(x / cap) */
static inline vf16 vf_softcap(vf16 x, vf16 cap) { return vf_mul(cap, vf_tanh(vf_div(x, cap))); }
