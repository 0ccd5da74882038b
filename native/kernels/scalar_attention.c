/* One segment of attention, the fold of segments, and the stores into cache pages. */
#include "fp.h"
#include "scalar.h"

/* Elements i .. i+n-1 of a page as floats. */
static void load(const void *page, int32_t type, size_t i, int32_t n, float *out) {
    if (type == EL_KV_F16) {
        for (int32_t j = 0; j < n; j++) out[j] = el_f16_to_f32(((const uint16_t *)page)[i + (size_t)j]);
    } else {
        memcpy(out, (const float *)page + i, (size_t)n * sizeof(float));
    }
}

/* s[i] = chain over e of q[e] * k[e][i] for the 32 slots of a page; slots that the row does not see are computed as well, from
 * whatever the page holds, and ignored by the caller. */
static void dot_page(const el_attn_segment *a, const float *q, const void *page, float s[EL_PAGE_TOKENS]) {
    float k[EL_PAGE_TOKENS], acc[EL_PAGE_TOKENS] = {0};
    for (int32_t e = 0; e < a->k_dim; e++) {
        const float qe = q[e];
        load(page, a->k_type, (size_t)e * EL_PAGE_TOKENS, EL_PAGE_TOKENS, k);
        for (int i = 0; i < EL_PAGE_TOKENS; i++) acc[i] = el_fma(qe, k[i], acc[i]);
    }
    memcpy(s, acc, sizeof acc);
}

static void attn_row(const el_attn_segment *a, const float *q, int32_t lo, int32_t hi, float *m, float *l,
                     float *o) {
    float w[EL_SEGMENT], sums[16] = {0}, max = -el_float(0x7f800000u);

    for (int32_t page = lo / EL_PAGE_TOKENS; lo < hi && page * EL_PAGE_TOKENS < hi; page++) {
        dot_page(a, q, a->k_pages[page], w + page * EL_PAGE_TOKENS);
    }
    for (int32_t p = lo; p < hi; p++) {
        float s = w[p] * a->scale;
        w[p] = a->softcap != 0.0f ? el_softcap1(s, a->softcap) : s;
        max = w[p] > max ? w[p] : max;
    }
    for (int32_t p = lo; p < hi; p++) {
        w[p] = el_exp(w[p] - max);
        sums[p % 16] += w[p];
    }
    *m = max;
    *l = el_fold16(sums);

    for (int32_t d = 0; d < a->v_dim; d++) o[d] = 0.0f;
    for (int32_t p = lo; p < hi; p++) {
        size_t row = (size_t)(p % EL_PAGE_TOKENS) * (size_t)a->v_dim;
        for (int32_t d = 0; d < a->v_dim; d += 4) {
            float v[4], next[4];
            load(a->v_pages[p / EL_PAGE_TOKENS], a->v_type, row + (size_t)d, 4, v);
            for (int i = 0; i < 4; i++) next[i] = el_fma(w[p], v[i], o[d + i]);
            memcpy(o + d, next, sizeof next);
        }
    }
}

static void attn_segment(const el_attn_segment *a) {
    for (int32_t r = 0; r < a->n_q; r++) {
        attn_row(a, a->q[r], a->lo[r], a->hi[r], &a->m[r], &a->l[r], a->o + (size_t)r * (size_t)a->v_dim);
    }
}

static void attn_fold(float *M, float *L, float *O, float m, float l, const float *o, int32_t v_dim) {
    if (l == 0.0f) return;
    if (*L == 0.0f) {
        *M = m;
        *L = l;
        memcpy(O, o, (size_t)v_dim * sizeof(float));
        return;
    }
    float n = *M < m ? m : *M;
    float a = el_exp(*M - n), b = el_exp(m - n);
    *L = el_fma(l, b, *L * a);
    for (int32_t d = 0; d < v_dim; d++) O[d] = el_fma(o[d], b, O[d] * a);
    *M = n;
}

static void k_store_f16(const float *x, int32_t dim, int32_t slot, void *dst) {
    for (int32_t e = 0; e < dim; e++) ((uint16_t *)dst)[e * EL_PAGE_TOKENS + slot] = el_f32_to_f16(x[e]);
}

static void k_store_f32(const float *x, int32_t dim, int32_t slot, void *dst) {
    for (int32_t e = 0; e < dim; e++) ((float *)dst)[e * EL_PAGE_TOKENS + slot] = x[e];
}

static void v_store_f16(const float *x, int32_t dim, int32_t slot, void *dst) {
    for (int32_t d = 0; d < dim; d++) ((uint16_t *)dst)[slot * dim + d] = el_f32_to_f16(x[d]);
}

static void v_store_f32(const float *x, int32_t dim, int32_t slot, void *dst) {
    for (int32_t d = 0; d < dim; d++) ((float *)dst)[slot * dim + d] = x[d];
}

void el_scalar_attention_kernels(el_kernels *table) {
    table->attn_segment = attn_segment;
    table->attn_fold = attn_fold;
    table->k_store[EL_KV_F16] = k_store_f16;
    table->k_store[EL_KV_F32] = k_store_f32;
    table->v_store[EL_KV_F16] = v_store_f16;
    table->v_store[EL_KV_F32] = v_store_f32;
}
