/* Dequantisation of file rows to float, for embedding lookups: the formulas of kernels.h, one function per type, the same
 * at every level. The row may start at any address. */
#include "fp.h"
#include "qblocks.h"
#include "scalar.h"

static void dequant_f32(const void *row, int32_t k, float *y) { memcpy(y, row, (size_t)k * sizeof(float)); }

static void dequant_f16(const void *row, int32_t k, float *y) {
    for (int32_t i = 0; i < k; i++) {
        uint16_t h;
        memcpy(&h, (const char *)row + 2 * (size_t)i, 2);
        y[i] = el_f16_to_f32(h);
    }
}

static void dequant_bf16(const void *row, int32_t k, float *y) {
    for (int32_t i = 0; i < k; i++) {
        uint16_t h;
        memcpy(&h, (const char *)row + 2 * (size_t)i, 2);
        y[i] = el_bf16_to_f32(h);
    }
}

static void dequant_q8_0(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 32; b++, y += 32) {
        el_block_q8_0 block;
        el_load_block(&block, row, b);
        float d = el_f16_to_f32(block.d);
        for (int i = 0; i < 32; i++) y[i] = d * (float)block.qs[i];
    }
}

static void dequant_q4_0(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 32; b++, y += 32) {
        el_block_q4_0 block;
        uint8_t u[32];
        el_load_block(&block, row, b);
        el_nibbles32(block.qs, u);
        float d = el_f16_to_f32(block.d);
        for (int i = 0; i < 32; i++) y[i] = d * (float)(u[i] - 8);
    }
}

static void dequant_q4_1(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 32; b++, y += 32) {
        el_block_q4_1 block;
        uint8_t u[32];
        el_load_block(&block, row, b);
        el_nibbles32(block.qs, u);
        float d = el_f16_to_f32(block.d), m = el_f16_to_f32(block.m);
        for (int i = 0; i < 32; i++) y[i] = el_fma(d, (float)u[i], m);
    }
}

static void dequant_q5_0(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 32; b++, y += 32) {
        el_block_q5_0 block;
        uint8_t u[32];
        el_load_block(&block, row, b);
        el_nibbles32(block.qs, u);
        el_fifth_bits32(block.qh, u);
        float d = el_f16_to_f32(block.d);
        for (int i = 0; i < 32; i++) y[i] = d * (float)(u[i] - 16);
    }
}

static void dequant_q5_1(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 32; b++, y += 32) {
        el_block_q5_1 block;
        uint8_t u[32];
        el_load_block(&block, row, b);
        el_nibbles32(block.qs, u);
        el_fifth_bits32(block.qh, u);
        float d = el_f16_to_f32(block.d), m = el_f16_to_f32(block.m);
        for (int i = 0; i < 32; i++) y[i] = el_fma(d, (float)u[i], m);
    }
}

static void dequant_iq4_nl(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 32; b++, y += 32) {
        el_block_q4_0 block;
        int8_t w[32];
        el_load_block(&block, row, b);
        el_values32(block.qs, EL_IQ4_VALUES, w);
        float d = el_f16_to_f32(block.d);
        for (int i = 0; i < 32; i++) y[i] = d * (float)w[i];
    }
}

static void dequant_mxfp4(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 32; b++, y += 32) {
        el_block_mxfp4 block;
        int8_t w[32];
        el_load_block(&block, row, b);
        el_values32(block.qs, EL_MXFP4_VALUES, w);
        float d = el_float(el_e8m0_half(block.e));
        for (int i = 0; i < 32; i++) y[i] = d * (float)w[i];
    }
}

static void dequant_nvfp4(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 64; b++, y += 64) {
        el_block_nvfp4 block;
        uint8_t u[64];
        el_load_block(&block, row, b);
        el_nibbles64(block.qs, u);
        for (int i = 0; i < 64; i++) y[i] = el_e4m3_half(block.e[i / 16]) * (float)EL_MXFP4_VALUES[u[i]];
    }
}

static void dequant_iq4_xs(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 256; b++) {
        el_block_iq4_xs block;
        el_load_block(&block, row, b);
        float d = el_f16_to_f32(block.d);
        for (int j = 0; j < 8; j++, y += 32) {
            int8_t w[32];
            el_values32(block.qs + 16 * j, EL_IQ4_VALUES, w);
            float ds = d * (float)el_iq4_xs_scale(&block, j);
            for (int i = 0; i < 32; i++) y[i] = ds * (float)w[i];
        }
    }
}

static void dequant_tq1_0(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 256; b++, y += 256) {
        el_block_tq1_0 block;
        uint8_t u[256];
        el_load_block(&block, row, b);
        el_unpack_tq1_0(&block, u);
        float d = el_f16_to_f32(block.d);
        for (int i = 0; i < 256; i++) y[i] = d * (float)(u[i] - 1);
    }
}

static void dequant_tq2_0(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 256; b++, y += 256) {
        el_block_tq2_0 block;
        uint8_t u[256];
        el_load_block(&block, row, b);
        el_crumbs256(block.qs, u);
        float d = el_f16_to_f32(block.d);
        for (int i = 0; i < 256; i++) y[i] = d * (float)(u[i] - 1);
    }
}

/* Scales: low nibble scale, high minimum, one byte per 16 weights. */
static void dequant_q2_k(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 256; b++, y += 256) {
        el_block_q2_k block;
        uint8_t u[256];
        el_load_block(&block, row, b);
        el_crumbs256(block.qs, u);
        float d = el_f16_to_f32(block.d), dmin = el_f16_to_f32(block.dmin);
        for (int i = 0; i < 256; i++) {
            int sc = block.scales[i / 16];
            y[i] = el_fma(d * (float)(sc & 15), (float)u[i], -(dmin * (float)(sc >> 4)));
        }
    }
}

static void dequant_q3_k(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 256; b++, y += 256) {
        el_block_q3_k block;
        uint8_t u[256];
        el_load_block(&block, row, b);
        el_unpack_q3_k(&block, u);
        float d = el_f16_to_f32(block.d);
        for (int i = 0; i < 256; i++)
            y[i] = (d * (float)el_q3_k_scale(block.scales, i / 16)) * (float)(u[i] - 4);
    }
}

/* Q4_K and Q5_K: fma(d * scale, u, -(dmin * minimum)) with scale and minimum of each 32. */
static void dequant_k4(const uint8_t *u, const uint8_t scales[12], uint16_t d_bits, uint16_t dmin_bits,
                       float *y) {
    float d = el_f16_to_f32(d_bits), dmin = el_f16_to_f32(dmin_bits);
    for (int j = 0; j < 8; j++) {
        uint8_t scale, minimum;
        el_k4_scale(scales, j, &scale, &minimum);
        float ds = d * (float)scale, offset = -(dmin * (float)minimum);
        for (int i = 32 * j; i < 32 * j + 32; i++) y[i] = el_fma(ds, (float)u[i], offset);
    }
}

static void dequant_q4_k(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 256; b++, y += 256) {
        el_block_q4_k block;
        uint8_t u[256];
        el_load_block(&block, row, b);
        el_unpack_q4_k(&block, u);
        dequant_k4(u, block.scales, block.d, block.dmin, y);
    }
}

static void dequant_q5_k(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 256; b++, y += 256) {
        el_block_q5_k block;
        uint8_t u[256];
        el_load_block(&block, row, b);
        el_unpack_q5_k(&block, u);
        dequant_k4(u, block.scales, block.d, block.dmin, y);
    }
}

static void dequant_q6_k(const void *row, int32_t k, float *y) {
    for (int32_t b = 0; b < k / 256; b++, y += 256) {
        el_block_q6_k block;
        uint8_t u[256];
        el_load_block(&block, row, b);
        el_unpack_q6_k(&block, u);
        float d = el_f16_to_f32(block.d);
        for (int i = 0; i < 256; i++) y[i] = (d * (float)block.scales[i / 16]) * (float)(u[i] - 32);
    }
}

void el_dequant_kernels(el_kernels *table) {
    table->dequant[EL_F32] = dequant_f32;
    table->dequant[EL_F16] = dequant_f16;
    table->dequant[EL_BF16] = dequant_bf16;
    table->dequant[EL_Q8_0] = dequant_q8_0;
    table->dequant[EL_Q4_0] = dequant_q4_0;
    table->dequant[EL_Q4_1] = dequant_q4_1;
    table->dequant[EL_Q5_0] = dequant_q5_0;
    table->dequant[EL_Q5_1] = dequant_q5_1;
    table->dequant[EL_IQ4_NL] = dequant_iq4_nl;
    table->dequant[EL_MXFP4] = dequant_mxfp4;
    table->dequant[EL_NVFP4] = dequant_nvfp4;
    table->dequant[EL_IQ4_XS] = dequant_iq4_xs;
    table->dequant[EL_TQ1_0] = dequant_tq1_0;
    table->dequant[EL_TQ2_0] = dequant_tq2_0;
    table->dequant[EL_Q2_K] = dequant_q2_k;
    table->dequant[EL_Q3_K] = dequant_q3_k;
    table->dequant[EL_Q4_K] = dequant_q4_k;
    table->dequant[EL_Q5_K] = dequant_q5_k;
    table->dequant[EL_Q6_K] = dequant_q6_k;
}
