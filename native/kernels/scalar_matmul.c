/* Matmul on panels and quantisation of activations. Each mm function walks the blocks in ascending order, unpacks a block
 * of 16 rows into small integers once, and applies it to every column of a group of columns. Everything inside a block is
 * exact integer arithmetic; `acc` holds the one float chain of each (row, column).
 */
#include "fp.h"
#include "qblocks.h"
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

/* The low (0) or high (1) halves of 8 lines: one 32-block of a pair. */
static void one_half(const uint8_t *quants, int high, int8_t lines[8][64]) {
    for (int s = 0; s < 8; s++) {
        for (int i = 0; i < 64; i++) lines[s][i] = (int8_t)((quants[64 * s + i] >> (4 * high)) & 15);
    }
}

/* Two bits of every step: those of step s at 2 (s % 4) of line s / 4. */
static void crumbs(const uint8_t *quants, int8_t lines[8][64]) {
    for (int s = 0; s < 8; s++) {
        for (int i = 0; i < 64; i++) lines[s][i] = (int8_t)((quants[64 * (s / 4) + i] >> (2 * (s % 4))) & 3);
    }
}

/* Add `value` where bit s of a line, that of step s, is set; then subtract `offset`. */
static void add_bits(const uint8_t *line, int value, int offset, int8_t lines[8][64]) {
    for (int s = 0; s < 8; s++) {
        for (int i = 0; i < 64; i++)
            lines[s][i] = (int8_t)(lines[s][i] + value * ((line[i] >> s) & 1) - offset);
    }
}

static void unpack_q4_0(const uint8_t *quants, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    low_and_high(quants, lines);
    for (int s = 0; s < 8; s++) {
        for (int i = 0; i < 64; i++) lines[s][i] = (int8_t)(lines[s][i] - 8);
    }
    by_rows(lines, w);
}

static void unpack_q4_1(const uint8_t *quants, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    low_and_high(quants, lines);
    by_rows(lines, w);
}

static void unpack_q5_0(const uint8_t *quants, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    low_and_high(quants, lines);
    add_bits(quants + 256, 16, 16, lines);
    by_rows(lines, w);
}

static void unpack_q5_1(const uint8_t *quants, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    low_and_high(quants, lines);
    add_bits(quants + 256, 16, 0, lines);
    by_rows(lines, w);
}

/* The values that nibbles stand for. */
static void unpack_values(const int8_t values[16], const uint8_t *quants, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    low_and_high(quants, lines);
    for (int s = 0; s < 8; s++) {
        for (int i = 0; i < 64; i++) lines[s][i] = values[lines[s][i]];
    }
    by_rows(lines, w);
}

static void unpack_iq4_nl(const uint8_t *quants, int16_t w[ROWS][32]) {
    unpack_values(EL_IQ4_VALUES, quants, w);
}

static void unpack_mxfp4(const uint8_t *quants, int16_t w[ROWS][32]) {
    unpack_values(EL_MXFP4_VALUES, quants, w);
}

/* The k-quants: 32-block j of a block. These two: numbers of values. */
static void unpack_nibbles(const uint8_t *quants, int j, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    low_and_high(quants + 256 * j, lines);
    by_rows(lines, w);
}

static void unpack_three_bits(const uint8_t *quants, int j, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    crumbs(quants + 192 * j, lines);
    add_bits(quants + 192 * j + 128, 4, 0, lines);
    by_rows(lines, w);
}

static void unpack_q2_k(const uint8_t *quants, int j, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    crumbs(quants + 128 * j, lines);
    by_rows(lines, w);
}

static void unpack_q3_k(const uint8_t *quants, int j, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    crumbs(quants + 192 * j, lines);
    add_bits(quants + 192 * j + 128, 4, 4, lines);
    by_rows(lines, w);
}

static void unpack_q4_k(const uint8_t *quants, int j, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    one_half(quants + 512 * (j / 2), j % 2, lines);
    by_rows(lines, w);
}

static void unpack_q5_k(const uint8_t *quants, int j, int16_t w[ROWS][32]) {
    int8_t lines[8][64];
    one_half(quants + 640 * (j / 2), j % 2, lines);
    add_bits(quants + 640 * (j / 2) + 512 + 64 * (j % 2), 16, 0, lines);
    by_rows(lines, w);
}

static void unpack_q6_k(const uint8_t *quants, int j, int16_t w[ROWS][32]) {
    int8_t lines[8][64], top[8][64];
    low_and_high(quants + 256 * j, lines);
    crumbs(quants + 2048 + 128 * j, top);
    for (int s = 0; s < 8; s++) {
        for (int i = 0; i < 64; i++) lines[s][i] = (int8_t)(lines[s][i] + 16 * top[s][i] - 32);
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

/* acc = fma(dot_a16, d, acc); with_min: then acc = fma(m, s, acc). */
static void mm_32(int32_t qtype, void (*unpack)(const uint8_t *, int16_t (*)[32]), int with_min,
                  const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n,
                  float *const *y, size_t y_off) {
    const el_tile *t = el_tile_of(qtype);
    for (int32_t c0 = 0; c0 < n; c0 += COLUMNS) {
        int32_t width = n - c0 < COLUMNS ? n - c0 : COLUMNS;
        float acc[COLUMNS][ROWS] = {{0}};
        for (int32_t b = 0; b < k / 32; b++) {
            const uint8_t *extras = extras_of(panel, t, k, b);
            int16_t w[ROWS][32], q[32];
            float d[ROWS], m[ROWS] = {0};
            unpack(quants_of(panel, t, b), w);
            for (int r = 0; r < ROWS; r++) {
                d[r] = qtype == EL_MXFP4 ? el_float(el_e8m0_half(extras[r])) : half_at(extras, r);
            }
            for (int r = 0; r < ROWS && with_min; r++) m[r] = half_at(extras, ROWS + r);
            for (int32_t c = 0; c < width; c++) {
                const float *dx = el_a16_d(x[c0 + c], k) + 2 * (size_t)b;
                float s = el_a16_s(x[c0 + c], k)[b];
                widen((const int8_t *)x[c0 + c] + 32 * (size_t)b, q);
                for (int r = 0; r < ROWS; r++) {
                    acc[c][r] = el_fma(dot_a16(w[r], q, dx), d[r], acc[c][r]);
                    if (with_min) acc[c][r] = el_fma(m[r], s, acc[c][r]);
                }
            }
        }
        write_out(acc, n_rows, width, y + c0, y_off);
    }
}

/* A scale per 16 weights, one fma each. */
static void mm_scales_of_a16(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n,
                             float *const *y, size_t y_off) {
    const el_tile *t = el_tile_of(EL_NVFP4);
    for (int32_t c0 = 0; c0 < n; c0 += COLUMNS) {
        int32_t width = n - c0 < COLUMNS ? n - c0 : COLUMNS;
        float acc[COLUMNS][ROWS] = {{0}};
        for (int32_t b = 0; b < k / 32; b++) {
            const uint8_t *e = extras_of(panel, t, k, b / 2) + 32 * (b % 2);
            int16_t w[ROWS][32], q[32];
            unpack_mxfp4(quants_of(panel, t, b / 2) + 256 * (b % 2), w);
            for (int32_t c = 0; c < width; c++) {
                const float *dx = el_a16_d(x[c0 + c], k) + 2 * (size_t)b;
                widen((const int8_t *)x[c0 + c] + 32 * (size_t)b, q);
                for (int r = 0; r < ROWS; r++) {
                    for (int j = 0; j < 2; j++) {
                        float i = (float)dot16(w[r] + 16 * j, q + 16 * j);
                        acc[c][r] = el_fma(i, el_e4m3_half(e[16 * j + r]) * dx[j], acc[c][r]);
                    }
                }
            }
        }
        write_out(acc, n_rows, width, y + c0, y_off);
    }
}

static void mm_nvfp4(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n,
                     float *const *y, size_t y_off, void *scratch) {
    (void)scratch;
    mm_scales_of_a16(panel, k, n_rows, x, n, y, y_off);
}

/* ---- k-quants: activations A256, integer scales inside a block of 256 --------------------------------------------- */

/* S and M of a block for the columns of a group. */
typedef int32_t el_totals[COLUMNS][ROWS];

/* Values in place of their numbers. */
static void look_up(const el_values *values, int16_t w[ROWS][32]) {
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < 32; i++) w[r][i] = values->of[w[r][i]];
    }
}

/* acc = fma((f32)S, (unit * d) * dx, acc); where M is given, acc = fma((f32)M, -(dmin * dx), acc). halves: f16 d[16],
 * dmin[16]. */
static void add_block(const uint8_t *halves, float unit, const void *const *x, int32_t width, int32_t k,
                      int32_t b, el_totals S, el_totals M, float (*acc)[ROWS]) {
    for (int32_t c = 0; c < width; c++) {
        float dx = el_a256_d(x[c], k)[b];
        for (int r = 0; r < ROWS; r++) {
            acc[c][r] = el_fma((float)S[c][r], unit * half_at(halves, r) * dx, acc[c][r]);
            if (M) acc[c][r] = el_fma((float)M[c][r], -(half_at(halves, ROWS + r) * dx), acc[c][r]);
        }
    }
}

/* Q4_K and Q5_K: scales and minima per 32; IQ3 and IQ4_XS: signed scales, values. */
static void mm_scales_of_32(int32_t qtype, void (*unpack)(const uint8_t *, int, int16_t (*)[32]),
                            int with_min, const el_values *values, const void *panel, int32_t k,
                            int32_t n_rows, const void *const *x, int32_t n, float *const *y, size_t y_off) {
    const el_tile *t = el_tile_of(qtype);
    for (int32_t c0 = 0; c0 < n; c0 += COLUMNS) {
        int32_t width = n - c0 < COLUMNS ? n - c0 : COLUMNS;
        float acc[COLUMNS][ROWS] = {{0}};
        for (int32_t b = 0; b < k / 256; b++) {
            const uint8_t *scales = extras_of(panel, t, k, b), *minima = scales + 128;
            el_totals S = {{0}}, M = {{0}};
            for (int j = 0; j < 8; j++) {
                int16_t w[ROWS][32], q[32];
                unpack(quants_of(panel, t, b), j, w);
                if (values) look_up(values, w);
                for (int32_t c = 0; c < width; c++) {
                    const void *row = x[c0 + c];
                    int32_t sum = el_a256_sum32(row, k)[8 * b + j];
                    widen((const int8_t *)row + 256 * (size_t)b + 32 * j, q);
                    for (int r = 0; r < ROWS; r++) {
                        int32_t scale = with_min ? scales[16 * j + r] : (int8_t)scales[16 * j + r];
                        S[c][r] += scale * dot32(w[r], q);
                        if (with_min) M[c][r] += minima[32 * (j / 2) + 2 * r + j % 2] * sum;
                    }
                }
            }
            add_block(with_min ? scales + 256 : minima, values ? values->unit : 1, x + c0, width, k, b, S,
                      with_min ? M : NULL, acc);
        }
        write_out(acc, n_rows, width, y + c0, y_off);
    }
}

/* Q2_K (with minima), Q3_K, Q6_K, IQ1 and IQ2 (values): a byte per 16 weights, signed scale or nibbles of scale and minimum. */
static void mm_scales_of_16(int32_t qtype, void (*unpack)(const uint8_t *, int, int16_t (*)[32]),
                            int with_min, const el_values *values, const void *panel, int32_t k,
                            int32_t n_rows, const void *const *x, int32_t n, float *const *y, size_t y_off) {
    const el_tile *t = el_tile_of(qtype);
    for (int32_t c0 = 0; c0 < n; c0 += COLUMNS) {
        int32_t width = n - c0 < COLUMNS ? n - c0 : COLUMNS;
        float acc[COLUMNS][ROWS] = {{0}};
        for (int32_t b = 0; b < k / 256; b++) {
            const uint8_t *extras = extras_of(panel, t, k, b);
            el_totals S = {{0}}, M = {{0}};
            for (int j = 0; j < 16; j++) {
                const uint8_t *bytes = extras + 16 * j;
                int16_t w[ROWS][32], q[32];
                if (j % 2 == 0) unpack(quants_of(panel, t, b), j / 2, w);
                if (j % 2 == 0 && values) look_up(values, w);
                for (int32_t c = 0; c < width; c++) {
                    const void *row = x[c0 + c];
                    int32_t sum = el_a256_sum16(row, k)[16 * b + j];
                    widen((const int8_t *)row + 256 * (size_t)b + 32 * (j / 2), q);
                    for (int r = 0; r < ROWS; r++) {
                        int32_t scale = with_min ? bytes[r] & 15 : (int8_t)bytes[r];
                        S[c][r] += scale * dot16(w[r] + 16 * (j % 2), q + 16 * (j % 2));
                        M[c][r] += (bytes[r] >> 4) * sum;
                    }
                }
            }
            add_block(extras + 256, values ? values->unit : 1, x + c0, width, k, b, S, with_min ? M : NULL,
                      acc);
        }
        write_out(acc, n_rows, width, y + c0, y_off);
    }
}

#define MM(name, body, ...)                                                                              \
    static void mm_##name(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n, \
                          float *const *y, size_t y_off, void *scratch) {                                \
        (void)scratch;                                                                                   \
        body(__VA_ARGS__, panel, k, n_rows, x, n, y, y_off);                                             \
    }

MM(q8_0, mm_32, EL_Q8_0, unpack_q8_0, 0)
MM(q4_0, mm_32, EL_Q4_0, unpack_q4_0, 0)
MM(q4_1, mm_32, EL_Q4_1, unpack_q4_1, 1)
MM(q5_0, mm_32, EL_Q5_0, unpack_q5_0, 0)
MM(q5_1, mm_32, EL_Q5_1, unpack_q5_1, 1)
MM(q2_k, mm_scales_of_16, EL_Q2_K, unpack_q2_k, 1, NULL)
MM(q3_k, mm_scales_of_16, EL_Q3_K, unpack_q3_k, 0, NULL)
MM(q4_k, mm_scales_of_32, EL_Q4_K, unpack_q4_k, 1, NULL)
MM(q5_k, mm_scales_of_32, EL_Q5_K, unpack_q5_k, 1, NULL)
MM(iq4_nl, mm_32, EL_IQ4_NL, unpack_iq4_nl, 0)
MM(mxfp4, mm_32, EL_MXFP4, unpack_mxfp4, 0)
MM(iq1, mm_scales_of_16, EL_IQ1_S, unpack_three_bits, 0, &EL_IQ1_VALUES)
MM(iq2, mm_scales_of_16, EL_IQ2_S, unpack_three_bits, 0, &EL_IQ2_VALUES)
MM(iq3_xxs, mm_scales_of_32, EL_IQ3_XXS, unpack_nibbles, 0, &EL_IQ3_XXS_VALUES)
MM(iq3_s, mm_scales_of_32, EL_IQ3_S, unpack_nibbles, 0, &EL_IQ3_S_VALUES)
MM(iq4_xs, mm_scales_of_32, EL_IQ4_XS, unpack_nibbles, 0, &EL_IQ4_XS_VALUES)
MM(q6_k, mm_scales_of_16, EL_Q6_K, unpack_q6_k, 0, NULL)

/* ---- float weights: a chain over k -------------------------------------------------------------------------------- */

/* acc[r] = fma(w[r], x, acc[r]) */
static void chain_step(const float w[ROWS], float x, float acc[ROWS]) {
    float next[ROWS];
    for (int r = 0; r < ROWS; r++) next[r] = el_fma(w[r], x, acc[r]);
    memcpy(acc, next, sizeof next);
}

/* Element i of 16 rows as floats. */
static void floats_of_f16(const void *panel, int32_t i, float w[ROWS]) {
    for (int r = 0; r < ROWS; r++) w[r] = half_at((const uint8_t *)panel + 32 * (size_t)i, r);
}

static void floats_of_bf16(const void *panel, int32_t i, float w[ROWS]) {
    uint16_t bits[ROWS];
    memcpy(bits, (const uint8_t *)panel + 32 * (size_t)i, sizeof bits);
    for (int r = 0; r < ROWS; r++) w[r] = el_bf16_to_f32(bits[r]);
}

static void floats_of_f32(const void *panel, int32_t i, float w[ROWS]) {
    memcpy(w, (const float *)panel + ROWS * (size_t)i, ROWS * sizeof *w);
}

static void mm_float(void (*floats_of)(const void *, int32_t, float *), const void *panel, int32_t k,
                     int32_t n_rows, const void *const *x, int32_t n, float *const *y, size_t y_off) {
    for (int32_t c0 = 0; c0 < n; c0 += FLOAT_COLUMNS) {
        int32_t width = n - c0 < FLOAT_COLUMNS ? n - c0 : FLOAT_COLUMNS;
        float acc[FLOAT_COLUMNS][ROWS] = {{0}};
        for (int32_t i = 0; i < k; i++) {
            float w[ROWS];
            floats_of(panel, i, w);
            for (int32_t c = 0; c < width; c++) chain_step(w, ((const float *)x[c0 + c])[i], acc[c]);
        }
        write_out(acc, n_rows, width, y + c0, y_off);
    }
}

MM(f16, mm_float, floats_of_f16)
MM(bf16, mm_float, floats_of_bf16)
MM(f32, mm_float, floats_of_f32)

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

/* el_int8_peak_fn. */
static int64_t int8_peak(int32_t rounds) {
    enum { CHAINS = 8 };
    const int32_t w = el_unknown_zero(), q = el_unknown_zero();
    int32_t sum[CHAINS] = {0};
    for (int32_t r = 0; r < rounds; r++) {
        for (int i = 0; i < CHAINS; i++) {
            sum[i] += w * q;
            __asm__("" : "+r"(sum[i]));
        }
    }
    int32_t all = 0;
    for (int i = 0; i < CHAINS; i++) all |= sum[i];
    return (int64_t)rounds * CHAINS + all;
}

/* el_read_fn. */
static uint64_t read_only(const void *memory, size_t bytes) {
    const uint64_t *at = memory;
    uint64_t words[8] = {0}, all = 0;
    for (size_t i = 0; i < bytes / 8; i += 8) {
        __builtin_prefetch((const char *)(at + i) + EL_READ_AHEAD);
        for (size_t j = 0; j < 8; j++) words[j] |= at[i + j];
    }
    for (size_t j = 0; j < 8; j++) all |= words[j];
    return all;
}

void el_scalar_matmul_kernels(el_kernels *table) {
    table->int8_peak = int8_peak;
    table->read = read_only;
    table->mm[EL_Q8_0] = mm_q8_0;
    table->mm[EL_Q4_0] = mm_q4_0;
    table->mm[EL_Q4_1] = mm_q4_1;
    table->mm[EL_Q5_0] = mm_q5_0;
    table->mm[EL_Q5_1] = mm_q5_1;
    table->mm[EL_Q2_K] = mm_q2_k;
    table->mm[EL_TQ1_0] = table->mm[EL_TQ2_0] = mm_q2_k; /* the same panels */
    table->mm[EL_Q3_K] = mm_q3_k;
    table->mm[EL_Q4_K] = mm_q4_k;
    table->mm[EL_Q5_K] = mm_q5_k;
    table->mm[EL_Q6_K] = mm_q6_k;
    table->mm[EL_IQ4_NL] = mm_iq4_nl;
    table->mm[EL_MXFP4] = mm_mxfp4;
    table->mm[EL_NVFP4] = mm_nvfp4;
    table->mm[EL_IQ1_S] = table->mm[EL_IQ1_M] = mm_iq1; /* the same panels */
    table->mm[EL_IQ2_XXS] = table->mm[EL_IQ2_XS] = table->mm[EL_IQ2_S] = mm_iq2;
    table->mm[EL_IQ3_XXS] = mm_iq3_xxs;
    table->mm[EL_IQ3_S] = mm_iq3_s;
    table->mm[EL_IQ4_XS] = mm_iq4_xs;
    table->mm[EL_F16] = mm_f16;
    table->mm[EL_BF16] = mm_bf16;
    table->mm[EL_F32] = mm_f32;
    table->quantize[EL_ACT_A16] = quantize_a16;
    table->quantize[EL_ACT_A256] = quantize_a256;
}
