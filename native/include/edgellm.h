/* edgellm: the C interface of the native core. One engine = one loaded plan with its weights, caches and scratch.
 *
 *     el_error err;
 *     el_engine *e = el_engine_new(&model, &config, &err);      // packs weights, allocates everything
 *     if (!e || el_step(e, &batch, &out, &err)) puts(err.message);
 *     el_engine_free(e);
 *
 * Rules. Nothing here aborts, prints, or keeps global state. Every pointer passed in belongs to the caller; those in
 * el_model (weights, vectors, tables) must stay valid and unchanged until el_engine_free, all others only during the
 * call. A step allocates nothing. An engine is used by one thread at a time; different engines are independent.
 * Functions that can fail return 0 or an el_status and fill `err` when it is not NULL.
 * Python reads the part between the cdef marks as it stands: no macros or attributes there.
 *
 * Letters: T tokens, S sequences, R output rows, V vocabulary, C cache classes, D model dim, F ffn dim, H query heads,
 * G kv heads, E head dim, N output rows and K contraction index of a matmul.
 */
#ifndef EDGELLM_H
#define EDGELLM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__clang__) || (defined(__GNUC__) && !defined(_WIN32))
#pragma GCC visibility push(default)
#endif

/* cdef begin */

/* Result codes. */
enum el_status {
    EL_OK = 0,
    EL_E_ARGUMENT = 1,    /* a plan, batch or option is malformed; the message names the field */
    EL_E_UNSUPPORTED = 2, /* an op, weight type, or ISA level this library does not have */
    EL_E_MEMORY = 3,      /* an allocation failed; the message says how much for what */
    EL_E_SYSTEM = 4       /* a system call failed (threads, mappings) */
};

/* Weight types: GGUF's ids. */
enum el_qtype {
    EL_F32 = 0,
    EL_F16 = 1,
    EL_Q4_0 = 2,
    EL_Q4_1 = 3,
    EL_Q5_0 = 6,
    EL_Q5_1 = 7,
    EL_Q8_0 = 8,
    EL_Q2_K = 10,
    EL_Q3_K = 11,
    EL_Q4_K = 12,
    EL_Q5_K = 13,
    EL_Q6_K = 14,
    EL_IQ2_XXS = 16,
    EL_IQ2_XS = 17,
    EL_IQ3_XXS = 18,
    EL_IQ1_S = 19,
    EL_IQ4_NL = 20,
    EL_IQ3_S = 21,
    EL_IQ2_S = 22,
    EL_IQ4_XS = 23,
    EL_IQ1_M = 29,
    EL_BF16 = 30,
    EL_TQ1_0 = 34,
    EL_TQ2_0 = 35,
    EL_MXFP4 = 39,
    EL_NVFP4 = 40,
    EL_QTYPE_LIMIT = 64
};

/* Formats of the KV cache (kernels.h). */
enum el_kvtype {
    EL_KV_F16 = 0,
    EL_KV_F32 = 1,
    EL_KV_BF16 = 2,
    EL_KV_Q8_0 = 3,
    EL_KV_Q4_0 = 4,
    EL_KV_FP8_E4M3 = 5,
    EL_KV_FP8_E5M2 = 6,
    EL_KV_TYPES = 7
};

/* Activations. As a gate: y = act(gate) * up. SWIGLU_OAI: gate = min(gate, 7), up = clamp(up, -7, 7),
 * y = gate * sigmoid(1.702 gate) * (up + 1). */
enum el_act {
    EL_ACT_NONE,
    EL_ACT_SILU,
    EL_ACT_GELU_TANH,
    EL_ACT_GELU_ERF,
    EL_ACT_RELU,
    EL_ACT_RELU2,
    EL_ACT_SIGMOID,
    EL_ACT_SWIGLU_OAI
};

/* Op codes, with the meaning of an el_op's v (views), w (weight or vector indices, -1 = none), i and f.
 *
 *   EMBED      v0 y                 w0 embedding                       f0 scale       y[t] = f0 * row(token[t])
 *   NORM       v0 x  v1 y           w0 weight w1 bias  i0 kind(0 rms,1 layer,2 l2) i1 groups i2 weight is per row(1) or
 *                                   per segment(0)     f0 eps
 *   QUANTIZE   v0 x                 i0 format (el_actfmt)  i1 slot  i2 segments   x -> int8 activations in slot i1: each of
 *                                   the i2 (0 = 1) equal segments of a row is an activation row of its own (token * i2 + j)
 *   LINEAR     v0 x  v1 y  v2 residual(buf -1 = none)  i0 n_parts (1..4)  i1 activation slot (-1: x as float)
 *              w[2p] matrix, w[2p+1] bias, f[p] scale of part p        y = residual + concat_p(f_p * W_p x + b_p)
 *   GATED      v0 x  v1 y           w0 gate w1 gate bias w2 up w3 up bias  f0,f1 scales  i0 act  i1 activation slot
 *   GLU        v0 gate v1 up v2 y   i0 act
 *   ACT        v0 x  v1 y           i0 act
 *   ADD        v0 a  v1 b  v2 y
 *   SCALE      v0 x  v1 y           f0 factor
 *   SOFTCAP    v0 x  v1 y           f0 cap
 *   ROPE       v0 x  i0 heads  i1 n_rot  i2 offset  i3 mode(0 norm, 1 neox)  i4 table
 *   KV_WRITE   v0 k  v1 v           i0 class  i1 layer
 *   ATTENTION  v0 q  v1 y           i0 class  i1 layer  i2 H  i3 window  i4 causal   w0 sinks   f0 scale  f1 softcap
 *   ROUTE      v0 logits v1 ids(i32) v2 weights   i0 k  i1 func(0 softmax,1 sigmoid,2 softmax_topk)  i2 norm  w0 bias
 *              f0 scale
 *   EXPERT_LINEAR  v0 x v1 ids v2 y   w0 stack w1 bias w2 scale   i0 k  i1 per_rank  i2 activation slot
 *   EXPERT_GATED   v0 x v1 ids v2 y   w0 gate w1 gate bias w2 gate scale w3 up w4 up bias w5 up scale  i0 k  i1 act
 *                  i2 activation slot
 *   COMBINE    v0 x  v1 weights  v2 y  v3 residual   i0 k
 *   SELECT_ROWS v0 x v1 y           from the token axis to the output axis
 */
enum el_opcode {
    EL_OP_EMBED = 1,
    EL_OP_NORM,
    EL_OP_QUANTIZE,
    EL_OP_LINEAR,
    EL_OP_GATED,
    EL_OP_GLU,
    EL_OP_ACT,
    EL_OP_ADD,
    EL_OP_SCALE,
    EL_OP_SOFTCAP,
    EL_OP_ROPE,
    EL_OP_KV_WRITE,
    EL_OP_ATTENTION,
    EL_OP_ROUTE,
    EL_OP_EXPERT_LINEAR,
    EL_OP_EXPERT_GATED,
    EL_OP_COMBINE,
    EL_OP_SELECT_ROWS
};

/* int8 activation formats (docs/numerics.md): scale per 16 for the 32-block types, per 256 for k-quants. */
enum el_actfmt { EL_ACT_A16 = 0, EL_ACT_A256 = 1 };

/* What went wrong, in words. message is NUL-terminated UTF-8. */
typedef struct el_error {
    int32_t code;
    char message[508];
} el_error;

/* Columns start .. start+width-1 of a buffer. */
typedef struct el_view {
    int32_t buf, start, width;
} el_view;

/* One op, fixed size; see el_opcode. */
typedef struct el_op {
    int32_t code;
    el_view v[4];
    int32_t w[8];
    int32_t i[7];
    float f[4];
} el_op;

/* A [rows, width] matrix of scratch. axis 0: rows = max_tokens, 1: rows = max_rows. dtype 0: f32, 1: i32. */
typedef struct el_buffer {
    int32_t width, axis, dtype;
} el_buffer;

/* A matrix in the file's own layout. data: n_stack * n_rows rows of n_cols weights, GGUF blocks of `qtype`, any
 * alignment. pack: 1 = repack into tiles at load, 2 = the same, reading the bytes from the open file `fd` at `offset`
 * instead (its map then stays untouched, and memory small), 0 = run from `data`. Embedding lookups always read `data`.
 * tiles: panels that el_pack_tiles made of all rows, on a 64-byte line, to run from (then pack is 0); or NULL. */
typedef struct el_weight {
    const void *data;
    int64_t n_bytes;
    int32_t qtype, n_rows, n_cols, n_stack, pack, fd;
    int64_t offset;
    const void *tiles;
    int64_t n_tile_bytes;
} el_weight;

/* A float32 vector (norm weights, biases, scales, sinks). A w index >= 0 addresses matrices; vectors have their own
 * numbering, given as index + EL_VECTOR_BASE = 1000000. */
typedef struct el_vector {
    const float *data;
    int64_t n;
} el_vector;

/* cos and sin, each [n_positions, n_rot / 2]. The caller fills rows before a step needs them. */
typedef struct el_rope {
    const float *cos, *sin;
    int32_t n_positions, n_rot;
} el_rope;

/* One layer's share of a page: K of G heads, then V of G heads, in the formats k_type and v_type. */
typedef struct el_cache_layer {
    int32_t cls, layer, n_heads, k_dim, v_dim;
} el_cache_layer;

/* A plan with everything it refers to. Layers of class c are numbered from 0 without gaps. */
typedef struct el_model {
    int32_t size; /* sizeof(el_model), checked */
    int32_t n_ops, n_buffers, n_weights, n_vectors, n_ropes, n_classes, n_cache_layers, n_act_slots;
    int32_t n_vocab, logits; /* logits: index of the [R, V] buffer */
    const el_op *ops;
    const el_buffer *buffers;
    const el_weight *weights;
    const el_vector *vectors;
    const el_rope *ropes;
    const el_cache_layer *cache_layers;
} el_model;

/* Sizes and choices of an engine. n_threads 0 = automatic; n_decode_threads: of steps of a few tokens, at most n_threads,
 * 0 = as many. far_types: bit t set = weights of type t are read by kernels that prefetch further ahead, where the level
 * has them (el_probe_far). Results depend on none of these. isa NULL or "" = best this machine has.
 * n_pages: [n_classes]. Cache memory is address space until written. */
typedef struct el_config {
    int32_t size; /* sizeof(el_config), checked */
    int32_t n_threads, n_decode_threads, max_tokens, max_rows, max_seqs, n_ctx, k_type, v_type;
    const int32_t *n_pages;
    const char *isa;
    uint64_t far_types;
} el_config;

/* One step's input. pages[c]: [S, page_stride[c]] page ids of class c; entry j holds positions 32j .. 32j+31; -1 = not
 * resident (never touched in this step). rows: [R] ascending token rows whose logits are wanted. adj_*: [n_adjust] edits
 * in order, adj_row ascending: l = l > 0 ? l / rep : l * rep; l += add. */
typedef struct el_batch {
    int32_t size; /* sizeof(el_batch), checked */
    int32_t n_tokens, n_seqs, n_rows, top_k, n_adjust;
    const int32_t *tokens;    /* [T] */
    const int32_t *positions; /* [T] */
    const int32_t *seq_start; /* [S+1] */
    const int32_t *rows;      /* [R] */
    const int32_t *const *pages;
    const int32_t *page_stride;
    const int32_t *adj_row, *adj_token;
    const float *adj_rep, *adj_add;
} el_batch;

/* One step's results; NULL = not wanted, but status is required. top_*: [R, top_k] by logit descending, then lower id.
 * lse: [R]. logits: [R, V] after the edits. status: [S], 1 = a non-finite value appeared in that sequence.
 * hidden: [R, K] what the LINEAR multiplies that writes the logits, K its columns; where nothing of the logits is wanted
 * beside it, they are not computed. */
typedef struct el_output {
    int32_t *top_ids;
    float *top_logits, *lse, *logits;
    int32_t *status;
    float *hidden;
} el_output;

/* How one sequence's logits are edited before each choice of a run: what el_batch's adj_* would say, made anew from the
 * tokens of the sequence before every step.
 *   seen in the last last_n tokens, n times:  l = l > 0 ? l / repeat : l * repeat;  l += -(n * frequency + presence) + bias
 *   in bias_tokens:  l += bias      in ends, while fewer than min_tokens were generated:  l += -inf
 * Sums are double, in this order, and rounded once to float. The second half is the caller's memory that a run reads and
 * writes, and keeps for the next one: el_edits_add begins it, with n_tokens and n_seen 0. */
typedef struct el_edits {
    double repeat, presence, frequency;
    int64_t min_tokens;
    int32_t last_n; /* 0: none (then the memory is not used), below 0: all of them */
    int32_t n_bias, n_ends;
    const int32_t *bias_tokens; /* [n_bias] ascending */
    const double *bias;         /* [n_bias] */
    const int32_t *ends;        /* [n_ends] ascending */
    int32_t room, n_tokens, n_seen;
    int32_t *tokens;        /* [room] of the sequence: the last_n latest of them at least */
    int32_t *seen, *counts; /* [room] the different ones among the last last_n, ascending, and how often */
} el_edits;

/* How the next token of one sequence is chosen from its `top_k` likeliest (docs/numerics.md): temperature 0 takes the
 * first; else one draw that depends on seed, choice and n_generated alone, after top-p and min-p. */
typedef struct el_pick {
    double temperature, top_p, min_p;
    uint64_t seed;
    int64_t n_generated; /* tokens of this sequence chosen so far */
    int32_t choice, top_k;
    el_edits *edits; /* before the choice; may be NULL */
} el_pick;

/* Several decode steps in one call. A run ends early after a step in which a sequence failed, had every token banned
 * (then -1 is chosen) or an ending token chosen, or *halt was found to be other than 0: any thread may write it at any
 * time. */
typedef struct el_run_spec {
    int32_t size; /* sizeof(el_run_spec), checked */
    int32_t n_steps, n_ends;
    const el_pick *picks; /* [S], as for the first step */
    const int32_t *ends; /* [n_ends] tokens after which the caller has to decide; may be NULL with n_ends 0 */
    const int32_t *halt; /* may be NULL */
    int32_t *tokens;     /* [n_steps, S] written: the tokens chosen */
    int32_t edit_room; /* room for the edits of a step: of all sequences n_bias + n_ends + n_seen + n_steps */
    int32_t *edit_row, *edit_token; /* [edit_room] */
    float *edit_rep, *edit_add;     /* [edit_room] */
} el_run_spec;

/* What an engine chose and holds. */
typedef struct el_info {
    char isa[32];
    int32_t n_threads, n_decode_threads;
    int64_t weight_bytes, scratch_bytes, cache_bytes;
} el_info;

/* What a phase of the plan (ops that run without a barrier in between) took, summed over steps: how often it ran, its
 * nanoseconds from beginning to end, and those that all threads together spent in its chunks. */
typedef struct el_phase_time {
    int32_t first_op, n_ops; /* of the plan; n_ops 0: the selection behind the last op */
    int64_t n_runs, wall, busy;
} el_phase_time;

/* What the number of threads is chosen from: logical processors in the affinity mask; those of them on cores of the
 * fastest kind; the cores that these are on; the processors that the control group may use at a time (0: no limit); and
 * the choice. */
typedef struct el_cores {
    int32_t n_allowed, n_fast, n_cores, n_threads;
    double quota;
} el_cores;

typedef struct el_engine el_engine;

/* Version of this interface; a caller refuses another. */
int32_t el_abi_version(void);

/* sizeof of the struct with that name ("el_op", "el_model", ...), 0 if unknown: the caller checks its own layout. */
int32_t el_struct_size(const char *name);

/* Name of ISA level `index` in ascending order, NULL past the last; available: 1 when this machine and OS can run it;
 * why: a static string saying what is missing, "" when available. available and why may be NULL. */
const char *el_isa_level(int32_t index, int32_t *available, const char **why);

/* Version of the panels' layout: tiles that were kept are of use to libraries with the same number only. */
int32_t el_tile_layout(void);

/* Bytes of n_rows rows of n_cols weights as panels, a multiple of 64; 0 where there are none (an unknown type, sizes out of
 * range, n_cols not a multiple of the type's block). */
int64_t el_tile_bytes(int32_t qtype, int32_t n_rows, int32_t n_cols);

/* Repack n_rows rows of the file, n_bytes at `rows`, into el_tile_bytes(...) bytes at `tiles`, which start on a
 * 64-byte line: what an engine does at load. All levels write the same bytes. isa as in el_config. Pure. */
int32_t el_pack_tiles(const char *isa, int32_t qtype, int32_t n_rows, int32_t n_cols, const void *rows,
                      int64_t n_bytes, void *tiles, int64_t n_tile_bytes, el_error *err);

/* Load a plan: check it, choose kernels, start threads, repack weights on all of them. NULL on failure. */
el_engine *el_engine_new(const el_model *model, const el_config *config, el_error *err);

/* Stop the threads and free everything. NULL is allowed. */
void el_engine_free(el_engine *engine);

/* What the engine chose and holds. */
void el_engine_info(const el_engine *engine, el_info *info);

/* Run the whole plan over a batch. The FP environment is set for the duration and restored. */
int32_t el_step(el_engine *engine, const el_batch *batch, const el_output *out, el_error *err);

/* A step in parts, so that short steps need not wait for a long one: el_begin checks the batch, and every el_continue
 * computes for about `nanoseconds` (below 0: to the end) and pauses between chunks of the work. *done: 1 when the step is
 * complete and `out` is written. Results are those of el_step. `batch` and `out` stay the caller's and as they are until
 * then; in between, el_step, el_run and the pages' functions may be called for other pages than those that this batch
 * writes. Another el_begin gives up the step before it, whose tokens then count as never computed. */
int32_t el_begin(el_engine *engine, const el_batch *batch, const el_output *out, el_error *err);
int32_t el_continue(el_engine *engine, int64_t nanoseconds, int32_t *done, el_error *err);

/* Run up to n_steps steps; each step's tokens are the next one's input. The batch is the first step's: one token and one
 * row wanted of every sequence (T = S = R), top_k >= 1, no edits (those of the picks take their place), and pages for
 * n_steps positions from positions[s] on.
 * `out` holds the last step's results. *n_done = steps that ran. The tokens equal those of n_done calls of el_step with
 * el_pick_rank. On an error *n_done steps before it were complete. */
int32_t el_run(el_engine *engine, const el_batch *batch, const el_run_spec *run, const el_output *out,
               int32_t *n_done, el_error *err);

/* The rank, 0 to n-1, that `pick` chooses among n >= 1 logits in descending order, none of them nan. Pure. */
int32_t el_pick_rank(const el_pick *pick, const float *logits, int32_t n);

/* Add n tokens to what `edits` has seen of its sequence. EL_E_ARGUMENT, and nothing added, where there is no room. */
int32_t el_edits_add(el_edits *edits, const int32_t *tokens, int32_t n, el_error *err);

/* Write the edits of a sequence after n_generated tokens, of tokens below n_vocab, as those of output row `row`; `room`
 * as in el_run_spec. How many there are, -1 where there is no room. Pure. */
int32_t el_edits_write(const el_edits *edits, int64_t n_generated, int32_t n_vocab, int32_t row, int32_t room,
                       int32_t *rows, int32_t *tokens, float *rep, float *add);

/* Copy page src to page dst in every layer of cache class cls. */
int32_t el_copy_page(el_engine *engine, int32_t cls, int32_t src, int32_t dst, el_error *err);

/* Copy page `page` of class cls to `bytes` or, `write` not 0, from there. n_bytes: what a page of the class takes, K then
 * V of each of its layers in order, in their formats. Which level wrote them does not matter. */
int32_t el_page_data(el_engine *engine, int32_t cls, int32_t page, void *bytes, int64_t n_bytes,
                     int32_t write, el_error *err);

/* Give pages of class cls back to the system: their contents become undefined. */
int32_t el_release_pages(el_engine *engine, int32_t cls, const int32_t *pages, int32_t n, el_error *err);

/* Let steps add what their phases take to `times`, [n] the caller's memory, from now on; NULL ends it. n must be the
 * number of phases, selection included: el_n_phases. Fills in first_op and n_ops; the rest begins as it is. */
int32_t el_n_phases(const el_engine *engine);
int32_t el_time_phases(el_engine *engine, el_phase_time *times, int32_t n, el_error *err);

/* The processors of this machine, and the threads an engine starts when asked for 0. */
void el_find_cores(el_cores *cores);

/* What this machine can do at most, measured in a fraction of a second; 0 where it cannot be.
 * bandwidth: bytes/s that n_threads threads (0: automatic) read from a buffer of n_bytes; each of bandwidths: the same for
 * each of n numbers of threads, ascending, from one buffer. int8: multiply-adds/s of the level's instruction on registers;
 * isa as in el_config. */
double el_probe_bandwidth(int32_t n_threads, int64_t n_bytes);
int32_t el_probe_bandwidths(const int32_t *n_threads, int32_t n, int64_t n_bytes, double *bandwidths);
double el_probe_int8(int32_t n_threads, const char *isa);
/* bytes/s of a panel in the cache that one thread multiplies with one column, by the kernel of a weight type. */
double el_probe_matmul(int32_t qtype, const char *isa);
/* gains: of each of n weight types, how many times as fast n_threads threads read n_bytes of its panels with one column when
 * kernels prefetch further ahead; 0 where the level has no such kernels. */
int32_t el_probe_far(int32_t n_threads, const char *isa, int64_t n_bytes, const int32_t *qtypes, int32_t n,
                     double *gains);

/* cdef end */

#if defined(__clang__) || (defined(__GNUC__) && !defined(_WIN32))
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

enum {
    EL_VECTOR_BASE = 1000000,
    EL_PAGE_TOKENS = 32,
    EL_MAX_TOP_K = 1024,
    EL_TILE_ROWS = 16,
    EL_SEGMENT = 256
};

#endif
