/* Stores into the KV cache (kernels.h: el_kv_store_fn), for the file of each level that fills its table to include: the
 * scalar level's are the definition, the others are compiled to their own vectors. f16 and f32 have bodies of their own. */
#ifndef EL_KV_STORE_H
#define EL_KV_STORE_H

#include "kv.h"

#define EL_KV_STORES(name, type, convert)                                                 \
    static void k_store_##name(const float *x, int32_t dim, int32_t slot, void *dst) {    \
        type *to = (type *)dst + slot;                                                    \
        for (int32_t e = 0; e < dim; e++) to[(size_t)e * EL_PAGE_TOKENS] = convert(x[e]); \
    }                                                                                     \
    static void v_store_##name(const float *x, int32_t dim, int32_t slot, void *dst) {    \
        type *to = (type *)dst + (size_t)slot * (size_t)dim;                              \
        for (int32_t d = 0; d < dim; d++) to[d] = convert(x[d]);                          \
    }
EL_KV_STORES(bf16, uint16_t, el_f32_to_bf16)
EL_KV_STORES(fp8_e4m3, uint8_t, el_f32_to_e4m3)
EL_KV_STORES(fp8_e5m2, uint8_t, el_f32_to_e5m2)

static inline void el_kv_scale(uint8_t *scales, int32_t slot, uint16_t d) {
    memcpy(scales + 2 * slot, &d, sizeof d);
}

static void k_store_q8_0(const float *x, int32_t dim, int32_t slot, void *dst) {
    uint8_t *to = dst;
    for (int32_t b = 0; b * EL_SQUARE < dim; b++, to += el_kv_square_bytes(EL_KV_Q8_0)) {
        int8_t q[EL_SQUARE];
        el_kv_scale(to + 1024, slot, el_kv_q8(x + b * EL_SQUARE, el_kv_rest(dim, b), q));
        for (int32_t i = 0; i < EL_SQUARE; i += 4) memcpy(to + i * EL_PAGE_TOKENS + 4 * slot, q + i, 4);
    }
}

static void v_store_q8_0(const float *x, int32_t dim, int32_t slot, void *dst) {
    uint8_t *to = dst;
    for (int32_t b = 0; b * EL_SQUARE < dim; b++, to += el_kv_square_bytes(EL_KV_Q8_0)) {
        int8_t q[EL_SQUARE];
        el_kv_scale(to + 1024, slot, el_kv_q8(x + b * EL_SQUARE, el_kv_rest(dim, b), q));
        uint8_t *at = to + slot / 4 * 128 + slot % 4;
        for (int32_t i = 0; i < EL_SQUARE; i++) at[4 * i] = (uint8_t)q[i];
    }
}

/* Byte j: dims j and j + 16. */
static inline void el_kv_nibbles(const int8_t q[EL_SQUARE], uint8_t bytes[16]) {
    for (int32_t j = 0; j < 16; j++) bytes[j] = (uint8_t)((q[j] + 8) | (q[j + 16] + 8) << 4);
}

static void k_store_q4_0(const float *x, int32_t dim, int32_t slot, void *dst) {
    uint8_t *to = dst;
    for (int32_t b = 0; b * EL_SQUARE < dim; b++, to += el_kv_square_bytes(EL_KV_Q4_0)) {
        int8_t q[EL_SQUARE];
        uint8_t bytes[16];
        el_kv_scale(to + 512, slot, el_kv_q4(x + b * EL_SQUARE, el_kv_rest(dim, b), q));
        el_kv_nibbles(q, bytes);
        for (int32_t j = 0; j < 16; j++) to[j * EL_PAGE_TOKENS + slot] = bytes[j];
    }
}

static void v_store_q4_0(const float *x, int32_t dim, int32_t slot, void *dst) {
    uint8_t *to = dst;
    for (int32_t b = 0; b * EL_SQUARE < dim; b++, to += el_kv_square_bytes(EL_KV_Q4_0)) {
        int8_t q[EL_SQUARE];
        uint8_t bytes[16];
        el_kv_scale(to + 512, slot, el_kv_q4(x + b * EL_SQUARE, el_kv_rest(dim, b), q));
        el_kv_nibbles(q, bytes);
        memcpy(to + 16 * slot, bytes, sizeof bytes);
    }
}

/* A level's stores, all but those of f16 and f32, which have bodies of their own. */
static void set_kv_stores(el_kernels *table) {
    static const struct {
        int32_t type;
        el_kv_store_fn *k, *v;
    } stores[] = {
        {EL_KV_BF16, k_store_bf16, v_store_bf16},
        {EL_KV_Q8_0, k_store_q8_0, v_store_q8_0},
        {EL_KV_Q4_0, k_store_q4_0, v_store_q4_0},
        {EL_KV_FP8_E4M3, k_store_fp8_e4m3, v_store_fp8_e4m3},
        {EL_KV_FP8_E5M2, k_store_fp8_e5m2, v_store_fp8_e5m2},
    };
    for (size_t i = 0; i < sizeof stores / sizeof *stores; i++) {
        table->k_store[stores[i].type] = stores[i].k;
        table->v_store[stores[i].type] = stores[i].v;
    }
}

#endif
