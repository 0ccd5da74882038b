/* Matmul ops: LINEAR, GATED and their expert forms.
 *
 * A chunk is a run of panels times a run of columns (tokens). The kernel leaves 16 rows of a panel for each column; the
 * epilogue is `v * scale`, `+ bias`, then `residual + v`, in this order (docs/numerics.md). Results do not depend on how
 * the work is cut.
 */
#include "engine.h"

#include <string.h>

enum { CHUNKS_PER_THREAD = 8, MAX_GATED_PANELS = 4, MIN_COLUMNS = 64, CACHE_BYTES = 384 << 10 };

/* How a chunk's size is chosen, in nanoseconds; a panel is estimated by its bytes and its products. */
static const float MIN_CHUNK_NS = 1500.0f, MAX_CHUNK_NS = 25000.0f, BYTES_PER_NS = 28.0f,
                   PRODUCTS_PER_NS = 160.0f;

/* A run of columns: where their activations and results are. For experts a column is a (token, rank) pair. */
typedef struct columns {
    const void **x;
    float **y;
    const float **residual; /* NULL: none */
    int32_t n;
} columns;

static int32_t is_expert(const el_cop *c) {
    return c->op.code == EL_OP_EXPERT_LINEAR || c->op.code == EL_OP_EXPERT_GATED;
}

static int32_t is_gated(const el_cop *c) {
    return c->op.code == EL_OP_GATED || c->op.code == EL_OP_EXPERT_GATED;
}

/* ---- cutting a phase into chunks ---- */

static void group_by_expert(el_engine *e, const el_cop *c) {
    el_groups *g = &e->groups;
    int32_t n_experts = e->plan.mats[c->op.w[0]].n_stack, k = c->op.i[0], n = e->n_rows[c->axis];
    memset(g->count, 0, (size_t)n_experts * sizeof *g->count);
    for (int32_t t = 0; t < n; t++) {
        const int32_t *ids = (const int32_t *)el_row(e, &c->op.v[1], t);
        for (int32_t j = 0; j < k; j++) g->count[ids[j]]++;
    }
    g->n_active = 0;
    g->first[0] = 0;
    for (int32_t x = 0; x < n_experts; x++) {
        if (g->count[x] == 0) continue;
        g->active[g->n_active] = x;
        g->first[g->n_active + 1] = g->first[g->n_active] + g->count[x];
        g->count[x] = g->first[g->n_active++]; /* from here on: where the expert's next pair goes */
    }
    for (int32_t t = 0; t < n; t++) {
        const int32_t *ids = (const int32_t *)el_row(e, &c->op.v[1], t);
        for (int32_t j = 0; j < k; j++) g->pairs[g->count[ids[j]]++] = t * k + j;
    }
}

/* Bytes of weights and number of matrix rows that one step over the op's panels takes. */
static void panel_size(const el_engine *e, const el_cop *c, float *bytes, float *products) {
    int32_t code = c->op.code, n_mats = code == EL_OP_LINEAR ? c->op.i[0] : is_gated(c) ? 2 : 1;
    int32_t stride = is_expert(c) ? 3 : 2;
    float all_bytes = 0, all_products = 0;
    for (int32_t j = 0; j < n_mats; j++) {
        const el_mat *m = &e->plan.mats[c->op.w[j * stride]];
        all_bytes += (float)m->n_panels * (float)m->panel_bytes;
        all_products += (float)m->n_panels * (float)m->n_cols * EL_TILE_ROWS;
    }
    *bytes = all_bytes / (float)c->n_panels;
    *products = all_products / (float)c->n_panels;
}

/* Panels that fit where panels are packed on the fly. */
static int32_t packable(const el_engine *e, const el_cop *c, int32_t *on_the_fly) {
    int32_t code = c->op.code, n_mats = code == EL_OP_LINEAR ? c->op.i[0] : is_gated(c) ? 2 : 1;
    int32_t stride = is_expert(c) ? 3 : 2;
    size_t largest = 0, sum = 0;
    for (int32_t j = 0; j < n_mats; j++) {
        const el_mat *m = &e->plan.mats[c->op.w[j * stride]];
        if (m->panels) continue;
        if (m->panel_bytes > largest) largest = m->panel_bytes;
        sum += m->panel_bytes;
    }
    if (is_gated(c)) largest = sum;
    *on_the_fly = largest > 0;
    if (largest == 0) return EL_CHUNK_PANELS;
    size_t n = e->packed_bytes / largest;
    return n < EL_CHUNK_PANELS ? (int32_t)n : EL_CHUNK_PANELS;
}

/* Columns of one kernel call: activations that stay in the cache from panel to panel. */
static int32_t cached_columns(const el_engine *e, const el_cop *c) {
    size_t bytes = c->act_bytes ? c->act_bytes : (size_t)e->plan.mats[c->op.w[0]].n_cols * sizeof(float);
    size_t n = CACHE_BYTES / bytes / 16 * 16;
    return n < MIN_COLUMNS ? MIN_COLUMNS : n > EL_MAX_COLUMNS ? EL_MAX_COLUMNS : (int32_t)n;
}

/* ... and results that a gated op can keep aside. */
static int32_t columns_at_once(const el_engine *e, const el_cop *c, int32_t panels) {
    int32_t n = cached_columns(e, c);
    return is_gated(c) ? el_min(n, EL_TILE_FLOATS / (panels * EL_TILE_ROWS)) : n;
}

/* At most `wanted` panels a chunk, some less where that makes the threads' shares of n more equal. */
static int32_t even_panels(int32_t n, int32_t wanted, int32_t n_threads) {
    int32_t best = wanted, least = INT32_MAX, share = el_ceil_div(n, n_threads);
    for (int32_t panels = wanted; panels > wanted / 2 && least > share; panels--) {
        int32_t largest = el_ceil_div(el_ceil_div(n, panels), n_threads) * panels;
        if (largest >= least) continue;
        least = largest;
        best = panels;
    }
    return best;
}

static int32_t begin_op(el_engine *e, el_cop *c, int32_t first) {
    int32_t n = e->n_rows[c->axis], repeats = 1;
    c->cut = (el_cut){.first = first};
    if (n == 0) return 0;
    if (is_expert(c)) {
        group_by_expert(e, c);
        repeats = e->groups.n_active;
        n = el_ceil_div(n * c->op.i[0], repeats); /* columns of an expert on average */
    }
    float bytes, products;
    panel_size(e, c, &bytes, &products);
    int32_t on_the_fly, fits = packable(e, c, &on_the_fly);
    int32_t columns = n, column_groups = 1;
    if (!is_expert(c) && !on_the_fly) { /* a panel packed on the fly meets all its columns at once */
        column_groups = el_ceil_div(n, cached_columns(e, c));
        columns = el_min(n, el_ceil_div(el_ceil_div(n, column_groups), 16) * 16);
        column_groups = el_ceil_div(n, columns);
    }
    float ns = bytes / BYTES_PER_NS;
    float compute = products * (float)columns / PRODUCTS_PER_NS;
    ns = ns > compute ? ns : compute;
    float all = ns * (float)c->n_panels * (float)column_groups * (float)repeats;
    float target = all / (float)(e->n_threads * CHUNKS_PER_THREAD);
    target = target < MIN_CHUNK_NS ? MIN_CHUNK_NS : target > MAX_CHUNK_NS ? MAX_CHUNK_NS : target;
    float wanted = target / ns;
    int32_t panels = wanted < 1 ? 1 : wanted > EL_CHUNK_PANELS ? EL_CHUNK_PANELS : (int32_t)wanted;
    panels = el_min(el_min(panels, fits), c->n_panels);
    if (is_gated(c) && n > EL_MAX_COLUMNS / 4) panels = el_min(panels, MAX_GATED_PANELS);
    panels = even_panels(c->n_panels, panels, e->n_threads);
    c->cut.panels = panels;
    c->cut.columns = columns;
    c->cut.n_groups = el_ceil_div(c->n_panels, panels);
    c->cut.n_chunks = c->cut.n_groups * (is_expert(c) ? repeats : column_groups);
    return c->cut.n_chunks;
}

int32_t el_matmul_begin(el_engine *e, el_phase *phase) {
    int32_t n = 0;
    for (int32_t i = 0; i < phase->n_ops; i++) n += begin_op(e, &e->plan.ops[phase->first + i], n);
    return n;
}

/* ---- columns ---- */

/* Columns first .. first+n-1 of an op's rows, or of pairs when `pairs` is not NULL. */
static void gather(const el_engine *e, const el_cop *c, const int32_t *pairs, int32_t first, int32_t n,
                   columns *to) {
    const el_op *op = &c->op;
    const el_view *y = &op->v[pairs ? 2 : 1];
    int32_t k = pairs ? op->i[0] : 1, slot = op->i[pairs ? 2 : 1], width = y->width / k;
    int32_t per_rank = c->per_token > 1;
    size_t x_step = per_rank ? (size_t)(op->v[0].width / k) : 0;
    to->n = n;
    to->residual = op->code == EL_OP_LINEAR && op->v[2].buf >= 0 ? to->residual : NULL;
    for (int32_t i = 0; i < n; i++) {
        int32_t row = pairs ? pairs[first + i] / k : first + i;
        int32_t rank = pairs ? pairs[first + i] % k : 0;
        if (slot < 0) {
            to->x[i] = el_row(e, &op->v[0], row) + (size_t)rank * x_step;
        } else {
            int32_t at = per_rank ? row * k + rank : row;
            to->x[i] = e->slots[slot] + (size_t)at * c->act_bytes;
        }
        to->y[i] = el_row(e, y, row) + (size_t)rank * (size_t)width;
        if (to->residual) to->residual[i] = el_row(e, &op->v[2], row);
    }
}

/* ---- epilogues ---- */

static void scale_and_bias(float *v, int32_t n, float scale, const float *bias) {
    if (scale != 1.0f) {
        for (int32_t i = 0; i < n; i++) v[i] = v[i] * scale;
    }
    if (bias) {
        for (int32_t i = 0; i < n; i++) v[i] = v[i] + bias[i];
    }
}

/* One panel into columns y_at .. of every result row. */
static void linear_panel(const el_mat *m, const void *panel, int32_t n_rows, const columns *cols, size_t y_at,
                         float scale, const float *bias, el_scratch *s) {
    if (!cols->residual) {
        m->mm(panel, m->n_cols, n_rows, cols->x, cols->n, cols->y, y_at, s->mm);
        if (scale == 1.0f && !bias) return;
        for (int32_t i = 0; i < cols->n; i++) scale_and_bias(cols->y[i] + y_at, n_rows, scale, bias);
        return;
    }
    for (int32_t i = 0; i < cols->n; i++) s->y[i] = s->gate + (size_t)i * EL_TILE_ROWS;
    m->mm(panel, m->n_cols, n_rows, cols->x, cols->n, s->y, 0, s->mm);
    for (int32_t i = 0; i < cols->n; i++) {
        float *v = s->y[i], *y = cols->y[i] + y_at;
        const float *residual = cols->residual[i] + y_at;
        scale_and_bias(v, n_rows, scale, bias);
        for (int32_t r = 0; r < n_rows; r++) y[r] = residual[r] + v[r];
    }
}

/* ---- chunks ---- */

/* A run of panels of one matrix, and where they go. */
typedef struct band {
    const el_mat *m;
    const void *panels[EL_CHUNK_PANELS];
    const float *bias; /* of the first row of the first panel */
    float scale;
} band;

static void take_band(band *b, const el_mat *m, int32_t index, int32_t first, int32_t n, const float *bias,
                      float scale, char **room) {
    b->m = m;
    b->bias = bias ? bias + (size_t)index * (size_t)m->n_rows + (size_t)first * EL_TILE_ROWS : NULL;
    b->scale = scale;
    for (int32_t i = 0; i < n; i++) b->panels[i] = el_weights_panel(m, index, first + i, room);
}

static void run_linear(const band *b, int32_t first, int32_t n, const columns *cols, size_t y_at,
                       el_scratch *s) {
    for (int32_t i = 0; i < n; i++) {
        size_t row = (size_t)i * EL_TILE_ROWS;
        linear_panel(b->m, b->panels[i], el_panel_rows(b->m, first + i), cols, y_at + row, b->scale,
                     b->bias ? b->bias + row : NULL, s);
    }
}

/* The gate and the up part of a panel, panel by panel, then the activation over all their rows. */
static void run_gated(const el_engine *e, const el_cop *c, const band *gate, const band *up, int32_t first,
                      int32_t n, const columns *cols, el_scratch *s) {
    const band *bands[2] = {gate, up};
    float *results[2] = {s->gate, s->up};
    size_t stride = (size_t)n * EL_TILE_ROWS;
    int32_t n_rows = (n - 1) * EL_TILE_ROWS + el_panel_rows(gate->m, first + n - 1);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t half = 0; half < 2; half++) {
            const el_mat *m = bands[half]->m;
            for (int32_t j = 0; j < cols->n; j++) s->y[j] = results[half] + (size_t)j * stride;
            m->mm(bands[half]->panels[i], m->n_cols, el_panel_rows(m, first + i), cols->x, cols->n, s->y,
                  (size_t)i * EL_TILE_ROWS, s->mm);
        }
    }
    int32_t act = c->op.code == EL_OP_GATED ? c->op.i[0] : c->op.i[1];
    for (int32_t j = 0; j < cols->n; j++) {
        float *g = s->gate + (size_t)j * stride, *u = s->up + (size_t)j * stride;
        scale_and_bias(g, n_rows, gate->scale, gate->bias);
        scale_and_bias(u, n_rows, up->scale, up->bias);
        e->kernels.glu(act, g, u, n_rows, cols->y[j] + (size_t)first * EL_TILE_ROWS);
    }
}

/* Panels first .. first+n-1 of the parts of a LINEAR, as one range; each part on its own. */
static void linear_chunk(el_engine *e, const el_cop *c, int32_t first, int32_t n, int32_t column,
                         int32_t last_column, el_scratch *s) {
    columns cols = {.x = s->x, .y = s->rows, .residual = s->residual};
    char *room = s->panels;
    size_t y_at = 0;
    int32_t at_once = columns_at_once(e, c, n);
    for (int32_t p = 0; p < c->op.i[0] && n > 0; p++) {
        const el_mat *m = &e->plan.mats[c->op.w[2 * p]];
        int32_t here = el_min(m->n_panels - first, n);
        if (here > 0) {
            band b;
            take_band(&b, m, 0, first, here, c->vec[2 * p + 1], c->op.f[p], &room);
            for (int32_t i = column; i < last_column; i += at_once) {
                cols.residual = s->residual;
                gather(e, c, NULL, i, el_min(at_once, last_column - i), &cols);
                run_linear(&b, first, here, &cols, y_at + (size_t)first * EL_TILE_ROWS, s);
            }
            n -= here;
            first += here;
        }
        first -= m->n_panels;
        y_at += (size_t)m->n_rows;
    }
}

static void gated_chunk(el_engine *e, const el_cop *c, int32_t first, int32_t n, int32_t column,
                        int32_t last_column, el_scratch *s) {
    columns cols = {.x = s->x, .y = s->rows};
    band b[2];
    char *room = s->panels;
    int32_t at_once = columns_at_once(e, c, n);
    for (int32_t p = 0; p < 2; p++) {
        take_band(&b[p], &e->plan.mats[c->op.w[2 * p]], 0, first, n, c->vec[2 * p + 1], c->op.f[p], &room);
    }
    for (int32_t i = column; i < last_column; i += at_once) {
        gather(e, c, NULL, i, el_min(at_once, last_column - i), &cols);
        run_gated(e, c, &b[0], &b[1], first, n, &cols, s);
    }
}

static void expert_chunk(el_engine *e, const el_cop *c, int32_t first, int32_t n, int32_t which,
                         el_scratch *s) {
    const el_groups *g = &e->groups;
    int32_t expert = g->active[which], at_once = columns_at_once(e, c, n);
    columns cols = {.x = s->x, .y = s->rows};
    band b[2];
    char *room = s->panels;
    for (int32_t p = 0; p < (is_gated(c) ? 2 : 1); p++) {
        const float *scale = c->vec[3 * p + 2];
        take_band(&b[p], &e->plan.mats[c->op.w[3 * p]], expert, first, n, c->vec[3 * p + 1],
                  scale ? scale[expert] : 1.0f, &room);
    }
    for (int32_t i = g->first[which]; i < g->first[which + 1]; i += at_once) {
        gather(e, c, g->pairs, i, el_min(at_once, g->first[which + 1] - i), &cols);
        if (is_gated(c)) {
            run_gated(e, c, &b[0], &b[1], first, n, &cols, s);
        } else {
            run_linear(&b[0], first, n, &cols, (size_t)first * EL_TILE_ROWS, s);
        }
    }
}

void el_matmul_chunk(el_engine *e, const el_phase *phase, int32_t thread, int32_t chunk) {
    const el_cop *c = &e->plan.ops[phase->first];
    while (chunk >= c->cut.first + c->cut.n_chunks) c++;
    chunk -= c->cut.first;
    int32_t outer = chunk / c->cut.n_groups, first = chunk % c->cut.n_groups * c->cut.panels;
    int32_t n = el_min(c->cut.panels, c->n_panels - first);
    el_scratch *s = &e->scratch[thread];
    if (is_expert(c)) {
        expert_chunk(e, c, first, n, outer, s);
        return;
    }
    int32_t column = outer * c->cut.columns, last = el_min(column + c->cut.columns, e->n_rows[c->axis]);
    if (is_gated(c)) {
        gated_chunk(e, c, first, n, column, last, s);
    } else {
        linear_chunk(e, c, first, n, column, last, s);
    }
}
