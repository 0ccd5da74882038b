/* Checks and copies the tables of a model: buffers, matrices, vectors, rope tables, cache layers. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_OPS = 1 << 20,
    MAX_TABLE = 1 << 20,
    MAX_BUFFERS = 1 << 16,
    MAX_CLASSES = 64,
    MAX_SLOTS = 4096,
    MAX_WIDTH = 1 << 26,
    MAX_MATRIX_ROWS = 1 << 28,
    MAX_MATRIX_COLUMNS = 1 << 24,
    MAX_STACK = 1 << 16,
    MAX_HEADS = 4096,
    MAX_HEAD_DIM = 8192,
    MAX_PAGES = 1 << 26,
};

typedef struct source {
    const el_model *model;
    const el_config *config;
    const el_kernels *kernels;
    el_error *err;
} source;

static int32_t count(el_error *err, const char *field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return EL_OK;
    return el_fail(err, EL_E_ARGUMENT, "%s is %lld, expected %lld to %lld", field, (long long)value,
                   (long long)low, (long long)high);
}

static int32_t counts(const el_model *m, const el_config *c, el_error *err) {
    const struct {
        const char *field;
        int32_t value, low, high;
    } fields[] = {
        {"model: size", m->size, (int32_t)sizeof *m, (int32_t)sizeof *m},
        {"config: size", c->size, (int32_t)sizeof *c, (int32_t)sizeof *c},
        {"model: n_ops", m->n_ops, 1, MAX_OPS},
        {"model: n_buffers", m->n_buffers, 1, MAX_BUFFERS},
        {"model: n_weights", m->n_weights, 0, EL_VECTOR_BASE},
        {"model: n_vectors", m->n_vectors, 0, MAX_TABLE},
        {"model: n_ropes", m->n_ropes, 0, MAX_TABLE},
        {"model: n_classes", m->n_classes, 0, MAX_CLASSES},
        {"model: n_cache_layers", m->n_cache_layers, 0, MAX_TABLE},
        {"model: n_act_slots", m->n_act_slots, 0, MAX_SLOTS},
        {"model: n_vocab", m->n_vocab, 1, MAX_WIDTH},
        {"config: max_tokens", c->max_tokens, 1, 1 << 20},
        {"config: max_rows", c->max_rows, 1, 1 << 20},
        {"config: max_seqs", c->max_seqs, 1, 1 << 16},
        {"config: n_ctx", c->n_ctx, 1, 1 << 26},
        {"config: k_type", c->k_type, 0, EL_KV_TYPES - 1},
        {"config: v_type", c->v_type, 0, EL_KV_TYPES - 1},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        int32_t code = count(err, fields[i].field, fields[i].value, fields[i].low, fields[i].high);
        if (code) return code;
    }
    const struct {
        const char *field;
        int32_t n;
        const void *pointer;
    } arrays[] = {
        {"ops", m->n_ops, m->ops},
        {"buffers", m->n_buffers, m->buffers},
        {"weights", m->n_weights, m->weights},
        {"vectors", m->n_vectors, m->vectors},
        {"ropes", m->n_ropes, m->ropes},
        {"cache_layers", m->n_cache_layers, m->cache_layers},
        {"n_pages (config)", m->n_classes, c->n_pages},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        if (arrays[i].n > 0 && !arrays[i].pointer) {
            return el_fail(err, EL_E_ARGUMENT, "model: %s is NULL, expected %d entries", arrays[i].field,
                           arrays[i].n);
        }
    }
    return EL_OK;
}

static int32_t buffers(el_plan *p, const source *s) {
    for (int32_t i = 0; i < p->n_buffers; i++) {
        const el_buffer *b = &s->model->buffers[i];
        if (b->width < 1 || b->width > MAX_WIDTH || b->axis < 0 || b->axis > 1 || b->dtype < 0 ||
            b->dtype > 1) {
            return el_fail(
                s->err, EL_E_ARGUMENT,
                "buffers[%d]: width %d, axis %d, dtype %d; expected width 1 to %d, axis 0 or 1, dtype 0 or 1",
                i, b->width, b->axis, b->dtype, MAX_WIDTH);
        }
        p->buffers[i] = *b;
    }
    int32_t l = s->model->logits;
    if (l < 0 || l >= p->n_buffers) {
        return el_fail(s->err, EL_E_ARGUMENT, "model: logits is buffer %d, expected 0 to %d", l,
                       p->n_buffers - 1);
    }
    const el_buffer *b = &p->buffers[l];
    if (b->axis != 1 || b->dtype != 0 || b->width != p->n_vocab) {
        return el_fail(
            s->err, EL_E_ARGUMENT,
            "buffers[%d] (logits): axis %d, dtype %d, width %d; expected axis 1, dtype 0, width %d (n_vocab)",
            l, b->axis, b->dtype, b->width, p->n_vocab);
    }
    return EL_OK;
}

static int32_t matrix(el_plan *p, const source *s, int32_t i) {
    const el_weight *w = &s->model->weights[i];
    if (w->n_rows < 1 || w->n_rows > MAX_MATRIX_ROWS || w->n_cols < 1 || w->n_cols > MAX_MATRIX_COLUMNS ||
        w->n_stack < 1 || w->n_stack > MAX_STACK) {
        return el_fail(s->err, EL_E_ARGUMENT,
                       "weights[%d]: %d x %d x %d, expected n_stack 1 to %d, n_rows 1 to %d, n_cols 1 to %d",
                       i, w->n_stack, w->n_rows, w->n_cols, MAX_STACK, MAX_MATRIX_ROWS, MAX_MATRIX_COLUMNS);
    }
    if (w->pack < 0 || w->pack > 2 || (w->pack && w->tiles) ||
        (w->pack == 2 && (w->fd < 0 || w->offset < 0))) {
        return el_fail(
            s->err, EL_E_ARGUMENT,
            "weights[%d]: pack is %d with %s, fd %d, offset %lld; expected 0, 1 or 2, 0 with tiles, "
            "fd and offset of a file with 2",
            i, w->pack, w->tiles ? "tiles" : "no tiles", w->fd, (long long)w->offset);
    }
    const el_tile *tile = el_tile_of(w->qtype);
    if (w->qtype < 0 || w->qtype >= EL_QTYPE_LIMIT || !tile || !s->kernels->mm[w->qtype]) {
        return el_fail(s->err, EL_E_UNSUPPORTED, "weights[%d]: no kernels for weight type %s (%d)", i,
                       el_qtype_name(w->qtype), w->qtype);
    }
    if (w->n_cols % tile->block) {
        return el_fail(s->err, EL_E_ARGUMENT, "weights[%d]: n_cols is %d, expected a multiple of %d for %s",
                       i, w->n_cols, tile->block, el_qtype_name(w->qtype));
    }
    int64_t row_bytes = (int64_t)(w->n_cols / tile->block) * tile->row_bytes;
    int64_t rows = (int64_t)w->n_rows * w->n_stack;
    if (!w->data || w->n_bytes < 0 || w->n_bytes % row_bytes || w->n_bytes / row_bytes != rows) {
        return el_fail(s->err, EL_E_ARGUMENT,
                       "weights[%d]: %lld bytes at %s, expected %lld rows of %lld bytes (%d x %d x %d of %s)",
                       i, (long long)w->n_bytes, w->data ? "an address" : "NULL", (long long)rows,
                       (long long)row_bytes, w->n_stack, w->n_rows, w->n_cols, el_qtype_name(w->qtype));
    }
    p->mats[i] = (el_mat){
        .tile = tile,
        .data = w->data,
        .mm = s->config->far_types >> w->qtype & 1 && s->kernels->mm_far[w->qtype]
                  ? s->kernels->mm_far[w->qtype]
                  : s->kernels->mm[w->qtype],
        .pack = s->kernels->pack[w->qtype],
        .dequant = s->kernels->dequant[w->qtype],
        .row_bytes = (size_t)row_bytes,
        .panel_bytes = el_panel_bytes(tile, w->n_cols),
        .qtype = w->qtype,
        .n_rows = w->n_rows,
        .n_cols = w->n_cols,
        .n_stack = w->n_stack,
        .n_panels = (w->n_rows + EL_TILE_ROWS - 1) / EL_TILE_ROWS,
        .panels = w->tiles,
        .repack = w->pack,
        .fd = w->fd,
        .offset = w->offset,
    };
    int64_t panels = (int64_t)w->n_stack * p->mats[i].n_panels, panel_bytes = (int64_t)p->mats[i].panel_bytes;
    if (w->tiles && ((uintptr_t)w->tiles % 64 || w->n_tile_bytes < 0 || w->n_tile_bytes % panel_bytes ||
                     w->n_tile_bytes / panel_bytes != panels)) {
        return el_fail(s->err, EL_E_ARGUMENT,
                       "weights[%d]: %lld bytes of tiles%s, expected %lld panels of %lld bytes", i,
                       (long long)w->n_tile_bytes, (uintptr_t)w->tiles % 64 ? ", not on a 64-byte line" : "",
                       (long long)panels, (long long)panel_bytes);
    }
    return EL_OK;
}

static int32_t vectors_and_ropes(el_plan *p, const source *s) {
    for (int32_t i = 0; i < p->n_vectors; i++) {
        const el_vector *v = &s->model->vectors[i];
        if (!v->data || v->n < 1) {
            return el_fail(s->err, EL_E_ARGUMENT, "vectors[%d]: %lld values at %s, expected at least one", i,
                           (long long)v->n, v->data ? "an address" : "NULL");
        }
        p->vectors[i] = *v;
    }
    for (int32_t i = 0; i < p->n_ropes; i++) {
        const el_rope *r = &s->model->ropes[i];
        if (!r->cos || !r->sin || r->n_rot < 2 || r->n_rot % 2 || r->n_rot > MAX_WIDTH ||
            r->n_positions < s->config->n_ctx) {
            return el_fail(s->err, EL_E_ARGUMENT,
                           "ropes[%d]: n_rot %d, n_positions %d%s; expected an even n_rot and at least %d "
                           "positions (n_ctx)",
                           i, r->n_rot, r->n_positions, r->cos && r->sin ? "" : ", a table is NULL",
                           s->config->n_ctx);
        }
        p->ropes[i] = *r;
    }
    return EL_OK;
}

static int32_t caches(el_plan *p, const source *s) {
    for (int32_t i = 0; i < p->n_layers; i++) {
        const el_cache_layer *c = &s->model->cache_layers[i];
        if (c->cls < 0 || c->cls >= p->n_classes || c->layer < 0) {
            return el_fail(s->err, EL_E_ARGUMENT,
                           "cache_layers[%d]: class %d layer %d, expected class 0 to %d", i, c->cls, c->layer,
                           p->n_classes - 1);
        }
        if (c->n_heads < 1 || c->n_heads > MAX_HEADS || c->k_dim < 4 || c->k_dim > MAX_HEAD_DIM ||
            c->v_dim < 4 || c->v_dim > MAX_HEAD_DIM || c->k_dim % 4 || c->v_dim % 4) {
            return el_fail(s->err, EL_E_ARGUMENT,
                           "cache_layers[%d]: %d heads, k_dim %d, v_dim %d; expected 1 to %d heads, and "
                           "multiples of 4 up to %d",
                           i, c->n_heads, c->k_dim, c->v_dim, MAX_HEADS, MAX_HEAD_DIM);
        }
        el_class *k = &p->classes[c->cls];
        if (c->layer != k->n_layers) {
            return el_fail(s->err, EL_E_ARGUMENT,
                           "cache_layers[%d]: layer %d of class %d, expected %d: numbers without gaps", i,
                           c->layer, c->cls, k->n_layers);
        }
        size_t k_head = el_kv_head_bytes(s->config->k_type, c->k_dim);
        size_t v_head = el_kv_head_bytes(s->config->v_type, c->v_dim);
        p->layers[i] = (el_layer){
            .cls = c->cls,
            .n_heads = c->n_heads,
            .k_dim = c->k_dim,
            .v_dim = c->v_dim,
            .k_offset = k->page_bytes,
            .v_offset = k->page_bytes + k_head * (size_t)c->n_heads,
            .k_head_bytes = k_head,
            .v_head_bytes = v_head,
        };
        k->page_bytes += (k_head + v_head) * (size_t)c->n_heads;
        k->n_layers++;
    }
    for (int32_t c = 0; c < p->n_classes; c++) {
        el_class *k = &p->classes[c];
        k->n_pages = s->config->n_pages[c];
        int32_t code = count(s->err, "config: n_pages of a class", k->n_pages, 1, MAX_PAGES);
        if (code) return code;
        if (k->n_layers == 0) {
            return el_fail(s->err, EL_E_ARGUMENT, "cache class %d has no layer in cache_layers", c);
        }
        if ((size_t)k->n_pages > ((size_t)1 << 46) / k->page_bytes) {
            return el_fail(s->err, EL_E_ARGUMENT,
                           "cache class %d: %d pages of %zu bytes are more than 64 TiB", c, k->n_pages,
                           k->page_bytes);
        }
    }
    return EL_OK;
}

static void *table(int32_t n, size_t size) { return calloc((size_t)n + 1, size); }

static int32_t allocate(el_plan *p, el_error *err) {
    p->ops = table(p->n_ops, sizeof *p->ops);
    p->phases = table(p->n_ops, sizeof *p->phases);
    p->buffers = table(p->n_buffers, sizeof *p->buffers);
    p->mats = table(p->n_mats, sizeof *p->mats);
    p->vectors = table(p->n_vectors, sizeof *p->vectors);
    p->ropes = table(p->n_ropes, sizeof *p->ropes);
    p->classes = table(p->n_classes, sizeof *p->classes);
    p->layers = table(p->n_layers, sizeof *p->layers);
    p->shapes = table(p->n_ops, sizeof *p->shapes);
    p->slot_bytes = table(p->n_slots, sizeof *p->slot_bytes);
    if (p->ops && p->phases && p->buffers && p->mats && p->vectors && p->ropes && p->classes && p->layers &&
        p->shapes && p->slot_bytes) {
        return EL_OK;
    }
    return el_fail(err, EL_E_MEMORY, "out of memory for the tables of a plan of %d ops", p->n_ops);
}

static int32_t ops(el_plan *p, const source *s) {
    const el_limits limits = {s->config->max_tokens, s->config->max_rows, s->config->max_seqs,
                              s->config->n_ctx};
    int32_t *slot_owner = table(p->n_slots, sizeof *slot_owner);
    if (!slot_owner) return el_fail(s->err, EL_E_MEMORY, "out of memory for %d activation slots", p->n_slots);
    for (int32_t i = 0; i < p->n_slots; i++) slot_owner[i] = -1;
    int32_t code = EL_OK;
    for (int32_t i = 0; i < p->n_ops && code == EL_OK; i++) {
        p->ops[i].op = s->model->ops[i];
        code = el_plan_op(p, i, slot_owner, &limits, s->err);
    }
    free(slot_owner);
    if (code) return code;
    for (int32_t i = 0; i < p->n_ops; i++) { /* the readers of a slot have settled its rows */
        el_cop *c = &p->ops[i];
        if (c->op.code != EL_OP_QUANTIZE) continue;
        if (c->per_token == 0) c->per_token = 1;
        size_t rows = (size_t)(c->axis ? limits.max_rows : limits.max_tokens) * (size_t)c->per_token;
        size_t *bytes = &p->slot_bytes[c->op.i[1]];
        if (rows * c->act_bytes > *bytes) *bytes = rows * c->act_bytes;
    }
    return EL_OK;
}

int32_t el_plan_compile(el_plan *plan, const el_model *model, const el_config *config,
                        const el_kernels *kernels, el_error *err) {
    memset(plan, 0, sizeof *plan);
    int32_t code = counts(model, config, err);
    if (code) return code;
    plan->n_ops = model->n_ops;
    plan->n_buffers = model->n_buffers;
    plan->n_mats = model->n_weights;
    plan->n_vectors = model->n_vectors;
    plan->n_ropes = model->n_ropes;
    plan->n_classes = model->n_classes;
    plan->n_layers = model->n_cache_layers;
    plan->n_slots = model->n_act_slots;
    plan->n_vocab = model->n_vocab;
    plan->logits = model->logits;
    plan->n_token_ids = INT32_MAX; /* each EMBED lowers it to its rows */
    plan->k_type = config->k_type;
    plan->v_type = config->v_type;
    const source s = {model, config, kernels, err};
    code = allocate(plan, err);
    if (!code) code = buffers(plan, &s);
    for (int32_t i = 0; !code && i < plan->n_mats; i++) code = matrix(plan, &s, i);
    if (!code) code = vectors_and_ropes(plan, &s);
    if (!code) code = caches(plan, &s);
    if (!code) code = ops(plan, &s);
    if (!code) el_plan_phases(plan);
    if (code) el_plan_free(plan);
    return code;
}

void el_plan_free(el_plan *plan) {
    free(plan->ops);
    free(plan->phases);
    free(plan->buffers);
    free(plan->mats);
    free(plan->vectors);
    free(plan->ropes);
    free(plan->classes);
    free(plan->layers);
    free(plan->shapes);
    free(plan->slot_bytes);
    memset(plan, 0, sizeof *plan);
}
