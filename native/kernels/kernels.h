/* The kernel table: every inner loop of edgellm, once per ISA level. The scalar level is complete and defines the bits;
 * every other level starts as a copy of the one below it and overrides entries, and must equal scalar bit for bit.
 *
 * Conventions. All float arithmetic is IEEE binary32, round to nearest, no flushing; "chain" = one fma per step in
 * ascending index order starting from +0; "fold16" = 16 partial sums by index % 16, then p[i] += p[i+8], +4, +2, +1.
 * Pointers are 64-byte aligned unless said otherwise. Kernels allocate nothing, never fail, and are thread-safe.
 * docs/numerics.md states the rules in full.
 */
#ifndef EL_KERNELS_H
#define EL_KERNELS_H

#include "../include/edgellm.h"

/* ---------------------------------------------------------------------------------------------------------------
 * Activations: what a matmul reads, one row per token. K is a multiple of 32 (A16) or 256 (A256).
 *
 *   A16   int8 q[K] | f32 d[K/16] | f32 s[K/32] | i32 sum[K/16]     d = amax/127, sum = sum of q (both per 16),
 *                                                                   s = fma((f32)sum1, d1, (f32)sum0 * d0) per 32
 *   A256  int8 q[K] | f32 d[K/256] | i16 sum16[K/16] | i16 sum32[K/32]
 *
 * q occupies K bytes rounded up to 64; the arrays follow without gaps (each offset is a multiple of 4).
 *
 * Quantisation of a block: a = integer maximum of the sign-cleared bits of x; a >= 0x7f800000 (inf, nan): the block is
 * written as zeros and the kernel returns 1. amax = a as float; amax < 2^-120: q = 0, d = 0. Otherwise d = amax / 127,
 * id = 127 / amax, q = rint(x * id), clamped to [-127, 127].
 */
static inline size_t el_act_q_bytes(int32_t k) { return ((size_t)k + 63) & ~(size_t)63; }
static inline size_t el_a16_bytes(int32_t k) {
    return (el_act_q_bytes(k) + (size_t)k / 32 * 20 + 63) & ~(size_t)63;
}
static inline size_t el_a256_bytes(int32_t k) {
    return (el_act_q_bytes(k) + (size_t)k / 256 * 4 + (size_t)k / 16 * 2 + (size_t)k / 32 * 2 + 63) &
           ~(size_t)63;
}
static inline const float *el_a16_d(const void *row, int32_t k) {
    return (const float *)((const char *)row + el_act_q_bytes(k));
}
static inline const float *el_a16_s(const void *row, int32_t k) { return el_a16_d(row, k) + k / 16; }
static inline const int32_t *el_a16_sum(const void *row, int32_t k) {
    return (const int32_t *)(el_a16_s(row, k) + k / 32);
}
static inline const float *el_a256_d(const void *row, int32_t k) { return el_a16_d(row, k); }
static inline const int16_t *el_a256_sum16(const void *row, int32_t k) {
    return (const int16_t *)(el_a256_d(row, k) + k / 256);
}
static inline const int16_t *el_a256_sum32(const void *row, int32_t k) {
    return el_a256_sum16(row, k) + k / 16;
}

/* ---------------------------------------------------------------------------------------------------------------
 * Tiles. A panel is 16 output rows x the whole K, two streams: quants of all blocks, then extras of all blocks.
 * A "step" is 4 consecutive k: 64 bytes, byte 4*row + k%4. Rows past the matrix's end are zero (scales included).
 *
 *   type   block  quants of a block                                              extras of a block
 *   Q8_0     32   8 steps of int8                                        512 B   f16 d[16]                       32 B
 *   Q4_0     32   4 rows of 64: low nibble = step s, high = step s+4     256 B   f16 d[16]                       32 B
 *   Q4_1     32   as Q4_0                                                256 B   f16 d[16], f16 m[16]            64 B
 *   Q5_0     32   as Q4_0, then 64 bytes: bit s of byte 4*row + k%4 is
 *                 the fifth bit of step s                                320 B   f16 d[16]                       32 B
 *   Q5_1     32   as Q5_0                                                320 B   f16 d[16], f16 m[16]            64 B
 *   IQ4_NL   32   as Q4_0                                                256 B   f16 d[16]                       32 B
 *   MXFP4    32   as Q4_0                                                256 B   u8 e[16]                        16 B
 *   NVFP4    64   for each 32-block 4 rows of 64 as in Q4_0              512 B   u8 e[4][16] ([16-block][row])  64 B
 *   IQ4_XS  256   for each 32-block 4 rows of 64 as in Q4_0             2048 B   i8 sc[8][16] ([32-block][row]),
 *                                                                                f16 d[16]                       160 B
 *   Q4_K    256   8 groups (32-blocks pairs): for c = 0..3: 8 rows of 64,
 *                 row t: low = step t of 32-block 2c, high = of 2c+1     2048 B  u8 sc[8][16], u8 mn[4][16][2],
 *                                                                                f16 d[16], f16 dmin[16]         320 B
 *                 (mn[j][row][i]: minimum of 32-block 2j+i)
 *   Q5_K    256   for c = 0..3: 8 rows as in Q4_K, then for 32-block 2c
 *                 and for 2c+1 64 bytes of fifth bits as in Q5_0         2560 B  as Q4_K                        320 B
 *   Q2_K    256   for each 32-block: 2 rows of 64, bits 2i..2i+1 of
 *                 row u = step 4u+i                                      1024 B  u8 scmn[16][16] ([16-block][row],
 *                                                                                low nibble scale, high minimum),
 *                                                                                f16 d[16], f16 dmin[16]         320 B
 *   IQ3_XXS, IQ3_S  256  as IQ4_XS, numbers of values                  2048 B  as IQ4_XS, 2 s + 1               160 B
 *   TQ1_0, TQ2_0  256  as Q2_K, scales and minima 1, dmin = d          1024 B                                   320 B
 *   Q3_K    256   for each 32-block: 2 rows as in Q2_K, the low 2 bits,
 *                 then 64 bytes of third bits as the fifth of Q5_0       1536 B  as Q6_K                         288 B
 *   IQ1, IQ2  256   as Q3_K, numbers of values                         1536 B  as Q6_K, 2 s + 1                 288 B
 *   Q6_K    256   for each 32-block b: 4 rows of 64, low nibble = low
 *                 4 bits of step t, high = of step t+4 (2048 B in all);
 *                 then for each b: 2 rows of 64, bits 2i..2i+1 of row u
 *                 = top 2 bits of step 4u+i (1024 B in all)              3072 B  i8 sc[16][16] ([16-block][row]),
 *                                                                                f16 d[16]                       288 B
 *   F16       1   f16 [16 rows]                                          32 B    none
 *   BF16      1   bf16 [16 rows]                                         32 B    none
 *   F32       1   f32 [16 rows]                                          64 B    none
 */
typedef struct el_tile {
    int32_t qtype, block, quant_bytes, extra_bytes; /* per block of a panel */
    int32_t row_bytes;                              /* bytes of one block of one row in the file */
    int32_t act;                                    /* el_actfmt, or -1: float activations */
} el_tile;

/* The tile format of a weight type, NULL where there is none yet. */
const el_tile *el_tile_of(int32_t qtype);

/* Bytes of one panel with K columns, a multiple of 64. */
static inline size_t el_panel_bytes(const el_tile *t, int32_t k) {
    return ((size_t)(k / t->block) * (size_t)(t->quant_bytes + t->extra_bytes) + 63) & ~(size_t)63;
}

/* Repack n_rows (1..16) rows of the file, row_stride bytes apart, any alignment, into a panel. */
typedef void el_pack_fn(const void *rows, size_t row_stride, int32_t n_rows, int32_t k, void *panel);

/* y[c][y_off + r] = sum over k of W[r,k] x[c,k], r = 0..n_rows-1 (n_rows 1..16), c = 0..n-1 (n >= 1).
 *   panel    one panel;  k columns
 *   x        [n] pointers to activation rows of the type's format (float rows [K] for F16, BF16 and F32)
 *   y        [n] pointers to float rows, any alignment; only n_rows floats of each are written
 *   scratch  el_mm_scratch_bytes(k) bytes of this thread
 *
 * With b running over blocks ascending, one chain `acc` per (row, column), d the row's and dx the column's scale:
 *   Q8_0  t = fma((f32)i1, dx1, (f32)i0 * dx0); acc = fma(t, d, acc)
 *         i0, i1: sum w q over the block's first and second 16, dx0, dx1 the scales of A16 there
 *   Q4_0  as Q8_0, sum (u - 8) q (u unsigned)
 *   Q5_0  as Q8_0, sum (u - 16) q
 *   Q4_1, Q5_1  as Q8_0, sum u q; then acc = fma(m, s, acc), s of A16
 *   IQ4_NL, MXFP4  as Q8_0, sum v q, v the value that the nibble stands for; MXFP4's d = 2^(e - 128) exactly
 *   NVFP4  acc = fma((f32)i, e * dx, acc) for each 16 in ascending order, i = sum v q, e half the value of the scale
 *   IQ4_XS, IQ3_XXS, IQ3_S  acc = fma((f32)S, (unit * d) * dx, acc)   S = sum_j sc[j] * sum v q over 32-block j; v the
 *         value of a number, `unit` a power of two (el_values in qblocks.h), 1 for IQ4_XS
 *   Q4_K, Q5_K  acc = fma((f32)S, d * dx, acc); acc = fma((f32)M, -(dmin * dx), acc)
 *         S = sum_j sc[j] * sum u q over 32-block j, M = sum_j mn[j] * sum32[j]
 *   Q2_K  as Q4_K with 16-blocks j and sum16
 *   TQ1_0, TQ2_0  as Q2_K: S = sum u q, M = sum q
 *   Q6_K  acc = fma((f32)S, d * dx, acc)                       S = sum_j sc[j] * sum (u - 32) q over 16-block j
 *   Q3_K  as Q6_K, sum (u - 4) q
 *   IQ1, IQ2  as IQ3 with 16-blocks j
 *   F16, BF16, F32  chain over k: acc = fma(w, x, acc), w converted exactly
 * All sums marked i, S, M are exact in int32. The result does not depend on n, nor on the other columns. */
typedef void el_mm_fn(const void *panel, int32_t k, int32_t n_rows, const void *const *x, int32_t n,
                      float *const *y, size_t y_off, void *scratch);
static inline size_t el_mm_scratch_bytes(int32_t k) { return (size_t)k * 64 + 65536; }

/* Quantise one float row (any alignment) into an activation row. Returns 1 if a value was not finite, else 0. */
typedef int32_t el_quantize_fn(const float *x, int32_t k, void *row);

/* Dequantise one row of the file (any alignment) to float: Q8_0 d*q; IQ4_NL, MXFP4 d*v; NVFP4 e*v; IQ4_XS (d*sc)*v; IQ1 to IQ3 ((unit*d)*sc)*v; TQ1_0, TQ2_0 d*(u-1); Q4_0 d*(u-8); Q5_0 d*(u-16); Q4_1, Q5_1
 * fma(d, u, m); Q2_K, Q4_K, Q5_K fma(d*sc, u, -(dmin*mn)); Q3_K (d*sc)*(u-4); Q6_K (d*sc)*(u-32). Scalar at every level. */
typedef void el_dequant_fn(const void *row, int32_t k, float *y);

/* ---------------------------------------------------------------------------------------------------------------
 * Attention. A segment is 256 consecutive absolute positions (8 pages); partial results of a segment are relative to the
 * segment's own maximum and are folded over segments in ascending order.
 *
 * Page of one kv head. A format stores either single values or squares of 32 tokens x 32 dims with one bf16 scale for each
 * token; dims past the head's last are zeros. Every format stands for float values, exactly:
 *
 *   format              K of a page                              V of a page                              value
 *   f16 f32 bf16 e4m3   values [k_dim][32 tokens]                values [32 tokens][v_dim]                what the bits say
 *   e5m2
 *   q8_0  squares of    int8 [8 quads of dims][32 tokens][4],    int8 [8 quads of tokens][32 dims][4],    q * d
 *         1088 bytes    bf16 d[32 tokens]                        bf16 d[32 tokens]
 *   q4_0  squares of    u8 [16][32 tokens]: byte j has dim j     u8 [32 tokens][16], byte j the same;     (u - 8) * d
 *         576 bytes     low, dim j + 16 high; bf16 d[32 tokens]  bf16 d[32 tokens]
 *
 * Storing rounds to nearest even. f16 and bf16 overflow to inf; e4m3 (largest 448) and e5m2 (largest 57344) saturate, but inf
 * and nan stay what they are, in e4m3 nan. q8_0, with amax = the largest |x| of the square's 32 dims of the token:
 *   amax not finite: q = 0, d = nan.  amax < 2^-120: q = 0, d = 0.  Otherwise d = amax / 127 rounded up to bf16,
 *   q = rint(x * (1 / d)).
 * q4_0 the same with d = amax / 8, negative unless some x is -amax, and u = min(rint(x * (1 / d)) + 8, 15).
 */
enum { EL_ATTN_ROWS = 64, EL_SEG_PAGES = 8, EL_SQUARE = 32 };

/* Bytes of a square, of formats that store single values too. */
static inline size_t el_kv_square_bytes(int32_t type) {
    static const uint16_t bytes[EL_KV_TYPES] = {
        [EL_KV_F16] = 2048, [EL_KV_F32] = 4096,      [EL_KV_BF16] = 2048,     [EL_KV_Q8_0] = 1088,
        [EL_KV_Q4_0] = 576, [EL_KV_FP8_E4M3] = 1024, [EL_KV_FP8_E5M2] = 1024,
    };
    return bytes[type];
}
static inline int32_t el_kv_squares(int32_t dim) { return (dim + EL_SQUARE - 1) / EL_SQUARE; }
/* Bytes of one head's K or V in a page, a multiple of 64. */
static inline size_t el_kv_head_bytes(int32_t type, int32_t dim) {
    const int32_t has_scales = type == EL_KV_Q8_0 || type == EL_KV_Q4_0;
    return (size_t)(has_scales ? el_kv_squares(dim) * EL_SQUARE : dim) * el_kv_square_bytes(type) / EL_SQUARE;
}

typedef struct el_attn_segment {
    int32_t n_q;                /* query rows that share this kv head, 1..EL_ATTN_ROWS */
    int32_t k_dim, v_dim;       /* multiples of 4; any alignment of the total */
    int32_t k_type, v_type;     /* el_kvtype */
    const float *const *q;      /* [n_q] -> [k_dim], any alignment */
    const int32_t *lo, *hi;     /* [n_q] seen positions lo..hi-1 of the segment, 0 <= lo <= hi <= 256 */
    const void *const *k_pages; /* [8] this head's K of each page, NULL where no row sees the page */
    const void *const *v_pages; /* [8] likewise V */
    float scale, softcap;       /* softcap 0 = none */
    float *m, *l;               /* [n_q] out */
    float *o;                   /* [n_q][v_dim] out */
    void *scratch;              /* el_attn_scratch_bytes(k_dim, v_dim) bytes of this thread */
} el_attn_segment;
static inline size_t el_attn_scratch_bytes(int32_t k_dim, int32_t v_dim) {
    return (size_t)(k_dim + v_dim) * 32 * 4 * EL_SEG_PAGES + (size_t)EL_ATTN_ROWS * 256 * 4 + 4096 +
           (size_t)el_kv_squares(k_dim) * EL_ATTN_ROWS * (2 * EL_SQUARE + 4);
}

/* For each row r with lo < hi, over positions p in [lo, hi):
 *   a = chain over e of q[e] * k[e][p];  s = a * scale;  softcap: s = softcap * tanh(s / softcap)
 *   m = max s;  w[p] = exp(s - m);  l = fold16 of w by p % 16 (unseen positions contribute nothing)
 *   o[d] = chain over p ascending of w[p] * v[p][d]
 * With K in q8_0, a = chain over squares b of (f32)I * (dq * d[p]): the query's 32 dims of b as int16 with
 * dq = amax / 32767 and q = rint(x * (32767 / amax)) (amax not finite: q = 0, dq = nan; below 2^-120: q = 0, dq = 0),
 * I = their exact integer product with those of p.
 * With V in q8_0, o of a square's dims is (f32)I * D: x[p] = w[p] * d[p] of the square, top = max x, D = top / 32767,
 * W[p] = rint(x[p] * (32767 / top)), I = exact integer sum of W[p] * q[p][d] (some x not finite: W = 0, D = nan; top below
 * 2^-120: W = 0, D = 0).
 * A row with lo == hi gets m = -inf, l = 0, o = 0. Unseen positions are never read into a result. Of zeros of
 * both signs the maximum, here and below, is the first. */
typedef void el_attn_segment_fn(const el_attn_segment *a);

/* Fold a partial (m, l, o) into the running (*M, *L, O). l == 0: nothing. *L == 0: copy. Otherwise
 *   n = max(*M, m);  a = exp(*M - n);  b = exp(m - n);  *L = fma(l, b, *L * a);  O[d] = fma(o[d], b, O[d] * a);  *M = n */
typedef void el_attn_fold_fn(float *M, float *L, float *O, float m, float l, const float *o, int32_t v_dim);

/* Store one token's K or V (`dim` floats, any alignment) at slot 0..31 of a page's K or V. */
typedef void el_kv_store_fn(const float *x, int32_t dim, int32_t slot, void *dst);

/* ---------------------------------------------------------------------------------------------------------------
 * Row operations, on n floats at any alignment; y may be x.
 */
/* y = (x * (1 / sqrt(ss / n + eps))) * w; ss = fold16 of fma(x, x, .); w NULL = without the last product.
 * y = ... + b when b is not NULL. */
typedef void el_rms_norm_fn(const float *x, const float *w, const float *b, float eps, int32_t n, float *y);
/* mean = fold16(x) / n; var = fold16 of fma(x-mean, x-mean, .) / n; y = ((x-mean) * (1 / sqrt(var + eps))) * w + b */
typedef void el_layer_norm_fn(const float *x, const float *w, const float *b, float eps, int32_t n, float *y);
/* y = act(gate) * up / y = act(x); act is an el_act. Formulas: docs/numerics.md. */
typedef void el_glu_fn(int32_t act, const float *gate, const float *up, int32_t n, float *y);
typedef void el_act_fn(int32_t act, const float *x, int32_t n, float *y);
typedef void el_add_fn(const float *a, const float *b, int32_t n, float *y); /* y = a + b */
typedef void el_scale_fn(const float *x, float f, int32_t n, float *y);      /* y = x * f */
typedef void el_axpy_fn(const float *x, float f, int32_t n, float *y);       /* y = fma(x, f, y) */
typedef void el_softcap_fn(const float *x, float cap, int32_t n, float *y);  /* y = cap * tanh(x / cap) */
/* Rotate n_rot dimensions of one head in place; cos, sin: [n_rot/2] of the token's position. (x0, x1) -> with
 * y0 = fma(x0, c, -(x1 * s)), y1 = fma(x0, s, x1 * c). mode 0 pairs (2i, 2i+1), 1 pairs (i, i + n_rot/2). */
typedef void el_rope_fn(float *x, int32_t n_rot, int32_t mode, const float *cos, const float *sin);

/* ---------------------------------------------------------------------------------------------------------------
 * Selection from n logits. Order: higher logit first, equal logits by lower id; -0 == +0; no NaN on entry.
 */
/* The k first of x[0..n-1], ids counted from id0: merges into ids/vals (which hold *have entries in order, at most k). */
typedef void el_top_k_fn(const float *x, int32_t n, int32_t id0, int32_t k, int32_t *ids, float *vals,
                         int32_t *have);
/* Of one segment of at most 1,024 logits: *m = max, *l = fold16 of exp(x - m). Nothing but -inf: l = 0. */
typedef void el_lse_segment_fn(const float *x, int32_t n, float *m, float *l);
/* 1 if any of x is inf or nan. */
typedef int32_t el_nonfinite_fn(const float *x, int64_t n);

/* What matmul could do at most: `rounds` times the level's multiply-add of unsigned weights and signed activations on
 * enough independent registers, nothing else. The number of int8 multiply-adds that this made. */
typedef int64_t el_int8_peak_fn(int32_t rounds);

/* How fast memory can be read at most: the bitwise or of the 64-bit words of `bytes` bytes (a multiple of 256) on a
 * 64-byte line, by the level's widest loads with prefetches ahead. */
typedef uint64_t el_read_fn(const void *memory, size_t bytes);
enum { EL_READ_AHEAD = 4096 };

/* 0, which the compiler does not know: what is computed from it is computed. */
static inline int32_t el_unknown_zero(void) {
    int32_t zero = 0;
    __asm__("" : "+r"(zero));
    return zero;
}

typedef struct el_kernels {
    const char *level;
    el_pack_fn *pack[EL_QTYPE_LIMIT]; /* NULL where the type has no kernel */
    el_mm_fn *mm[EL_QTYPE_LIMIT];
    el_mm_fn *mm_far
        [EL_QTYPE_LIMIT]; /* the same results; few columns prefetch further ahead. NULL: there is no such choice */
    el_dequant_fn *dequant[EL_QTYPE_LIMIT];
    el_quantize_fn *quantize[2]; /* by el_actfmt */
    el_attn_segment_fn *attn_segment;
    el_attn_fold_fn *attn_fold;
    el_kv_store_fn *k_store[EL_KV_TYPES], *v_store[EL_KV_TYPES];
    el_rms_norm_fn *rms_norm;
    el_layer_norm_fn *layer_norm;
    el_glu_fn *glu;
    el_act_fn *act;
    el_add_fn *add;
    el_scale_fn *scale;
    el_axpy_fn *axpy;
    el_softcap_fn *softcap;
    el_rope_fn *rope;
    el_top_k_fn *top_k;
    el_lse_segment_fn *lse_segment;
    el_nonfinite_fn *nonfinite;
    el_int8_peak_fn *int8_peak;
    el_read_fn *read;
} el_kernels;

/* ISA levels in ascending order (dispatch.c). `override` edits a copy of the level below. */
typedef struct el_level {
    const char *name;
    int32_t (*available)(const char **why); /* CPUID and OS state; why: static string, "" when available */
    void (*override)(el_kernels *table);
} el_level;
extern const el_level EL_LEVELS[];
extern const int32_t EL_N_LEVELS;

/* Fill `table` for the named level (NULL or "": the best available). EL_OK, or EL_E_UNSUPPORTED (unknown name, or the
 * machine lacks it) with *why set to a static string. */
int32_t el_kernels_select(const char *level, el_kernels *table, const char **why);

/* One override function per file that holds kernels of a level, called from dispatch.c. */
void el_scalar_kernels(el_kernels *table);              /* scalar*.c: fills everything */
void el_avx2_matmul_kernels(el_kernels *table);         /* isa/avx2_matmul*.c: pack, mm, quantize */
void el_avx2_vector_kernels(el_kernels *table);         /* isa/avx2_vector.c: attention, rows, selection */
void el_avx_vnni_matmul_kernels(el_kernels *table);     /* isa/avx_vnni_matmul*.c: mm */
void el_avx512_matmul_kernels(el_kernels *table);       /* isa/avx512_matmul*.c: mm */
void el_avx512_vector_kernels(el_kernels *table);       /* isa/avx512_vector.c */
void el_avx512_vnni_matmul_kernels(el_kernels *table);  /* isa/avx512_vnni_matmul*.c: mm */
void el_avx_vnni_vector_kernels(el_kernels *table);     /* isa/avx_vnni_vector.c: attention */
void el_avx512_vnni_vector_kernels(el_kernels *table);  /* isa/avx512_vnni_vector.c: attention */
void el_neon_matmul_kernels(el_kernels *table);         /* isa/neon_matmul*.c: pack, mm, quantize */
void el_neon_vector_kernels(el_kernels *table);         /* isa/neon_vector.c: attention, rows, selection */
void el_neon_dotprod_matmul_kernels(el_kernels *table); /* isa/neon_dotprod_matmul*.c: mm */
void el_neon_i8mm_matmul_kernels(el_kernels *table); /* isa/neon_i8mm_matmul*.c: mm of more than 4 columns */

#endif
