/* One segment of attention, the fold of segments, and the stores into cache pages. */
#include "fp.h"
#include "scalar.h"

static float element(const void *array, int32_t type, size_t i) {
    return type == EL_KV_F16 ? el_f16_to_f32(((const uint16_t *)array)[i]) : ((const float *)array)[i];
}

/* Scaled and capped q . k of position p. */
static float score(const el_attn_segment *a, const float *q, int32_t p) {
    const void *page = a->k_pages[p / EL_PAGE_TOKENS];
    float acc = 0.0f;
    for (int32_t e = 0; e < a->k_dim; e++) {
        acc = el_fma(
            q[e], element(page, a->k_type, (size_t)e * EL_PAGE_TOKENS + (size_t)(p % EL_PAGE_TOKENS)), acc);
    }
    float s = acc * a->scale;
    return a->softcap != 0.0f ? el_softcap1(s, a->softcap) : s;
}

static void attn_segment(const el_attn_segment *a) {
    for (int32_t r = 0; r < a->n_q; r++) {
        const float *q = a->q[r];
        const int32_t lo = a->lo[r], hi = a->hi[r];
        float *o = a->o + (size_t)r * (size_t)a->v_dim;
        float w[EL_SEGMENT], sums[16] = {0}, m = -el_float(0x7f800000u);

        for (int32_t p = lo; p < hi; p++) {
            w[p] = score(a, q, p);
            m = w[p] > m ? w[p] : m;
        }
        for (int32_t p = lo; p < hi; p++) {
            w[p] = el_exp(w[p] - m);
            sums[p % 16] += w[p];
        }
        a->m[r] = m;
        a->l[r] = el_fold16(sums);

        for (int32_t d = 0; d < a->v_dim; d++) o[d] = 0.0f;
        for (int32_t p = lo; p < hi; p++) {
            const void *page = a->v_pages[p / EL_PAGE_TOKENS];
            size_t row = (size_t)(p % EL_PAGE_TOKENS) * (size_t)a->v_dim;
            for (int32_t d = 0; d < a->v_dim; d++) {
                o[d] = el_fma(w[p], element(page, a->v_type, row + (size_t)d), o[d]);
            }
        }
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
