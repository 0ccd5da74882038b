/* ATTENTION. A unit is a block of query rows that share a kv head: rows are tokens x the query heads of that kv head. A
 * unit visits the segments of 256 positions that its rows see and folds them left to right. When there are too few
 * units for the threads, as when one sequence decodes, every segment is a chunk of its own, and whoever completes a
 * unit's last one folds them all: the same arithmetic in the same order. Few units of one segment are cut into parts of
 * their rows, as many as make the threads' shares equal.
 */
#include "engine.h"

#include <string.h>

enum { UNITS_PER_THREAD = 4, MIN_PART_ROWS = 6 };

/* A unit, and the part of the context it sees. */
typedef struct unit {
    const el_cop *c;
    const el_layer *l;
    int32_t sequence, head; /* kv head */
    int32_t group;          /* query heads per kv head */
    int32_t first_row, n;   /* rows of the sequence, numbered token * group + query head */
    int32_t first_token;    /* of the sequence */
    int32_t last_position;  /* of the sequence */
    int32_t first_segment, n_segments;
} unit;

/* Positions that a token at `position` sees: *lo .. *hi-1. */
static void sees(const unit *u, int32_t position, int32_t *lo, int32_t *hi) {
    int32_t window = u->c->op.i[3];
    *lo = window && position >= window ? position - window + 1 : 0;
    *hi = (u->c->op.i[4] ? position : u->last_position) + 1;
}

/* Unit number `index`; those with the most to do come first. */
static unit unit_at(const el_engine *e, const el_cop *c, int32_t index) {
    const el_layer *l = &e->plan.layers[c->layer];
    const el_shape *shape = &e->plan.shapes[c->shape];
    const int32_t *first = e->block_first + (size_t)c->shape * ((size_t)e->limits.max_seqs + 1);
    const el_batch *b = e->batch;
    int32_t block = first[b->n_seqs] - 1 - index / l->n_heads;
    int32_t low = 0, high = b->n_seqs; /* first[low] <= block < first[high] */
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (first[middle] <= block) {
            low = middle;
        } else {
            high = middle;
        }
    }
    int32_t start = b->seq_start[low], n_tokens = b->seq_start[low + 1] - start;
    unit u = {
        .c = c,
        .l = l,
        .sequence = low,
        .head = index % l->n_heads,
        .group = shape->group,
        .first_row = (block - first[low]) * shape->block,
        .first_token = start,
        .last_position = b->positions[start + n_tokens - 1],
    };
    u.n = el_min(shape->block, n_tokens * u.group - u.first_row);
    int32_t lo, hi, unused;
    sees(&u, b->positions[start + u.first_row / u.group], &lo, &unused);
    sees(&u, b->positions[start + (u.first_row + u.n - 1) / u.group], &unused, &hi);
    u.first_segment = lo / EL_SEGMENT;
    u.n_segments = (hi - 1) / EL_SEGMENT - u.first_segment + 1;
    return u;
}

static int32_t clamp(int32_t x, int32_t high) { return x < 0 ? 0 : x > high ? high : x; }

/* One segment of a unit into m, l, o. */
static void run_segment(el_engine *e, const unit *u, int32_t segment, void *scratch, float *m, float *l,
                        float *o) {
    const float *q[EL_ATTN_ROWS];
    int32_t lo[EL_ATTN_ROWS], hi[EL_ATTN_ROWS], low = EL_SEGMENT, high = 0;
    for (int32_t r = 0; r < u->n; r++) {
        int32_t row = u->first_row + r, token = u->first_token + row / u->group;
        int32_t head = u->head * u->group + row % u->group;
        q[r] = el_row(e, &u->c->op.v[0], token) + (size_t)head * (size_t)u->l->k_dim;
        sees(u, e->batch->positions[token], &lo[r], &hi[r]);
        lo[r] = clamp(lo[r] - segment * EL_SEGMENT, EL_SEGMENT);
        hi[r] = el_max(lo[r], clamp(hi[r] - segment * EL_SEGMENT, EL_SEGMENT));
        if (lo[r] < hi[r]) {
            low = el_min(low, lo[r]);
            high = el_max(high, hi[r]);
        }
    }
    const void *k_pages[EL_SEG_PAGES] = {NULL}, *v_pages[EL_SEG_PAGES] = {NULL};
    const el_class *class = &e->plan.classes[u->l->cls];
    const int32_t *pages = e->batch->pages[u->l->cls] +
                           (size_t)u->sequence * (size_t)e->batch->page_stride[u->l->cls] +
                           (size_t)segment * EL_SEG_PAGES;
    for (int32_t j = low / EL_PAGE_TOKENS; j * EL_PAGE_TOKENS < high; j++) {
        const char *page = class->pool + (size_t)pages[j] * class->page_bytes;
        k_pages[j] = page + u->l->k_offset + (size_t)u->head * u->l->k_head_bytes;
        v_pages[j] = page + u->l->v_offset + (size_t)u->head * u->l->v_head_bytes;
    }
    e->kernels.attn_segment(&(el_attn_segment){
        .n_q = u->n,
        .k_dim = u->l->k_dim,
        .v_dim = u->l->v_dim,
        .k_type = e->plan.k_type,
        .v_type = e->plan.v_type,
        .q = q,
        .lo = lo,
        .hi = hi,
        .k_pages = k_pages,
        .v_pages = v_pages,
        .scale = u->c->op.f[0],
        .softcap = u->c->op.f[1],
        .m = m,
        .l = l,
        .o = o,
        .scratch = scratch,
    });
}

static void fold(el_engine *e, const unit *u, el_scratch *s, const float *m, const float *l, const float *o) {
    size_t v_dim = (size_t)u->l->v_dim;
    for (int32_t r = 0; r < u->n; r++) {
        e->kernels.attn_fold(&s->M[r], &s->L[r], s->O + (size_t)r * v_dim, m[r], l[r], o + (size_t)r * v_dim,
                             u->l->v_dim);
    }
}

/* Fold the sinks and store the result. */
static void finish(el_engine *e, const unit *u, el_scratch *s) {
    int32_t v_dim = u->l->v_dim;
    memset(s->o, 0, (size_t)v_dim * sizeof *s->o);
    for (int32_t r = 0; r < u->n; r++) {
        int32_t row = u->first_row + r, head = u->head * u->group + row % u->group;
        float *O = s->O + (size_t)r * (size_t)v_dim;
        if (u->c->vec[0]) e->kernels.attn_fold(&s->M[r], &s->L[r], O, u->c->vec[0][head], 1.0f, s->o, v_dim);
        float *y = el_row(e, &u->c->op.v[1], u->first_token + row / u->group) + (size_t)head * (size_t)v_dim;
        e->kernels.scale(O, 1.0f / s->L[r], v_dim, y);
    }
}

static void clear(const unit *u, el_scratch *s) {
    memset(s->L, 0, sizeof *s->L * (size_t)u->n);
    memset(s->M, 0, sizeof *s->M * (size_t)u->n);
}

static void whole_unit(el_engine *e, const unit *u, el_scratch *s) {
    clear(u, s);
    for (int32_t i = 0; i < u->n_segments; i++) {
        run_segment(e, u, u->first_segment + i, s->attention, s->m, s->l, s->o);
        fold(e, u, s, s->m, s->l, s->o);
    }
    finish(e, u, s);
}

static float *partial(const el_units *us, int32_t chunk) { return us->partials + (size_t)chunk * us->stride; }

/* Try to make every segment a chunk; 0 when the partials do not fit or there is nothing to split. */
static int32_t begin_split(el_engine *e, const el_cop *c) {
    el_units *us = &e->units;
    int64_t n = 0;
    us->most_rows = 0;
    for (int32_t i = 0; i < us->n; i++) {
        unit u = unit_at(e, c, i);
        us->first[i] = (int32_t)n;
        atomic_store_explicit(&us->done[i], 0, memory_order_relaxed);
        n += u.n_segments;
        us->most_rows = el_max(us->most_rows, u.n);
    }
    us->first[us->n] = (int32_t)n;
    us->stride =
        2 * EL_ATTN_ROWS + ((size_t)us->most_rows * (size_t)e->plan.layers[c->layer].v_dim + 15) / 16 * 16;
    return n > us->n && (size_t)n * us->stride <= e->partial_floats ? (int32_t)n : 0;
}

/* The fewest parts of which every thread gets as many, unless they had too few rows. */
static int32_t n_parts(const el_engine *e) {
    int32_t a = e->n_threads, b = e->units.n;
    while (b > 0) {
        int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return el_max(1, el_min(e->n_threads / a, e->units.most_rows / MIN_PART_ROWS));
}

/* Part `index` of the unit. */
static void take_part(unit *u, int32_t index, int32_t parts) {
    int32_t first = u->n * index / parts, end = u->n * (index + 1) / parts;
    u->first_row += first;
    u->n = end - first;
}

int32_t el_attention_begin(el_engine *e, el_phase *phase) {
    const el_cop *c = &e->plan.ops[phase->first];
    const int32_t *first = e->block_first + (size_t)c->shape * ((size_t)e->limits.max_seqs + 1);
    el_units *us = &e->units;
    us->n = first[e->batch->n_seqs] * e->plan.layers[c->layer].n_heads;
    us->split = 0;
    us->parts = 1;
    if (e->n_threads == 1 || us->n >= e->n_threads * UNITS_PER_THREAD) return us->n;
    int32_t n = begin_split(e, c);
    us->split = n > 0;
    if (n > 0) return n;
    us->parts = n_parts(e);
    return us->n * us->parts;
}

void el_attention_chunk(el_engine *e, const el_phase *phase, int32_t thread, int32_t chunk) {
    const el_cop *c = &e->plan.ops[phase->first];
    el_units *us = &e->units;
    el_scratch *s = &e->scratch[thread];
    if (!us->split) {
        unit u = unit_at(e, c, chunk / us->parts);
        take_part(&u, chunk % us->parts, us->parts);
        if (u.n > 0) whole_unit(e, &u, s);
        return;
    }
    int32_t index = 0;
    while (us->first[index + 1] <= chunk) index++;
    unit u = unit_at(e, c, index);
    float *p = partial(us, chunk);
    run_segment(e, &u, u.first_segment + chunk - us->first[index], s->attention, p, p + EL_ATTN_ROWS,
                p + 2 * EL_ATTN_ROWS);
    if (atomic_fetch_add_explicit(&us->done[index], 1, memory_order_acq_rel) + 1 < u.n_segments) return;
    clear(&u, s);
    for (int32_t i = us->first[index]; i < us->first[index + 1]; i++) {
        p = partial(us, i);
        fold(e, &u, s, p, p + EL_ATTN_ROWS, p + 2 * EL_ATTN_ROWS);
    }
    finish(e, &u, s);
}
