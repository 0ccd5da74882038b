/* Scores with K in q8_0: the queries as int8 per 32 dims (kernels.h), integer products per square, one float
 * chain over squares. int8 are widened to pairs of int16, whose products of two are added up exactly. */

enum { Q8_ROWS = 4, Q8_COLUMNS = 2, Q8_LANES = Q8_COLUMNS * VX_LANES, QUAD_BYTES = 4 * EL_PAGE_TOKENS };

/* The queries of the rows that see something, each [n_squares][8 quads] of dims 0, 2 and 1, 3 of a quad. */
typedef struct q8_queries {
    int32_t n_squares;
    const int16_t *q;
    const float *d; /* [row][n_squares] */
} q8_queries;

static q8_queries q8_quantize(const el_attn_segment *a, const seg_rows *g) {
    const int32_t n = el_kv_squares(a->k_dim);
    float *d = g->s + (size_t)EL_ATTN_ROWS * SEG;
    int16_t *q = (int16_t *)(d + (size_t)EL_ATTN_ROWS * (size_t)n);
    for (int32_t r = 0; r < g->n; r++) {
        for (int32_t b = 0; b < n; b++) {
            int8_t x[EL_SQUARE];
            int16_t *to = q + ((size_t)r * (size_t)n + (size_t)b) * EL_SQUARE;
            d[r * n + b] = el_kv_query(g->q[r] + b * EL_SQUARE, el_kv_rest(a->k_dim, b), x);
            for (int32_t i = 0; i < EL_SQUARE; i += 4) {
                to[i] = x[i], to[i + 1] = x[i + 2], to[i + 2] = x[i + 1], to[i + 3] = x[i + 3];
            }
        }
    }
    return (q8_queries){n, q, d};
}

/* Scores of rows first .. first+rows-1 for the Q8_LANES tokens from `slot` on. `ahead`: prefetched meanwhile, as many bytes
 * as are read here. */
EL_INLINE void q8_tile(const int32_t rows, const q8_queries *x, int32_t first, const char *page, int32_t slot,
                       const char *ahead, float *out) {
    const size_t row_size = (size_t)x->n_squares * EL_SQUARE;
    vx sum[Q8_ROWS][Q8_COLUMNS];
    EL_UNROLL
    for (int32_t r = 0; r < rows; r++) {
        EL_UNROLL
        for (int32_t c = 0; c < Q8_COLUMNS; c++) sum[r][c] = vx_set1(0.0f);
    }
    for (int32_t b = 0; b < x->n_squares; b++) {
        const char *at = page + (size_t)b * el_kv_square_bytes(EL_KV_Q8_0) + 4 * slot;
        const uint16_t *scales = (const uint16_t *)(at - 4 * slot + 1024) + slot;
        const int16_t *q = x->q + (size_t)first * row_size + (size_t)b * EL_SQUARE;
        vi products[Q8_ROWS][Q8_COLUMNS];
        EL_UNROLL
        for (int32_t r = 0; r < rows; r++) {
            EL_UNROLL
            for (int32_t c = 0; c < Q8_COLUMNS; c++) products[r][c] = vi_zero();
        }
        for (int32_t quad = 0; quad < 8; quad++, at += QUAD_BYTES, q += 4) {
            __builtin_prefetch(ahead + (at - page));
            vi k[2][Q8_COLUMNS];
            EL_UNROLL
            for (int32_t c = 0; c < Q8_COLUMNS; c++) {
                const vi bytes = vi_load(at + c * 4 * VX_LANES);
                k[0][c] = vi_even(bytes);
                k[1][c] = vi_odd(bytes);
            }
            EL_UNROLL
            for (int32_t r = 0; r < rows; r++) {
                EL_UNROLL
                for (int32_t half = 0; half < 2; half++) {
                    int32_t pair;
                    memcpy(&pair, q + (size_t)r * row_size + 2 * half, sizeof pair);
                    const vi factor = vi_set1(pair);
                    EL_UNROLL
                    for (int32_t c = 0; c < Q8_COLUMNS; c++) {
                        products[r][c] = vi_dot(products[r][c], k[half][c], factor);
                    }
                }
            }
        }
        EL_UNROLL
        for (int32_t r = 0; r < rows; r++) {
            const vx d = vx_set1(x->d[(size_t)(first + r) * (size_t)x->n_squares + (size_t)b]);
            EL_UNROLL
            for (int32_t c = 0; c < Q8_COLUMNS; c++) {
                const vx scale = vx_mul(d, vx_load_bf16(scales + c * VX_LANES));
                sum[r][c] = vx_fma(vx_from_int(products[r][c]), scale, sum[r][c]);
            }
        }
    }
    EL_UNROLL
    for (int32_t r = 0; r < rows; r++) {
        EL_UNROLL
        for (int32_t c = 0; c < Q8_COLUMNS; c++) vx_store(out + (size_t)r * SEG + c * VX_LANES, sum[r][c]);
    }
}

static void seg_scores_q8(const el_attn_segment *a, const seg_rows *g) {
    const q8_queries x = q8_quantize(a, g);
    for (int32_t p = 0; p < SEG; p += Q8_LANES) {
        if (!seg_sees(g, 0, g->n, p, Q8_LANES)) continue;
        const int32_t page = p / PAGE, slot = p % PAGE;
        const char *k = a->k_pages[page];
        const char *ahead =
            page + 1 < EL_SEG_PAGES && a->k_pages[page + 1] ? a->k_pages[page + 1] : g->first_v;
        for (int32_t first = 0; first < g->n; first += Q8_ROWS) {
            const int32_t rows = least(Q8_ROWS, g->n - first);
            float *out = g->s + (size_t)first * SEG + p;
            if (!seg_sees(g, first, first + rows, p, Q8_LANES)) continue;
            switch (rows) {
            case 1: q8_tile(1, &x, first, k, slot, ahead, out); break;
            case 2: q8_tile(2, &x, first, k, slot, ahead, out); break;
            case 3: q8_tile(3, &x, first, k, slot, ahead, out); break;
            default: q8_tile(4, &x, first, k, slot, ahead, out);
            }
        }
    }
}
