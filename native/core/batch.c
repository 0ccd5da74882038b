/* Checks a batch against the engine's sizes: after this, a step reads and writes nothing it should not. */
#include "engine.h"
#include "fp.h"

static int32_t pointers(const el_batch *b, const el_output *o, int32_t n_classes, el_error *err) {
    const struct {
        const char *name;
        int32_t needed;
        const void *pointer;
    } fields[] = {
        {"batch: tokens", 1, b->tokens},
        {"batch: positions", 1, b->positions},
        {"batch: seq_start", 1, b->seq_start},
        {"batch: rows", b->n_rows, b->rows},
        {"batch: pages", n_classes, b->pages},
        {"batch: page_stride", n_classes, b->page_stride},
        {"batch: adj_row", b->n_adjust, b->adj_row},
        {"batch: adj_token", b->n_adjust, b->adj_token},
        {"batch: adj_rep", b->n_adjust, b->adj_rep},
        {"batch: adj_add", b->n_adjust, b->adj_add},
        {"output: status", 1, o->status},
        {"output: top_ids", b->top_k && b->n_rows, o->top_ids},
        {"output: top_logits", b->top_k && b->n_rows, o->top_logits},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].needed && !fields[i].pointer)
            return el_fail(err, EL_E_ARGUMENT, "%s is NULL", fields[i].name);
    }
    return EL_OK;
}

static int32_t sizes(const el_engine *e, const el_batch *b, el_error *err) {
    const struct {
        const char *name;
        int32_t value, low, high;
    } fields[] = {
        {"size", b->size, (int32_t)sizeof *b, (int32_t)sizeof *b},
        {"n_tokens", b->n_tokens, 1, e->limits.max_tokens},
        {"n_seqs", b->n_seqs, 1, e->limits.max_seqs},
        {"n_rows", b->n_rows, 0, e->limits.max_rows},
        {"top_k", b->top_k, 0, EL_MAX_TOP_K},
        {"n_adjust", b->n_adjust, 0, INT32_MAX},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].value < fields[i].low || fields[i].value > fields[i].high) {
            return el_fail(err, EL_E_ARGUMENT, "batch: %s is %d, expected %d to %d", fields[i].name,
                           fields[i].value, fields[i].low, fields[i].high);
        }
    }
    return EL_OK;
}

/* Sequence s's page of class c for each position lo .. hi-1. */
static int32_t pages(const el_engine *e, const el_batch *b, int32_t s, int32_t c, int32_t lo, int32_t hi,
                     el_error *err) {
    const el_class *k = &e->plan.classes[c];
    int32_t last = (hi - 1) / EL_PAGE_TOKENS;
    if (!b->pages[c] || b->page_stride[c] <= last) {
        return el_fail(err, EL_E_ARGUMENT,
                       "batch: pages[%d] has %d entries a sequence, expected at least %d for position %d", c,
                       b->pages[c] ? b->page_stride[c] : 0, last + 1, hi - 1);
    }
    const int32_t *entries = b->pages[c] + (size_t)s * (size_t)b->page_stride[c];
    for (int32_t j = lo / EL_PAGE_TOKENS; j <= last; j++) {
        if (entries[j] < 0 || entries[j] >= k->n_pages) {
            return el_fail(
                err, EL_E_ARGUMENT,
                "batch: pages[%d][%d, %d] is %d, expected 0 to %d: the step needs positions %d to %d", c, s,
                j, entries[j], k->n_pages - 1, lo, hi - 1);
        }
    }
    return EL_OK;
}

static int32_t sequence(el_engine *e, const el_batch *b, int32_t s, el_error *err) {
    int32_t start = b->seq_start[s], end = b->seq_start[s + 1];
    if (start < 0 || end <= start || end > b->n_tokens) {
        return el_fail(err, EL_E_ARGUMENT,
                       "batch: seq_start[%d] is %d and [%d] is %d, expected ascending up to %d tokens", s,
                       start, s + 1, end, b->n_tokens);
    }
    int32_t position = b->positions[start];
    if (position < 0 || position > e->limits.n_ctx - (end - start)) {
        return el_fail(err, EL_E_ARGUMENT,
                       "batch: sequence %d has %d tokens from position %d on, expected positions 0 to %d", s,
                       end - start, position, e->limits.n_ctx - 1);
    }
    for (int32_t t = start; t < end; t++) {
        if (b->tokens[t] < 0 || b->tokens[t] >= e->plan.n_token_ids) {
            return el_fail(err, EL_E_ARGUMENT, "batch: tokens[%d] is %d, expected 0 to %d", t, b->tokens[t],
                           e->plan.n_token_ids - 1);
        }
        if (b->positions[t] != position + (t - start)) {
            return el_fail(err, EL_E_ARGUMENT,
                           "batch: positions[%d] is %d, expected %d: consecutive within a sequence", t,
                           b->positions[t], position + (t - start));
        }
        e->sequence[t] = s;
    }
    for (int32_t c = 0; c < e->plan.n_classes; c++) {
        const el_class *k = &e->plan.classes[c];
        int32_t lo = position;
        if (!k->read && !k->written) continue;
        if (k->read) lo = k->window && position >= k->window ? position - k->window + 1 : 0;
        int32_t code = pages(e, b, s, c, lo, position + (end - start), err);
        if (code) return code;
    }
    return EL_OK;
}

static int32_t rows_and_edits(const el_engine *e, const el_batch *b, el_error *err) {
    for (int32_t r = 0; r < b->n_rows; r++) {
        int32_t low = r ? b->rows[r - 1] + 1 : 0;
        if (b->rows[r] < low || b->rows[r] >= b->n_tokens) {
            return el_fail(err, EL_E_ARGUMENT,
                           "batch: rows[%d] is %d, expected %d to %d: ascending token rows", r, b->rows[r],
                           low, b->n_tokens - 1);
        }
    }
    for (int32_t i = 0; i < b->n_adjust; i++) {
        int32_t low = i ? b->adj_row[i - 1] : 0;
        if (b->adj_row[i] < low || b->adj_row[i] >= b->n_rows) {
            return el_fail(err, EL_E_ARGUMENT,
                           "batch: adj_row[%d] is %d, expected %d to %d: ascending output rows", i,
                           b->adj_row[i], low, b->n_rows - 1);
        }
        if (b->adj_token[i] < 0 || b->adj_token[i] >= e->plan.n_vocab) {
            return el_fail(err, EL_E_ARGUMENT, "batch: adj_token[%d] is %d, expected 0 to %d", i,
                           b->adj_token[i], e->plan.n_vocab - 1);
        }
        if (!(b->adj_rep[i] > 0) || !el_is_finite(b->adj_rep[i])) {
            return el_fail(err, EL_E_ARGUMENT, "batch: adj_rep[%d] is %g, expected a finite number above 0",
                           i, (double)b->adj_rep[i]);
        }
        if (!(b->adj_add[i] <= 3.4028235e38f)) {
            return el_fail(err, EL_E_ARGUMENT, "batch: adj_add[%d] is %g, expected a finite number or -inf",
                           i, (double)b->adj_add[i]);
        }
    }
    return EL_OK;
}

int32_t el_batch_check(el_engine *e, const el_batch *b, const el_output *o, el_error *err) {
    int32_t code = sizes(e, b, err);
    if (!code && o->hidden && e->plan.hidden.buf < 0) {
        code = el_fail(err, EL_E_ARGUMENT,
                       "output: hidden is wanted, but no LINEAR of the plan writes the logits");
    }
    if (!code) code = pointers(b, o, e->plan.n_classes, err);
    if (code) return code;
    if (b->seq_start[0] != 0 || b->seq_start[b->n_seqs] != b->n_tokens) {
        return el_fail(err, EL_E_ARGUMENT, "batch: seq_start goes from %d to %d, expected 0 to %d (n_tokens)",
                       b->seq_start[0], b->seq_start[b->n_seqs], b->n_tokens);
    }
    for (int32_t s = 0; s < b->n_seqs; s++) {
        code = sequence(e, b, s, err);
        if (code) return code;
    }
    code = rows_and_edits(e, b, err);
    if (code) return code;
    for (int32_t i = 0; i < e->plan.n_shapes; i++) {
        const el_shape *shape = &e->plan.shapes[i];
        int32_t *first = e->block_first + (size_t)i * ((size_t)e->limits.max_seqs + 1);
        first[0] = 0;
        for (int32_t s = 0; s < b->n_seqs; s++) {
            int32_t n = b->seq_start[s + 1] - b->seq_start[s];
            first[s + 1] = first[s] + el_ceil_div(n * shape->group, shape->block);
        }
    }
    return EL_OK;
}
