/* What every kernel needs on top of a level's vocabulary. */

/* The first n elements, 16 at most. */
EL_INLINE vf16 vf_load_some(const float *p, int32_t n) { return n >= 16 ? vf_load(p) : vf_load_n(p, n); }
EL_INLINE void vf_store_some(float *p, vf16 x, int32_t n) {
    if (n >= 16) {
        vf_store(p, x);
    } else {
        vf_store_n(p, x, n);
    }
}
EL_INLINE void vf_store_f16_some(uint16_t *p, vf16 x, int32_t n) {
    if (n >= 16) {
        vf_store_f16(p, x);
    } else {
        uint16_t h[16];
        vf_store_f16(h, x);
        memcpy(p, h, (size_t)n * sizeof h[0]);
    }
}
EL_INLINE vf16 vf_load_f16_some(const uint16_t *p, int32_t n) {
    if (n >= 16) return vf_load_f16(p);
    uint16_t h[16] = {0};
    memcpy(h, p, (size_t)n * sizeof h[0]);
    return vf_load_f16(h);
}

/* `largest` of x[0..n-1]; if it is a zero, the first one: what a maximum in ascending order gives. */
static float first_largest(const float *x, int32_t n, float largest) {
    for (int32_t i = 0; i < n && largest == 0.0f; i++) {
        if (x[i] == 0.0f) return x[i];
    }
    return largest;
}

static int32_t least(int32_t x, int32_t y) { return x < y ? x : y; }
static int32_t most(int32_t x, int32_t y) { return x > y ? x : y; }
