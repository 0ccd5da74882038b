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
    if (!is_finite || amax < el_float(EL_TINY)) {
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
            for (int32_t first = 0; first < g->n; first += Q8_ROWS) {
                const int32_t rows = least(Q8_ROWS, g->n - first), p = page * PAGE + slot;
                float *out = g->s + (size_t)first * SEG + p;
                if (!seg_sees(g, first, first + rows, p, Q8_LANES)) continue;
                Q8_SCORES_OF[rows](&x, first, k, slot, ahead, out);
            }
        }
    }
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* The pages that some rows of a block see, and their weights for one square of dims. */
typedef struct q8_weights {
    int32_t first_page, end_page;
    float scale[Q8_ROWS];
    int16_t w[Q8_ROWS][SEG];
} q8_weights;

/* Zeros in the pages that are not begin .. end-1. */
static void q8_zero_rest(int16_t *w, const q8_weights *to, int32_t begin, int32_t end) {
    memset(w + to->first_page * PAGE, 0, (size_t)(begin - to->first_page) * PAGE * sizeof *w);
    memset(w + end * PAGE, 0, (size_t)(to->end_page - end) * PAGE * sizeof *w);
}

/* Weights times scales at positions p..p+15: 0 for those that the row does not see. */
EL_INLINE vf16 q8_weighed(const float *w, const float *scales, int32_t lo, int32_t hi, int32_t p) {
    const vf16 product = vf_mul(vf_load(w + p), vf_load(scales + p));
    return p < lo || p + 16 > hi ? vf_keep(vm_range(lo - p, hi - p), product) : product;
}

/* The bits of the largest weight times scale of a row, whose positions lo..hi-1 are seen. The products are not negative:
 * they are ordered as their bits are, and a nan comes last. */
static uint32_t q8_heaviest(const float *w, const float *scales, int32_t lo, int32_t hi) {
    vf16 top = vf_zero(), top2 = vf_zero();
    for (int32_t p = lo / PAGE * PAGE; p < hi; p += PAGE) {
        top = vf_max_bits(q8_weighed(w, scales, lo, hi, p), top);
        top2 = vf_max_bits(q8_weighed(w, scales, lo, hi, p + 16), top2);
    }
    return vf_largest_bits(vf_max_bits(top, top2));
}

/* Weights times scales of a row, the largest of which is `bits`, as int16; 0 elsewhere in the pages of `to`. Returns their
 * scale. */
static float q8_weigh(const float *w, const float *scales, int32_t lo, int32_t hi, uint32_t bits,
                      const q8_weights *to, int16_t *out) {
    const int32_t begin = lo / PAGE, end = (hi + PAGE - 1) / PAGE;
    if (bits < EL_TINY || bits >= EL_INF) {
        q8_zero_rest(out, to, to->first_page, to->first_page);
        return bits < EL_TINY ? 0.0f : el_bf16_to_f32(EL_BF16_NAN);
    }
    const vf16 factor = vf_set1(32767.0f / el_float(bits));
    for (int32_t p = begin * PAGE; p < end * PAGE; p += PAGE) {
        vf_store_quads(out + p, vf_mul(q8_weighed(w, scales, lo, hi, p), factor),
                       vf_mul(q8_weighed(w, scales, lo, hi, p + 16), factor));
    }
    q8_zero_rest(out, to, begin, end);
    return el_float(bits) / 32767.0f;
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
    EL_UNROLL
    for (int32_t r = 0; r < rows; r++) {
        float o[Q8_LANES];
        EL_UNROLL
        for (int32_t c = 0; c < Q8_COLUMNS; c++) {
            vx_store(o + c * VX_LANES, vx_mul(vx_from_int(sums[r][c]), vx_set1(w->scale[r])));
        }
        memcpy(out[r] + lane, o, (size_t)n * sizeof *o);
    }
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

/* The weights of rows first .. first+rows-1 for a square of dims, whose tokens have these scales. */
static void q8_weigh_rows(const seg_rows *g, int32_t first, int32_t rows, const float *scales,
                          q8_weights *w) {
    w->first_page = EL_SEG_PAGES;
    w->end_page = 0;
    for (int32_t r = first; r < first + rows; r++) {
        w->first_page = least(w->first_page, g->lo[r] / PAGE);
        w->end_page = most(w->end_page, (g->hi[r] + PAGE - 1) / PAGE);
    }
    uint32_t heaviest[Q8_ROWS];
    for (int32_t r = 0; r < rows; r++) {
        const int32_t i = first + r;
        heaviest[r] = q8_heaviest(g->s + (size_t)i * SEG, scales, g->lo[i], g->hi[i]);
    }
    for (int32_t r = 0; r < rows; r++) {
        const int32_t i = first + r;
        w->scale[r] = q8_weigh(g->s + (size_t)i * SEG, scales, g->lo[i], g->hi[i], heaviest[r], w, w->w[r]);
    }
}

/* The scales of a square of dims in the pages that some row sees. */
static void q8_load_scales(const el_attn_segment *a, size_t square, float *scales) {
    for (int32_t page = 0; page < EL_SEG_PAGES; page++, scales += PAGE) {
        if (!a->v_pages[page]) continue;
        const uint16_t *from = (const uint16_t *)((const char *)a->v_pages[page] + square + 1024);
        vf_store(scales, vf_load_bf16(from));
        vf_store(scales + 16, vf_load_bf16(from + 16));
    }
}

static void seg_values_q8(const el_attn_segment *a, const seg_rows *g) {
    q8_weights w;
    float scales[SEG];
    for (int32_t b = 0; b < el_kv_squares(a->v_dim); b++) {
        const size_t square = (size_t)b * el_kv_square_bytes(EL_KV_Q8_0);
        const int32_t n_dims = el_kv_rest(a->v_dim, b);
        q8_load_scales(a, square, scales);
        for (int32_t first = 0; first < g->n; first += Q8_ROWS) {
            const int32_t rows = least(Q8_ROWS, g->n - first);
            float *out[Q8_ROWS];
            for (int32_t r = 0; r < rows; r++) out[r] = g->o[first + r] + b * EL_SQUARE;
            q8_weigh_rows(g, first, rows, scales, &w);
            for (int32_t lane = 0; lane < n_dims; lane += Q8_LANES) {
                const int32_t n = least(Q8_LANES, n_dims - lane);
                Q8_VALUES_OF[rows](a, &w, square, lane, n, out);
            }
        }
    }
}
