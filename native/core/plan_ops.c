/* Checks one op of a plan and resolves what it refers to. The messages read "op 12 (LINEAR) v0: ...". */
#include "fp.h"
#include "plan.h"

#include <stdarg.h>
#include <stdio.h>

enum { MAX_PARTS = 4, MAX_RANK = 256, MAX_EXPERTS = 4096, MAX_GROUPS = 1 << 16 };

typedef struct check {
    el_plan *p;
    el_cop *c;
    const el_op *op;
    int32_t *slot_owner;
    const el_limits *limits;
    el_error *err;
    int32_t index;
} check;

/* field: 'v', 'w', 'i' or 'f' with its number. */
static int32_t __attribute__((format(printf, 5, 6))) wrong(const check *x, int32_t code, char field,
                                                           int32_t k, const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return el_fail(x->err, code, "op %d (%s) %c%d: %s", x->index, el_op_name(x->op->code), field, k, text);
}

#define TRY(call)                      \
    do {                               \
        int32_t try_code = (call);     \
        if (try_code) return try_code; \
    } while (0)

static int32_t integer(const check *x, int32_t k, int32_t low, int32_t high) {
    int32_t i = x->op->i[k];
    if (i >= low && i <= high) return EL_OK;
    return wrong(x, EL_E_ARGUMENT, 'i', k, "%d, expected %d to %d", i, low, high);
}

static int32_t finite(const check *x, int32_t k) {
    if (el_is_finite(x->op->f[k])) return EL_OK;
    return wrong(x, EL_E_ARGUMENT, 'f', k, "not finite");
}

static int32_t at_least_zero(const check *x, int32_t k) {
    if (el_is_finite(x->op->f[k]) && x->op->f[k] >= 0) return EL_OK;
    return wrong(x, EL_E_ARGUMENT, 'f', k, "%g, expected a finite number of at least 0", (double)x->op->f[k]);
}

/* A view of float32 (dtype 0) or int32 (1) columns, of `width` if that is above 0. The op's first view sets its axis. */
static int32_t view(const check *x, int32_t k, int32_t dtype, int64_t width) {
    const el_view *v = &x->op->v[k];
    if (v->buf < 0 || v->buf >= x->p->n_buffers) {
        return wrong(x, EL_E_ARGUMENT, 'v', k, "buffer %d, expected 0 to %d", v->buf, x->p->n_buffers - 1);
    }
    const el_buffer *b = &x->p->buffers[v->buf];
    if (v->start < 0 || v->width < 1 || v->start > b->width - v->width) {
        return wrong(x, EL_E_ARGUMENT, 'v', k, "columns %d + %d of buffer %d, which has %d", v->start,
                     v->width, v->buf, b->width);
    }
    if (b->dtype != dtype) {
        return wrong(x, EL_E_ARGUMENT, 'v', k, "buffer %d holds %s, expected %s", v->buf,
                     b->dtype ? "int32" : "float32", dtype ? "int32" : "float32");
    }
    if (x->c->axis < 0) x->c->axis = b->axis;
    if (b->axis != x->c->axis) {
        return wrong(x, EL_E_ARGUMENT, 'v', k, "buffer %d has axis %d, the op's first view has %d", v->buf,
                     b->axis, x->c->axis);
    }
    if (width > 0 && v->width != width) {
        return wrong(x, EL_E_ARGUMENT, 'v', k, "width %d, expected %lld", v->width, (long long)width);
    }
    return EL_OK;
}

static int32_t token_axis(const check *x, int32_t k) {
    if (x->c->axis == 0) return EL_OK;
    return wrong(x, EL_E_ARGUMENT, 'v', k, "buffer %d has axis 1, expected the token axis", x->op->v[k].buf);
}

static int32_t same(const el_view *a, const el_view *b) {
    return a->buf == b->buf && a->start == b->start && a->width == b->width;
}

static int32_t apart(const el_view *a, const el_view *b) {
    return a->buf != b->buf || a->start + a->width <= b->start || b->start + b->width <= a->start;
}

static int32_t views_apart(const check *x, int32_t j, int32_t k) {
    if (apart(&x->op->v[j], &x->op->v[k])) return EL_OK;
    return wrong(x, EL_E_ARGUMENT, 'v', k, "overlaps v%d", j);
}

static int32_t same_or_apart(const check *x, int32_t j, int32_t k) {
    if (same(&x->op->v[j], &x->op->v[k])) return EL_OK;
    return views_apart(x, j, k);
}

/* w[k] is a vector of n values, or -1 where that is allowed. */
static int32_t vector(const check *x, int32_t k, int64_t n, int32_t optional) {
    int32_t w = x->op->w[k];
    if (w == -1 && optional) return EL_OK;
    if (w < EL_VECTOR_BASE || w - EL_VECTOR_BASE >= x->p->n_vectors) {
        return wrong(x, EL_E_ARGUMENT, 'w', k, "%d, expected a vector, %d to %d%s", w, EL_VECTOR_BASE,
                     EL_VECTOR_BASE + x->p->n_vectors - 1, optional ? ", or -1" : "");
    }
    const el_vector *v = &x->p->vectors[w - EL_VECTOR_BASE];
    if (v->n != n) {
        return wrong(x, EL_E_ARGUMENT, 'w', k, "vector %d has %lld values, expected %lld", w - EL_VECTOR_BASE,
                     (long long)v->n, (long long)n);
    }
    x->c->vec[k] = v->data;
    return EL_OK;
}

static int32_t matrix(const check *x, int32_t k, int32_t n_rows, int32_t n_cols, int32_t n_stack) {
    int32_t w = x->op->w[k];
    if (w < 0 || w >= x->p->n_mats) {
        return wrong(x, EL_E_ARGUMENT, 'w', k, "%d, expected a matrix, 0 to %d", w, x->p->n_mats - 1);
    }
    const el_mat *m = &x->p->mats[w];
    if ((n_rows > 0 && m->n_rows != n_rows) || m->n_cols != n_cols ||
        (n_stack > 0 && m->n_stack != n_stack)) {
        return wrong(x, EL_E_ARGUMENT, 'w', k, "matrix %d is %d x %d x %d, expected %d x %d x %d (0 = any)",
                     w, m->n_stack, m->n_rows, m->n_cols, n_stack, n_rows, n_cols);
    }
    return EL_OK;
}

/* The activations in slot i[k] (-1: float x): `per_token` rows of n_cols for each row of v0. */
static int32_t slot(const check *x, int32_t k, int32_t n_cols, int32_t per_token) {
    TRY(integer(x, k, -1, x->p->n_slots - 1));
    x->c->per_token = per_token;
    int32_t s = x->op->i[k];
    if (s < 0) return EL_OK;
    if (x->slot_owner[s] < 0) return wrong(x, EL_E_ARGUMENT, 'i', k, "no QUANTIZE has filled slot %d", s);
    el_cop *q = &x->p->ops[x->slot_owner[s]];
    if (!same(&q->op.v[0], &x->op->v[0])) {
        return wrong(x, EL_E_ARGUMENT, 'i', k, "slot %d holds columns %d + %d of buffer %d (op %d), not v0",
                     s, q->op.v[0].start, q->op.v[0].width, q->op.v[0].buf, x->slot_owner[s]);
    }
    if (q->per_token != 0 && q->per_token != per_token) {
        return wrong(x, EL_E_ARGUMENT, 'i', k, "slot %d is read as %d and as %d activations a row", s,
                     q->per_token, per_token);
    }
    q->per_token = per_token;
    q->act_bytes = q->op.i[0] == EL_ACT_A16 ? el_a16_bytes(n_cols) : el_a256_bytes(n_cols);
    x->c->act_bytes = q->act_bytes;
    return EL_OK;
}

/* Matrix w[k] multiplies the activations of slot i[slot_k]. */
static int32_t operand(const check *x, int32_t k, int32_t slot_k, int32_t n_rows, int32_t n_cols,
                       int32_t n_stack) {
    TRY(matrix(x, k, n_rows, n_cols, n_stack));
    el_mat *m = &x->p->mats[x->op->w[k]];
    int32_t s = x->op->i[slot_k];
    int32_t format = s < 0 ? -1 : x->p->ops[x->slot_owner[s]].op.i[0];
    if (m->tile->act != format) {
        static const char *const names[] = {"float32 (slot -1)", "A16", "A256"};
        return wrong(x, EL_E_ARGUMENT, 'i', slot_k, "activations are %s, but matrix %d (%s) takes %s",
                     names[format + 1], x->op->w[k], el_qtype_name(m->qtype), names[m->tile->act + 1]);
    }
    m->multiplied = 1;
    if (m->n_cols > x->p->max_k) x->p->max_k = m->n_cols;
    return EL_OK;
}

/* Room for the panels of a chunk of at least one panel of each of these matrices. */
static void unpacked(const check *x, size_t bytes) {
    if (bytes > x->p->max_unpacked) x->p->max_unpacked = bytes;
}

static size_t unpacked_bytes(const el_mat *m) { return m->repack || m->panels ? 0 : m->panel_bytes; }

/* Float activations are read while y is written. */
static int32_t not_in_place(const check *x, int32_t slot_k, int32_t y) {
    return x->op->i[slot_k] < 0 ? views_apart(x, 0, y) : EL_OK;
}

static void keeps(const check *x, int32_t floats) {
    if (floats > x->p->max_row) x->p->max_row = floats;
}

/* ---- the ops ---- */

static int32_t embed(check *x) {
    TRY(view(x, 0, 0, 0));
    TRY(token_axis(x, 0));
    TRY(finite(x, 0));
    TRY(matrix(x, 0, 0, x->op->v[0].width, 1));
    const el_mat *m = &x->p->mats[x->op->w[0]];
    if (!m->dequant) {
        return wrong(x, EL_E_UNSUPPORTED, 'w', 0, "no lookup for weight type %s", el_qtype_name(m->qtype));
    }
    if (m->n_rows < x->p->n_token_ids) x->p->n_token_ids = m->n_rows;
    keeps(x, m->n_cols); /* a row in any type has at most four bytes a column */
    x->c->row_ns = 0.5f * (float)m->n_cols + 500.0f;
    return EL_OK;
}

static int32_t norm(check *x) {
    TRY(view(x, 0, 0, 0));
    int32_t width = x->op->v[0].width;
    TRY(view(x, 1, 0, width));
    TRY(same_or_apart(x, 0, 1));
    TRY(integer(x, 0, 0, 2));
    TRY(integer(x, 1, 1, MAX_GROUPS));
    TRY(integer(x, 2, 0, 1));
    TRY(at_least_zero(x, 0));
    int32_t groups = x->op->i[1];
    if (width % groups) return wrong(x, EL_E_ARGUMENT, 'i', 1, "%d groups of %d columns", groups, width);
    int32_t n = x->op->i[2] ? width : width / groups;
    TRY(vector(x, 0, n, 1));
    TRY(vector(x, 1, n, 1));
    x->c->row_ns = 0.2f * (float)width + 20.0f * (float)groups;
    return EL_OK;
}

static int32_t quantize(check *x) {
    TRY(view(x, 0, 0, 0));
    TRY(integer(x, 0, EL_ACT_A16, EL_ACT_A256));
    TRY(integer(x, 1, 0, x->p->n_slots - 1));
    int32_t width = x->op->v[0].width, block = x->op->i[0] == EL_ACT_A16 ? 32 : 256;
    if (width % block)
        return wrong(x, EL_E_ARGUMENT, 'v', 0, "width %d, expected a multiple of %d", width, block);
    x->c->act_bytes = block == 32 ? el_a16_bytes(width) : el_a256_bytes(width);
    x->slot_owner[x->op->i[1]] = x->index;
    x->c->row_ns = 0.2f * (float)width;
    return EL_OK;
}

static int32_t linear(check *x) {
    TRY(view(x, 0, 0, 0));
    TRY(view(x, 1, 0, 0));
    TRY(integer(x, 0, 1, MAX_PARTS));
    int32_t k = x->op->v[0].width, n_parts = x->op->i[0];
    TRY(slot(x, 1, k, 1));
    TRY(not_in_place(x, 1, 1));
    int64_t width = 0;
    for (int32_t p = 0; p < n_parts; p++) {
        TRY(operand(x, 2 * p, 1, 0, k, 1));
        const el_mat *m = &x->p->mats[x->op->w[2 * p]];
        TRY(vector(x, 2 * p + 1, m->n_rows, 1));
        TRY(finite(x, p));
        width += m->n_rows;
        x->c->n_panels += m->n_panels;
        unpacked(x, unpacked_bytes(m));
    }
    TRY(view(x, 1, 0, width));
    if (x->op->v[2].buf == -1) return EL_OK;
    TRY(view(x, 2, 0, width));
    TRY(same_or_apart(x, 1, 2));
    return EL_OK;
}

static int32_t gated(check *x) {
    TRY(view(x, 0, 0, 0));
    TRY(view(x, 1, 0, 0));
    TRY(integer(x, 0, EL_ACT_NONE, EL_ACT_SWIGLU_OAI));
    int32_t k = x->op->v[0].width, n = x->op->v[1].width;
    TRY(slot(x, 1, k, 1));
    TRY(not_in_place(x, 1, 1));
    size_t bytes = 0;
    for (int32_t p = 0; p < 2; p++) {
        TRY(operand(x, 2 * p, 1, n, k, 1));
        TRY(vector(x, 2 * p + 1, n, 1));
        TRY(finite(x, p));
        bytes += unpacked_bytes(&x->p->mats[x->op->w[2 * p]]);
    }
    unpacked(x, bytes);
    x->c->n_panels = x->p->mats[x->op->w[0]].n_panels;
    return EL_OK;
}

/* GLU, ACT, ADD, SCALE, SOFTCAP: n_in inputs, then the output, all of one width. */
static int32_t elementwise(check *x, int32_t n_in, float cost) {
    TRY(view(x, 0, 0, 0));
    for (int32_t k = 1; k <= n_in; k++) TRY(view(x, k, 0, x->op->v[0].width));
    for (int32_t k = 0; k < n_in; k++) TRY(same_or_apart(x, k, n_in));
    x->c->row_ns = cost * (float)x->op->v[0].width;
    int32_t code = x->op->code;
    if (code == EL_OP_GLU) return integer(x, 0, EL_ACT_NONE, EL_ACT_SWIGLU_OAI);
    if (code == EL_OP_ACT) return integer(x, 0, EL_ACT_NONE, EL_ACT_SIGMOID); /* SWIGLU_OAI is a gate only */
    if (code == EL_OP_SCALE) return finite(x, 0);
    if (code == EL_OP_SOFTCAP && !(x->op->f[0] > 0 && el_is_finite(x->op->f[0]))) {
        return wrong(x, EL_E_ARGUMENT, 'f', 0, "%g, expected a finite number above 0", (double)x->op->f[0]);
    }
    return EL_OK;
}

static int32_t rope(check *x) {
    TRY(view(x, 0, 0, 0));
    TRY(token_axis(x, 0));
    int32_t width = x->op->v[0].width;
    TRY(integer(x, 0, 1, width));
    int32_t heads = x->op->i[0];
    if (width % heads) return wrong(x, EL_E_ARGUMENT, 'i', 0, "%d heads of %d columns", heads, width);
    int32_t dim = width / heads;
    TRY(integer(x, 1, 2, dim));
    TRY(integer(x, 2, 0, dim - x->op->i[1]));
    TRY(integer(x, 3, 0, 1));
    TRY(integer(x, 4, 0, x->p->n_ropes - 1));
    int32_t n_rot = x->p->ropes[x->op->i[4]].n_rot;
    if (x->op->i[1] != n_rot) {
        return wrong(x, EL_E_ARGUMENT, 'i', 1, "%d, expected %d, the n_rot of rope table %d", x->op->i[1],
                     n_rot, x->op->i[4]);
    }
    x->c->row_ns = 10.0f * (float)heads + 0.3f * (float)(heads * n_rot);
    return EL_OK;
}

/* The cache layer that i0 (class) and i1 (layer) name. */
static int32_t cache(check *x) {
    TRY(integer(x, 0, 0, x->p->n_classes - 1));
    TRY(integer(x, 1, 0, x->p->classes[x->op->i[0]].n_layers - 1));
    int32_t layer = 0;
    for (int32_t i = 0; i < x->p->n_layers; i++) {
        if (x->p->layers[i].cls != x->op->i[0]) continue;
        if (layer++ == x->op->i[1]) x->c->layer = i;
    }
    return EL_OK;
}

static int32_t kv_write(check *x) {
    if (x->op->v[1].buf == -1)
        return wrong(x, EL_E_UNSUPPORTED, 'v', 1, "classes without V (latent) are not supported");
    TRY(cache(x));
    const el_layer *l = &x->p->layers[x->c->layer];
    TRY(view(x, 0, 0, (int64_t)l->n_heads * l->k_dim));
    TRY(token_axis(x, 0));
    TRY(view(x, 1, 0, (int64_t)l->n_heads * l->v_dim));
    x->p->classes[x->op->i[0]].written = 1;
    x->c->row_ns = 0.5f * (float)(l->n_heads * (l->k_dim + l->v_dim));
    return EL_OK;
}

static int32_t attention(check *x) {
    TRY(cache(x));
    const el_layer *l = &x->p->layers[x->c->layer];
    TRY(integer(x, 2, 1, 1 << 16));
    TRY(integer(x, 3, 0, 1 << 30));
    TRY(integer(x, 4, 0, 1));
    TRY(finite(x, 0));
    TRY(at_least_zero(x, 1));
    int32_t heads = x->op->i[2], window = x->op->i[3], group = heads / l->n_heads;
    if (heads % l->n_heads)
        return wrong(x, EL_E_ARGUMENT, 'i', 2, "%d heads over %d kv heads", heads, l->n_heads);
    if ((int64_t)heads * x->limits->max_tokens > 1 << 30) {
        return wrong(x, EL_E_ARGUMENT, 'i', 2, "%d heads x %d tokens a step, expected at most 2^30", heads,
                     x->limits->max_tokens);
    }
    if (window && !x->op->i[4])
        return wrong(x, EL_E_UNSUPPORTED, 'i', 3, "a window without causality is not supported");
    TRY(view(x, 0, 0, (int64_t)heads * l->k_dim));
    TRY(token_axis(x, 0));
    TRY(view(x, 1, 0, (int64_t)heads * l->v_dim));
    TRY(views_apart(x, 0, 1));
    TRY(vector(x, 0, heads, 1));
    el_class *k = &x->p->classes[x->op->i[0]];
    if (!k->read) {
        k->window = window;
    } else if (window == 0 || (k->window && window > k->window)) {
        k->window = window;
    }
    k->read = 1;
    el_plan *p = x->p;
    if (l->k_dim > p->max_k_dim) p->max_k_dim = l->k_dim;
    if (l->v_dim > p->max_v_dim) p->max_v_dim = l->v_dim;
    if (heads > p->max_heads) p->max_heads = heads;
    while (x->c->shape < p->n_shapes && p->shapes[x->c->shape].group != group) x->c->shape++;
    if (x->c->shape == p->n_shapes) {
        p->shapes[p->n_shapes++] = (el_shape){
            .group = group,
            .block = group <= EL_ATTN_ROWS ? EL_ATTN_ROWS / group * group : EL_ATTN_ROWS,
        };
    }
    return EL_OK;
}

static int32_t route(check *x) {
    TRY(view(x, 0, 0, 0));
    int32_t experts = x->op->v[0].width;
    if (experts > MAX_EXPERTS) {
        return wrong(x, EL_E_ARGUMENT, 'v', 0, "%d experts, expected at most %d", experts, MAX_EXPERTS);
    }
    TRY(integer(x, 0, 1, experts < MAX_RANK ? experts : MAX_RANK));
    TRY(integer(x, 1, 0, 2));
    TRY(integer(x, 2, 0, 1));
    TRY(finite(x, 0));
    TRY(view(x, 1, 1, x->op->i[0]));
    TRY(view(x, 2, 0, x->op->i[0]));
    TRY(views_apart(x, 0, 2));
    TRY(vector(x, 0, experts, 1));
    keeps(x, 3 * experts);
    x->c->row_ns = (3.0f + (float)x->op->i[0]) * (float)experts;
    return EL_OK;
}

/* v1 holds ids that a ROUTE over n_stack experts chose in this step. */
static int32_t routed(check *x, int32_t k, int32_t n_stack) {
    for (int32_t i = x->index - 1; i >= 0; i--) {
        const el_op *r = &x->p->ops[i].op;
        if (r->code != EL_OP_ROUTE || apart(&r->v[1], &x->op->v[1])) continue;
        if (same(&r->v[1], &x->op->v[1]) && r->i[0] == k && r->v[0].width == n_stack) return EL_OK;
        return wrong(x, EL_E_ARGUMENT, 'v', 1, "op %d chose %d of %d experts there, expected %d of %d", i,
                     r->i[0], r->v[0].width, k, n_stack);
    }
    return wrong(x, EL_E_ARGUMENT, 'v', 1, "no ROUTE before this op writes these ids");
}

/* EXPERT_LINEAR (n_mats 1) and EXPERT_GATED (2). */
static int32_t experts(check *x, int32_t n_mats) {
    TRY(view(x, 0, 0, 0));
    TRY(integer(x, 0, 1, MAX_RANK));
    int32_t k = x->op->i[0], per_rank = 0;
    if (n_mats == 1) {
        TRY(integer(x, 1, 0, 1));
        per_rank = x->op->i[1];
    } else {
        TRY(integer(x, 1, EL_ACT_NONE, EL_ACT_SWIGLU_OAI));
    }
    TRY(view(x, 1, 1, k));
    TRY(view(x, 2, 0, 0));
    int32_t width = x->op->v[0].width, n = x->op->v[2].width / k;
    if (per_rank && width % k) return wrong(x, EL_E_ARGUMENT, 'v', 0, "width %d for %d ranks", width, k);
    if (x->op->v[2].width % k)
        return wrong(x, EL_E_ARGUMENT, 'v', 2, "width %d for %d ranks", x->op->v[2].width, k);
    int32_t n_cols = per_rank ? width / k : width;
    TRY(slot(x, 2, n_cols, per_rank ? k : 1));
    TRY(not_in_place(x, 2, 2));
    size_t bytes = 0;
    int32_t n_stack = 0;
    for (int32_t j = 0; j < n_mats; j++) {
        TRY(operand(x, 3 * j, 2, n, n_cols, n_stack));
        const el_mat *m = &x->p->mats[x->op->w[3 * j]];
        n_stack = m->n_stack;
        TRY(vector(x, 3 * j + 1, (int64_t)n_stack * n, 1));
        TRY(vector(x, 3 * j + 2, n_stack, 1));
        bytes += unpacked_bytes(m);
        x->c->n_panels = m->n_panels;
    }
    unpacked(x, bytes);
    TRY(routed(x, k, n_stack));
    if (n_stack > x->p->max_experts) x->p->max_experts = n_stack;
    if (k > x->p->max_rank) x->p->max_rank = k;
    return EL_OK;
}

static int32_t combine(check *x) {
    TRY(view(x, 0, 0, 0));
    TRY(integer(x, 0, 1, MAX_RANK));
    int32_t k = x->op->i[0];
    TRY(view(x, 1, 0, k));
    TRY(view(x, 2, 0, 0));
    int32_t width = x->op->v[2].width;
    TRY(view(x, 0, 0, (int64_t)width * k));
    if (x->op->v[3].buf != -1) TRY(view(x, 3, 0, width));
    keeps(x, width);
    x->c->row_ns = 0.1f * (float)width * (float)k;
    return EL_OK;
}

static int32_t select_rows(check *x) {
    TRY(view(x, 0, 0, 0));
    TRY(token_axis(x, 0));
    x->c->axis = 1;
    TRY(view(x, 1, 0, x->op->v[0].width));
    x->c->row_ns = 0.1f * (float)x->op->v[0].width;
    return EL_OK;
}

int32_t el_plan_op(el_plan *plan, int32_t index, int32_t *slot_owner, const el_limits *limits,
                   el_error *err) {
    el_cop *c = &plan->ops[index];
    c->axis = -1;
    check x = {plan, c, &c->op, slot_owner, limits, err, index};
    switch (c->op.code) {
    case EL_OP_EMBED: return embed(&x);
    case EL_OP_NORM: return norm(&x);
    case EL_OP_QUANTIZE: return quantize(&x);
    case EL_OP_LINEAR: return linear(&x);
    case EL_OP_GATED: return gated(&x);
    case EL_OP_GLU: return elementwise(&x, 2, 0.6f);
    case EL_OP_ACT: return elementwise(&x, 1, 0.6f);
    case EL_OP_ADD: return elementwise(&x, 2, 0.1f);
    case EL_OP_SCALE: return elementwise(&x, 1, 0.1f);
    case EL_OP_SOFTCAP: return elementwise(&x, 1, 0.8f);
    case EL_OP_ROPE: return rope(&x);
    case EL_OP_KV_WRITE: return kv_write(&x);
    case EL_OP_ATTENTION: return attention(&x);
    case EL_OP_ROUTE: return route(&x);
    case EL_OP_EXPERT_LINEAR: return experts(&x, 1);
    case EL_OP_EXPERT_GATED: return experts(&x, 2);
    case EL_OP_COMBINE: return combine(&x);
    case EL_OP_SELECT_ROWS: return select_rows(&x);
    default:
        return el_fail(err, EL_E_UNSUPPORTED, "op %d: code %d, this library has %d to %d", index, c->op.code,
                       EL_OP_EMBED, EL_OP_SELECT_ROWS);
    }
}
