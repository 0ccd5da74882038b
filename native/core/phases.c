/* Groups the ops of a plan into phases: what may run without a barrier in between.
 *
 * Row ops on one axis follow each other row by row, whoever computes a row. Matmuls share a phase when none reads or
 * writes what another writes, so that their panels are handed out together. Attention stands alone.
 */
#include "plan.h"

static int32_t kind_of(int32_t code) {
    switch (code) {
    case EL_OP_LINEAR:
    case EL_OP_GATED:
    case EL_OP_EXPERT_LINEAR:
    case EL_OP_EXPERT_GATED: return EL_PHASE_MATMUL;
    case EL_OP_ATTENTION: return EL_PHASE_ATTENTION;
    default: return EL_PHASE_ROWS;
    }
}

static int32_t is_expert(const el_op *op) {
    return op->code == EL_OP_EXPERT_LINEAR || op->code == EL_OP_EXPERT_GATED;
}

static int32_t overlap(const el_view *a, const el_view *b) {
    return a->buf >= 0 && a->buf == b->buf && a->start < b->start + b->width &&
           b->start < a->start + a->width;
}

static const el_view *output_of(const el_op *op) { return &op->v[is_expert(op) ? 2 : 1]; }

/* A matmul's output touches an input or the output of another. Activation slots are only read here. */
static int32_t touches(const el_op *a, const el_op *b) {
    const el_view *y = output_of(a);
    if (overlap(y, output_of(b)) || overlap(y, &b->v[0])) return 1;
    return b->code == EL_OP_LINEAR && overlap(y, &b->v[2]);
}

static int32_t may_join(const el_plan *p, const el_phase *phase, const el_cop *c) {
    if (kind_of(c->op.code) != phase->kind) return 0;
    if (phase->kind == EL_PHASE_ROWS) return c->axis == phase->axis;
    if (phase->kind != EL_PHASE_MATMUL) return 0;
    for (int32_t i = 0; i < phase->n_ops; i++) {
        const el_op *other = &p->ops[phase->first + i].op;
        if (touches(other, &c->op) || touches(&c->op, other)) return 0;
        if (is_expert(other) && is_expert(&c->op)) return 0; /* one grouping of tokens by expert at a time */
    }
    return 1;
}

/* The width of an elementwise op, 0 for any other. */
static int32_t split_width(const el_op *op) {
    switch (op->code) {
    case EL_OP_GLU:
    case EL_OP_ACT:
    case EL_OP_ADD:
    case EL_OP_SCALE:
    case EL_OP_SOFTCAP: return op->v[0].width;
    default: return 0;
    }
}

void el_plan_phases(el_plan *plan) {
    el_phase *phase = NULL;
    plan->n_phases = 0;
    plan->hidden.buf = -1;
    for (int32_t i = 0; i < plan->n_ops; i++) {
        const el_cop *c = &plan->ops[i];
        int32_t width = split_width(&c->op);
        if (!phase || !may_join(plan, phase, c)) {
            phase = &plan->phases[plan->n_phases++];
            *phase =
                (el_phase){.kind = kind_of(c->op.code), .first = i, .axis = c->axis, .split_width = width};
        }
        if (plan->hidden.buf < 0 && c->op.code == EL_OP_LINEAR && c->op.v[1].buf == plan->logits) {
            plan->hidden = c->op.v[0];
            plan->n_body = plan->n_phases - 1;
        }
        phase->n_ops++;
        phase->row_ns += c->row_ns + 30.0f;
        if (phase->n_ops > 1) phase->split_width = 0;
    }
}
