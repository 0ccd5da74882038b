/* From ranked logits to one token: top-p, min-p, temperature, one draw. The same operations, in the same order, as
 * edgellm/sampling/sampler.py, in float64: a result depends on the logits, the seed and the counters alone. */
#include "fpenv.h"

#include "edgellm.h"

#include <string.h>

/* 2^(j / 256) for j = 0..255, as edgellm/sampling/exp64.py computes them. */
static const double POWERS[256] = {
#include "pick_powers.inl"
};

/* exp(x) for -700 <= x <= 0; exp64.py has the formula. */
static double exp64(double x) {
    const double magic = 6755399441055744.0; /* 1.5 * 2^52: the sum's last bit is worth one */
    double n = (x * 369.3299304675746 + magic) - magic;
    double r = x - n * 0x1.62e42fef8p-9;
    r -= n * 0x1.1cf79abc9e3b4p-44;
    double p = (((r * (1.0 / 24.0) + 1.0 / 6.0) * r + 0.5) * r + 1.0) * r;
    int64_t k = (int64_t)n;
    double power = POWERS[k & 255];
    uint64_t bits = (uint64_t)((k - (k & 255)) / 256 + 1023) << 52; /* 2^floor(k / 256) */
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    return (p * power + power) * scale;
}

/* A number in [0, 1) with 53 random bits: Philox 4x32-10 (Salmon et al., SC 2011), keyed by the seed. */
static double uniform(uint64_t seed, int64_t n_generated, int32_t choice) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)n_generated, c1 = (uint32_t)((uint64_t)n_generated >> 32), c2 = (uint32_t)choice,
             c3 = 0;
    for (int32_t i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (double)(((uint64_t)c0 << 32 | c1) >> 11) * 0x1p-53;
}

static double at_least(double x, double least) { return x > least ? x : least; }

static int32_t draw(const el_pick *p, const float *logits, int32_t n) {
    const double least = -700.0;
    double e[EL_MAX_TOP_K], sums[EL_MAX_TOP_K];
    const double top = (double)logits[0];
    int32_t keep = n;
    if (p->top_p < 1.0 || p->min_p > 0.0) {
        double sum = 0.0;
        for (int32_t i = 0; i < n; i++) {
            e[i] = exp64(at_least((double)logits[i] - top, least));
            sum += e[i];
            sums[i] = sum;
        }
        if (p->top_p < 1.0) {
            double wanted = p->top_p * sum;
            for (keep = 1; keep < n && sums[keep - 1] < wanted;) keep++;
        }
        if (p->min_p > 0.0) {
            int32_t likely = 0;
            for (int32_t i = 0; i < keep; i++) likely += e[i] >= p->min_p;
            keep = likely > 1 ? likely : 1;
        }
        if (keep == 1) return 0;
    }
    double sum = 0.0;
    for (int32_t i = 0; i < keep; i++) {
        sum += exp64(at_least((double)logits[i] - top, least * p->temperature) / p->temperature);
        sums[i] = sum;
    }
    double at = uniform(p->seed, p->n_generated, p->choice) * sum;
    int32_t rank = 0;
    while (rank < keep - 1 && sums[rank] <= at) rank++;
    return rank;
}

int32_t el_pick_rank(const el_pick *pick, const float *logits, int32_t n) {
    if (pick->top_k < n) n = pick->top_k;
    if (n > EL_MAX_TOP_K) n = EL_MAX_TOP_K;
    if (n <= 1 || pick->temperature == 0.0) return 0;
    el_fpenv old = el_fp_enter();
    int32_t rank = draw(pick, logits, n);
    el_fp_leave(old);
    return rank;
}
