/* One attention segment (kernels.h: el_attn_segment), in three passes over all its rows:
 *
 *   scores   a tile is some query rows x 16 or 32 positions; its sums run over e and stay in registers
 *   weights  in place, 16 positions at a time
 *   values   a tile is some query rows x 16 or 32 value dims; its sums run over the positions that all its
 *            rows see; those that only some of them see (the causal diagonal) come before and after, row by row
 *
 * Few rows (decode) read f16 and f32 where they lie. More rows (prefill), and rows of the other formats, share
 * a copy in float, 16 lanes to a plane, small enough for the first level cache. q8_0 is multiplied as
 * integers (attention_q8.inl). Sums of positions that a row does not see may be computed,
 * but are never used. */

/* Where tiles read from: the cache's f16 or f32 where they lie, or a copy in float, [index][lanes of the tile]. */
enum { SEG_F16 = EL_KV_F16, SEG_F32 = EL_KV_F32, SEG_COPY };

enum {
    SEG = EL_SEGMENT,
    PAGE = EL_PAGE_TOKENS,
    PV_CHUNK = 128,
    MAX_COLUMNS = 32 / VX_LANES,
    IN_PLACE_ROWS = 2 * VX_ROWS_16
};

/* K [e][position] or V [position][d]: element (index, lane) is data + index*stride + lane.
 * While a tile reads `data`, it prefetches what is wanted next: ahead + index*ahead_step (bytes). */
typedef struct seg_block {
    const char *data;
    size_t stride;
    const char *ahead;
    size_t ahead_step;
} seg_block;

/* The rows that see a position of the segment, cut into blocks of one tile each: rows cut[b]..cut[b+1]-1. */
typedef struct seg_rows {
    int32_t n, n_blocks;
    int32_t together; /* all rows see the same positions */
    int32_t lanes;    /* of a tile */
    int32_t cut[EL_ATTN_ROWS + 1];
    int32_t lo[EL_ATTN_ROWS], hi[EL_ATTN_ROWS];
    const float *q[EL_ATTN_ROWS];
    float *o[EL_ATTN_ROWS];
    int32_t row[EL_ATTN_ROWS]; /* index in el_attn_segment */
    float *s;                  /* [n][SEG] scores, then weights */
    const void *first_v;       /* the first page of values that will be read */
} seg_rows;

EL_INLINE vx seg_column(const int32_t source, const void *at, const int32_t c) {
    const size_t lane = (size_t)c * VX_LANES;
    return source == SEG_F16 ? vx_load_f16((const uint16_t *)at + lane) : vx_load((const float *)at + lane);
}

/* A register tile: out[r][lane] = chain over i = 0..n-1 of x[r][i] * y[i][lane] for `rows` rows and
 * `columns` registers of lanes, from +0 or, when it continues, from what out holds. The shorter side of the
 * tile is held in registers, the longer one passes through one register. */
EL_INLINE void seg_tile(const int32_t rows, const int32_t columns, const int32_t source,
                        const float *const *x, int32_t n, const seg_block *y, int32_t continues,
                        float *const *out) {
    vx sum[VX_ROWS_16][MAX_COLUMNS], held[VX_ROWS_16];
    const float *row[VX_ROWS_16];
    EL_UNROLL
    for (int32_t r = 0; r < rows; r++) {
        row[r] = x[r];
        EL_UNROLL
        for (int32_t c = 0; c < columns; c++) {
            sum[r][c] = continues ? vx_load(out[r] + c * VX_LANES) : vx_set1(0.0f);
        }
    }
    const char *at = y->data, *ahead = y->ahead;
    const size_t stride = source == SEG_COPY ? (size_t)columns * VX_LANES : y->stride;
    const size_t step = stride * (source == SEG_F16 ? sizeof(uint16_t) : sizeof(float)),
                 ahead_step = y->ahead_step;
    for (int32_t i = 0; i < n; i++, at += step, ahead += ahead_step) {
        __builtin_prefetch(ahead);
        if (rows < columns) {
            EL_UNROLL
            for (int32_t r = 0; r < rows; r++) held[r] = vx_set1(row[r][i]);
            EL_UNROLL
            for (int32_t c = 0; c < columns; c++) {
                const vx column = seg_column(source, at, c);
                EL_UNROLL
                for (int32_t r = 0; r < rows; r++) sum[r][c] = vx_fma(held[r], column, sum[r][c]);
            }
        } else {
            EL_UNROLL
            for (int32_t c = 0; c < columns; c++) held[c] = seg_column(source, at, c);
            EL_UNROLL
            for (int32_t r = 0; r < rows; r++) {
                const vx factor = vx_set1(row[r][i]);
                EL_UNROLL
                for (int32_t c = 0; c < columns; c++) sum[r][c] = vx_fma(factor, held[c], sum[r][c]);
            }
        }
    }
    EL_UNROLL
    for (int32_t r = 0; r < rows; r++) {
        EL_UNROLL
        for (int32_t c = 0; c < columns; c++) vx_store(out[r] + c * VX_LANES, sum[r][c]);
    }
}

/* The tiles by element type and number of rows. */
typedef void tile_fn(const float *const *x, int32_t n, const seg_block *y, int32_t continues,
                     float *const *out);

#define EL_TILE(rows, lanes, type, source)                                                           \
    static void tile_##type##_##lanes##_##rows(const float *const *x, int32_t n, const seg_block *y, \
                                               int32_t continues, float *const *out) {               \
        seg_tile(rows, lanes / VX_LANES, source, x, n, y, continues, out);                           \
    }
#define EL_TILES_16(rows) \
    EL_TILE(rows, 16, f16, SEG_F16) EL_TILE(rows, 16, f32, SEG_F32) EL_TILE(rows, 16, copy, SEG_COPY)
#define EL_TILES_32(rows) \
    EL_TILE(rows, 32, f16, SEG_F16) EL_TILE(rows, 32, f32, SEG_F32) EL_TILE(rows, 32, copy, SEG_COPY)
VX_EACH_16(EL_TILES_16)
VX_EACH_32(EL_TILES_32)

#define EL_F16_16(rows)  [rows] = tile_f16_16_##rows,
#define EL_F32_16(rows)  [rows] = tile_f32_16_##rows,
#define EL_COPY_16(rows) [rows] = tile_copy_16_##rows,
#define EL_F16_32(rows)  [rows] = tile_f16_32_##rows,
#define EL_F32_32(rows)  [rows] = tile_f32_32_##rows,
#define EL_COPY_32(rows) [rows] = tile_copy_32_##rows,
static tile_fn *const TILES_16[3][VX_ROWS_16 + 1] = {[SEG_F16] = {VX_EACH_16(EL_F16_16)},
                                                     [SEG_F32] = {VX_EACH_16(EL_F32_16)},
                                                     [SEG_COPY] = {VX_EACH_16(EL_COPY_16)}};
static tile_fn *const TILES_32[3][VX_ROWS_32 + 1] = {[SEG_F16] = {VX_EACH_32(EL_F16_32)},
                                                     [SEG_F32] = {VX_EACH_32(EL_F32_32)},
                                                     [SEG_COPY] = {VX_EACH_32(EL_COPY_32)}};

static tile_fn *const *tiles_of(int32_t type, int32_t lanes) {
    return lanes == 32 ? TILES_32[type] : TILES_16[type];
}

/* Whether any of rows first..end-1 sees a position of begin..begin+n-1. */
static int32_t seg_sees(const seg_rows *g, int32_t first, int32_t end, int32_t begin, int32_t n) {
    if (g->together) return g->lo[first] < begin + n && begin < g->hi[first];
    for (int32_t i = first; i < end; i++) {
        if (g->lo[i] < begin + n && begin < g->hi[i]) return 1;
    }
    return 0;
}

/* What tiles read: `lanes` wide in a page of `type` from element `offset` on, vectors `stride` elements
 * apart, or a float copy; and what they prefetch meanwhile: as many bytes as that is in the page, in page
 * `next` (NULL: none) from element `part` on. */
static seg_block seg_ahead(seg_block b, int32_t type, int32_t lanes, const void *next, size_t part) {
    const size_t bytes = el_kv_square_bytes(type);
    b.ahead = next ? (const char *)next + part * bytes / 1024 : b.data;
    b.ahead_step = (size_t)lanes * bytes / 1024;
    return b;
}
static size_t value_bytes(int32_t type) { return type == EL_KV_F16 ? sizeof(uint16_t) : sizeof(float); }
static seg_block seg_in_place(int32_t type, const void *page, size_t offset, size_t stride) {
    return (seg_block){.data = (const char *)page + offset * value_bytes(type), .stride = stride};
}
static seg_block seg_copy(const float *copy, int32_t lanes) {
    return (seg_block){.data = (const char *)copy, .stride = (size_t)lanes};
}

/* ---- scores -------------------------------------------------------------------------------------------- */

/* The keys of positions p..p+lanes-1. */
EL_INLINE seg_block seg_keys(const int32_t in_place, const el_attn_segment *a, const seg_rows *g, int32_t p,
                             float *copy) {
    const int32_t page = p / PAGE, slot = p % PAGE;
    const void *next = page + 1 < EL_SEG_PAGES ? a->k_pages[page + 1] : NULL;
    seg_block k;
    if (in_place) {
        k = seg_in_place(a->k_type, a->k_pages[page], (size_t)slot, PAGE);
    } else {
        k = seg_copy(copy, g->lanes);
        for (int32_t i = 0; i < g->lanes; i += 16) {
            KV_PLANES[a->k_type].k(a->k_pages[page], a->k_dim, slot + i, (size_t)g->lanes, copy + i);
        }
    }
    return seg_ahead(k, a->k_type, g->lanes, next ? next : g->first_v, (size_t)slot * (size_t)a->k_dim);
}

EL_INLINE void seg_scores(const int32_t in_place, const el_attn_segment *a, const seg_rows *g, float *copy) {
    tile_fn *const *tiles = tiles_of(in_place ? a->k_type : SEG_COPY, g->lanes);
    for (int32_t p = 0; p < SEG; p += g->lanes) {
        if (!seg_sees(g, 0, g->n, p, g->lanes)) continue;
        const seg_block k = seg_keys(in_place, a, g, p, copy);
        for (int32_t b = 0; b < g->n_blocks; b++) {
            const int32_t first = g->cut[b], end = g->cut[b + 1];
            if (!seg_sees(g, first, end, p, g->lanes)) continue;
            float *out[VX_ROWS_16];
            for (int32_t i = first; i < end; i++) out[i - first] = g->s + (size_t)i * SEG + p;
            tiles[end - first](g->q + first, a->k_dim, &k, 0, out);
        }
    }
}

#include "generic/attention_q8.inl"

/* ---- weights ------------------------------------------------------------------------------------------- */

/* s[lo..hi-1] from sums to scores, -inf elsewhere in the groups of 16 that it touches; returns the largest. */
EL_INLINE float seg_largest(const int32_t capped, float *s, int32_t lo, int32_t hi, float scale,
                            float softcap) {
    const int32_t end = (hi + 15) / 16 * 16;
    const vf16 factor = vf_set1(scale), cap = vf_set1(softcap), unseen = vf_set1(-INFINITY);
    vf16 top = unseen;
    for (int32_t p = lo / 16 * 16; p < end; p += 16) {
        vf16 x = vf_mul(vf_load(s + p), factor);
        if (capped) x = vf_softcap(x, cap);
        if (p < lo || p + 16 > hi) x = vf_select(vm_range(lo - p, hi - p), x, unseen);
        vf_store(s + p, x);
        top = vf_max(x, top);
    }
    return first_largest(s + lo, hi - lo, vf_largest(top));
}

/* s[lo..hi-1] from scores to weights, 0 elsewhere in the groups of 16; returns their sum. */
static float seg_exp(float *s, int32_t lo, int32_t hi, float largest) {
    const vf16 shift = vf_set1(largest);
    vf16 sum = vf_zero();
    for (int32_t p = lo / 16 * 16; p < hi; p += 16) {
        vf16 w = vf_exp(vf_sub(vf_load(s + p), shift));
        vf_store(s + p, w);
        sum = vf_add(sum, w);
    }
    return vf_fold16(sum);
}

/* The maximum of a row takes long to arrive: some rows' are looked for before any is used. */
static void seg_weights(const el_attn_segment *a, const seg_rows *g) {
    enum { ROWS = 8 };
    for (int32_t first = 0; first < g->n; first += ROWS) {
        const int32_t end = least(first + ROWS, g->n);
        for (int32_t i = first; i < end; i++) {
            float *s = g->s + (size_t)i * SEG;
            a->m[g->row[i]] = a->softcap == 0.0f
                                  ? seg_largest(0, s, g->lo[i], g->hi[i], a->scale, 0.0f)
                                  : seg_largest(1, s, g->lo[i], g->hi[i], a->scale, a->softcap);
        }
        for (int32_t i = first; i < end; i++)
            a->l[g->row[i]] = seg_exp(g->s + (size_t)i * SEG, g->lo[i], g->hi[i], a->m[g->row[i]]);
    }
}

/* ---- values -------------------------------------------------------------------------------------------- */

/* Value dims d..d+lanes-1 of positions begin..stop-1: a page in place, or up to PV_CHUNK, copied. */
EL_INLINE seg_block seg_value_dims(const int32_t in_place, const el_attn_segment *a, const seg_rows *g,
                                   int32_t begin, int32_t stop, int32_t d, int32_t lanes, float *copy) {
    const int32_t width = lanes > 16 ? 32 : 16, page_size = a->v_dim * PAGE, wanted = d * (stop - begin);
    const int32_t skipped = in_place ? 0 : wanted / page_size, next = stop / PAGE + skipped;
    seg_block v;
    if (in_place) {
        v = seg_in_place(a->v_type, a->v_pages[begin / PAGE], (size_t)d, (size_t)a->v_dim);
    } else {
        v = seg_copy(copy, width);
        for (int32_t p = begin; p < stop; p += PAGE) {
            if (!seg_sees(g, 0, g->n, p, PAGE)) continue;
            for (int32_t i = 0; i < lanes; i += 16) {
                KV_PLANES[a->v_type].v(a->v_pages[p / PAGE], a->v_dim, d + i, least(16, lanes - i),
                                       (size_t)width, copy + (size_t)(p - begin) * (size_t)width + i);
            }
        }
    }
    return seg_ahead(v, a->v_type, lanes, next < EL_SEG_PAGES ? a->v_pages[next] : NULL,
                     (size_t)(wanted - skipped * page_size));
}

/* Continue the chains o of rows first..end-1 over begin..stop-1, held by `v` in elements of `size`. */
static void seg_continue(const seg_rows *g, int32_t first, int32_t end, int32_t begin, int32_t stop,
                         tile_fn *const *tiles, const seg_block *v, size_t size, float *const *o) {
    const float *w[VX_ROWS_16];
    seg_block at = *v;
    int32_t from = most(begin, g->lo[first]), to = least(stop, g->hi[first]); /* what every row sees */
    for (int32_t i = first + 1; i < end && !g->together; i++) {
        from = most(from, g->lo[i]);
        to = least(to, g->hi[i]);
    }
    if (from >= to) from = to = stop; /* nothing: all of it row by row */

    for (int32_t i = first; i < end && !g->together; i++) {
        const int32_t lo = most(begin, g->lo[i]), n = least(from, g->hi[i]) - lo;
        w[0] = g->s + (size_t)i * SEG + lo;
        at.data = v->data + (size_t)(lo - begin) * v->stride * size;
        if (n > 0) tiles[1](w, n, &at, 1, o + (i - first));
    }
    if (from < to) {
        for (int32_t i = first; i < end; i++) w[i - first] = g->s + (size_t)i * SEG + from;
        at.data = v->data + (size_t)(from - begin) * v->stride * size;
        tiles[end - first](w, to - from, &at, 1, o);
    }
    at.data = v->data + (size_t)(to - begin) * v->stride * size;
    for (int32_t i = first; i < end && !g->together; i++) {
        const int32_t n = least(stop, g->hi[i]) - to;
        w[0] = g->s + (size_t)i * SEG + to;
        if (n > 0) tiles[1](w, n, &at, 1, o + (i - first));
    }
}

/* Value dims d..d+lanes-1 (lanes at most 16, or 32; in place 16 or 32) over positions begin..stop-1. */
EL_INLINE void seg_some_values(const int32_t in_place, const el_attn_segment *a, const seg_rows *g,
                               int32_t begin, int32_t stop, int32_t d, int32_t lanes, float *copy) {
    const int32_t type = in_place ? a->v_type : SEG_COPY, is_part = !in_place && lanes < 16;
    const seg_block v = seg_value_dims(in_place, a, g, begin, stop, d, lanes, copy);
    for (int32_t b = 0; b < g->n_blocks; b++) {
        const int32_t first = g->cut[b], end = g->cut[b + 1];
        float part[VX_ROWS_16][16];
        float *o[VX_ROWS_16];
        for (int32_t i = first; i < end; i++) {
            o[i - first] = is_part ? part[i - first] : g->o[i] + d;
            if (is_part) vf_store(part[i - first], vf_load_n(g->o[i] + d, lanes));
        }
        seg_continue(g, first, end, begin, stop, tiles_of(type, most(lanes, 16)), &v, value_bytes(type), o);
        for (int32_t i = first; i < end && is_part; i++)
            vf_store_n(g->o[i] + d, vf_load(part[i - first]), lanes);
    }
}

EL_INLINE void seg_values(const int32_t in_place, const el_attn_segment *a, const seg_rows *g, float *copy) {
    const int32_t n = in_place ? PAGE : PV_CHUNK;
    for (int32_t p = 0; p < SEG; p += n) {
        if (!seg_sees(g, 0, g->n, p, n)) continue;
        int32_t lanes = g->lanes;
        for (int32_t d = 0; d < a->v_dim; d += lanes) {
            if (a->v_dim - d < lanes) lanes = least(16, a->v_dim - d);
            seg_some_values(in_place, a, g, p, p + n, d, lanes, copy);
        }
    }
}

static void attn_segment(const el_attn_segment *a) {
    float *copy = a->scratch;
    seg_rows g;
    g.n = g.together = 0;
    g.s = copy + (size_t)(a->k_dim + a->v_dim) * PAGE * EL_SEG_PAGES;
    for (int32_t r = 0; r < a->n_q; r++) {
        float *o = a->o + (size_t)r * (size_t)a->v_dim;
        memset(o, 0, (size_t)a->v_dim * sizeof *o);
        a->m[r] = -INFINITY;
        a->l[r] = 0.0f;
        if (a->lo[r] >= a->hi[r]) continue;
        g.together = g.n == 0 || (g.together && a->lo[r] == g.lo[0] && a->hi[r] == g.hi[0]);
        g.lo[g.n] = a->lo[r];
        g.hi[g.n] = a->hi[r];
        g.q[g.n] = a->q[r];
        g.o[g.n] = o;
        g.row[g.n] = r;
        g.n++;
    }
    g.n_blocks = (g.n + VX_ROWS_16 - 1) / VX_ROWS_16;
    for (int32_t b = 0; b <= g.n_blocks && g.n > 0; b++) g.cut[b] = g.n * b / g.n_blocks;
    g.lanes = (g.n_blocks == 1 ? g.n : VX_ROWS_16) <= VX_ROWS_32 ? 32 : 16;

    g.first_v = NULL;
    for (int32_t j = EL_SEG_PAGES - 1; j >= 0; j--) {
        if (seg_sees(&g, 0, g.n, j * PAGE, PAGE)) g.first_v = a->v_pages[j];
    }

    /* Known to the compiler in each call: where one sequence decodes, choosing took a sixth of the time. */
    const int32_t is_few = g.n <= IN_PLACE_ROWS;
    if (a->k_type == EL_KV_Q8_0) {
        seg_scores_q8(a, &g);
    } else if (is_few && KV_PLANES[a->k_type].has_tiles) {
        seg_scores(1, a, &g, NULL);
    } else {
        seg_scores(0, a, &g, copy);
    }
    seg_weights(a, &g);
    if (a->v_type == EL_KV_Q8_0) {
        seg_values_q8(a, &g);
    } else if (is_few && KV_PLANES[a->v_type].has_tiles && a->v_dim % 16 == 0) {
        seg_values(1, a, &g, NULL);
    } else {
        seg_values(0, a, &g, copy);
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

/* ---- stores into the cache ----------------------------------------------------------------------------- */

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
