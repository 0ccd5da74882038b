/* One attention segment (kernels.h: el_attn_segment). Scores of all rows, then their weights, then the values:
 *
 *   scores   a tile is some query rows x 16 or 32 positions; its sums run over e and stay in registers
 *   weights  in place, 16 positions at a time
 *   values   a tile is some query rows x 16 or 32 value dims; its sums run over the positions all its rows see; the
 *            positions only some of them see (the causal diagonal) come before and after, row by row
 *
 * Few rows (decode) read K and V where they lie. More rows (prefill) share a copy in float, 16 lanes to a plane, small
 * enough for the first level cache. Sums of positions that a row does not see may be computed, but are never used. */

enum { SEG = EL_SEGMENT, PAGE = EL_PAGE_TOKENS, PV_CHUNK = 128, MAX_COLUMNS = 4 };

/* Element (index, lane) of K [e][position] or V [position][d]: data + index * stride + lane / 16 * plane + lane % 16. */
typedef struct seg_block {
    const void *data;
    size_t stride, plane;
} seg_block;

/* The rows that see a position of the segment. */
typedef struct seg_rows {
    int32_t n;
    int32_t lo[EL_ATTN_ROWS], hi[EL_ATTN_ROWS];
    const float *q[EL_ATTN_ROWS];
    float *o[EL_ATTN_ROWS];
    int32_t row[EL_ATTN_ROWS]; /* index in el_attn_segment */
    float *s;                  /* [n][SEG] scores, then weights */
} seg_rows;

EL_INLINE vx seg_column(const int32_t half, const seg_block *b, const void *at, const int32_t c) {
    size_t lane = (size_t)c * VX_LANES, offset = lane / 16 * b->plane + lane % 16;
    return half ? vx_load_f16((const uint16_t *)at + offset) : vx_load((const float *)at + offset);
}

/* s[r][lane] = chain over e of q[r][e] * k[e][lane], for `rows` rows and `columns` registers of lanes */
EL_INLINE void qk_tile(const int32_t rows, const int32_t columns, const int32_t half, const float *const *q,
                       int32_t k_dim, const seg_block *k, float *s) {
    vx sum[VX_ROWS_16][MAX_COLUMNS];
    const float *row[VX_ROWS_16];
    EL_UNROLL
    for (int32_t r = 0; r < rows; r++) {
        row[r] = q[r];
        EL_UNROLL
        for (int32_t c = 0; c < columns; c++) sum[r][c] = vx_set1(0.0f);
    }
    const char *at = k->data;
    const size_t step = k->stride * (half ? sizeof(uint16_t) : sizeof(float));
    for (int32_t e = 0; e < k_dim; e++, at += step) {
        vx column[MAX_COLUMNS];
        EL_UNROLL
        for (int32_t c = 0; c < columns; c++) column[c] = seg_column(half, k, at, c);
        EL_UNROLL
        for (int32_t r = 0; r < rows; r++) {
            vx x = vx_set1(row[r][e]);
            EL_UNROLL
            for (int32_t c = 0; c < columns; c++) sum[r][c] = vx_fma(x, column[c], sum[r][c]);
        }
    }
    EL_UNROLL
    for (int32_t r = 0; r < rows; r++) {
        EL_UNROLL
        for (int32_t c = 0; c < columns; c++) vx_store(s + r * SEG + c * VX_LANES, sum[r][c]);
    }
}

/* o[r][lane] continues its chain over n positions of w[r][p] * v[p][lane] */
EL_INLINE void pv_tile(const int32_t rows, const int32_t columns, const int32_t half, const float *w,
                       int32_t n, const seg_block *v, float *const *o) {
    vx sum[VX_ROWS_16][MAX_COLUMNS];
    EL_UNROLL
    for (int32_t r = 0; r < rows; r++) {
        EL_UNROLL
        for (int32_t c = 0; c < columns; c++) sum[r][c] = vx_load(o[r] + c * VX_LANES);
    }
    const char *at = v->data;
    const size_t step = v->stride * (half ? sizeof(uint16_t) : sizeof(float));
    for (const float *end = w + n; w < end; w++, at += step) {
        vx column[MAX_COLUMNS];
        EL_UNROLL
        for (int32_t c = 0; c < columns; c++) column[c] = seg_column(half, v, at, c);
        EL_UNROLL
        for (int32_t r = 0; r < rows; r++) {
            vx x = vx_set1(w[r * SEG]);
            EL_UNROLL
            for (int32_t c = 0; c < columns; c++) sum[r][c] = vx_fma(x, column[c], sum[r][c]);
        }
    }
    EL_UNROLL
    for (int32_t r = 0; r < rows; r++) {
        EL_UNROLL
        for (int32_t c = 0; c < columns; c++) vx_store(o[r] + c * VX_LANES, sum[r][c]);
    }
}

/* Tiles by element type, width and number of rows. */
typedef void qk_fn(const float *const *q, int32_t k_dim, const seg_block *k, float *s);
typedef void pv_fn(const float *w, int32_t n, const seg_block *v, float *const *o);

#define EL_TILES(rows, lanes, type, half)                                                              \
    static void qk_##type##_##lanes##_##rows(const float *const *q, int32_t k_dim, const seg_block *k, \
                                             float *s) {                                               \
        qk_tile(rows, lanes / VX_LANES, half, q, k_dim, k, s);                                         \
    }                                                                                                  \
    static void pv_##type##_##lanes##_##rows(const float *w, int32_t n, const seg_block *v,            \
                                             float *const *o) {                                        \
        pv_tile(rows, lanes / VX_LANES, half, w, n, v, o);                                             \
    }
#define EL_TILES_16(rows) EL_TILES(rows, 16, f16, 1) EL_TILES(rows, 16, f32, 0)
#define EL_TILES_32(rows) EL_TILES(rows, 32, f16, 1) EL_TILES(rows, 32, f32, 0)
VX_EACH_16(EL_TILES_16)
VX_EACH_32(EL_TILES_32)

#define EL_QK_F16_16(rows) [rows] = qk_f16_16_##rows,
#define EL_QK_F32_16(rows) [rows] = qk_f32_16_##rows,
#define EL_QK_F16_32(rows) [rows] = qk_f16_32_##rows,
#define EL_QK_F32_32(rows) [rows] = qk_f32_32_##rows,
#define EL_PV_F16_16(rows) [rows] = pv_f16_16_##rows,
#define EL_PV_F32_16(rows) [rows] = pv_f32_16_##rows,
#define EL_PV_F16_32(rows) [rows] = pv_f16_32_##rows,
#define EL_PV_F32_32(rows) [rows] = pv_f32_32_##rows,
static qk_fn *const QK_16[2][VX_ROWS_16 + 1] = {{VX_EACH_16(EL_QK_F16_16)}, {VX_EACH_16(EL_QK_F32_16)}};
static qk_fn *const QK_32[2][VX_ROWS_32 + 1] = {{VX_EACH_32(EL_QK_F16_32)}, {VX_EACH_32(EL_QK_F32_32)}};
static pv_fn *const PV_16[2][VX_ROWS_16 + 1] = {{VX_EACH_16(EL_PV_F16_16)}, {VX_EACH_16(EL_PV_F32_16)}};
static pv_fn *const PV_32[2][VX_ROWS_32 + 1] = {{VX_EACH_32(EL_PV_F16_32)}, {VX_EACH_32(EL_PV_F32_32)}};

/* Rows first..end-1 of block b when n rows are cut into blocks of at most VX_ROWS_16, as equal as they can be. */
static int32_t seg_blocks(int32_t n) { return (n + VX_ROWS_16 - 1) / VX_ROWS_16; }
static int32_t seg_cut(int32_t n, int32_t b) { return n * b / seg_blocks(n); }

/* Whether any of rows first..end-1 sees a position of begin..begin+n-1. */
static int32_t seg_sees(const seg_rows *g, int32_t first, int32_t end, int32_t begin, int32_t n) {
    for (int32_t i = first; i < end; i++) {
        if (g->lo[i] < begin + n && begin < g->hi[i]) return 1;
    }
    return 0;
}

static size_t kv_bytes(int32_t type) { return type == EL_KV_F16 ? sizeof(uint16_t) : sizeof(float); }

/* Copy n vectors of `lanes` (1..16) elements, stride elements apart, into a plane [n][16] of floats. */
static void seg_plane(int32_t type, const void *from, size_t stride, int32_t lanes, int32_t n, float *to) {
    if (type == EL_KV_F16) {
        const uint16_t *h = from;
        for (int32_t i = 0; i < n; i++)
            vf_store(to + (size_t)i * 16, vf_load_f16_some(h + (size_t)i * stride, lanes));
    } else {
        const float *f = from;
        for (int32_t i = 0; i < n; i++)
            vf_store(to + (size_t)i * 16, vf_load_some(f + (size_t)i * stride, lanes));
    }
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

static void seg_scores_in_place(const el_attn_segment *a, const seg_rows *g) {
    const int32_t wide = g->n <= VX_ROWS_32, lanes = wide ? 32 : 16;
    qk_fn *qk = wide ? QK_32[a->k_type][g->n] : QK_16[a->k_type][g->n];
    for (int32_t p = 0; p < SEG; p += lanes) {
        if (!seg_sees(g, 0, g->n, p, lanes)) continue;
        const char *page = a->k_pages[p / PAGE];
        seg_block k = {page + (size_t)(p % PAGE) * kv_bytes(a->k_type), PAGE, 16};
        qk(g->q, a->k_dim, &k, g->s + p);
    }
}

static void seg_scores_shared(const el_attn_segment *a, const seg_rows *g, float *copy) {
    enum { LANES = VX_ROWS_32 == VX_ROWS_16 ? 32 : 16 };
    const size_t plane = (size_t)a->k_dim * 16;
    for (int32_t p = 0; p < SEG; p += LANES) {
        if (!seg_sees(g, 0, g->n, p, LANES)) continue;
        const char *page = a->k_pages[p / PAGE];
        for (int32_t i = 0; i < LANES; i += 16) {
            seg_plane(a->k_type, page + (size_t)(p % PAGE + i) * kv_bytes(a->k_type), PAGE, 16, a->k_dim,
                      copy + (size_t)i / 16 * plane);
        }
        seg_block k = {copy, 16, plane};
        for (int32_t b = 0; b < seg_blocks(g->n); b++) {
            int32_t first = seg_cut(g->n, b), end = seg_cut(g->n, b + 1);
            if (!seg_sees(g, first, end, p, LANES)) continue;
            qk_fn *qk = LANES == 32 ? QK_32[EL_KV_F32][end - first] : QK_16[EL_KV_F32][end - first];
            qk(g->q + first, a->k_dim, &k, g->s + (size_t)first * SEG + p);
        }
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* s[lo..hi-1] from scores to weights; 0 elsewhere in the touched groups of 16. */
static void seg_weights(float *s, int32_t lo, int32_t hi, float scale, float softcap, float *m, float *l) {
    const int32_t first = lo / 16 * 16, last = (hi - 1) / 16 * 16;
    const vf16 factor = vf_set1(scale), cap = vf_set1(softcap), unseen = vf_set1(-INFINITY);
    vf16 top = unseen;
    for (int32_t p = first; p <= last; p += 16) {
        vf16 x = vf_mul(vf_load(s + p), factor);
        if (softcap != 0.0f) x = vf_softcap(x, cap);
        if (p == first || p == last) x = vf_select(vm_range(lo - p, hi - p), x, unseen);
        vf_store(s + p, x);
        top = vf_max(x, top);
    }
    const float largest = first_largest(s + lo, hi - lo, vf_largest(top));
    const vf16 shift = vf_set1(largest);
    vf16 sum = vf_zero();
    for (int32_t p = first; p <= last; p += 16) {
        vf16 w = vf_exp(vf_sub(vf_load(s + p), shift));
        vf_store(s + p, w);
        sum = vf_add(sum, w);
    }
    *m = largest;
    *l = vf_fold16(sum);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* Continue the chains of rows first..end-1 over positions begin..stop-1, which `v` starts at, for 16 or 32 lanes. */
static void seg_values(const seg_rows *g, int32_t first, int32_t end, int32_t begin, int32_t stop,
                       int32_t type, int32_t lanes, const seg_block *v, float *const *o) {
    pv_fn *const *pv = lanes == 32 ? PV_32[type] : PV_16[type];
    int32_t from = begin, to = stop; /* seen by every row */
    for (int32_t i = first; i < end; i++) {
        from = most(from, g->lo[i]);
        to = least(to, g->hi[i]);
    }
    if (from >= to) from = to = stop;
    for (int32_t i = first; i < end; i++) {
        int32_t lo = most(begin, g->lo[i]), hi = least(from, g->hi[i]);
        if (lo >= hi) continue;
        seg_block at = {(const char *)v->data + (size_t)(lo - begin) * v->stride * kv_bytes(type), v->stride,
                        v->plane};
        pv[1](g->s + (size_t)i * SEG + lo, hi - lo, &at, o + (i - first));
    }
    if (from < to) {
        seg_block at = {(const char *)v->data + (size_t)(from - begin) * v->stride * kv_bytes(type),
                        v->stride, v->plane};
        pv[end - first](g->s + (size_t)first * SEG + from, to - from, &at, o);
    }
    for (int32_t i = first; i < end && to < stop; i++) {
        int32_t hi = least(stop, g->hi[i]);
        if (to >= hi) continue;
        seg_block at = {(const char *)v->data + (size_t)(to - begin) * v->stride * kv_bytes(type), v->stride,
                        v->plane};
        pv[1](g->s + (size_t)i * SEG + to, hi - to, &at, o + (i - first));
    }
}

/* Value dims d..d+lanes-1 (lanes at most 16, or 32) over positions begin..stop-1, at most PV_CHUNK, from a float copy. */
static void seg_values_shared(const el_attn_segment *a, const seg_rows *g, int32_t begin, int32_t stop,
                              int32_t d, int32_t lanes, float *copy) {
    const seg_block v = {copy, 16, PV_CHUNK * 16};
    for (int32_t p = begin; p < stop; p += PAGE) {
        if (!seg_sees(g, 0, g->n, p, PAGE)) continue;
        const char *page = a->v_pages[p / PAGE];
        for (int32_t i = 0; i < lanes; i += 16) {
            seg_plane(a->v_type, page + (size_t)(d + i) * kv_bytes(a->v_type), (size_t)a->v_dim,
                      least(16, lanes - i), PAGE, copy + (size_t)i / 16 * v.plane + (size_t)(p - begin) * 16);
        }
    }
    for (int32_t b = 0; b < seg_blocks(g->n); b++) {
        const int32_t first = seg_cut(g->n, b), end = seg_cut(g->n, b + 1);
        float part[VX_ROWS_16][16];
        float *o[VX_ROWS_16];
        for (int32_t i = first; i < end; i++) {
            o[i - first] = g->o[i] + d;
            if (lanes >= 16) continue;
            vf_store(part[i - first], vf_load_some(g->o[i] + d, lanes));
            o[i - first] = part[i - first];
        }
        seg_values(g, first, end, begin, stop, EL_KV_F32, lanes > 16 ? 32 : 16, &v, o);
        for (int32_t i = first; i < end && lanes < 16; i++) {
            vf_store_some(g->o[i] + d, vf_load(part[i - first]), lanes);
        }
    }
}

/* One page, for at most VX_ROWS_16 rows. */
static void seg_values_in_place(const el_attn_segment *a, const seg_rows *g, int32_t begin, float *copy) {
    const char *page = a->v_pages[begin / PAGE];
    int32_t lanes = g->n <= VX_ROWS_32 ? 32 : 16;
    for (int32_t d = 0; d < a->v_dim; d += lanes) {
        if (a->v_dim - d < lanes) lanes = 16;
        if (a->v_dim - d < 16) {
            seg_values_shared(a, g, begin, begin + PAGE, d, a->v_dim - d, copy);
            return;
        }
        float *o[VX_ROWS_16];
        for (int32_t i = 0; i < g->n; i++) o[i] = g->o[i] + d;
        seg_block v = {page + (size_t)d * kv_bytes(a->v_type), (size_t)a->v_dim, 16};
        seg_values(g, 0, g->n, begin, begin + PAGE, a->v_type, lanes, &v, o);
    }
}

static void attn_segment(const el_attn_segment *a) {
    float *copy = a->scratch;
    seg_rows g;
    g.n = 0;
    g.s = copy + (size_t)(a->k_dim + a->v_dim) * PAGE * EL_SEG_PAGES;
    for (int32_t r = 0; r < a->n_q; r++) {
        float *o = a->o + (size_t)r * (size_t)a->v_dim;
        memset(o, 0, (size_t)a->v_dim * sizeof *o);
        a->m[r] = -INFINITY;
        a->l[r] = 0.0f;
        if (a->lo[r] >= a->hi[r]) continue;
        g.lo[g.n] = a->lo[r];
        g.hi[g.n] = a->hi[r];
        g.q[g.n] = a->q[r];
        g.o[g.n] = o;
        g.row[g.n] = r;
        g.n++;
    }
    if (g.n == 0) return;
    const int32_t in_place = g.n <= VX_ROWS_16;
    if (in_place) {
        seg_scores_in_place(a, &g);
    } else {
        seg_scores_shared(a, &g, copy);
    }
    for (int32_t i = 0; i < g.n; i++) {
        seg_weights(g.s + (size_t)i * SEG, g.lo[i], g.hi[i], a->scale, a->softcap, &a->m[g.row[i]],
                    &a->l[g.row[i]]);
    }
    if (in_place) {
        for (int32_t p = 0; p < SEG; p += PAGE) {
            if (seg_sees(&g, 0, g.n, p, PAGE)) seg_values_in_place(a, &g, p, copy);
        }
        return;
    }
    const int32_t width = VX_ROWS_32 == VX_ROWS_16 ? 32 : 16;
    for (int32_t p = 0; p < SEG; p += PV_CHUNK) {
        if (!seg_sees(&g, 0, g.n, p, PV_CHUNK)) continue;
        int32_t lanes = width;
        for (int32_t d = 0; d < a->v_dim; d += lanes) {
            if (a->v_dim - d < lanes) lanes = least(16, a->v_dim - d);
            seg_values_shared(a, &g, p, p + PV_CHUNK, d, lanes, copy);
        }
    }
}

static void attn_fold(float *M, float *L, float *O, float m, float l, const float *o, int32_t v_dim) {
    if (l == 0.0f) return;
    if (*L == 0.0f) {
        *M = m;
        *L = l;
        memcpy(O, o, (size_t)v_dim * sizeof *o);
        return;
    }
    const float n = *M < m ? m : *M;
    const float keep = el_exp(*M - n), take = el_exp(m - n);
    *L = el_fma(l, take, *L * keep);
    *M = n;
    const vf16 a = vf_set1(keep), b = vf_set1(take);
    for (int32_t i = 0; i < v_dim; i += 16) {
        vf16 old = vf_mul(vf_load_some(O + i, v_dim - i), a);
        vf_store_some(O + i, vf_fma(vf_load_some(o + i, v_dim - i), b, old), v_dim - i);
    }
}

/* ---- stores into the cache --------------------------------------------------------------------------------------- */

static void k_store_f16(const float *x, int32_t dim, int32_t slot, void *dst) {
    uint16_t *to = (uint16_t *)dst + slot;
    for (int32_t e = 0; e < dim; e += 16) {
        uint16_t h[16];
        vf_store_f16(h, vf_load_some(x + e, dim - e));
        for (int32_t i = 0; i < least(16, dim - e); i++) to[(size_t)(e + i) * PAGE] = h[i];
    }
}

static void k_store_f32(const float *x, int32_t dim, int32_t slot, void *dst) {
    float *to = (float *)dst + slot;
    for (int32_t e = 0; e < dim; e++) to[(size_t)e * PAGE] = x[e];
}

static void v_store_f16(const float *x, int32_t dim, int32_t slot, void *dst) {
    uint16_t *to = (uint16_t *)dst + (size_t)slot * (size_t)dim;
    for (int32_t e = 0; e < dim; e += 16) {
        vf_store_f16_some(to + e, vf_load_some(x + e, dim - e), dim - e);
    }
}

static void v_store_f32(const float *x, int32_t dim, int32_t slot, void *dst) {
    memcpy((float *)dst + (size_t)slot * (size_t)dim, x, (size_t)dim * sizeof *x);
}
