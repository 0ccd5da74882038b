/* The engine: a compiled plan with its threads and memory, and the state of the step that is running.
 *
 * A step is one job of the pool (pool.h): its phases are those of the plan, then the selection from the logits. What
 * `step_next` writes between two phases may be read by every chunk without further ado.
 */
#ifndef EL_ENGINE_H
#define EL_ENGINE_H

#include "plan.h"
#include "pool.h"

#include <stdatomic.h>

enum {
    EL_MAX_COLUMNS = 192, /* of one call of a matmul kernel */
    EL_CHUNK_PANELS = 32, /* at most, of a matmul chunk */
    EL_TILE_FLOATS =
        16384, /* results that a gated matmul keeps aside, for the gate and again for the up part */
    EL_TOP_SEGMENT = 1024, /* logits, docs/numerics.md */
    EL_TOP_GROUPS = 32,    /* at most: chunks of one row's selection */
    EL_SERIAL_NS = 5000,   /* a row phase estimated at less runs on the thread that gets there */
};

/* What one thread works in. */
typedef struct el_scratch {
    void *mm;               /* of the matmul kernels */
    char *panels;           /* panels packed on the fly */
    float *gate, *up;       /* [EL_TILE_FLOATS] each */
    const void **x;         /* [EL_MAX_COLUMNS] activation rows */
    float **y;              /* [EL_MAX_COLUMNS] where a kernel writes */
    float **rows;           /* [EL_MAX_COLUMNS] result rows */
    const float **residual; /* [EL_MAX_COLUMNS] */
    float *row;             /* [max_row] also a row of an embedding, as it is in the file */
    void *attention;        /* of the attention kernel */
    float *m, *l, *M, *L;   /* [EL_ATTN_ROWS] each */
    float *o, *O;           /* [EL_ATTN_ROWS][max_v_dim] each */
} el_scratch;

/* Tokens grouped by expert, for the expert op of the running phase. */
typedef struct el_groups {
    int32_t n_active;
    int32_t *active; /* [n_active] experts that some token chose, ascending */
    int32_t *first;  /* [n_active + 1] into pairs */
    int32_t *pairs;  /* token * k + rank, by expert, then token, then rank */
    int32_t *count;  /* [max_experts] */
} el_groups;

/* Attention of the running phase. */
typedef struct el_units {
    int32_t n;             /* (block of query rows, kv head) pairs */
    int32_t split;         /* 1: a chunk is one segment of a unit */
    int32_t parts;         /* else: chunks of a unit, each some of its rows */
    int32_t most_rows;     /* of a unit */
    int32_t *first;        /* [n + 1] split: first chunk of a unit */
    _Atomic int32_t *done; /* [n] split: segments that are complete */
    float *partials;       /* split: [chunk] of m, l, o */
    size_t stride;         /* floats of a partial */
} el_units;

/* Selection from the logits. */
typedef struct el_select {
    int32_t n_groups, group_segments; /* chunks per row, segments per chunk */
    int32_t *ids;                     /* [chunk][top_k], with n_groups > 1 */
    float *values;
    int32_t *have;           /* [chunk] */
    float *m, *l;            /* [row][segment] */
    _Atomic int32_t *done;   /* [row] */
    _Atomic int32_t *broken; /* [row] 1: not finite */
} el_select;

struct el_engine {
    el_kernels kernels;
    el_plan plan;
    el_limits limits;
    el_pool *pool;
    int32_t n_threads, n_decode_threads; /* of all steps; of those with few tokens */

    char *weights; /* all panels */
    size_t weight_bytes;
    char *caches;
    size_t cache_bytes;
    char *memory; /* everything below */
    size_t memory_bytes;

    float **buffers;     /* [n_buffers]; int32 ones too */
    size_t *strides;     /* [n_buffers] floats from row to row */
    char **slots;        /* [n_slots] */
    el_scratch *scratch; /* [n_threads] */
    el_groups groups;
    el_units units;
    el_select select;
    size_t partial_floats; /* that units.partials holds */
    size_t packed_bytes;   /* that scratch.panels holds */

    /* The step. */
    const el_batch *batch;
    const el_output *output;
    int32_t n_rows[2];       /* T, R */
    int32_t phase;           /* of the plan; n_phases: selection */
    int32_t last_phase;      /* of this step */
    int32_t *sequence;       /* [T] */
    int32_t *block_first;    /* [n_shapes][S + 1] blocks of query rows */
    _Atomic int32_t *failed; /* [S] */
    _Atomic int32_t cut;     /* 1: the model's file no longer holds what this step needs */

    el_phase_time *times; /* [n_phases + 1], NULL: nobody asks */
    uint64_t phase_start; /* when the running phase began, 0 = none runs yet */

    /* A step in parts: another engine with the same plan, weights, caches and threads, and with memory of its own for
     * what a step works in. */
    el_engine *side;
    uint64_t pause_at;    /* side: leave chunks for later from then on, 0 = not in parts */
    int32_t *todo, *left; /* side: [room] chunks of this part of the phase, and for the next part */
    int32_t n_todo, room; /* side: 0: this part has all of the phase */
    int32_t resumes;      /* side: the part begins within a phase */
    int32_t whole;        /* side: the phase is not interrupted */
    _Atomic int32_t n_left, has_run; /* side: has_run: 1 once a chunk of this part runs */

    /* el_run: the input of its next step. */
    int32_t *run_tokens, *run_positions; /* [S] */
};

static inline float *el_row(const el_engine *e, const el_view *v, int32_t row) {
    return e->buffers[v->buf] + (size_t)row * e->strides[v->buf] + v->start;
}

/* Each returns the number of chunks of a phase that begins, 0 where it is complete already. */
int32_t el_rows_begin(el_engine *e, el_phase *phase, int32_t thread);
int32_t el_matmul_begin(el_engine *e, el_phase *phase);
int32_t el_attention_begin(el_engine *e, el_phase *phase);
int32_t el_select_begin(el_engine *e);

void el_rows_chunk(el_engine *e, const el_phase *phase, int32_t thread, int32_t chunk);
void el_matmul_chunk(el_engine *e, const el_phase *phase, int32_t thread, int32_t chunk);
void el_attention_chunk(el_engine *e, const el_phase *phase, int32_t thread, int32_t chunk);
void el_select_chunk(el_engine *e, int32_t thread, int32_t chunk);

/* Choose the experts of one row (route.c). */
void el_route_row(el_engine *e, const el_cop *c, int32_t thread, int32_t row);

/* A non-finite value appeared in a row of an axis: its sequence fails. */
void el_mark_failed(el_engine *e, int32_t axis, int32_t row);

/* Check a batch and what a step writes into, and fill sequence and block_first (batch.c). */
int32_t el_batch_check(el_engine *e, const el_batch *batch, const el_output *output, el_error *err);

/* Check the edits of a sequence whose tokens become n_steps more (edits.c). */
int32_t el_edits_check(const el_edits *edits, int32_t n_steps, el_error *err);

/* Reserve what a step of e->plan and e->limits works in, and the caches (memory.c); el_memory_free gives it all back. */
int32_t el_memory_new(el_engine *e, el_error *err);
int32_t el_caches_new(el_engine *e, el_error *err);
void el_memory_free(el_engine *e);

/* Repack the matrices that ask for it, on all threads (weights.c). */
int32_t el_weights_pack(el_engine *e, el_error *err);

/* A panel of matrix number `index` of a stack: from the tiles, or packed at *room, which moves on. */
const void *el_weights_panel(const el_mat *m, int32_t index, int32_t panel, char **room);

static inline int32_t el_panel_rows(const el_mat *m, int32_t panel) {
    int32_t left = m->n_rows - panel * EL_TILE_ROWS;
    return left < EL_TILE_ROWS ? left : EL_TILE_ROWS;
}

/* Threads worth starting: one a core of the fastest kind, within the affinity mask and the CPU quota (probe.c). */
int32_t el_default_threads(void);

static inline int32_t el_min(int32_t a, int32_t b) { return a < b ? a : b; }
static inline int32_t el_max(int32_t a, int32_t b) { return a > b ? a : b; }
static inline int32_t el_ceil_div(int32_t a, int32_t b) { return a / b + (a % b != 0); }

#endif
