/* What the matmul files of the neon levels share: columns, sums, the driver of mm.
 *
 * Three levels compile the same bodies, on other products of int8:
 *
 *   neon          int16 products, added up in pairs (EL_DOTPROD 0, EL_MMLA 0)
 *   neon_dotprod  sdot with one of four columns' dwords: 4 rows x 4 k (EL_DOTPROD 1)
 *   neon_i8mm     smmla: 2 rows x 8 k times 8 k x 2 columns (EL_MMLA 1), in the expanded form only
 *
 * What differs is hidden here. A *unit* is one column or, with smmla, a pair of columns; a tile call works on up to 4
 * columns. The 16 rows of a unit are EL_REGS registers of sums, 4 rows x 1 column or 2 rows x 2 columns each (r0c0 r0c1
 * r1c0 r1c1); chains, scales and what else meets them is spread the same way ("by rows", "by unit"). A *step* is what
 * one instruction takes of 16 k: 4 k, or 8. The integers are exact, so the order inside a block does not matter.
 *
 * There are two forms: packed (few columns), which unpacks in registers, and expanded (many), which unpacks some blocks of the
 * panel into scratch first, where every group of columns uses them. Weights are signed bytes; what a type's unsigned quants
 * have too much (u - 8) is subtracted when they are expanded, and leaves packed ones through the activation sums, which the
 * sums of products begin with. */
#ifndef EL_NEON_MATMUL_H
#define EL_NEON_MATMUL_H

#ifndef EL_DOTPROD
#define EL_DOTPROD 0
#endif
#ifndef EL_MMLA
#define EL_MMLA 0
#endif

#include "loops.h"

#include "../kernels.h"
#include "../qblocks.h"

#include <arm_neon.h>
#include <string.h>

enum {
    EL_GROUP = 4, /* columns of a tile call */
    EL_REGS = EL_MMLA ? 8 : 4,
    EL_STEPS = EL_MMLA ? 2 : 4,
    EL_BATCH_COLUMNS = 512, /* columns whose accumulators fit into scratch */
    EL_GROUP_FLOATS = EL_GROUP * EL_TILE_ROWS,
};

/* Units of nc columns, and the registers of a unit that are computed at a time. */
EL_INLINE int el_units(const int nc) { return EL_MMLA ? (nc + 1) / 2 : nc; }
EL_INLINE int el_regs(const int nc) { return nc <= 2 ? EL_REGS : EL_REGS / 2; }

/* ---- columns ---------------------------------------------------------------------------------------------------- */

/* One column of activations from some block on. d, sum: per 16 and s per 32 (A16); d per 256, sum16, sum32 (A256). */
typedef struct el_column {
    const int8_t *q;
    const float *d, *s;
    const int32_t *sum;
    const int16_t *sum16, *sum32;
} el_column;

/* Of a group; one more where the last unit lacks its second: the same again. */
typedef el_column el_columns[EL_GROUP];

/* A number of each of two columns, spread by unit. */
EL_INLINE float32x4_t el_unit_f32(const float *first, const float *second) {
    const float32x4_t v = vld1q_dup_f32(first);
    return EL_MMLA ? vzip1q_f32(v, vld1q_dup_f32(second)) : v;
}
EL_INLINE int32x4_t el_unit_s32(int32_t first, int32_t second) {
    const int32x4_t v = vdupq_n_s32(first);
    return EL_MMLA ? vzip1q_s32(v, vdupq_n_s32(second)) : v;
}
/* The same of two numbers each. */
EL_INLINE void el_unit_two_f32(float32x2_t first, float32x2_t second, float32x4_t to[2]) {
    if (EL_MMLA) {
        const float32x2_t a = vzip1_f32(first, second), b = vzip2_f32(first, second);
        to[0] = vcombine_f32(a, a);
        to[1] = vcombine_f32(b, b);
    } else {
        to[0] = vdupq_lane_f32(first, 0);
        to[1] = vdupq_lane_f32(first, 1);
    }
}
EL_INLINE void el_unit_two_s32(int32x2_t first, int32x2_t second, int32x4_t to[2]) {
    if (EL_MMLA) {
        const int32x2_t a = vzip1_s32(first, second), b = vzip2_s32(first, second);
        to[0] = vcombine_s32(a, a);
        to[1] = vcombine_s32(b, b);
    } else {
        to[0] = vdupq_lane_s32(first, 0);
        to[1] = vdupq_lane_s32(first, 1);
    }
}

/* The columns of unit u. */
EL_INLINE const el_column *el_first(const el_columns col, const int u) { return &col[EL_MMLA ? 2 * u : u]; }
EL_INLINE const el_column *el_second(const el_columns col, const int u) {
    return &col[EL_MMLA ? 2 * u + 1 : u];
}

/* 16 k of unit u from q + at on, as el_add_16 wants them. */
EL_INLINE void el_load_acts(const el_columns col, const int u, ptrdiff_t at, int8x16_t x[2]) {
    const int8x16_t a = vld1q_s8(el_first(col, u)->q + at);
    x[0] = x[1] = a;
    if (!EL_MMLA) return;
    const int64x2_t first = vreinterpretq_s64_s8(a);
    const int64x2_t second = vreinterpretq_s64_s8(vld1q_s8(el_second(col, u)->q + at));
    x[0] = vreinterpretq_s8_s64(vzip1q_s64(first, second));
    x[1] = vreinterpretq_s8_s64(vzip2q_s64(first, second));
}

/* 8 activation sums each, at `first` and `second` for the columns of a unit, in the place of 16 k: of every sum its lowest 7 bits,
 * then the bits above them. Sums of 32 activations are within 4,064. */
EL_INLINE void el_load_act_sums(const int16_t *first, const int16_t *second, int8x16_t x[2]) {
    const int16x8_t a = vld1q_s16(first), low = vdupq_n_s16(127);
    const int8x8_t a0 = vmovn_s16(vandq_s16(a, low)), a1 = vshrn_n_s16(a, 7);
    x[0] = x[1] = vcombine_s8(a0, a1);
    if (!EL_MMLA) return;
    const int16x8_t b = vld1q_s16(second);
    x[0] = vcombine_s8(a0, vmovn_s16(vandq_s16(b, low)));
    x[1] = vcombine_s8(a1, vshrn_n_s16(b, 7));
}

/* ---- rows ------------------------------------------------------------------------------------------------------- */

/* Of a vector of 4 rows (those of register i, or of it and its neighbour) what register i wants. */
EL_INLINE int32x4_t el_rows_s32(int32x4_t v, const int i) {
    return !EL_MMLA ? v : i % 2 ? vzip2q_s32(v, v) : vzip1q_s32(v, v);
}
EL_INLINE float32x4_t el_rows_f32(float32x4_t v, const int i) {
    return !EL_MMLA ? v : i % 2 ? vzip2q_f32(v, v) : vzip1q_f32(v, v);
}
/* Register i's four rows of 16: 0..3, 4..7, ... */
EL_INLINE int el_quad(const int i) { return EL_MMLA ? i / 2 : i; }

/* 16 halves at p, by rows. */
EL_INLINE float32x4_t el_f16_rows(const uint8_t *p, const int i) {
    const uint16x4_t h = vreinterpret_u16_u8(vld1_u8(p + 8 * el_quad(i)));
    return el_rows_f32(vcvt_f32_f16(vreinterpret_f16_u16(h)), i);
}
/* 16 bytes, by rows, as int32. */
EL_INLINE int32x4_t el_s32_rows(int8x16_t bytes, const int i) {
    const int16x8_t half = el_quad(i) < 2 ? vmovl_s8(vget_low_s8(bytes)) : vmovl_high_s8(bytes);
    return el_rows_s32(el_quad(i) % 2 ? vmovl_high_s16(half) : vmovl_s16(vget_low_s16(half)), i);
}

/* ---- products --------------------------------------------------------------------------------------------------- */

/* [unit][register of the pass] */
typedef int32x4_t el_sums[EL_GROUP][EL_REGS];
/* [step][register of the pass] */
typedef int8x16_t el_weights[EL_STEPS][EL_REGS];

/* From two lines of 4 k, 4 rows each, what register i wants of 8 k. */
EL_INLINE int8x16_t el_join(int8x16_t line0, int8x16_t line1, const int i) {
    const int32x4_t a = vreinterpretq_s32_s8(line0), b = vreinterpretq_s32_s8(line1);
    return vreinterpretq_s8_s32(i % 2 ? vzip2q_s32(a, b) : vzip1q_s32(a, b));
}

/* el_add_steps: sum += w * x over steps first .. end - 1, an even number of them or, with smmla, any. wide: some weights exceed
 * 32. */
#if EL_MMLA

EL_INLINE void el_add_steps(el_sums sum, const el_weights w, int8x16_t x[EL_GROUP][2], const int units,
                            const int regs, const int wide, const int first, const int end) {
    (void)wide;
    EL_UNROLL
    for (int s = first; s < end; s++) {
        EL_UNROLL
        for (int u = 0; u < units; u++) {
            EL_UNROLL
            for (int r = 0; r < regs; r++) sum[u][r] = vmmlaq_s32(sum[u][r], w[s][r], x[u][s]);
        }
    }
}

#elif EL_DOTPROD

EL_INLINE int32x4_t el_dot4(int32x4_t sum, int8x16_t w, int8x16_t x, const int step) {
    switch (step) {
    case 0: return vdotq_laneq_s32(sum, w, x, 0);
    case 1: return vdotq_laneq_s32(sum, w, x, 1);
    case 2: return vdotq_laneq_s32(sum, w, x, 2);
    default: return vdotq_laneq_s32(sum, w, x, 3);
    }
}

EL_INLINE void el_add_steps(el_sums sum, const el_weights w, int8x16_t x[EL_GROUP][2], const int units,
                            const int regs, const int wide, const int first, const int end) {
    (void)wide;
    EL_UNROLL
    for (int s = first; s < end; s++) {
        EL_UNROLL
        for (int u = 0; u < units; u++) {
            EL_UNROLL
            for (int r = 0; r < regs; r++) sum[u][r] = el_dot4(sum[u][r], w[s][r], x[u][0], s);
        }
    }
}

#else

/* Four activations, twice: k .. k+3 of step s. */
EL_INLINE int8x16_t el_dword(int8x16_t x, const int s) {
    const int32x4_t v = vreinterpretq_s32_s8(x);
    switch (s) {
    case 0: return vreinterpretq_s8_s32(vdupq_laneq_s32(v, 0));
    case 1: return vreinterpretq_s8_s32(vdupq_laneq_s32(v, 1));
    case 2: return vreinterpretq_s8_s32(vdupq_laneq_s32(v, 2));
    default: return vreinterpretq_s8_s32(vdupq_laneq_s32(v, 3));
    }
}

/* Products of two steps fit into int16: 2 * 128 * 127 = 32,512; of weights within 32 those of four, in pairs: 8 * 32 * 127 =
 * 32,512. */
EL_INLINE void el_add_steps(el_sums sum, const el_weights w, int8x16_t x[EL_GROUP][2], const int units,
                            const int regs, const int wide, const int first, const int end) {
    EL_UNROLL
    for (int u = 0; u < units; u++) {
        int8x16_t q[4];
        EL_UNROLL
        for (int s = first; s < end; s++) q[s] = el_dword(x[u][0], s);
        EL_UNROLL
        for (int r = 0; r < regs; r++) {
            int16x8_t all_low = vdupq_n_s16(0), all_high = vdupq_n_s16(0);
            int32x4_t a = vdupq_n_s32(0), b = vdupq_n_s32(0);
            EL_UNROLL
            for (int s = first; s < end; s += 2) {
                int16x8_t low = vmull_s8(vget_low_s8(w[s][r]), vget_low_s8(q[s]));
                int16x8_t high = vmull_high_s8(w[s][r], q[s]);
                low = vmlal_s8(low, vget_low_s8(w[s + 1][r]), vget_low_s8(q[s + 1]));
                high = vmlal_high_s8(high, w[s + 1][r], q[s + 1]);
                all_low = s == first ? low : vaddq_s16(all_low, low);
                all_high = s == first ? high : vaddq_s16(all_high, high);
                a = s == first ? vpaddlq_s16(low) : vpadalq_s16(a, low);
                b = s == first ? vpaddlq_s16(high) : vpadalq_s16(b, high);
            }
            sum[u][r] = wide ? vaddq_s32(sum[u][r], vpaddq_s32(a, b))
                             : vpadalq_s16(sum[u][r], vpaddq_s16(all_low, all_high));
        }
    }
}

#endif

/* Add 16 k. */
EL_INLINE void el_add_16(el_sums sum, const el_weights w, int8x16_t x[EL_GROUP][2], const int units,
                         const int regs, const int wide) {
    el_add_steps(sum, w, x, units, regs, wide, 0, EL_STEPS);
}

/* el_int8_peak_fn: the level's product on enough independent registers. */
static inline int64_t el_multiply_only(int32_t rounds) {
    enum { UNITS = EL_MMLA ? 2 : 4 };
    const int8x16_t zero = vdupq_n_s8((int8_t)el_unknown_zero());
    el_sums sum;
    el_weights w;
    int8x16_t x[EL_GROUP][2];
    EL_UNROLL
    for (int u = 0; u < UNITS; u++) {
        x[u][0] = x[u][1] = zero;
        EL_UNROLL
        for (int r = 0; r < EL_REGS; r++) sum[u][r] = vdupq_n_s32(0);
    }
    EL_UNROLL
    for (int r = 0; r < EL_REGS; r++) {
        EL_UNROLL
        for (int s = 0; s < EL_STEPS; s++) w[s][r] = zero;
    }
    for (int32_t i = 0; i < rounds; i++) {
        el_add_16(sum, w, x, UNITS, EL_REGS, 1);
        EL_UNROLL
        for (int u = 0; u < UNITS; u++) {
            EL_UNROLL
            for (int r = 0; r < EL_REGS; r++) __asm__("" : "+w"(sum[u][r]));
        }
    }
    int32x4_t all = vdupq_n_s32(0);
    EL_UNROLL
    for (int u = 0; u < UNITS; u++) {
        EL_UNROLL
        for (int r = 0; r < EL_REGS; r++) all = vorrq_s32(all, sum[u][r]);
    }
    return (int64_t)rounds * 4 * 16 * 16 + vaddvq_s32(all); /* columns, rows, k */
}

EL_INLINE uint8x16_t el_low_nibbles(uint8x16_t v) { return vandq_u8(v, vdupq_n_u8(15)); }

/* Bits s .. s + n-1 of each byte, moved to bit `to`. */
EL_INLINE uint8x16_t el_bits_to(uint8x16_t v, const int s, const int n, const int to) {
    const uint8x16_t moved = s == to ? v : vshlq_u8(v, vdupq_n_s8((int8_t)(to - s)));
    return vandq_u8(moved, vdupq_n_u8((uint8_t)(((1 << n) - 1) << to)));
}
/* The low or high nibbles of v, with bits s .. s + n-1 of `top` above them. Inserting spares a mask. */
EL_INLINE uint8x16_t el_nibbles_with(uint8x16_t v, const int high, uint8x16_t top, const int s, const int n) {
    return high ? vsriq_n_u8(el_bits_to(top, s, n, 4), v, 4) : vsliq_n_u8(v, el_bits_to(top, s, n, 0), 4);
}
/* Crumb i (bits 2i, 2i + 1) of v, with bit s of `top` above it. */
EL_INLINE uint8x16_t el_crumbs_with(uint8x16_t v, const int i, uint8x16_t top, const int s) {
    const uint8x16_t low = i == 0 ? v : vshlq_u8(v, vdupq_n_s8((int8_t)(-2 * i)));
    return vsliq_n_u8(low, el_bits_to(top, s, 1, 0), 2);
}

/* ---- the driver ------------------------------------------------------------------------------------------------- */

/* Columns x[0 .. nc-1] times n_blocks blocks of the panel from block0 on. quants and extras: of block0. */
typedef struct el_tile_call {
    const uint8_t *quants, *extras; /* in the panel's form or the expanded one */
    int32_t k, block0, n_blocks;
    const void *const *x;
    float *acc;              /* [unit][register][4] */
    const el_values *values; /* of types whose quants are numbers of values */
} el_tile_call;

typedef void el_tile_fn(const el_tile_call *t);

typedef struct el_mm_type {
    int32_t block, quant_bytes, extra_bytes;  /* of a block in the panel */
    int32_t packed_columns;                   /* up to here expanding does not pay */
    int32_t chunk;                            /* blocks of K that all columns use before the next */
    int32_t expanded_quants, expanded_extras; /* bytes of a block; quants 0: the panel's serve */
    const el_values *values;
    void (*expand)(const el_tile_call *t, uint8_t *to_quants, uint8_t *to_extras);
    el_tile_fn *packed[EL_GROUP], *expanded[EL_GROUP]; /* by columns - 1 */
} el_mm_type;

/* The tile functions of a type, from inline functions <name>_<form>(t, nc), and their places in an el_mm_type. */
#define EL_TILE_FUNCTION(name, form, nc) \
    static void name##_##form##_##nc(const el_tile_call *t) { name##_##form(t, nc); }
#define EL_TILE_FORM(name, form)    \
    EL_TILE_FUNCTION(name, form, 1) \
    EL_TILE_FUNCTION(name, form, 2) \
    EL_TILE_FUNCTION(name, form, 3) \
    EL_TILE_FUNCTION(name, form, 4)
#define EL_TILE_TABLE(name, form) {name##_##form##_1, name##_##form##_2, name##_##form##_3, name##_##form##_4}
#if EL_MMLA
#define EL_TILE_FUNCTIONS(name) EL_TILE_FORM(name, expanded)
#define EL_TILE_TABLES(name)    .expanded = EL_TILE_TABLE(name, expanded)
#else
#define EL_TILE_FUNCTIONS(name) EL_TILE_FORM(name, packed) EL_TILE_FORM(name, expanded)
#define EL_TILE_TABLES(name) .packed = EL_TILE_TABLE(name, packed), .expanded = EL_TILE_TABLE(name, expanded)
#endif

/* The columns of a call; `load` is el_column_a16 or el_column_a256. */
#define EL_LOAD_COLUMNS(t, nc, load, col)                                 \
    EL_UNROLL                                                             \
    for (int c_ = 0; c_ < EL_GROUP; c_++) {                               \
        if (c_ < (nc)) (col)[c_] = load((t)->x[c_], (t)->k, (t)->block0); \
        if (c_ >= (nc)) (col)[c_] = (col)[(nc) - 1];                      \
    }

EL_INLINE el_column el_column_a16(const void *row, int32_t k, int32_t block) {
    return (el_column){.q = (const int8_t *)row + (ptrdiff_t)block * 32,
                       .d = el_a16_d(row, k) + (ptrdiff_t)block * 2,
                       .s = el_a16_s(row, k) + block,
                       .sum = el_a16_sum(row, k) + (ptrdiff_t)block * 2};
}

EL_INLINE el_column el_column_a256(const void *row, int32_t k, int32_t block) {
    return (el_column){.q = (const int8_t *)row + (ptrdiff_t)block * 256,
                       .d = el_a256_d(row, k) + block,
                       .sum16 = el_a256_sum16(row, k) + (ptrdiff_t)block * 16,
                       .sum32 = el_a256_sum32(row, k) + (ptrdiff_t)block * 8};
}

/* How many of n columns the next group takes: as evenly shared as may be; with smmla 4, since 3 take as long. */
EL_INLINE int32_t el_group_width(int32_t n) {
    const int32_t groups = (n + EL_GROUP - 1) / EL_GROUP;
    return !EL_MMLA ? (n + groups - 1) / groups : n < EL_GROUP ? n : EL_GROUP;
}

/* Write n_rows floats of each of a group's columns. */
static inline void el_mm_store(const float *acc, int32_t n_rows, int32_t n, float *const *y, size_t y_off) {
    for (int32_t c = 0; c < n; c++) {
        const float *from = acc + (EL_MMLA ? c / 2 * 32 : c * EL_TILE_ROWS);
        float rows[EL_TILE_ROWS];
        for (int i = 0; i < 4; i++) {
            float32x4_t v = vld1q_f32(from + 4 * i);
            if (EL_MMLA) {
                const float32x4_t low = vld1q_f32(from + 8 * i), high = vld1q_f32(from + 8 * i + 4);
                v = c % 2 ? vuzp2q_f32(low, high) : vuzp1q_f32(low, high);
            }
            vst1q_f32(rows + 4 * i, v);
        }
        memcpy(y[c] + y_off, rows, (size_t)n_rows * sizeof *rows);
    }
}

/* mm of every type: el_mm_fn's arguments. Scratch: accumulators, then what was expanded. */
static inline void el_mm_blocks(const el_mm_type *t, const void *panel, int32_t k, int32_t n_rows,
                                const void *const *x, int32_t n, float *const *y, size_t y_off,
                                void *scratch) {
    const int32_t n_blocks = k / t->block, chunk = t->chunk;
    float *acc = scratch;
    uint8_t *to_extras = (uint8_t *)(acc + EL_BATCH_COLUMNS * EL_TILE_ROWS);
    uint8_t *to_quants = to_extras + chunk * t->expanded_extras;
    for (int32_t c0 = 0; c0 < n; c0 += EL_BATCH_COLUMNS) {
        const int32_t nc = n - c0 < EL_BATCH_COLUMNS ? n - c0 : EL_BATCH_COLUMNS;
        const int32_t groups = (nc + EL_GROUP - 1) / EL_GROUP, expand = EL_MMLA || nc > t->packed_columns;
        memset(acc, 0, (size_t)groups * EL_GROUP_FLOATS * sizeof *acc);
        for (int32_t b = 0; b < n_blocks; b += chunk) {
            el_tile_call call = {.quants = (const uint8_t *)panel + (size_t)b * (size_t)t->quant_bytes,
                                 .extras = (const uint8_t *)panel +
                                           (size_t)n_blocks * (size_t)t->quant_bytes +
                                           (size_t)b * (size_t)t->extra_bytes,
                                 .k = k,
                                 .block0 = b,
                                 .n_blocks = n_blocks - b < chunk ? n_blocks - b : chunk,
                                 .values = t->values};
            if (expand) {
                t->expand(&call, to_quants, to_extras);
                if (t->expanded_quants) call.quants = to_quants;
                call.extras = to_extras;
            }
            for (int32_t g = 0, c = 0; g < groups; g++) {
                const int32_t width = el_group_width(nc - c);
                call.x = x + c0 + c;
                call.acc = acc + g * EL_GROUP_FLOATS;
                (expand ? t->expanded : t->packed)[width - 1](&call);
                c += width;
            }
        }
        for (int32_t g = 0, c = 0; g < groups; g++) {
            const int32_t width = el_group_width(nc - c);
            el_mm_store(acc + g * EL_GROUP_FLOATS, n_rows, width, y + c0 + c, y_off);
            c += width;
        }
    }
}

/* el_<level>_<name>, the mm of a type. What is not expanded is neon_dotprod's with smmla too: there, bringing 2 rows x 8 k into one
 * register costs what smmla saves. */
#define EL_MM_ARGUMENTS                                                                             \
    const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n, float *const *y, \
        size_t y_off, void *scratch
#if EL_MMLA
#define EL_NAME(name) el_neon_i8mm_##name
#define EL_MM_FUNCTION(name, type)                                             \
    void el_neon_dotprod_##name(EL_MM_ARGUMENTS);                              \
    void EL_NAME(name)(EL_MM_ARGUMENTS);                                       \
    void EL_NAME(name)(EL_MM_ARGUMENTS) {                                      \
        if (n <= EL_GROUP) {                                                   \
            el_neon_dotprod_##name(panel, k, n_rows, x, n, y, y_off, scratch); \
        } else {                                                               \
            el_mm_blocks(&type, panel, k, n_rows, x, n, y, y_off, scratch);    \
        }                                                                      \
    }
#else
#if EL_DOTPROD
#define EL_NAME(name) el_neon_dotprod_##name
#else
#define EL_NAME(name) el_neon_##name
#endif
#define EL_MM_FUNCTION(name, type)       \
    void EL_NAME(name)(EL_MM_ARGUMENTS); \
    void EL_NAME(name)(EL_MM_ARGUMENTS) { el_mm_blocks(&type, panel, k, n_rows, x, n, y, y_off, scratch); }
#endif

/* Fill the table's entries of one family. */
void el_neon_matmul_legacy(el_kernels *table);
void el_neon_matmul_kquants(el_kernels *table);
void el_neon_matmul_float(el_kernels *table);
void el_neon_matmul_quantize(el_kernels *table);
void el_neon_matmul_pack(el_kernels *table);
void el_neon_dotprod_matmul_legacy(el_kernels *table);
void el_neon_dotprod_matmul_kquants(el_kernels *table);
void el_neon_i8mm_matmul_legacy(el_kernels *table);
void el_neon_i8mm_matmul_kquants(el_kernels *table);

#endif
