/* Row ops: everything that computes one row from the same row. A phase of them runs row by row, through all its ops. */
#include "engine.h"
#include "fp.h"
#include "os.h"

#include <string.h>

static const float MIN_CHUNK_NS = 3000.0f, MAX_CHUNK_NS = 30000.0f;
enum { COLUMN_UNIT = 256, CHUNKS_PER_THREAD = 4 };

static void embed(el_engine *e, const el_cop *c, int32_t thread, int32_t row) {
    const el_mat *m = &e->plan.mats[c->op.w[0]];
    float *y = el_row(e, &c->op.v[0], row);
    void *in_file = e->scratch[thread].row;
    if (el_os_copy(in_file, m->data + (size_t)e->batch->tokens[row] * m->row_bytes, m->row_bytes)) {
        atomic_store_explicit(&e->cut, 1, memory_order_relaxed);
        memset(in_file, 0, m->row_bytes); /* the step ends in an error */
    }
    m->dequant(in_file, m->n_cols, y);
    if (c->op.f[0] != 1.0f) e->kernels.scale(y, c->op.f[0], m->n_cols, y);
}

/* y = (x * (1 / max(sqrt(ss), eps))) * w + b, ss = fold16 of fma(x, x, .) */
static void l2_norm(const float *x, const float *w, const float *b, float eps, int32_t n, float *y) {
    float sums[16] = {0};
    for (int32_t i = 0; i < n; i++) sums[i % 16] = el_fma(x[i], x[i], sums[i % 16]);
    float length = el_sqrt(el_fold16(sums));
    float factor = 1.0f / (length > eps ? length : eps);
    for (int32_t i = 0; i < n; i++) {
        float v = x[i] * factor;
        if (w) v = v * w[i];
        y[i] = b ? v + b[i] : v;
    }
}

static void norm(el_engine *e, const el_cop *c, int32_t row) {
    const float *x = el_row(e, &c->op.v[0], row);
    float *y = el_row(e, &c->op.v[1], row);
    int32_t groups = c->op.i[1], n = c->op.v[0].width / groups;
    size_t step = c->op.i[2] ? (size_t)n : 0;
    el_rms_norm_fn *run = c->op.i[0] == 0   ? e->kernels.rms_norm
                          : c->op.i[0] == 1 ? e->kernels.layer_norm
                                            : l2_norm;
    for (int32_t g = 0; g < groups; g++) {
        const float *w = c->vec[0] ? c->vec[0] + (size_t)g * step : NULL;
        const float *b = c->vec[1] ? c->vec[1] + (size_t)g * step : NULL;
        size_t at = (size_t)g * (size_t)n;
        run(x + at, w, b, c->op.f[0], n, y + at);
    }
}

static void quantize(el_engine *e, const el_cop *c, int32_t row) {
    const float *x = el_row(e, &c->op.v[0], row);
    int32_t n = c->op.v[0].width / c->per_token, bad = 0;
    char *to = e->slots[c->op.i[1]] + (size_t)row * (size_t)c->per_token * c->act_bytes;
    for (int32_t j = 0; j < c->per_token; j++) {
        bad |= e->kernels.quantize[c->op.i[0]](x + (size_t)j * (size_t)n, n, to + (size_t)j * c->act_bytes);
    }
    if (bad) el_mark_failed(e, c->axis, row);
}

/* Whether the op bounds its first input: then an inf or NaN would pass for an ordinary number from here on. */
static int32_t hides_nonfinite(const el_op *op) {
    if (op->code == EL_OP_SOFTCAP) return 1;
    if (op->code != EL_OP_ACT && op->code != EL_OP_GLU) return 0;
    int32_t act = op->i[0];
    return act == EL_ACT_RELU || act == EL_ACT_RELU2 || act == EL_ACT_SIGMOID || act == EL_ACT_SWIGLU_OAI;
}

/* GLU, ACT, ADD, SCALE, SOFTCAP on columns first .. first+n-1 of the views. */
static void elementwise(el_engine *e, const el_cop *c, int32_t row, int32_t first, int32_t n) {
    const el_kernels *k = &e->kernels;
    const el_op *op = &c->op;
    const float *a = el_row(e, &op->v[0], row) + first;
    float *second = el_row(e, &op->v[1], row) + first;
    if (hides_nonfinite(op) && k->nonfinite(a, n)) el_mark_failed(e, c->axis, row);
    switch (op->code) {
    case EL_OP_GLU: k->glu(op->i[0], a, second, n, el_row(e, &op->v[2], row) + first); break;
    case EL_OP_ADD: k->add(a, second, n, el_row(e, &op->v[2], row) + first); break;
    case EL_OP_ACT: k->act(op->i[0], a, n, second); break;
    case EL_OP_SCALE: k->scale(a, op->f[0], n, second); break;
    case EL_OP_SOFTCAP: k->softcap(a, op->f[0], n, second); break;
    default: el_mark_failed(e, c->axis, row); break; /* plan_ops.c lets no other op come here */
    }
}

static void rope(el_engine *e, const el_cop *c, int32_t row) {
    const el_rope *table = &e->plan.ropes[c->op.i[4]];
    int32_t heads = c->op.i[0], n_rot = c->op.i[1], dim = c->op.v[0].width / heads;
    size_t at = (size_t)e->batch->positions[row] * (size_t)(n_rot / 2);
    float *x = el_row(e, &c->op.v[0], row) + c->op.i[2];
    for (int32_t h = 0; h < heads; h++) {
        e->kernels.rope(x + (size_t)h * (size_t)dim, n_rot, c->op.i[3], table->cos + at, table->sin + at);
    }
}

static void kv_write(el_engine *e, const el_cop *c, int32_t row) {
    const el_layer *l = &e->plan.layers[c->layer];
    const el_class *class = &e->plan.classes[l->cls];
    int32_t position = e->batch->positions[row], slot = position % EL_PAGE_TOKENS;
    size_t entry = (size_t)e->sequence[row] * (size_t)e->batch->page_stride[l->cls] +
                   (size_t)(position / EL_PAGE_TOKENS);
    char *page = class->pool + (size_t)e->batch->pages[l->cls][entry] * class->page_bytes;
    const float *k = el_row(e, &c->op.v[0], row), *v = el_row(e, &c->op.v[1], row);
    for (int32_t h = 0; h < l->n_heads; h++) {
        e->kernels.k_store[e->plan.k_type](k + (size_t)h * (size_t)l->k_dim, l->k_dim, slot,
                                           page + l->k_offset + (size_t)h * l->k_head_bytes);
        e->kernels.v_store[e->plan.v_type](v + (size_t)h * (size_t)l->v_dim, l->v_dim, slot,
                                           page + l->v_offset + (size_t)h * l->v_head_bytes);
    }
}

static void combine(el_engine *e, const el_cop *c, int32_t thread, int32_t row) {
    int32_t n = c->op.v[2].width;
    const float *x = el_row(e, &c->op.v[0], row), *w = el_row(e, &c->op.v[1], row);
    float *sum = e->scratch[thread].row, *y = el_row(e, &c->op.v[2], row);
    e->kernels.scale(x, w[0], n, sum);
    for (int32_t j = 1; j < c->op.i[0]; j++) e->kernels.axpy(x + (size_t)j * (size_t)n, w[j], n, sum);
    if (c->op.v[3].buf >= 0) {
        e->kernels.add(el_row(e, &c->op.v[3], row), sum, n, y);
    } else {
        memcpy(y, sum, (size_t)n * sizeof *y);
    }
}

static void run_op(el_engine *e, const el_cop *c, int32_t thread, int32_t row) {
    switch (c->op.code) {
    case EL_OP_EMBED: embed(e, c, thread, row); break;
    case EL_OP_NORM: norm(e, c, row); break;
    case EL_OP_QUANTIZE: quantize(e, c, row); break;
    case EL_OP_ROPE: rope(e, c, row); break;
    case EL_OP_KV_WRITE: kv_write(e, c, row); break;
    case EL_OP_ROUTE: el_route_row(e, c, thread, row); break;
    case EL_OP_COMBINE: combine(e, c, thread, row); break;
    case EL_OP_SELECT_ROWS:
        memcpy(el_row(e, &c->op.v[1], row), el_row(e, &c->op.v[0], e->batch->rows[row]),
               (size_t)c->op.v[0].width * sizeof(float));
        break;
    default: elementwise(e, c, row, 0, c->op.v[0].width); break;
    }
}

static void run_rows(el_engine *e, const el_phase *phase, int32_t thread, int32_t first, int32_t last) {
    for (int32_t row = first; row < last; row++) {
        for (int32_t i = 0; i < phase->n_ops; i++) run_op(e, &e->plan.ops[phase->first + i], thread, row);
    }
}

/* Rows that one thread should have: tokens of one page lie side by side in every line of the cache. */
static int32_t rows_together(const el_engine *e, const el_phase *phase) {
    for (int32_t i = 0; i < phase->n_ops; i++) {
        if (e->plan.ops[phase->first + i].op.code == EL_OP_KV_WRITE) {
            return el_max(1, el_min(EL_PAGE_TOKENS, e->n_rows[phase->axis] / e->batch->n_seqs));
        }
    }
    return 1;
}

int32_t el_rows_begin(el_engine *e, el_phase *phase, int32_t thread) {
    int32_t n = e->n_rows[phase->axis];
    int32_t together = rows_together(e, phase);
    float cost = (float)n * phase->row_ns;
    if (e->n_threads == 1 || cost < (float)EL_SERIAL_NS || (together > 1 && together == n)) {
        run_rows(e, phase, thread, 0, n);
        return 0;
    }
    float target = cost / (float)(e->n_threads * CHUNKS_PER_THREAD);
    target = target < MIN_CHUNK_NS ? MIN_CHUNK_NS : target > MAX_CHUNK_NS ? MAX_CHUNK_NS : target;
    phase->row_chunk = el_max(together, (int32_t)(target / phase->row_ns));
    phase->col_chunk = phase->n_col_chunks = 1;
    if (phase->split_width && phase->row_ns > 2 * target) {
        int32_t columns = (int32_t)((float)phase->split_width * (target / phase->row_ns));
        phase->col_chunk = el_ceil_div(columns, COLUMN_UNIT) * COLUMN_UNIT;
        phase->n_col_chunks = el_ceil_div(phase->split_width, phase->col_chunk);
    }
    return el_ceil_div(n, phase->row_chunk) * phase->n_col_chunks;
}

void el_rows_chunk(el_engine *e, const el_phase *phase, int32_t thread, int32_t chunk) {
    if (phase->n_col_chunks > 1) {
        int32_t first = chunk % phase->n_col_chunks * phase->col_chunk;
        elementwise(e, &e->plan.ops[phase->first], chunk / phase->n_col_chunks, first,
                    el_min(phase->col_chunk, phase->split_width - first));
        return;
    }
    int32_t first = chunk * phase->row_chunk;
    run_rows(e, phase, thread, first, el_min(first + phase->row_chunk, e->n_rows[phase->axis]));
}
