/* Matmul on panels and quantisation of activations. Each mm function walks the blocks in ascending order, unpacks a block
 * of 16 rows into small integers once, and applies it to every column of a group of columns. Everything inside a block is
 * exact integer arithmetic; `acc` holds the one float chain of each (row, column).
 */
#include "fp.h"
#include "scalar.h"

enum { ROWS = EL_TILE_ROWS, COLUMNS = 64, FLOAT_COLUMNS = 8 };

/* Block b of a panel's two streams. */
static const uint8_t *quants_of(const void *panel, const el_tile *t, int32_t b) {
    return (const uint8_t *)panel + (size_t)b * (size_t)t->quant_bytes;
}

static const uint8_t *extras_of(const void *panel, const el_tile *t, int32_t k, int32_t b) {
    return (const uint8_t *)panel + (size_t)(k / t->block) * (size_t)t->quant_bytes +
           (size_t)b * (size_t)t->extra_bytes;
}

/* Element i of an array of f16. */
static float half_at(const uint8_t *array, int i) {
    uint16_t h;
    memcpy(&h, array + 2 * i, 2);
    return el_f16_to_f32(h);
}

static void write_out(float (*acc)[ROWS], int32_t n_rows, int32_t n, float *const *y, size_t y_off) {
    for (int32_t c = 0; c < n; c++) memcpy(y[c] + y_off, acc[c], (size_t)n_rows * sizeof(float));
}

/* ---- integers of a 32-block: lines[step][4 * row + i], then w[row][k] ---------------------------------------------- */

/* From lines to rows. */
static void by_rows(const int8_t lines[8][64], int16_t w[ROWS][32]) {
    int8_t bytes[ROWS][32];
    for (int r = 0; r < ROWS; r++) {
        for (int s = 0; s < 8; s++) memcpy(&bytes[r][4 * s], &lines[s][4 * r], 4);
    }
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < 32; i++) w[r][i] = bytes[r][i];
    }
}

static void unpack_q8_0(const uint8_t *quants, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    memcpy(lines, quants, sizeof lines);
    by_rows(lines, w);
}

/* Steps 0..3 are the low halves of 4 lines, 4..7 the high halves. */
static void low_and_high(const uint8_t *quants, int8_t lines[8][64]) {
    for (int s = 0; s < 4; s++) {
        for (int i = 0; i < 64; i++) {
            lines[s][i] = (int8_t)(quants[64 * s + i] & 15);
            lines[s + 4][i] = (int8_t)(quants[64 * s + i] >> 4);
        }
    }
}

static void unpack_q4_1(const uint8_t *quants, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    low_and_high(quants, lines);
    by_rows(lines, w);
}

/* Nibbles, a line whose bit s is the fifth bit of step s, and the offset of 16. */
static void unpack_q5_0(const uint8_t *quants, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    low_and_high(quants, lines);
    for (int s = 0; s < 8; s++) {
        for (int i = 0; i < 64; i++) {
            lines[s][i] = (int8_t)(lines[s][i] + 16 * ((quants[256 + i] >> s) & 1) - 16);
        }
    }
    by_rows(lines, w);
}

/* 32-block `high` (0 or 1) of a pair that shares 8 lines. */
static void unpack_q4_k(const uint8_t *quants, int high, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    for (int s = 0; s < 8; s++) {
        for (int i = 0; i < 64; i++) lines[s][i] = (int8_t)((quants[64 * s + i] >> (4 * high)) & 15);
    }
    by_rows(lines, w);
}

/* Nibbles, the top two bits of step s in line s / 4 at bit 2 (s % 4), and the offset of 32. */
static void unpack_q6_k(const uint8_t *quants, const uint8_t *top, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    low_and_high(quants, lines);
    for (int s = 0; s < 8; s++) {
        for (int i = 0; i < 64; i++) {
            int bits = (top[64 * (s / 4) + i] >> (2 * (s % 4))) & 3;
            lines[s][i] = (int8_t)(lines[s][i] + 16 * bits - 32);
        }
    }
    by_rows(lines, w);
}

static void widen(const int8_t *q, int16_t x[32]) {
    for (int i = 0; i < 32; i++) x[i] = q[i];
}

static int32_t dot16(const int16_t *w, const int16_t *x) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += w[i] * x[i];
    return sum;
}

static int32_t dot32(const int16_t *w, const int16_t *x) {
    int32_t sum = 0;
    for (int i = 0; i < 32; i++) sum += w[i] * x[i];
    return sum;
}

/* ---- 32-block types: activations A16 ------------------------------------------------------------------------------ */

/* sum w q of a 32-block, each 16 with its own activation scale. */
static float dot_a16(const int16_t *w, const int16_t *q, const float *dx) {
    return el_fma((float)dot16(w + 16, q + 16), dx[1], (float)dot16(w, q) * dx[0]);
}

/* Q8_0 and Q5_0: acc = fma(dot_a16, d, acc). */
static void mm_scaled(const el_tile *t, void (*unpack)(const uint8_t *, int16_t (*)[32]), const void *panel,
                      int32_t k, int32_t n_rows, const void *const *x, int32_t n, float *const *y,
                      size_t y_off) {
    for (int32_t c0 = 0; c0 < n; c0 += COLUMNS) {
        int32_t width = n - c0 < COLUMNS ? n - c0 : COLUMNS;
        float acc[COLUMNS][ROWS] = {{0}};
        for (int32_t b = 0; b < k / 32; b++) {
            const uint8_t *extras = extras_of(panel, t, k, b);
            int16_t w[ROWS][32], q[32];
            float d[ROWS];
            unpack(quants_of(panel, t, b), w);
            for (int r = 0; r < ROWS; r++) d[r] = half_at(extras, r);
            for (int32_t c = 0; c < width; c++) {
                const float *dx = el_a16_d(x[c0 + c], k) + 2 * (size_t)b;
                widen((const int8_t *)x[c0 + c] + 32 * (size_t)b, q);
                for (int r = 0; r < ROWS; r++) acc[c][r] = el_fma(dot_a16(w[r], q, dx), d[r], acc[c][r]);
            }
        }
        write_out(acc, n_rows, width, y + c0, y_off);
    }
}

static void mm_q8_0(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n,
                    float *const *y, size_t y_off, void *scratch) {
    (void)scratch;
    mm_scaled(el_tile_of(EL_Q8_0), unpack_q8_0, panel, k, n_rows, x, n, y, y_off);
}

static void mm_q5_0(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n,
                    float *const *y, size_t y_off, void *scratch) {
    (void)scratch;
    mm_scaled(el_tile_of(EL_Q5_0), unpack_q5_0, panel, k, n_rows, x, n, y, y_off);
}

static void mm_q4_1(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n,
                    float *const *y, size_t y_off, void *scratch) {
    const el_tile *t = el_tile_of(EL_Q4_1);
    (void)scratch;
    for (int32_t c0 = 0; c0 < n; c0 += COLUMNS) {
        int32_t width = n - c0 < COLUMNS ? n - c0 : COLUMNS;
        float acc[COLUMNS][ROWS] = {{0}};
        for (int32_t b = 0; b < k / 32; b++) {
            const uint8_t *extras = extras_of(panel, t, k, b);
            int16_t w[ROWS][32], q[32];
            float d[ROWS], m[ROWS];
            unpack_q4_1(quants_of(panel, t, b), w);
            for (int r = 0; r < ROWS; r++) {
                d[r] = half_at(extras, r);
                m[r] = half_at(extras, ROWS + r);
            }
            for (int32_t c = 0; c < width; c++) {
                const float *dx = el_a16_d(x[c0 + c], k) + 2 * (size_t)b;
                float s = el_a16_s(x[c0 + c], k)[b];
                widen((const int8_t *)x[c0 + c] + 32 * (size_t)b, q);
                for (int r = 0; r < ROWS; r++) {
                    acc[c][r] = el_fma(dot_a16(w[r], q, dx), d[r], acc[c][r]);
                    acc[c][r] = el_fma(m[r], s, acc[c][r]);
                }
            }
        }
        write_out(acc, n_rows, width, y + c0, y_off);
    }
}

/* ---- k-quants: integer scales inside a block of 256 --------------------------------------------------------------- */

/* S and M of kernels.h for every column of the group, built one 32-block at a time. */
static void mm_q4_k(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n,
                    float *const *y, size_t y_off, void *scratch) {
    const el_tile *t = el_tile_of(EL_Q4_K);
    (void)scratch;
    for (int32_t c0 = 0; c0 < n; c0 += COLUMNS) {
        int32_t width = n - c0 < COLUMNS ? n - c0 : COLUMNS;
        float acc[COLUMNS][ROWS] = {{0}};
        for (int32_t b = 0; b < k / 256; b++) {
            const uint8_t *quants = quants_of(panel, t, b), *scales = extras_of(panel, t, k, b);
            const uint8_t *minima = scales + 128;
            int32_t S[COLUMNS][ROWS] = {{0}}, M[COLUMNS][ROWS] = {{0}};
            for (int j = 0; j < 8; j++) {
                int16_t w[ROWS][32], q[32];
                unpack_q4_k(quants + 512 * (j / 2), j % 2, w);
                for (int32_t c = 0; c < width; c++) {
                    const void *row = x[c0 + c];
                    int32_t sum = el_a256_sum32(row, k)[8 * b + j];
                    widen((const int8_t *)row + 256 * (size_t)b + 32 * j, q);
                    for (int r = 0; r < ROWS; r++) {
                        S[c][r] += scales[16 * j + r] * dot32(w[r], q);
                        M[c][r] += minima[32 * (j / 2) + 2 * r + j % 2] * sum;
                    }
                }
            }
            for (int32_t c = 0; c < width; c++) {
                float dx = el_a256_d(x[c0 + c], k)[b];
                for (int r = 0; r < ROWS; r++) {
                    float d = half_at(scales + 256, r), dmin = half_at(scales + 256, ROWS + r);
                    acc[c][r] = el_fma((float)S[c][r], d * dx, acc[c][r]);
                    acc[c][r] = el_fma((float)M[c][r], -(dmin * dx), acc[c][r]);
                }
            }
        }
        write_out(acc, n_rows, width, y + c0, y_off);
    }
}

static void mm_q6_k(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n,
                    float *const *y, size_t y_off, void *scratch) {
    const el_tile *t = el_tile_of(EL_Q6_K);
    (void)scratch;
    for (int32_t c0 = 0; c0 < n; c0 += COLUMNS) {
        int32_t width = n - c0 < COLUMNS ? n - c0 : COLUMNS;
        float acc[COLUMNS][ROWS] = {{0}};
        for (int32_t b = 0; b < k / 256; b++) {
            const uint8_t *quants = quants_of(panel, t, b), *extras = extras_of(panel, t, k, b);
            const int8_t *scales = (const int8_t *)extras;
            int32_t S[COLUMNS][ROWS] = {{0}};
            for (int j = 0; j < 8; j++) { /* 32-blocks: 16-blocks 2j and 2j + 1 */
                int16_t w[ROWS][32], q[32];
                unpack_q6_k(quants + 256 * j, quants + 2048 + 128 * j, w);
                for (int32_t c = 0; c < width; c++) {
                    widen((const int8_t *)x[c0 + c] + 256 * (size_t)b + 32 * j, q);
                    for (int r = 0; r < ROWS; r++) {
                        S[c][r] += scales[32 * j + r] * dot16(w[r], q) +
                                   scales[32 * j + 16 + r] * dot16(w[r] + 16, q + 16);
                    }
                }
            }
            for (int32_t c = 0; c < width; c++) {
                float dx = el_a256_d(x[c0 + c], k)[b];
                for (int r = 0; r < ROWS; r++) {
                    acc[c][r] = el_fma((float)S[c][r], half_at(extras + 256, r) * dx, acc[c][r]);
                }
            }
        }
        write_out(acc, n_rows, width, y + c0, y_off);
    }
}

/* ---- float weights: a chain over k -------------------------------------------------------------------------------- */

/* acc[r] = fma(w[r], x, acc[r]) */
static void chain_step(const float w[ROWS], float x, float acc[ROWS]) {
    float next[ROWS];
    for (int r = 0; r < ROWS; r++) next[r] = el_fma(w[r], x, acc[r]);
    memcpy(acc, next, sizeof next);
}

static void mm_f16(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n,
                   float *const *y, size_t y_off, void *scratch) {
    (void)scratch;
    for (int32_t c0 = 0; c0 < n; c0 += FLOAT_COLUMNS) {
        int32_t width = n - c0 < FLOAT_COLUMNS ? n - c0 : FLOAT_COLUMNS;
        float acc[FLOAT_COLUMNS][ROWS] = {{0}};
        for (int32_t i = 0; i < k; i++) {
            float w[ROWS];
            for (int r = 0; r < ROWS; r++) w[r] = half_at((const uint8_t *)panel + 32 * (size_t)i, r);
            for (int32_t c = 0; c < width; c++) chain_step(w, ((const float *)x[c0 + c])[i], acc[c]);
        }
        write_out(acc, n_rows, width, y + c0, y_off);
    }
}

static void mm_f32(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n,
                   float *const *y, size_t y_off, void *scratch) {
    (void)scratch;
    for (int32_t c0 = 0; c0 < n; c0 += FLOAT_COLUMNS) {
        int32_t width = n - c0 < FLOAT_COLUMNS ? n - c0 : FLOAT_COLUMNS;
        float acc[FLOAT_COLUMNS][ROWS] = {{0}};
        for (int32_t i = 0; i < k; i++) {
            const float *w = (const float *)panel + ROWS * (size_t)i;
            for (int32_t c = 0; c < width; c++) chain_step(w, ((const float *)x[c0 + c])[i], acc[c]);
        }
        write_out(acc, n_rows, width, y + c0, y_off);
    }
}

/* ---- quantisation of activations ---------------------------------------------------------------------------------- */

/* One block of n values. Returns 1, with zeros written, if one is not finite. */
static int32_t quantize_block(const float *x, int n, int8_t *q, float *d) {
    uint32_t a = 0;
    for (int i = 0; i < n; i++) {
        uint32_t bits = el_bits(x[i]) & 0x7fffffffu;
        a = bits > a ? bits : a;
    }
    float amax = el_float(a);
    if (a >= 0x7f800000u || amax < 7.52316385e-37f /* 2^-120 */) {
        memset(q, 0, (size_t)n);
        *d = 0.0f;
        return a >= 0x7f800000u;
    }
    float id = 127.0f / amax;
    *d = amax / 127.0f;
    for (int i = 0; i < n; i++) {
        int32_t v = el_rint(x[i] * id);
        v = v > 127 ? 127 : v;
        q[i] = (int8_t)(v < -127 ? -127 : v);
    }
    return 0;
}

static int32_t sum_of(const int8_t *q, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += q[i];
    return sum;
}

static int32_t quantize_a16(const float *x, int32_t k, void *row) {
    int8_t *q = row;
    float *d = (float *)((char *)row + el_act_q_bytes(k)), *s = d + k / 16;
    int32_t *sum = (int32_t *)(s + k / 32), bad = 0;
    for (int32_t j = 0; j < k / 16; j++) {
        bad |= quantize_block(x + 16 * j, 16, q + 16 * j, &d[j]);
        sum[j] = sum_of(q + 16 * j, 16);
    }
    for (int32_t b = 0; b < k / 32; b++) {
        s[b] = el_fma((float)sum[2 * b + 1], d[2 * b + 1], (float)sum[2 * b] * d[2 * b]);
    }
    return bad;
}

static int32_t quantize_a256(const float *x, int32_t k, void *row) {
    int8_t *q = row;
    float *d = (float *)((char *)row + el_act_q_bytes(k));
    int16_t *sum16 = (int16_t *)(d + k / 256), *sum32 = sum16 + k / 16;
    int32_t bad = 0;
    for (int32_t b = 0; b < k / 256; b++) bad |= quantize_block(x + 256 * b, 256, q + 256 * b, &d[b]);
    for (int32_t j = 0; j < k / 16; j++) sum16[j] = (int16_t)sum_of(q + 16 * j, 16);
    for (int32_t j = 0; j < k / 32; j++) sum32[j] = (int16_t)sum_of(q + 32 * j, 32);
    return bad;
}

void el_scalar_matmul_kernels(el_kernels *table) {
    table->mm[EL_Q8_0] = mm_q8_0;
    table->mm[EL_Q4_1] = mm_q4_1;
    table->mm[EL_Q5_0] = mm_q5_0;
    table->mm[EL_Q4_K] = mm_q4_k;
    table->mm[EL_Q6_K] = mm_q6_k;
    table->mm[EL_F16] = mm_f16;
    table->mm[EL_F32] = mm_f32;
    table->quantize[EL_ACT_A16] = quantize_a16;
    table->quantize[EL_ACT_A256] = quantize_a256;
}
