/* Selection from logits, and scans over many floats (kernels.h). */

static int32_t comes_before(float value, int32_t id, float other_value, int32_t other_id) {
    return value > other_value || (value == other_value && id < other_id);
}

/* Put (value, id) at its place among `have` entries; at most k stay. Returns how many there are. */
static int32_t top_k_insert(float value, int32_t id, int32_t k, int32_t *ids, float *vals, int32_t have) {
    if (have == k && !comes_before(value, id, vals[k - 1], ids[k - 1])) return have;
    int32_t lo = 0, hi = have;
    while (lo < hi) {
        int32_t middle = (lo + hi) / 2;
        if (comes_before(value, id, vals[middle], ids[middle])) {
            hi = middle;
        } else {
            lo = middle + 1;
        }
    }
    have = least(have + 1, k);
    memmove(ids + lo + 1, ids + lo, (size_t)(have - 1 - lo) * sizeof *ids);
    memmove(vals + lo + 1, vals + lo, (size_t)(have - 1 - lo) * sizeof *vals);
    ids[lo] = id;
    vals[lo] = value;
    return have;
}

/* Once k entries are there, whole blocks are passed over whose largest logit cannot displace the last. */
static void top_k(const float *x, int32_t n, int32_t id0, int32_t k, int32_t *ids, float *vals,
                  int32_t *have) {
    enum { BLOCK = 128 };
    int32_t count = *have;
    if (k <= 0) return;
    for (int32_t i = 0; i < n; i += BLOCK) {
        const int32_t end = least(n, i + BLOCK);
        if (count == k && end - i == BLOCK) {
            vf16 a = vf_load(x + i), b = vf_load(x + i + 16);
            for (int32_t j = i + 32; j < end; j += 32) {
                a = vf_max(a, vf_load(x + j));
                b = vf_max(b, vf_load(x + j + 16));
            }
            const vf16 last = vf_set1(vals[k - 1]), top = vf_max(a, b);
            const int32_t ties_lose = id0 + i > ids[k - 1];
            if (!vm_any(ties_lose ? vf_lt(last, top) : vf_le(last, top))) continue;
        }
        for (int32_t j = i; j < end; j += 16) {
            const int32_t lanes = least(16, end - j);
            uint32_t at = (1u << lanes) - 1;
            if (count == k) at &= vm_bits(vf_le(vf_set1(vals[k - 1]), vf_load_some(x + j, lanes)));
            for (; at; at &= at - 1) {
                const int32_t lane = __builtin_ctz(at);
                count = top_k_insert(x[j + lane], id0 + j + lane, k, ids, vals, count);
            }
        }
    }
    *have = count;
}

static void lse_segment(const float *x, int32_t n, float *m, float *l) {
    const vf16 none = vf_set1(-INFINITY);
    vf16 top = none, sum = vf_zero();
    for (int32_t i = 0; i < n; i += 16) {
        vf16 v = vf_load_some(x + i, n - i);
        if (n - i < 16) v = vf_select(vm_range(0, n - i), v, none);
        top = vf_max(v, top);
    }
    const float largest = first_largest(x, n, vf_largest(top));
    *m = largest;
    *l = 0.0f;
    if (largest == -INFINITY) return;
    for (int32_t i = 0; i < n; i += 16) {
        vf16 w = vf_exp(vf_sub(vf_load_some(x + i, n - i), vf_set1(largest)));
        if (n - i < 16) w = vf_keep(vm_range(0, n - i), w);
        sum = vf_add(sum, w);
    }
    *l = vf_fold16(sum);
}

/* x * 0 is 0 unless x is inf or nan, and a sum that met a nan stays one. */
static int32_t nonfinite(const float *x, int64_t n) {
    enum { BLOCK = 64 };
    const vf16 zero = vf_zero();
    vf16 a = zero, b = zero, c = zero, d = zero;
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK) {
        a = vf_fma(vf_load(x + i), zero, a);
        b = vf_fma(vf_load(x + i + 16), zero, b);
        c = vf_fma(vf_load(x + i + 32), zero, c);
        d = vf_fma(vf_load(x + i + 48), zero, d);
    }
    for (; i < n; i += 16) a = vf_fma(vf_load_some(x + i, n - i < 16 ? (int32_t)(n - i) : 16), zero, a);
    a = vf_add(vf_add(a, b), vf_add(c, d));
    return vm_bits(vf_le(a, a)) != 0xffffu;
}
