/* Repacking of file rows into panels of 16 rows; the layout is in kernels.h. Every function clears the panel first, so
 * that rows past n_rows are zero, then spreads one block of one row at a time. A step is 4 consecutive k. */
#include "fp.h"
#include "qblocks.h"
#include "scalar.h"

enum { ROWS = EL_TILE_ROWS };

/* Where quant k (counted from the step a 64-byte line starts with) of a row lies. */
static int at(int row, int k) { return 64 * (k / 4) + 4 * row + k % 4; }

/* The two streams of a panel at block b. */
typedef struct streams {
    uint8_t *quants, *extras;
} streams;

static streams block_of(void *panel, const el_tile *t, int32_t k, int32_t b) {
    uint8_t *p = panel;
    size_t n = (size_t)(k / t->block);
    return (streams){p + (size_t)b * (size_t)t->quant_bytes,
                     p + n * (size_t)t->quant_bytes + (size_t)b * (size_t)t->extra_bytes};
}

static void put_u16(uint8_t *array, int i, uint16_t value) { memcpy(array + 2 * i, &value, 2); }

/* 32 nibbles of one row: steps 0..3 in the low halves of 4 lines, steps 4..7 in the high halves. */
static void put_nibbles(uint8_t *lines, int row, const uint8_t *u) {
    for (int k = 0; k < 16; k++) lines[at(row, k)] = (uint8_t)((u[k] & 15) | ((u[k + 16] & 15) << 4));
}

static void pack_q8_0(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_Q8_0);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 32; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_q8_0 block;
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            for (int i = 0; i < 32; i++) out.quants[at(r, i)] = (uint8_t)block.qs[i];
            put_u16(out.extras, r, block.d);
        }
    }
}

/* Bit `bit` of 32 weights of one row: bit s of a line = that of step s. Each byte is put together before it is stored:
 * clang 22.1 vectorises a loop of `line[4 * row + i % 4] |= ...` wrongly, and loses seven of the eight bits. */
static void put_bits(uint8_t *line, int row, const uint8_t *u, int bit) {
    for (int j = 0; j < 4; j++) {
        unsigned byte = 0;
        for (int s = 0; s < 8; s++) byte |= ((unsigned)u[4 * s + j] >> bit & 1u) << s;
        line[4 * row + j] = (uint8_t)byte;
    }
}

/* Bits `bit` and `bit` + 1 of 32 weights of one row: those of step s at 2 (s % 4) of line s / 4. */
static void put_crumbs(uint8_t *lines, int row, const uint8_t *u, int bit) {
    for (int l = 0; l < 2; l++) {
        for (int j = 0; j < 4; j++) {
            unsigned byte = 0;
            for (int s = 0; s < 4; s++) byte |= ((unsigned)u[16 * l + 4 * s + j] >> bit & 3u) << 2 * s;
            lines[64 * l + 4 * row + j] = (uint8_t)byte;
        }
    }
}

static void pack_q4_0(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_Q4_0);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 32; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_q4_0 block;
            uint8_t u[32];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_nibbles32(block.qs, u);
            put_nibbles(out.quants, r, u);
            put_u16(out.extras, r, block.d);
        }
    }
}

static void pack_q4_1(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_Q4_1);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 32; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_q4_1 block;
            uint8_t u[32];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_nibbles32(block.qs, u);
            put_nibbles(out.quants, r, u);
            put_u16(out.extras, r, block.d);
            put_u16(out.extras, ROWS + r, block.m);
        }
    }
}

static void pack_q5_0(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_Q5_0);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 32; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_q5_0 block;
            uint8_t u[32];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_nibbles32(block.qs, u);
            el_fifth_bits32(block.qh, u);
            put_nibbles(out.quants, r, u);
            put_bits(out.quants + 256, r, u, 4);
            put_u16(out.extras, r, block.d);
        }
    }
}

static void pack_q5_1(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_Q5_1);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 32; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_q5_1 block;
            uint8_t u[32];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_nibbles32(block.qs, u);
            el_fifth_bits32(block.qh, u);
            put_nibbles(out.quants, r, u);
            put_bits(out.quants + 256, r, u, 4);
            put_u16(out.extras, r, block.d);
            put_u16(out.extras, ROWS + r, block.m);
        }
    }
}

static void pack_mxfp4(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_MXFP4);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 32; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_mxfp4 block;
            uint8_t u[32];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_nibbles32(block.qs, u);
            put_nibbles(out.quants, r, u);
            out.extras[r] = block.e;
        }
    }
}

static void pack_nvfp4(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_NVFP4);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 64; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_nvfp4 block;
            uint8_t u[64];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_nibbles64(block.qs, u);
            put_nibbles(out.quants, r, u);
            put_nibbles(out.quants + 256, r, u + 32);
            for (int j = 0; j < 4; j++) out.extras[16 * j + r] = block.e[j];
        }
    }
}

static void pack_iq4_xs(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_IQ4_XS);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 256; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_iq4_xs block;
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            for (int j = 0; j < 8; j++) {
                uint8_t u[32];
                el_nibbles32(block.qs + 16 * j, u);
                put_nibbles(out.quants + 256 * j, r, u);
                out.extras[16 * j + r] = (uint8_t)el_iq4_xs_scale(&block, j);
            }
            put_u16(out.extras + 128, r, block.d);
        }
    }
}

/* Q4_K and Q5_K: the low nibbles of 32-blocks 2c (low halves of 8 lines) and 2c + 1 (high halves). */
static void put_pair(uint8_t *lines, int row, const uint8_t *u) {
    for (int i = 0; i < 32; i++) lines[at(row, i)] = (uint8_t)((u[i] & 15) | ((u[32 + i] & 15) << 4));
}

/* Extras of Q4_K and Q5_K. */
static void put_k4_extras(uint8_t *extras, int row, const uint8_t scales[12], uint16_t d, uint16_t dmin) {
    uint8_t *minima = extras + 128;
    for (int j = 0; j < 8; j++) {
        el_k4_scale(scales, j, &extras[16 * j + row], &minima[32 * (j / 2) + 2 * row + j % 2]);
    }
    put_u16(extras + 256, row, d);
    put_u16(extras + 256, ROWS + row, dmin);
}

static void pack_q4_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_Q4_K);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 256; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_q4_k block;
            uint8_t u[256];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_unpack_q4_k(&block, u);
            for (int c = 0; c < 4; c++) put_pair(out.quants + 512 * c, r, u + 64 * c);
            put_k4_extras(out.extras, r, block.scales, block.d, block.dmin);
        }
    }
}

static void pack_q5_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_Q5_K);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 256; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_q5_k block;
            uint8_t u[256];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_unpack_q5_k(&block, u);
            for (int c = 0; c < 4; c++) {
                uint8_t *lines = out.quants + 640 * c;
                put_pair(lines, r, u + 64 * c);
                put_bits(lines + 512, r, u + 64 * c, 4);
                put_bits(lines + 576, r, u + 64 * c + 32, 4);
            }
            put_k4_extras(out.extras, r, block.scales, block.d, block.dmin);
        }
    }
}

static void pack_q2_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_Q2_K);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 256; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_q2_k block;
            uint8_t u[256];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_crumbs256(block.qs, u);
            for (int j = 0; j < 8; j++) put_crumbs(out.quants + 128 * j, r, u + 32 * j, 0);
            for (int j = 0; j < 16; j++) out.extras[16 * j + r] = block.scales[j];
            put_u16(out.extras + 256, r, block.d);
            put_u16(out.extras + 256, ROWS + r, block.dmin);
        }
    }
}

/* One block of one row of a ternary type, as one of Q2_K. */
static void put_ternary(streams out, int row, const uint8_t u[256], uint16_t d) {
    for (int j = 0; j < 8; j++) put_crumbs(out.quants + 128 * j, row, u + 32 * j, 0);
    for (int j = 0; j < 16; j++) out.extras[16 * j + row] = 0x11;
    put_u16(out.extras + 256, row, d);
    put_u16(out.extras + 256, ROWS + row, d);
}

static void pack_tq1_0(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_TQ1_0);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 256; b++) {
        for (int r = 0; r < n_rows; r++) {
            el_block_tq1_0 block;
            uint8_t u[256];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_unpack_tq1_0(&block, u);
            put_ternary(block_of(panel, t, k, b), r, u, block.d);
        }
    }
}

static void pack_tq2_0(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_TQ2_0);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 256; b++) {
        for (int r = 0; r < n_rows; r++) {
            el_block_tq2_0 block;
            uint8_t u[256];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_crumbs256(block.qs, u);
            put_ternary(block_of(panel, t, k, b), r, u, block.d);
        }
    }
}

static void pack_q3_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_Q3_K);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 256; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_q3_k block;
            uint8_t u[256];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_unpack_q3_k(&block, u);
            for (int j = 0; j < 8; j++) {
                put_crumbs(out.quants + 192 * j, r, u + 32 * j, 0);
                put_bits(out.quants + 192 * j + 128, r, u + 32 * j, 2);
            }
            for (int j = 0; j < 16; j++) out.extras[16 * j + r] = (uint8_t)el_q3_k_scale(block.scales, j);
            put_u16(out.extras + 256, r, block.d);
        }
    }
}

static void pack_q6_k(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    const el_tile *t = el_tile_of(EL_Q6_K);
    memset(panel, 0, el_panel_bytes(t, k));
    for (int32_t b = 0; b < k / 256; b++) {
        streams out = block_of(panel, t, k, b);
        for (int r = 0; r < n_rows; r++) {
            el_block_q6_k block;
            uint8_t u[256];
            el_load_block(&block, (const char *)rows + (size_t)r * row_stride, b);
            el_unpack_q6_k(&block, u);
            for (int j = 0; j < 8; j++) { /* 32-blocks */
                put_nibbles(out.quants + 256 * j, r, u + 32 * j);
                put_crumbs(out.quants + 2048 + 128 * j, r, u + 32 * j, 4);
            }
            for (int j = 0; j < 16; j++) out.extras[16 * j + r] = (uint8_t)block.scales[j];
            put_u16(out.extras + 256, r, block.d);
        }
    }
}

/* F16, BF16 and F32: a transpose of elements. */
static void pack_elements(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel,
                          size_t size) {
    memset(panel, 0, ((size_t)k * ROWS * size + 63) & ~(size_t)63);
    for (int32_t i = 0; i < k; i++) {
        for (int r = 0; r < n_rows; r++) {
            memcpy((char *)panel + ((size_t)i * ROWS + (size_t)r) * size,
                   (const char *)rows + (size_t)r * row_stride + (size_t)i * size, size);
        }
    }
}

static void pack_16_bits(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    pack_elements(rows, row_stride, n_rows, k, panel, 2);
}

static void pack_f32(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel) {
    pack_elements(rows, row_stride, n_rows, k, panel, 4);
}

void el_scalar_pack_kernels(el_kernels *table) {
    table->pack[EL_Q8_0] = pack_q8_0;
    table->pack[EL_Q4_0] = pack_q4_0;
    table->pack[EL_Q4_1] = pack_q4_1;
    table->pack[EL_Q5_0] = pack_q5_0;
    table->pack[EL_Q5_1] = pack_q5_1;
    table->pack[EL_IQ4_NL] = pack_q4_0; /* the same bytes */
    table->pack[EL_MXFP4] = pack_mxfp4;
    table->pack[EL_NVFP4] = pack_nvfp4;
    table->pack[EL_IQ4_XS] = pack_iq4_xs;
    table->pack[EL_TQ1_0] = pack_tq1_0;
    table->pack[EL_TQ2_0] = pack_tq2_0;
    table->pack[EL_Q2_K] = pack_q2_k;
    table->pack[EL_Q3_K] = pack_q3_k;
    table->pack[EL_Q4_K] = pack_q4_k;
    table->pack[EL_Q5_K] = pack_q5_k;
    table->pack[EL_Q6_K] = pack_q6_k;
    table->pack[EL_F16] = pack_16_bits;
    table->pack[EL_BF16] = pack_16_bits;
    table->pack[EL_F32] = pack_f32;
}
