/* Scores with K in q8_0 and values with V in q8_0 (kernels.h): both are integer products of rows of int16 with squares
 * of int8 [8 quads][32 lanes][4]. A quad's int8 are widened to pairs of int16, first and third, second and fourth, so the
 * rows have each quad in the order 0, 2, 1, 3; products of two are added up exactly. */

enum { Q8_ROWS = VX_ROWS_Q8, Q8_COLUMNS = 2, Q8_LANES = Q8_COLUMNS * VX_LANES, QUAD_BYTES = 4 * EL_SQUARE };

typedef vi q8_sums[Q8_ROWS][Q8_COLUMNS];

EL_INLINE void q8_clear(const int32_t rows, q8_sums sums) {
    EL_UNROLL
    for (int32_t r = 0; r < rows; r++) {
        EL_UNROLL
        for (int32_t c = 0; c < Q8_COLUMNS; c++) sums[r][c] = vi_zero();
    }
}

/* Add the products of `rows` rows x, row_size apart, with Q8_LANES lanes of a square; `at` points to the first of them.
 * As much is prefetched at `ahead`. */
EL_INLINE void q8_add_products(const int32_t rows, const int16_t *x, size_t row_size, const char *at,
                               const char *ahead, q8_sums sums) {
    for (int32_t quad = 0; quad < 8; quad++, at += QUAD_BYTES, ahead += QUAD_BYTES, x += 4) {
        __builtin_prefetch(ahead);
        vi y[2][Q8_COLUMNS];
        EL_UNROLL
        for (int32_t c = 0; c < Q8_COLUMNS; c++) {
            const vi bytes = vi_load(at + c * 4 * VX_LANES);
            y[0][c] = vi_even(bytes);
            y[1][c] = vi_odd(bytes);
        }
        EL_UNROLL
        for (int32_t r = 0; r < rows; r++) {
            EL_UNROLL
            for (int32_t half = 0; half < 2; half++) {
                int32_t pair;
                memcpy(&pair, x + (size_t)r * row_size + 2 * half, sizeof pair);
                const vi factor = vi_set1(pair);
                EL_UNROLL
                for (int32_t c = 0; c < Q8_COLUMNS; c++) sums[r][c] = vi_dot(sums[r][c], y[half][c], factor);
            }
        }
    }
}

/* Tiles of as equal numbers of rows as can be: tile i has rows q8_cut(g, i) .. q8_cut(g, i + 1) - 1. */
EL_INLINE int32_t q8_tiles(const seg_rows *g) { return (g->n + Q8_ROWS - 1) / Q8_ROWS; }
EL_INLINE int32_t q8_cut(const seg_rows *g, int32_t i) { return g->n * i / q8_tiles(g); }

/* ---- scores ---------------------------------------------------------------------------------------------- */

typedef struct q8_queries {
    int32_t n_squares;
    const int16_t *q; /* [row][n_squares][32] */
    const float *d;   /* [row][n_squares] */
} q8_queries;

/* The n (at most 32) dims of a square as int16, as el_kv_query makes them; returns their scale. */
static float q8_query(const float *x, int32_t n, int16_t *q) {
    const vf16 low = vf_load_some(x, n), high = n > 16 ? vf_load_some(x + 16, n - 16) : vf_zero();
    const vf16 infinity = vf_set1(INFINITY), a = vf_abs(low), b = vf_abs(high);
    const float amax = vf_largest(vf_max(a, b));
    const int32_t is_finite = vm_bits(vf_lt(a, infinity)) == 0xffff && vm_bits(vf_lt(b, infinity)) == 0xffff;
    if (!is_finite || amax < el_float(EL_TINY_16)) {
        memset(q, 0, EL_SQUARE * sizeof *q);
        return is_finite ? 0.0f : el_bf16_to_f32(EL_BF16_NAN);
    }
    const vf16 factor = vf_set1(32767.0f / amax);
    vf_store_quads(q, vf_mul(low, factor), vf_mul(high, factor));
    return amax / 32767.0f;
}

static q8_queries q8_quantize(const el_attn_segment *a, const seg_rows *g) {
    const int32_t n = el_kv_squares(a->k_dim);
    float *d = g->s + (size_t)EL_ATTN_ROWS * SEG;
    int16_t *q = (int16_t *)(d + (size_t)EL_ATTN_ROWS * (size_t)n);
    for (int32_t r = 0; r < g->n; r++) {
        for (int32_t b = 0; b < n; b++) {
            d[r * n + b] = q8_query(g->q[r] + b * EL_SQUARE, el_kv_rest(a->k_dim, b),
                                    q + ((size_t)r * (size_t)n + (size_t)b) * EL_SQUARE);
        }
    }
    return (q8_queries){n, q, d};
}

/* Scores of rows first .. first+rows-1 for the Q8_LANES tokens from `slot` on. Their chains over the squares are kept in
 * `out`: the products need the registers. */
EL_INLINE void q8_scores_of(const int32_t rows, const q8_queries *x, int32_t first, const char *page,
                            int32_t slot, const char *ahead, float *out) {
    const size_t row_size = (size_t)x->n_squares * EL_SQUARE;
    for (int32_t b = 0; b < x->n_squares; b++) {
        const size_t at = (size_t)b * el_kv_square_bytes(EL_KV_Q8_0);
        const uint16_t *scales = (const uint16_t *)(page + at + 1024) + slot;
        q8_sums products;
        q8_clear(rows, products);
        q8_add_products(rows, x->q + (size_t)first * row_size + (size_t)b * EL_SQUARE, row_size,
                        page + at + 4 * slot, ahead + at + 4 * slot, products);
        vx scale[Q8_COLUMNS];
        EL_UNROLL
        for (int32_t c = 0; c < Q8_COLUMNS; c++) scale[c] = vx_load_bf16(scales + c * VX_LANES);
        EL_UNROLL
        for (int32_t r = 0; r < rows; r++) {
            const vx d = vx_set1(x->d[(size_t)(first + r) * (size_t)x->n_squares + (size_t)b]);
            EL_UNROLL
            for (int32_t c = 0; c < Q8_COLUMNS; c++) {
                float *sum = out + (size_t)r * SEG + c * VX_LANES;
                const vx before = b == 0 ? vx_set1(0.0f) : vx_load(sum);
                vx_store(sum, vx_fma(vx_from_int(products[r][c]), vx_mul(d, scale[c]), before));
            }
        }
    }
}

/* By the number of rows, which is a constant in each. */
typedef void q8_scores_fn(const q8_queries *x, int32_t first, const char *page, int32_t slot,
                          const char *ahead, float *out);
#define Q8_SCORES(rows)                                                                              \
    static void q8_scores_##rows(const q8_queries *x, int32_t first, const char *page, int32_t slot, \
                                 const char *ahead, float *out) {                                    \
        q8_scores_of(rows, x, first, page, slot, ahead, out);                                        \
    }
#define Q8_SCORES_ENTRY(rows) [rows] = q8_scores_##rows,
VX_EACH_Q8(Q8_SCORES)
static q8_scores_fn *const Q8_SCORES_OF[Q8_ROWS + 1] = {VX_EACH_Q8(Q8_SCORES_ENTRY)};

static void seg_scores_q8(const el_attn_segment *a, const seg_rows *g) {
    const q8_queries x = q8_quantize(a, g);
    for (int32_t page = 0; page < EL_SEG_PAGES; page++) {
        if (!seg_sees(g, 0, g->n, page * PAGE, PAGE)) continue;
        const char *k = a->k_pages[page], *next = page + 1 < EL_SEG_PAGES ? a->k_pages[page + 1] : NULL;
        const char *ahead = next ? next : g->first_v;
        for (int32_t slot = 0; slot < PAGE; slot += Q8_LANES) {
            for (int32_t i = 0; i < q8_tiles(g); i++) {
                const int32_t first = q8_cut(g, i), end = q8_cut(g, i + 1), p = page * PAGE + slot;
                if (!seg_sees(g, first, end, p, Q8_LANES)) continue;
                Q8_SCORES_OF[end - first](&x, first, k, slot, ahead, g->s + (size_t)first * SEG + p);
            }
        }
    }
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* The scales of a square of dims by position: 0 in pages that nobody sees, and where they are not finite. Those are the bits of
 * `bad`: slot i of a page is bit i. */
typedef struct q8_scales {
    _Alignas(64) float scale[SEG];
    uint32_t bad[EL_SEG_PAGES];
    int32_t any_bad;
} q8_scales;

/* The weights of a tile's rows for a square of dims, and the pages that they see. */
typedef struct q8_weights {
    _Alignas(64) int16_t w[Q8_ROWS][SEG];
    float scale[Q8_ROWS];
    int32_t first_page, end_page;
} q8_weights;

static void q8_load_scales(const el_attn_segment *a, size_t square, q8_scales *to) {
    const vf16 infinity = vf_set1(INFINITY);
    to->any_bad = 0;
    for (int32_t page = 0; page < EL_SEG_PAGES; page++) {
        const char *v = a->v_pages[page];
        const uint16_t *from = v ? (const uint16_t *)(v + square + 1024) : NULL;
        to->bad[page] = 0;
        for (int32_t i = 0; i < PAGE; i += 16) {
            const vf16 scale = from ? vf_abs(vf_load_bf16(from + i)) : vf_zero(); /* a weight of 0 stays +0 */
            const vm16 is_finite = vf_lt(scale, infinity);
            vf_store(to->scale + page * PAGE + i, vf_keep(is_finite, scale));
            to->bad[page] |= (~vm_bits(is_finite) & 0xffffu) << i;
        }
        to->any_bad |= to->bad[page] != 0;
    }
}

/* Whether a scale of positions lo..hi-1 is not finite. */
static int32_t q8_sees_bad(const q8_scales *s, int32_t lo, int32_t hi) {
    for (int32_t p = lo; s->any_bad && p < hi; p++) {
        if (s->bad[p / PAGE] >> p % PAGE & 1) return 1;
    }
    return 0;
}

/* 0 for the positions that a row does not see; seg_exp has left the groups of 16 that it does not touch as they were. */
static void q8_clear_unseen(float *w, int32_t lo, int32_t hi) {
    const int32_t begin = lo / 16 * 16, end = (hi + 15) / 16 * 16;
    if (begin > 0) memset(w, 0, (size_t)begin * sizeof *w);
    if (end < SEG) memset(w + end, 0, (size_t)(SEG - end) * sizeof *w);
}

/* Weights times scales of a row as int16; returns their scale. Products are not negative, thus ordered as their bits are, and a
 * nan is the largest. */
static float q8_weigh(const float *w, const float *scales, int32_t sees_bad, int16_t *out) {
    enum { N = SEG / 16 };
    vf16 x[N], top[4];
    EL_UNROLL
    for (int32_t i = 0; i < N; i++) {
        x[i] = vf_mul(vf_load(w + 16 * i), vf_load(scales + 16 * i));
        top[i % 4] = i < 4 ? x[i] : vf_max_bits(x[i], top[i % 4]);
    }
    const uint32_t largest =
        vf_largest_bits(vf_max_bits(vf_max_bits(top[0], top[1]), vf_max_bits(top[2], top[3])));
    if (largest < EL_TINY_16 || largest >= EL_INF || sees_bad) {
        memset(out, 0, SEG * sizeof *out);
        return largest >= EL_INF || sees_bad ? el_bf16_to_f32(EL_BF16_NAN) : 0.0f;
    }
    const vf16 factor = vf_set1(32767.0f / el_float(largest));
    EL_UNROLL
    for (int32_t i = 0; i < N; i += 2)
        vf_store_quads(out + 16 * i, vf_mul(x[i], factor), vf_mul(x[i + 1], factor));
    return el_float(largest) / 32767.0f;
}

/* The weights of rows first .. end-1 for a square of dims. */
static void q8_weigh_rows(const seg_rows *g, int32_t first, int32_t end, const q8_scales *s, q8_weights *to) {
    to->first_page = EL_SEG_PAGES;
    to->end_page = 0;
    for (int32_t r = first; r < end; r++) {
        const int32_t sees_bad = q8_sees_bad(s, g->lo[r], g->hi[r]);
        to->first_page = least(to->first_page, g->lo[r] / PAGE);
        to->end_page = most(to->end_page, (g->hi[r] + PAGE - 1) / PAGE);
        to->scale[r - first] = q8_weigh(g->s + (size_t)r * SEG, s->scale, sees_bad, to->w[r - first]);
    }
}

/* Dims of one square, Q8_LANES from `lane` on, of `rows` rows: n of them are stored in out[r] + lane. */
EL_INLINE void q8_values_of(const int32_t rows, const el_attn_segment *a, const q8_weights *w, size_t square,
                            int32_t lane, int32_t n, float *const *out) {
    q8_sums sums;
    q8_clear(rows, sums);
    for (int32_t page = w->first_page; page < w->end_page; page++) {
        const char *v = a->v_pages[page], *next = page + 1 < EL_SEG_PAGES ? a->v_pages[page + 1] : NULL;
        if (!v) continue;
        q8_add_products(rows, w->w[0] + page * PAGE, SEG, v + square + 4 * lane,
                        (next ? next : v) + square + 4 * lane, sums);
    }
    /* All are stored before any is copied: a call would take their registers. */
    _Alignas(64) float part[Q8_ROWS][Q8_LANES];
    EL_UNROLL
    for (int32_t r = 0; r < rows; r++) {
        float *o = n == Q8_LANES ? out[r] + lane : part[r];
        EL_UNROLL
        for (int32_t c = 0; c < Q8_COLUMNS; c++) {
            vx_store(o + c * VX_LANES, vx_mul(vx_from_int(sums[r][c]), vx_set1(w->scale[r])));
        }
    }
    for (int32_t r = 0; r < rows && n < Q8_LANES; r++)
        memcpy(out[r] + lane, part[r], (size_t)n * sizeof **part);
}

typedef void q8_values_fn(const el_attn_segment *a, const q8_weights *w, size_t square, int32_t lane,
                          int32_t n, float *const *out);
#define Q8_VALUES(rows)                                                                                      \
    static void q8_values_##rows(const el_attn_segment *a, const q8_weights *w, size_t square, int32_t lane, \
                                 int32_t n, float *const *out) {                                             \
        q8_values_of(rows, a, w, square, lane, n, out);                                                      \
    }
#define Q8_VALUES_ENTRY(rows) [rows] = q8_values_##rows,
VX_EACH_Q8(Q8_VALUES)
static q8_values_fn *const Q8_VALUES_OF[Q8_ROWS + 1] = {VX_EACH_Q8(Q8_VALUES_ENTRY)};

static void seg_values_q8(const el_attn_segment *a, const seg_rows *g) {
    q8_weights w;
    q8_scales scales;
    for (int32_t r = 0; r < g->n; r++) q8_clear_unseen(g->s + (size_t)r * SEG, g->lo[r], g->hi[r]);
    for (int32_t b = 0; b < el_kv_squares(a->v_dim); b++) {
        const size_t square = (size_t)b * el_kv_square_bytes(EL_KV_Q8_0);
        const int32_t n_dims = el_kv_rest(a->v_dim, b);
        q8_load_scales(a, square, &scales);
        for (int32_t i = 0; i < q8_tiles(g); i++) {
            const int32_t first = q8_cut(g, i), end = q8_cut(g, i + 1);
            float *out[Q8_ROWS];
            for (int32_t r = first; r < end; r++) out[r - first] = g->o[r] + b * EL_SQUARE;
            q8_weigh_rows(g, first, end, &scales, &w);
            for (int32_t lane = 0; lane < n_dims; lane += Q8_LANES) {
                const int32_t n = least(Q8_LANES, n_dims - lane);
                Q8_VALUES_OF[end - first](a, &w, square, lane, n, out);
            }
        }
    }
}
