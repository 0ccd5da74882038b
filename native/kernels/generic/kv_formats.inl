/* The formats of the KV cache (kernels.h), read into planes of 16 lanes of floats: one row of KV_PLANES each. A plane
 * holds n vectors of 16 floats, `stride` floats apart:
 *
 *   k   [k_dim][16]: tokens slot .. slot+15 of a page, slot 0 or 16
 *   v   [32][16]: dims d .. d+lanes-1 (lanes 1..16) of a page's tokens, d a multiple of 16; other lanes anything
 */
typedef void plane_k_fn(const void *page, int32_t k_dim, int32_t slot, size_t stride, float *to);
typedef void plane_v_fn(const void *page, int32_t v_dim, int32_t d, int32_t lanes, size_t stride, float *to);

/* ---- single values --------------------------------------------------------------------------------------- */

#define EL_PLANES(name, type, load)                                                                         \
    static void plane_k_##name(const void *page, int32_t k_dim, int32_t slot, size_t stride, float *to) {   \
        const type *from = (const type *)page + slot;                                                       \
        for (int32_t e = 0; e < k_dim; e++, from += EL_PAGE_TOKENS, to += stride) vf_store(to, load(from)); \
    }                                                                                                       \
    static void plane_v_##name(const void *page, int32_t v_dim, int32_t d, int32_t lanes, size_t stride,    \
                               float *to) {                                                                 \
        const type *from = (const type *)page + d;                                                          \
        for (int32_t p = 0; p < EL_PAGE_TOKENS && lanes == 16; p++, from += v_dim, to += stride) {          \
            vf_store(to, load(from));                                                                       \
        }                                                                                                   \
        for (int32_t p = 0; p < EL_PAGE_TOKENS && lanes != 16; p++, from += v_dim, to += stride) {          \
            type some[16] = {0};                                                                            \
            memcpy(some, from, (size_t)lanes * sizeof *some);                                               \
            vf_store(to, load(some));                                                                       \
        }                                                                                                   \
    }
EL_PLANES(f16, uint16_t, vf_load_f16)
EL_PLANES(f32, float, vf_load)
EL_PLANES(bf16, uint16_t, vf_load_bf16)
EL_PLANES(e4m3, uint8_t, vf_load_e4m3)
EL_PLANES(e5m2, uint8_t, vf_load_e5m2)

/* ---- squares --------------------------------------------------------------------------------------------- */

/* Square number `index` of a page, and its scales. */
EL_INLINE const uint8_t *square_at(const void *page, int32_t type, int32_t index) {
    return (const uint8_t *)page + (size_t)index * el_kv_square_bytes(type);
}
EL_INLINE const uint16_t *scales_of(const uint8_t *square, int32_t type) {
    return (const uint16_t *)(square + el_kv_square_bytes(type) - 2 * EL_PAGE_TOKENS);
}

static void plane_k_q4_0(const void *page, int32_t k_dim, int32_t slot, size_t stride, float *to) {
    for (int32_t b = 0; b < el_kv_squares(k_dim); b++) {
        const uint8_t *square = square_at(page, EL_KV_Q4_0, b);
        const vf16 scale = vf_load_bf16(scales_of(square, EL_KV_Q4_0) + slot);
        const int32_t first = b * EL_SQUARE, n = k_dim - first;
        for (int32_t j = 0; j < least(16, n); j++) {
            const uint8_t *bytes = square + j * EL_PAGE_TOKENS + slot;
            float *at = to + (size_t)(first + j) * stride;
            vf_store(at, vf_mul(vf_load_nibbles(bytes, 0), scale));
            if (j + 16 < n) vf_store(at + 16 * stride, vf_mul(vf_load_nibbles(bytes, 4), scale));
        }
    }
}

static void plane_v_q4_0(const void *page, int32_t v_dim, int32_t d, int32_t lanes, size_t stride,
                         float *to) {
    const uint8_t *square = square_at(page, EL_KV_Q4_0, d / EL_SQUARE);
    const uint16_t *scales = scales_of(square, EL_KV_Q4_0);
    (void)v_dim, (void)lanes;
    for (int32_t p = 0; p < EL_PAGE_TOKENS; p++) {
        const vf16 q = vf_load_nibbles(square + 16 * p, d % EL_SQUARE / 4);
        vf_store(to + (size_t)p * stride, vf_mul(q, vf_set1(el_bf16_to_f32(scales[p]))));
    }
}

static const struct {
    /* NULL: multiplied in another way (attention_q8.inl) */
    plane_k_fn *k;
    plane_v_fn *v;
    int32_t has_tiles; /* tiles can read the format where it lies */
} KV_PLANES[EL_KV_TYPES] = {
    [EL_KV_F16] = {plane_k_f16, plane_v_f16, 1},        [EL_KV_F32] = {plane_k_f32, plane_v_f32, 1},
    [EL_KV_BF16] = {plane_k_bf16, plane_v_bf16, 0},     [EL_KV_Q8_0] = {NULL, NULL, 0},
    [EL_KV_Q4_0] = {plane_k_q4_0, plane_v_q4_0, 0},     [EL_KV_FP8_E4M3] = {plane_k_e4m3, plane_v_e4m3, 0},
    [EL_KV_FP8_E5M2] = {plane_k_e5m2, plane_v_e5m2, 0},
};
