/* A model as the engine runs it: el_model, checked and resolved, and its ops grouped into phases.
 *
 * Everything that el_plan_compile accepts can be run without further checks: all indices, views, widths, types and
 * divisibilities are settled here, so that a step tests the batch alone.
 */
#ifndef EL_PLAN_H
#define EL_PLAN_H

#include "error.h"
#include "kernels.h"

/* A weight matrix, or a stack of them. */
typedef struct el_mat {
    const el_tile *tile; /* NULL: the type can only be looked up */
    const char *data;    /* rows in the file's layout */
    const char *panels;  /* repacked, or NULL: panels are packed when they are needed */
    el_mm_fn *mm;
    el_pack_fn *pack;
    el_dequant_fn *dequant;
    size_t row_bytes, panel_bytes;
    int32_t qtype, n_rows, n_cols, n_stack;
    int32_t n_panels; /* of one matrix */
    int32_t repack;   /* into tiles at load; 2: from the file `fd` at `offset` */
    int32_t fd;
    int64_t offset;
    int32_t multiplied; /* by some op, not only looked up */
} el_mat;

/* One layer's place in a page of its class. */
typedef struct el_layer {
    int32_t cls, n_heads, k_dim, v_dim;
    size_t k_offset, v_offset;         /* in the page */
    size_t k_head_bytes, v_head_bytes; /* of one head */
} el_layer;

/* A cache class. Its pool is n_pages pages, each with the shares of all layers. */
typedef struct el_class {
    int32_t n_layers, n_pages;
    int32_t written, read; /* by ops */
    int32_t window;        /* the widest of those that read, 0 = everything */
    size_t page_bytes;
    char *pool;
} el_class;

/* How a matmul op is cut into chunks, settled when its phase begins. chunk = column group * n_groups + panel group. */
typedef struct el_cut {
    int32_t first, n_chunks; /* of the phase's chunks */
    int32_t panels, n_groups;
    int32_t columns;
} el_cut;

/* A checked op. */
typedef struct el_cop {
    el_op op;
    int32_t axis;        /* the rows it runs over: 0 tokens, 1 output rows */
    int32_t per_token;   /* QUANTIZE and its readers: activation rows per row */
    int32_t layer;       /* KV_WRITE, ATTENTION: index into layers */
    int32_t shape;       /* ATTENTION: index into shapes */
    int32_t n_panels;    /* matmuls: panels (GATED: pairs of panels); of one expert */
    size_t act_bytes;    /* QUANTIZE and its readers: bytes of an activation row */
    const float *vec[8]; /* the vectors among w, NULL elsewhere */
    float row_ns;        /* row ops: what one row costs, roughly */
    el_cut cut;
} el_cop;

enum { EL_PHASE_ROWS, EL_PHASE_MATMUL, EL_PHASE_ATTENTION };

/* Ops first .. first+n_ops-1, run without a barrier between them. */
typedef struct el_phase {
    int32_t kind, first, n_ops, axis;
    int32_t split_width; /* a lone elementwise op: its width, which may be cut too; else 0 */
    int32_t row_chunk, col_chunk, n_col_chunks; /* row phases: settled when the phase begins */
    float row_ns;
} el_phase;

/* A way of cutting query rows into blocks: heads per kv head, rows per block. */
typedef struct el_shape {
    int32_t group, block;
} el_shape;

typedef struct el_plan {
    int32_t n_ops, n_buffers, n_mats, n_vectors, n_ropes, n_classes, n_layers, n_slots, n_phases, n_shapes;
    int32_t n_vocab, logits;
    el_view hidden;      /* what the LINEAR reads that writes the logits; buf -1: none does */
    int32_t n_body;      /* phases before that LINEAR's */
    int32_t n_token_ids; /* token ids below this can be embedded */
    int32_t k_type, v_type;
    el_cop *ops;
    el_phase *phases;
    el_buffer *buffers;
    el_mat *mats;
    el_vector *vectors;
    el_rope *ropes;
    el_class *classes;
    el_layer *layers;
    el_shape *shapes;
    size_t *slot_bytes; /* of all rows of an activation slot */
    /* the largest of everything a thread needs room for */
    int32_t max_k;       /* columns of a matrix */
    size_t max_unpacked; /* bytes of the panels that one step of a matmul packs on the fly, 0 = none */
    int32_t max_row;     /* floats of a row that a row op keeps aside */
    int32_t max_k_dim, max_v_dim, max_heads;
    int32_t max_experts, max_rank; /* of expert ops, 0 = none */
} el_plan;

/* The sizes that a plan is compiled for. */
typedef struct el_limits {
    int32_t max_tokens, max_rows, max_seqs, n_ctx;
} el_limits;

/* Check `model` against `limits` and `kernels` and fill `plan`. On failure plan is left empty. */
int32_t el_plan_compile(el_plan *plan, const el_model *model, const el_config *config,
                        const el_kernels *kernels, el_error *err);
void el_plan_free(el_plan *plan);

/* Check op number `index` and resolve it (plan_ops.c). slot_owner: [n_slots] op that last wrote a slot, or -1. */
int32_t el_plan_op(el_plan *plan, int32_t index, int32_t *slot_owner, const el_limits *limits, el_error *err);

/* Group the ops into phases (phases.c). plan->phases holds n_ops entries. */
void el_plan_phases(el_plan *plan);

#endif
