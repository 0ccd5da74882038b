/* After the last op: edits of the logits, top-k, log-sum-exp, copies. Each row is cut into groups of 1,024-logit
 * segments; whoever completes a row's last group merges them, in order. */
#include "engine.h"
#include "fp.h"

#include <string.h>

enum { CHUNKS_PER_THREAD = 4 };

static int32_t n_segments(const el_engine *e) { return el_ceil_div(e->plan.n_vocab, EL_TOP_SEGMENT); }

int32_t el_select_begin(el_engine *e) {
    el_select *s = &e->select;
    int32_t rows = e->n_rows[1], segments = n_segments(e), chunks = CHUNKS_PER_THREAD * e->n_threads;
    if (rows == 0) return 0;
    int32_t groups =
        e->n_threads == 1 || rows >= chunks ? 1 : el_min(el_ceil_div(chunks, rows), EL_TOP_GROUPS);
    s->group_segments = el_ceil_div(segments, el_min(groups, segments));
    s->n_groups = el_ceil_div(segments, s->group_segments);
    for (int32_t r = 0; r < rows; r++) {
        atomic_store_explicit(&s->done[r], 0, memory_order_relaxed);
        atomic_store_explicit(&s->broken[r], 0, memory_order_relaxed);
    }
    return rows * s->n_groups;
}

/* The edits of a row that fall on logits first .. first+n-1. */
static void adjust(const el_batch *b, int32_t row, int32_t first, int32_t n, float *x) {
    int32_t low = 0, high = b->n_adjust;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (b->adj_row[middle] < row) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (int32_t i = low; i < b->n_adjust && b->adj_row[i] == row; i++) {
        int32_t at = b->adj_token[i] - first;
        if (at < 0 || at >= n) continue;
        float l = x[at];
        l = l > 0.0f ? l / b->adj_rep[i] : l * b->adj_rep[i];
        x[at] = l + b->adj_add[i];
    }
}

static void lse_segments(el_engine *e, int32_t row, int32_t first, int32_t n, const float *x) {
    for (int32_t i = 0; i < n; i += EL_TOP_SEGMENT) {
        size_t at = (size_t)row * (size_t)n_segments(e) + (size_t)((first + i) / EL_TOP_SEGMENT);
        float *m = &e->select.m[at], *l = &e->select.l[at];
        e->kernels.lse_segment(x + i, el_min(EL_TOP_SEGMENT, n - i), m, l);
        if (*m == el_float(0xff800000u)) *l = 0.0f; /* nothing but banned tokens */
    }
}

static float lse(const el_engine *e, int32_t row) {
    const el_select *s = &e->select;
    float M = 0.0f, L = 0.0f, none = 0.0f;
    size_t at = (size_t)row * (size_t)n_segments(e);
    for (int32_t i = 0; i < n_segments(e); i++) {
        e->kernels.attn_fold(&M, &L, &none, s->m[at + (size_t)i], s->l[at + (size_t)i], &none, 0);
    }
    return M + el_log(L);
}

/* Merge the lists of a row's groups: they are in the order of their ids, so an earlier list wins a tie. */
static void merge(el_engine *e, int32_t row) {
    const el_select *s = &e->select;
    int32_t k = e->batch->top_k, at[EL_TOP_GROUPS] = {0};
    int32_t *ids = e->output->top_ids + (size_t)row * (size_t)k;
    float *values = e->output->top_logits + (size_t)row * (size_t)k;
    for (int32_t i = 0; i < k; i++) {
        int32_t best = -1;
        float value = 0.0f;
        for (int32_t g = 0; g < s->n_groups; g++) {
            int32_t list = row * s->n_groups + g;
            if (at[g] >= s->have[list]) continue;
            float v = s->values[(size_t)list * (size_t)k + (size_t)at[g]];
            if (best < 0 || v > value) {
                best = g;
                value = v;
            }
        }
        ids[i] = best < 0 ? -1 : s->ids[(size_t)(row * s->n_groups + best) * (size_t)k + (size_t)at[best]];
        values[i] = best < 0 ? el_float(0xff800000u) : value;
        if (best >= 0) at[best]++;
    }
}

/* What a row without meaning gets: ids -1. */
static void give_up(el_engine *e, int32_t row) {
    int32_t k = e->batch->top_k;
    for (int32_t i = 0; i < k; i++) {
        e->output->top_ids[(size_t)row * (size_t)k + (size_t)i] = -1;
        e->output->top_logits[(size_t)row * (size_t)k + (size_t)i] = el_float(0xff800000u);
    }
    if (e->output->lse) e->output->lse[row] = el_float(0x7fc00000u);
    el_mark_failed(e, 1, row);
}

static void top_k(el_engine *e, int32_t row, int32_t chunk, int32_t first, int32_t n, const float *x) {
    el_select *s = &e->select;
    int32_t k = e->batch->top_k;
    if (k == 0) return;
    int32_t alone = s->n_groups == 1, *have = alone ? &(int32_t){0} : &s->have[chunk];
    size_t at = (size_t)(alone ? row : chunk) * (size_t)k;
    int32_t *ids = (alone ? e->output->top_ids : s->ids) + at;
    float *values = (alone ? e->output->top_logits : s->values) + at;
    *have = 0;
    e->kernels.top_k(x, n, first, k, ids, values, have);
    for (int32_t i = *have; alone && i < k; i++) { /* the vocabulary is smaller than k */
        ids[i] = -1;
        values[i] = el_float(0xff800000u);
    }
}

void el_select_chunk(el_engine *e, int32_t thread, int32_t chunk) {
    (void)thread;
    el_select *s = &e->select;
    int32_t row = chunk / s->n_groups, first = chunk % s->n_groups * s->group_segments * EL_TOP_SEGMENT;
    int32_t n = el_min(s->group_segments * EL_TOP_SEGMENT, e->plan.n_vocab - first);
    float *x = e->buffers[e->plan.logits] + (size_t)row * e->strides[e->plan.logits] + first;
    if (e->kernels.nonfinite(x, n)) {
        atomic_store_explicit(&s->broken[row], 1, memory_order_relaxed);
    } else {
        adjust(e->batch, row, first, n, x);
        if (e->output->lse) lse_segments(e, row, first, n, x);
        top_k(e, row, chunk, first, n, x);
    }
    if (e->output->logits) {
        memcpy(e->output->logits + (size_t)row * (size_t)e->plan.n_vocab + first, x, (size_t)n * sizeof *x);
    }
    if (atomic_fetch_add_explicit(&s->done[row], 1, memory_order_acq_rel) + 1 < s->n_groups) return;
    if (atomic_load_explicit(&s->broken[row], memory_order_relaxed)) {
        give_up(e, row);
        return;
    }
    if (e->batch->top_k && s->n_groups > 1) merge(e, row);
    if (e->output->lse) e->output->lse[row] = lse(e, row);
}
