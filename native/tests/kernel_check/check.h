/* kernel_check: shared tools. A check function runs one kernel of the level under test and of scalar on the same inputs
 * and compares the bits; on the first difference it reports and returns. Every buffer ends at a page that may not be
 * touched, and the bytes around it are watched, so reading past an input or writing beside an output is found too.
 */
#ifndef EL_CHECK_H
#define EL_CHECK_H

#include "kernels.h"

enum { N_ARENAS = 24, ARENA_BYTES = 8 << 20 };

/* A region that ends at a forbidden page. One buffer at a time lies in it. */
typedef struct arena {
    uint8_t *base, *guard; /* ARENA_BYTES before guard */
    uint8_t *data;         /* the buffer */
    size_t size, slack;    /* slack: watched bytes between the buffer and the guard */
} arena;

typedef struct check {
    const el_kernels *scalar, *level;
    int32_t is_scalar;  /* level is scalar: only checks that do not compare levels make sense */
    int32_t full;       /* every bit pattern instead of a sample */
    int32_t every;      /* of the long tables one case in `every`, 0 and 1: all */
    int32_t turn;       /* cases of them met by this kernel's test */
    const char *kernel; /* under test */
    char shape[192];    /* the current case */
    uint64_t rng;
    uint64_t digest; /* of every result compared so far */
    int64_t n_cases;
    int32_t failed; /* this kernel differed */
    arena arenas[N_ARENAS];
} check;

/* ---- cases and results ---- */
void set_case(check *c, const char *format, ...); /* describe the case that follows */
void fail(check *c, const char *format, ...);     /* report the kernel, level, case, and this */
int32_t left_out(check *c);                       /* this case of a long table is not in the sample */
int32_t same_floats(check *c, const char *what, const float *want, const float *got,
                    size_t n); /* bits, or both nan */
int32_t same_values(check *c, const char *what, const float *want, const float *got,
                    size_t n); /* ==, or both nan */
int32_t same_bytes(check *c, const char *what, const void *want, const void *got, size_t n);
int32_t same_ints(check *c, const char *what, const int32_t *want, const int32_t *got, size_t n);

/* ---- memory ---- */
/* A buffer of `size` bytes in arena i, `gap` bytes before the forbidden page; what is around it is watched. */
void *place(check *c, int32_t i, size_t size, size_t gap);
void *place_aligned(check *c, int32_t i,
                    size_t size); /* 64-byte aligned, as near to the page as that allows */
int32_t untouched(check *c, int32_t i, const char *what); /* nothing around the buffer was written */

/* ---- random data ---- */
uint32_t random_bits(check *c);
int32_t random_below(check *c, int32_t n); /* 0 .. n-1 */
float random_normal(check *c);             /* about N(0, 1) */

typedef enum pattern {
    P_RANDOM,
    P_ZERO,
    P_MAX,
    P_MIN,
    P_ALTERNATE,
    P_DENORMAL,
    P_SPIKE,
    P_WILD,
    N_PATTERNS
} pattern;
const char *pattern_name(pattern p);
/* RANDOM about N(0,1) · ZERO · MAX all 1 · MIN all -1 · ALTERNATE 1, -1 · DENORMAL around 2^-119 and below ·
 * SPIKE tiny with few large values · WILD any finite bit pattern */
void fill_floats(check *c, pattern p, float *x, size_t n);

/* ---- GGUF rows (rows.c) ---- */
typedef struct parts { /* weight = d * scale * u - dmin * minimum, all exact in double */
    double d, dmin;
    int32_t scale, u, minimum;
} parts;
const char *qtype_name(int32_t qtype);
int32_t qtype_block(int32_t qtype);
int32_t qtype_has_minima(int32_t qtype);
size_t qtype_row_bytes(int32_t qtype, int32_t k);
void fill_row(check *c, pattern p, int32_t qtype, int32_t k, uint8_t *row);
/* Set every scale (d) and minimum (m or dmin) of the row to the given f16 bits. */
void set_scales(int32_t qtype, int32_t k, uint8_t *row, uint16_t d, uint16_t m);
/* Weight i of a row, read byte by byte without the library's own unpacking. */
parts row_parts(int32_t qtype, const uint8_t *row, int32_t i);

/* ---- the checks: compare level with scalar; check_*_meaning: scalar against independent arithmetic ---- */
void check_pack(check *c, int32_t qtype);
void check_mm(check *c, int32_t qtype);
void check_quantize(check *c, int32_t format);
void check_mm_meaning(check *c, int32_t qtype);
void check_dequant_meaning(check *c, int32_t qtype);
void check_quantize_meaning(check *c, int32_t format);
void check_attn_segment(check *c);
void check_attn_any(check *c);
void check_attn_fold(check *c);
void check_kv_store(check *c);
void check_kv_meaning(check *c);
const char *kv_name(int32_t type);
void check_attn_meaning(check *c);
void check_rms_norm(check *c);
void check_layer_norm(check *c);
void check_glu(check *c);
void check_act(check *c);
void check_elementwise(check *c); /* add, scale, axpy, softcap */
void check_rope(check *c);
void check_top_k(check *c);
void check_lse_segment(check *c);
void check_nonfinite(check *c);
void check_int8_peak(check *c);
void check_read(check *c);
void check_norm_meaning(check *c);
void check_selection_meaning(check *c);
void check_functions(check *c);         /* exp, tanh and the activations over the bit patterns */
void check_functions_meaning(check *c); /* fp.h against double precision, conversions exhaustively */

/* Times every kernel of the level and prints GB/s and GMAC/s (bench.c). */
void bench(check *c, const char *filter);

#endif
