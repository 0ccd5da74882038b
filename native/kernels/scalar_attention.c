/* One segment of attention, the fold of segments, and the stores into cache pages. */
#include "fp.h"
#include "kv_store.h"
#include "scalar.h"

/* The value of K or V at token `slot` and dimension `dim` of a page. */
static float value(const void *page, int32_t type, int32_t n_dims, int32_t is_k, int32_t slot, int32_t dim) {
    const size_t i =
        is_k ? (size_t)dim * EL_PAGE_TOKENS + (size_t)slot : (size_t)slot * (size_t)n_dims + (size_t)dim;
    const int32_t e = dim % EL_SQUARE, low = e % 16;
    const uint8_t *square = (const uint8_t *)page + (size_t)(dim / EL_SQUARE) * el_kv_square_bytes(type);
    int32_t q;
    switch (type) {
    case EL_KV_F16: return el_f16_to_f32(((const uint16_t *)page)[i]);
    case EL_KV_F32: return ((const float *)page)[i];
    case EL_KV_BF16: return el_bf16_to_f32(((const uint16_t *)page)[i]);
    case EL_KV_FP8_E4M3: return el_e4m3_to_f32(((const uint8_t *)page)[i]);
    case EL_KV_FP8_E5M2: return el_e5m2_to_f32(((const uint8_t *)page)[i]);
    case EL_KV_Q8_0:
        q = (int8_t)square[is_k ? e / 4 * 128 + slot * 4 + e % 4 : slot / 4 * 128 + e * 4 + slot % 4];
        return (float)q * el_bf16_to_f32(((const uint16_t *)(square + 1024))[slot]);
    default: /* Q4_0 */
        q = square[is_k ? low * EL_PAGE_TOKENS + slot : slot * 16 + low] >> (e / 16 * 4) & 15;
        return (float)(q - 8) * el_bf16_to_f32(((const uint16_t *)(square + 512))[slot]);
    }
}

/* s[i] for the 32 slots of a page of q8_0. */
static void dot_page_q8(const el_attn_segment *a, const float *q, const void *page, float s[EL_PAGE_TOKENS]) {
    for (int i = 0; i < EL_PAGE_TOKENS; i++) s[i] = 0.0f;
    for (int32_t b = 0; b < el_kv_squares(a->k_dim); b++) {
        const uint8_t *square = (const uint8_t *)page + (size_t)b * el_kv_square_bytes(EL_KV_Q8_0);
        const uint16_t *scales = (const uint16_t *)(square + 1024);
        int16_t qq[EL_SQUARE];
        const float d = el_kv_query(q + b * EL_SQUARE, el_kv_rest(a->k_dim, b), qq);
        for (int i = 0; i < EL_PAGE_TOKENS; i++) {
            int32_t sum = 0;
            for (int e = 0; e < EL_SQUARE; e++) sum += qq[e] * (int8_t)square[e / 4 * 128 + i * 4 + e % 4];
            s[i] = el_fma((float)sum, d * el_bf16_to_f32(scales[i]), s[i]);
        }
    }
}

/* s[i] = chain over e of q[e] * k[e][i] for the 32 slots of a page; slots that the row does not see are computed as well, from
 * whatever the page holds, and ignored by the caller. */
static void dot_page(const el_attn_segment *a, const float *q, const void *page, float s[EL_PAGE_TOKENS]) {
    float acc[EL_PAGE_TOKENS] = {0};
    for (int32_t e = 0; e < a->k_dim; e++) {
        for (int i = 0; i < EL_PAGE_TOKENS; i++)
            acc[i] = el_fma(q[e], value(page, a->k_type, a->k_dim, 1, i, e), acc[i]);
    }
    memcpy(s, acc, sizeof acc);
}

/* o from the weights of positions lo..hi-1 and V in q8_0. */
static void values_q8(const el_attn_segment *a, const float *w, int32_t lo, int32_t hi, float *o) {
    for (int32_t b = 0; b < el_kv_squares(a->v_dim); b++) {
        const size_t at = (size_t)b * el_kv_square_bytes(EL_KV_Q8_0);
        const int32_t n = el_kv_rest(a->v_dim, b);
        float x[EL_SEGMENT], top = 0.0f;
        int32_t sum[EL_SQUARE] = {0}, is_finite = 1;
        for (int32_t p = lo; p < hi; p++) {
            const uint8_t *square = (const uint8_t *)a->v_pages[p / EL_PAGE_TOKENS] + at;
            x[p] = w[p] * el_bf16_to_f32(((const uint16_t *)(square + 1024))[p % EL_PAGE_TOKENS]);
            is_finite &= el_is_finite(x[p]);
            top = x[p] > top ? x[p] : top;
        }
        if (is_finite && top >= el_float(EL_TINY_16)) {
            for (int32_t p = lo; p < hi; p++) {
                const uint8_t *square = (const uint8_t *)a->v_pages[p / EL_PAGE_TOKENS] + at;
                const int32_t slot = p % EL_PAGE_TOKENS, weight = el_rint(x[p] * (32767.0f / top));
                for (int32_t d = 0; d < n; d++)
                    sum[d] += weight * (int8_t)square[slot / 4 * 128 + d * 4 + slot % 4];
            }
        }
        const float scale = !is_finite                   ? el_bf16_to_f32(EL_BF16_NAN)
                            : top < el_float(EL_TINY_16) ? 0.0f
                                                         : top / 32767.0f;
        for (int32_t d = 0; d < n; d++) o[b * EL_SQUARE + d] = (float)sum[d] * scale;
    }
}

static void attn_row(const el_attn_segment *a, const float *q, int32_t lo, int32_t hi, float *m, float *l,
                     float *o) {
    float w[EL_SEGMENT], sums[16] = {0}, max = -el_float(0x7f800000u);

    for (int32_t page = lo / EL_PAGE_TOKENS; lo < hi && page * EL_PAGE_TOKENS < hi; page++) {
        (a->k_type == EL_KV_Q8_0 ? dot_page_q8 : dot_page)(a, q, a->k_pages[page], w + page * EL_PAGE_TOKENS);
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

    if (a->v_type == EL_KV_Q8_0) {
        values_q8(a, w, lo, hi, o);
        return;
    }
    for (int32_t d = 0; d < a->v_dim; d++) o[d] = 0.0f;
    for (int32_t p = lo; p < hi; p++) {
        const void *page = a->v_pages[p / EL_PAGE_TOKENS];
        for (int32_t d = 0; d < a->v_dim; d++) {
            o[d] = el_fma(w[p], value(page, a->v_type, a->v_dim, 0, p % EL_PAGE_TOKENS, d), o[d]);
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
    set_kv_stores(table);
}
