/* Runs small random models through whole steps and compares bits: thread counts, repacked or not, prompt chunkings, alone
 * or beside others, ISA levels. Then malformed plans and batches, which must be refused or run, never crash.
 *
 *     step_check          everything; prints what differs, ends with 1 if anything does
 *     step_check bench    how many empty phases a second the thread pool manages
 */
#include "edgellm.h"
#include "fp.h"
#include "fpenv.h"
#include "kernels.h"
#include "os.h"
#include "pool.h"
#include "qblocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_THREAD__)
enum { QUICK = 1 };
#else
enum { QUICK = 0 };
#endif

enum {
    D = 256,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD = 64,
    FFN = 256,
    VOCAB = 2100,
    EXPERTS = 5,
    RANK = 2,
    EXPERT_FFN = 256,
    LENGTH = 290,
    CONTEXT = 320,
    PAGES = 64,
    WINDOW = 40,
    MAX_OPS = 64,
    MAX_WEIGHTS = 32,
    SEQUENCES = 4,
    TOP_K = 20,
};

static int32_t n_failed;

static int32_t report(int32_t ok, const char *what, const char *detail) {
    if (!ok) {
        n_failed++;
        printf("FAILED %s: %s\n", what, detail);
    }
    return ok;
}

/* ---- random weights ---- */

static uint64_t random_state = 1;

static uint32_t random_bits(void) { /* splitmix64 */
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

static int32_t random_below(int32_t n) { return (int32_t)(random_bits() % (uint32_t)n); }
static float random_float(void) { return (float)(int32_t)random_bits() * (1.0f / 2147483648.0f); }

static void random_block(int32_t qtype, char *to) {
    const el_tile *tile = el_tile_of(qtype);
    for (int32_t i = 0; i < tile->row_bytes; i++) to[i] = (char)random_bits();
    uint16_t d = el_f32_to_f16(0.004f * (1.5f + random_float())), m = el_f32_to_f16(-0.03f);
    switch (qtype) {
    case EL_F32: memcpy(to, &(float){random_float() * 0.1f}, 4); break;
    case EL_F16: memcpy(to, &(uint16_t){el_f32_to_f16(random_float() * 0.1f)}, 2); break;
    case EL_Q8_0:
        d = el_f32_to_f16(0.001f * (1.5f + random_float()));
        memcpy(to, &d, 2);
        break;
    case EL_Q4_1:
        memcpy(to, &d, 2);
        memcpy(to + 2, &m, 2);
        break;
    case EL_Q4_K:
        d = el_f32_to_f16(0.0003f);
        m = el_f32_to_f16(0.002f);
        memcpy(to, &d, 2);
        memcpy(to + 2, &m, 2);
        break;
    case EL_Q6_K:
        d = el_f32_to_f16(0.00005f);
        memcpy(to + offsetof(el_block_q6_k, d), &d, 2);
        break;
    default: memcpy(to, &d, 2); break;
    }
}

/* ---- a model ---- */

typedef struct model {
    el_model m;
    el_op ops[MAX_OPS];
    el_buffer buffers[24];
    el_weight weights[MAX_WEIGHTS];
    el_vector vectors[MAX_WEIGHTS];
    el_rope ropes[2];
    el_cache_layer layers[2];
    float cos[CONTEXT][HEAD / 2], sin[CONTEXT][HEAD / 2], factors[D], biases[4 * D];
} model;

static int32_t buffer(model *m, int32_t width, int32_t axis, int32_t dtype) {
    m->buffers[m->m.n_buffers] = (el_buffer){width, axis, dtype};
    return m->m.n_buffers++;
}

static int32_t weight(model *m, int32_t qtype, int32_t n_stack, int32_t n_rows, int32_t n_cols) {
    const el_tile *tile = el_tile_of(qtype);
    size_t blocks = (size_t)n_stack * (size_t)n_rows * (size_t)(n_cols / tile->block);
    char *data = malloc(blocks * (size_t)tile->row_bytes + 1); /* odd addresses are allowed */
    for (size_t i = 0; i < blocks; i++) random_block(qtype, data + 1 + i * (size_t)tile->row_bytes);
    m->weights[m->m.n_weights] =
        (el_weight){data + 1, (int64_t)blocks * tile->row_bytes, qtype, n_rows, n_cols, n_stack, 1};
    return m->m.n_weights++;
}

static int32_t vector(model *m, const float *data, int64_t n) {
    m->vectors[m->m.n_vectors] = (el_vector){data, n};
    return EL_VECTOR_BASE + m->m.n_vectors++;
}

static el_op *op(model *m, int32_t code) {
    el_op *o = &m->ops[m->m.n_ops++];
    *o = (el_op){.code = code};
    for (int32_t i = 0; i < 4; i++) o->v[i] = (el_view){-1, 0, 0};
    for (int32_t i = 0; i < 8; i++) o->w[i] = -1;
    for (int32_t i = 0; i < 4; i++) o->f[i] = 1.0f;
    return o;
}

static void norm(model *m, el_view x, el_view y, int32_t groups, int32_t w) {
    el_op *o = op(m, EL_OP_NORM);
    o->v[0] = x;
    o->v[1] = y;
    o->w[0] = w;
    o->i[1] = groups;
    o->f[0] = 1e-5f;
}

static void quantize(model *m, el_view x, int32_t format, int32_t slot) {
    el_op *o = op(m, EL_OP_QUANTIZE);
    o->v[0] = x;
    o->i[0] = format;
    o->i[1] = slot;
}

static int32_t format_of(const model *m, int32_t w) { return el_tile_of(m->weights[w].qtype)->act; }

/* Quantise x as weight w wants it and return the slot, -1 for float activations. */
static int32_t activations(model *m, el_view x, int32_t w, int32_t slot) {
    if (format_of(m, w) < 0) return -1;
    quantize(m, x, format_of(m, w), slot);
    return slot;
}

static void layer(model *m, int32_t index, const int32_t types[6], int32_t experts) {
    const int32_t x = 0, n = 1, qkv = 2, att = 3, hidden = 4, logits = 5, ids = 6, weights = 7, up = 8,
                  down = 9;
    const el_view vx = {x, 0, D}, vn = {n, 0, D}, vq = {qkv, 0, HEADS * HEAD}, va = {att, 0, HEADS * HEAD};
    const el_view vk = {qkv, HEADS * HEAD, KV_HEADS * HEAD},
                  vv = {qkv, (HEADS + KV_HEADS) * HEAD, KV_HEADS * HEAD};
    int32_t factors = vector(m, m->factors, D), head_factors = vector(m, m->factors, HEAD);

    norm(m, vx, vn, 1, factors);
    int32_t wq = weight(m, types[0], 1, HEADS * HEAD, D), wk = weight(m, types[0], 1, KV_HEADS * HEAD, D);
    int32_t wv = weight(m, types[1], 1, KV_HEADS * HEAD, D);
    int32_t slot = activations(m, vn, wq, 0);
    el_op *o = op(m, EL_OP_LINEAR);
    o->v[0] = vn;
    o->v[1] = (el_view){qkv, 0, (HEADS + KV_HEADS) * HEAD};
    o->i[0] = 2;
    o->i[1] = slot;
    o->w[0] = wq;
    o->w[1] = vector(m, m->biases, HEADS * HEAD);
    o->w[2] = wk;
    o->f[1] = 0.5f;
    if (format_of(m, wv) != format_of(m, wq)) slot = activations(m, vn, wv, 1);
    o = op(m, EL_OP_LINEAR);
    o->v[0] = vn;
    o->v[1] = vv;
    o->i[0] = 1;
    o->i[1] = slot;
    o->w[0] = wv;
    norm(m, vq, vq, HEADS, head_factors);
    for (int32_t i = 0; i < 2; i++) {
        o = op(m, EL_OP_ROPE);
        o->v[0] = i ? vk : vq;
        o->i[0] = i ? KV_HEADS : HEADS;
        o->i[1] = HEAD;
        o->i[3] = index;
    }
    o = op(m, EL_OP_KV_WRITE);
    o->v[0] = vk;
    o->v[1] = vv;
    o->i[0] = index;
    o = op(m, EL_OP_ATTENTION);
    o->v[0] = vq;
    o->v[1] = va;
    o->i[0] = index;
    o->i[2] = HEADS;
    o->i[3] = index ? WINDOW : 0;
    o->i[4] = 1;
    o->w[0] = index ? vector(m, m->biases, HEADS) : -1;
    o->f[0] = 0.125f;
    o->f[1] = index ? 0.0f : 30.0f;
    int32_t wo = weight(m, types[2], 1, D, HEADS * HEAD);
    slot = activations(m, va, wo, 0);
    o = op(m, EL_OP_LINEAR);
    o->v[0] = va;
    o->v[1] = o->v[2] = vx;
    o->i[0] = 1;
    o->i[1] = slot;
    o->w[0] = wo;

    norm(m, vx, vn, 1, factors);
    if (!experts) {
        const el_view vh = {hidden, 0, FFN};
        int32_t wg = weight(m, types[3], 1, FFN, D), wu = weight(m, types[3], 1, FFN, D);
        int32_t wd = weight(m, types[4], 1, D, FFN);
        slot = activations(m, vn, wg, 0);
        o = op(m, EL_OP_GATED);
        o->v[0] = vn;
        o->v[1] = vh;
        o->w[0] = wg;
        o->w[2] = wu;
        o->w[3] = vector(m, m->biases, FFN);
        o->i[0] = EL_ACT_SILU;
        o->i[1] = slot;
        slot = activations(m, vh, wd, 0);
        o = op(m, EL_OP_LINEAR);
        o->v[0] = vh;
        o->v[1] = o->v[2] = vx;
        o->w[0] = wd;
        o->w[1] = vector(m, m->biases + D, D);
        o->i[0] = 1;
        o->i[1] = slot;
        return;
    }
    const el_view vl = {logits, 0, EXPERTS}, vi = {ids, 0, RANK}, vw = {weights, 0, RANK};
    const el_view vu = {up, 0, RANK * EXPERT_FFN}, vd = {down, 0, RANK * D};
    int32_t router = weight(m, EL_F32, 1, EXPERTS, D), wg = weight(m, types[3], EXPERTS, EXPERT_FFN, D);
    int32_t wu = weight(m, types[3], EXPERTS, EXPERT_FFN, D),
            wd = weight(m, types[4], EXPERTS, D, EXPERT_FFN);
    o = op(m, EL_OP_LINEAR);
    o->v[0] = vn;
    o->v[1] = vl;
    o->w[0] = router;
    o->i[0] = 1;
    o->i[1] = -1;
    o = op(m, EL_OP_ROUTE);
    o->v[0] = vl;
    o->v[1] = vi;
    o->v[2] = vw;
    o->i[0] = RANK;
    o->i[2] = 1;
    slot = activations(m, vn, wg, 0);
    o = op(m, EL_OP_EXPERT_GATED);
    o->v[0] = vn;
    o->v[1] = vi;
    o->v[2] = vu;
    o->w[0] = wg;
    o->w[1] = vector(m, m->biases, EXPERTS * EXPERT_FFN < 4 * D ? EXPERTS * EXPERT_FFN : 4 * D);
    if (m->vectors[o->w[1] - EL_VECTOR_BASE].n != EXPERTS * EXPERT_FFN) o->w[1] = -1;
    o->w[2] = vector(m, m->factors, EXPERTS);
    o->w[3] = wu;
    o->i[0] = RANK;
    o->i[1] = EL_ACT_GELU_TANH;
    o->i[2] = slot;
    slot = activations(m, vu, wd, 1);
    o = op(m, EL_OP_EXPERT_LINEAR);
    o->v[0] = vu;
    o->v[1] = vi;
    o->v[2] = vd;
    o->w[0] = wd;
    o->i[0] = RANK;
    o->i[1] = 1;
    o->i[2] = slot;
    o = op(m, EL_OP_COMBINE);
    o->v[0] = vd;
    o->v[1] = vw;
    o->v[2] = o->v[3] = vx;
    o->i[0] = RANK;
}

/* types: of wq and wk, wv, wo, gate and up, down, head. Layer 1 has a window, sinks and experts. */
static model *new_model(const int32_t types[6]) {
    model *m = calloc(1, sizeof *m);
    m->m.size = sizeof m->m;
    m->m.n_act_slots = 2;
    m->m.n_vocab = VOCAB;
    for (int32_t i = 0; i < D; i++) m->factors[i] = 1.0f + 0.1f * random_float();
    for (int32_t i = 0; i < 4 * D; i++) m->biases[i] = 0.1f * random_float();
    for (int32_t p = 0; p < CONTEXT; p++) {
        for (int32_t i = 0; i < HEAD / 2; i++) { /* any rotation will do */
            float t = 0.01f * (float)(p * (i + 1) % 157), r = 1.0f / (1.0f + t * t);
            m->cos[p][i] = (1.0f - t * t) * r;
            m->sin[p][i] = 2.0f * t * r;
        }
    }
    const int32_t widths[] = {
        D,       D, (HEADS + 2 * KV_HEADS) * HEAD, HEADS * HEAD, FFN, EXPERTS, RANK, RANK, RANK * EXPERT_FFN,
        RANK * D};
    for (int32_t i = 0; i < 10; i++) buffer(m, widths[i], 0, i == 6);
    int32_t xr = buffer(m, D, 1, 0), out = buffer(m, VOCAB, 1, 0);
    m->m.logits = out;
    m->m.n_classes = m->m.n_cache_layers = 2;
    for (int32_t i = 0; i < 2; i++) m->layers[i] = (el_cache_layer){i, 0, KV_HEADS, HEAD, HEAD};
    m->m.n_ropes = 1;
    m->ropes[0] = (el_rope){m->cos[0], m->sin[0], CONTEXT, HEAD};

    el_op *o = op(m, EL_OP_EMBED);
    int32_t head = weight(m, types[5], 1, VOCAB, D);
    o->v[0] = (el_view){0, 0, D};
    o->w[0] = head;
    o->f[0] = 2.0f;
    layer(m, 0, types, 0);
    layer(m, 1, types, 1);
    const el_view vx = {0, 0, D}, vr = {xr, 0, D}, vo = {out, 0, VOCAB};
    o = op(m, EL_OP_SELECT_ROWS);
    o->v[0] = vx;
    o->v[1] = vr;
    norm(m, vr, vr, 1, EL_VECTOR_BASE);
    int32_t slot = activations(m, vr, head, 0);
    o = op(m, EL_OP_LINEAR);
    o->v[0] = vr;
    o->v[1] = vo;
    o->w[0] = head;
    o->i[0] = 1;
    o->i[1] = slot;
    o = op(m, EL_OP_SOFTCAP);
    o->v[0] = o->v[1] = vo;
    o->f[0] = 25.0f;
    m->m.ops = m->ops;
    m->m.buffers = m->buffers;
    m->m.weights = m->weights;
    m->m.vectors = m->vectors;
    m->m.ropes = m->ropes;
    m->m.cache_layers = m->layers;
    return m;
}

static void free_model(model *m) {
    for (int32_t i = 0; i < m->m.n_weights; i++) free((char *)(uintptr_t)m->weights[i].data - 1);
    free(m);
}

/* ---- running ---- */

static const int32_t N_PAGES[2] = {PAGES, PAGES};

static el_config config(int32_t n_threads, const char *isa) {
    return (el_config){
        .size = sizeof(el_config),
        .n_threads = n_threads,
        .max_tokens = LENGTH + 64,
        .max_rows = LENGTH,
        .max_seqs = SEQUENCES,
        .n_ctx = CONTEXT,
        .n_pages = N_PAGES,
        .isa = isa,
    };
}

typedef struct answer {
    float logits[LENGTH][VOCAB], lse[LENGTH], top_logits[LENGTH][TOP_K];
    int32_t top_ids[LENGTH][TOP_K], status;
} answer;

typedef struct stream { /* one sequence on its way */
    int32_t tokens[LENGTH], length, done, pages[CONTEXT / EL_PAGE_TOKENS];
} stream;

/* Pages in an order of their own for each sequence. */
static void start_stream(stream *s, int32_t index, int32_t length, uint64_t seed) {
    uint64_t saved = random_state;
    random_state = seed;
    for (int32_t i = 0; i < LENGTH; i++) s->tokens[i] = random_below(VOCAB);
    random_state = saved;
    s->length = length;
    s->done = 0;
    for (int32_t j = 0; j < CONTEXT / EL_PAGE_TOKENS; j++)
        s->pages[j] = (7 * j + 13 * index + 5) % 16 + 16 * index;
}

/* One step: n[i] tokens of stream i (0 = not in the batch). The answers of stream 0 are kept. */
static int32_t run_step(el_engine *e, stream *streams, const int32_t *n, int32_t n_streams, answer *to,
                        el_error *err) {
    static int32_t tokens[LENGTH + 64], positions[LENGTH + 64], rows[LENGTH];
    int32_t seq_start[SEQUENCES + 1] = {0}, pages[SEQUENCES][CONTEXT / EL_PAGE_TOKENS], status[SEQUENCES],
                                  n_seqs = 0;
    int32_t t = 0, at = -1, first_row = -1;
    for (int32_t i = n_streams - 1; i >= 0;
         i--) { /* stream 0 comes last, so that its rows do not start at 0 */
        if (n[i] == 0) continue;
        if (i == 0) {
            at = n_seqs;
            first_row = t;
        }
        for (int32_t j = 0; j < n[i]; j++) {
            tokens[t] = streams[i].tokens[streams[i].done + j];
            positions[t++] = streams[i].done + j;
        }
        memcpy(pages[n_seqs], streams[i].pages, sizeof pages[0]);
        seq_start[++n_seqs] = t;
    }
    for (int32_t j = 0; j < n[0]; j++) rows[j] = first_row + j;
    const int32_t *tables[2] = {pages[0], pages[0]};
    int32_t strides[2] = {CONTEXT / EL_PAGE_TOKENS, CONTEXT / EL_PAGE_TOKENS};
    int32_t done = streams[0].done;
    el_batch b = {
        .size = sizeof b,
        .n_tokens = t,
        .n_seqs = n_seqs,
        .n_rows = n[0],
        .top_k = TOP_K,
        .tokens = tokens,
        .positions = positions,
        .seq_start = seq_start,
        .rows = rows,
        .pages = tables,
        .page_stride = strides,
    };
    el_output o = {to->top_ids[done], to->top_logits[done], &to->lse[done], to->logits[done], status};
    int32_t code = el_step(e, &b, &o, err);
    if (code) return code;
    for (int32_t i = 0; i < n_streams; i++) streams[i].done += n[i];
    if (at >= 0) to->status |= status[at];
    return 0;
}

/* The whole of stream 0 in chunks of `chunk` tokens; with others beside it, those take steps of their own sizes. */
static int32_t run_all(model *m, const el_config *c, int32_t chunk, int32_t others, answer *to,
                       el_error *err) {
    el_engine *e = el_engine_new(&m->m, c, err);
    if (!e) return err->code;
    stream streams[SEQUENCES];
    for (int32_t i = 0; i < SEQUENCES; i++)
        start_stream(&streams[i], i, i ? 100 + 50 * i : LENGTH, 100 + (uint64_t)i);
    memset(to, 0, sizeof *to);
    int32_t code = 0, n_streams = 1 + others;
    for (int32_t round = 0; streams[0].done < LENGTH && !code; round++) {
        int32_t n[SEQUENCES] = {0};
        n[0] = chunk < LENGTH - streams[0].done ? chunk : LENGTH - streams[0].done;
        for (int32_t i = 1; i < n_streams; i++) {
            int32_t want = (round + i) % 3 == 0 ? 0 : 1 + (round * i) % 17;
            int32_t left = streams[i].length - streams[i].done;
            n[i] = want < left ? want : left;
        }
        code = run_step(e, streams, n, n_streams, to, err);
    }
    el_engine_free(e);
    return code;
}

static void compare(const answer *a, const answer *b, const char *what) {
    const struct {
        const char *name;
        const void *a, *b;
        size_t n;
    } parts[] = {
        {"logits", a->logits, b->logits, sizeof a->logits},
        {"lse", a->lse, b->lse, sizeof a->lse},
        {"top_ids", a->top_ids, b->top_ids, sizeof a->top_ids},
        {"top_logits", a->top_logits, b->top_logits, sizeof a->top_logits},
        {"status", &a->status, &b->status, sizeof a->status},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        report(memcmp(parts[i].a, parts[i].b, parts[i].n) == 0, what, parts[i].name);
    }
}

static void set_pack(model *m, int32_t pack) {
    for (int32_t i = 0; i < m->m.n_weights; i++) m->weights[i].pack = pack;
}

/* The answers themselves: top-k against a search, lse against doubles, and sane logits. */
static void check_answer(const answer *a) {
    double sum_of_squares = 0;
    for (int32_t r = 0; r < LENGTH; r += 29) {
        int32_t better = 0, worst = a->top_ids[r][TOP_K - 1];
        double sum = 0;
        for (int32_t v = 0; v < VOCAB; v++) {
            float l = a->logits[r][v], w = a->logits[r][worst];
            better += l > w || (l == w && v < worst);
            sum += (double)el_exp(l - 20.0f);
            sum_of_squares += (double)l * l;
        }
        report(better == TOP_K - 1, "top_ids", "the last one is not the k-th best");
        for (int32_t i = 0; i < TOP_K; i++) {
            report(a->top_logits[r][i] == a->logits[r][a->top_ids[r][i]], "top_logits",
                   "not those of the ids");
            report(i == 0 || a->top_logits[r][i - 1] >= a->top_logits[r][i], "top_logits", "not descending");
        }
        double error = (double)(a->lse[r] - 20.0f) - (double)el_log((float)sum);
        report(error < 1e-3 && error > -1e-3, "lse", "far from the sum of exponentials");
    }
    report(sum_of_squares > 100.0, "logits", "next to nothing");
    report(a->status == 0, "status", "not 0");
}

static void check_bits(void) {
    static const int32_t kinds[][6] = {
        {EL_Q8_0, EL_Q8_0, EL_Q4_1, EL_Q4_1, EL_Q8_0, EL_Q8_0},
        {EL_Q4_K, EL_Q8_0, EL_Q6_K, EL_Q4_K, EL_Q6_K, EL_Q6_K},
        {EL_F16, EL_Q5_0, EL_F32, EL_Q5_0, EL_F16, EL_F32},
    };
    answer *first = malloc(sizeof *first), *other = malloc(sizeof *other);
    for (int32_t kind = 0; kind < 3; kind++) {
        model *m = new_model(kinds[kind]);
        el_error err = {0};
        el_config c = config(1, "scalar");
        c.k_type = c.v_type = kind == 1 ? EL_KV_F32 : EL_KV_F16;
        if (!report(run_all(m, &c, QUICK ? 96 : LENGTH, 0, first, &err) == 0, "scalar", err.message)) {
            free_model(m);
            continue;
        }
        check_answer(first);
        static const struct {
            int32_t threads, pack, chunk, others;
        } runs[] = {{1, 0, LENGTH, 0}, {2, 1, LENGTH, 0}, {4, 0, 96, 0},     {4, 1, 32, 3}, {2, 0, 7, 3},
                    {2, 1, 1, 0},      {4, 0, 1, 2},      {3, 1, LENGTH, 3}, {1, 1, 13, 3}};
        for (int32_t level = 0; el_isa_level(level, NULL, NULL); level++) {
            int32_t available;
            const char *name = el_isa_level(level, &available, NULL);
            if (!available) continue;
            for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
                if (QUICK && i % 3 != (size_t)kind) continue;
                if (level == 0 && !QUICK && runs[i].chunk == 1 && i != 6) continue; /* slow */
                el_config v = config(runs[i].threads, name);
                v.k_type = v.v_type = c.k_type;
                set_pack(m, runs[i].pack);
                char what[128];
                snprintf(what, sizeof what, "model %d, %s, %d threads, pack %d, chunks of %d, beside %d",
                         kind, name, runs[i].threads, runs[i].pack, runs[i].chunk, runs[i].others);
                if (report(run_all(m, &v, runs[i].chunk, runs[i].others, other, &err) == 0, what,
                           err.message)) {
                    compare(first, other, what);
                }
            }
        }
        free_model(m);
    }
    free(first);
    free(other);
}

/* ---- particular behaviours ---- */

static const int32_t SMALL[6] = {EL_Q8_0, EL_Q8_0, EL_Q4_1, EL_Q4_1, EL_Q8_0, EL_Q8_0};

static void check_environment(void) {
    model *m = new_model(SMALL);
    answer *a = malloc(sizeof *a), *b = malloc(sizeof *b);
    el_error err = {0};
    el_config c = config(2, NULL);
    report(run_all(m, &c, 96, 0, a, &err) == 0, "environment", err.message);
#if defined(__x86_64__)
    uint32_t old = _mm_getcsr(), flushing = old | 0x8040 | 0x6000; /* FTZ, DAZ, round toward zero */
    _mm_setcsr(flushing);
    int32_t code = run_all(m, &c, 96, 0, b, &err);
    uint32_t after = _mm_getcsr();
    _mm_setcsr(old);
    report(code == 0, "environment", err.message);
    report((after & ~0x3fu) == (flushing & ~0x3fu), "environment", "MXCSR was not put back");
    compare(a, b, "with flush to zero on");
#endif
    free(a);
    free(b);
    free_model(m);
}

static void check_pages(void) {
    model *m = new_model(SMALL);
    answer *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    el_error err = {0};
    el_config c = config(2, NULL);
    el_engine *e = el_engine_new(&m->m, &c, &err);
    if (report(e != NULL, "pages", err.message)) {
        stream s, t;
        start_stream(&s, 0, LENGTH, 5);
        int32_t n = 100, one = 1;
        report(run_step(e, &s, &n, 1, a, &err) == 0, "pages", err.message);
        t = s;
        for (int32_t j = 0; j < 4; j++) {
            t.pages[j] = 40 + j;
            for (int32_t k = 0; k < 2; k++) {
                report(el_copy_page(e, k, s.pages[j], t.pages[j], &err) == 0, "copy", err.message);
            }
        }
        report(run_step(e, &s, &one, 1, a, &err) == 0, "pages", err.message);
        for (int32_t k = 0; k < 2; k++) {
            report(el_release_pages(e, k, s.pages, 4, &err) == 0, "release", err.message);
            report(el_release_pages(e, k, &(int32_t){PAGES}, 1, &err) == EL_E_ARGUMENT, "release",
                   "page beyond");
            report(el_copy_page(e, k, 0, -1, &err) == EL_E_ARGUMENT, "copy", "page below");
        }
        report(run_step(e, &t, &one, 1, b, &err) == 0, "pages", err.message);
        report(memcmp(a->logits[100], b->logits[100], sizeof a->logits[100]) == 0, "pages",
               "copied pages differ");
    }
    el_engine_free(e);
    free(a);
    free(b);
    free_model(m);
}

/* A non-finite embedding fails its own sequence only; edits and log-sum-exp; a vocabulary smaller than top_k. */
static void check_status_and_edits(void) {
    static const int32_t types[6] = {EL_Q8_0, EL_Q8_0, EL_Q4_1, EL_Q4_1, EL_Q8_0, EL_F32};
    model *m = new_model(types);
    float *row = (float *)(void *)malloc(sizeof(float));
    *row = el_float(0x7f800000u);
    memcpy((char *)(uintptr_t)m->weights[0].data + (size_t)7 * D * sizeof(float), row, sizeof *row);
    free(row);
    el_error err = {0};
    el_config c = config(2, NULL);
    el_engine *e = el_engine_new(&m->m, &c, &err);
    if (report(e != NULL, "edits", err.message)) {
        int32_t tokens[] = {3, 4, 7, 5, 6}, positions[] = {0, 1, 0, 0, 1}, seq_start[] = {0, 2, 3, 5},
                rows[] = {1, 2, 4};
        int32_t pages[] = {0, 1, 2}, strides[] = {1, 1}, status[3], adj_row[] = {0, 0, 0, 2},
                adj_token[] = {9, 10, 9, 1};
        float adj_rep[] = {2, 1, 1, 1}, adj_add[] = {1, -el_float(0x7f800000u), 3, 1000}, lse[3];
        const int32_t *tables[] = {pages, pages};
        static float logits[3][VOCAB], plain[3][VOCAB], top[3][EL_MAX_TOP_K];
        static int32_t ids[3][EL_MAX_TOP_K];
        el_batch b = {sizeof b,  5,    3,      3,       0,    0,    tokens, positions,
                      seq_start, rows, tables, strides, NULL, NULL, NULL,   NULL};
        el_output o = {NULL, NULL, NULL, plain[0], status};
        report(el_step(e, &b, &o, &err) == 0, "status", err.message);
        report(status[0] == 0 && status[1] == 1 && status[2] == 0, "status", "expected 0 1 0");
        b.n_adjust = 4;
        b.top_k = EL_MAX_TOP_K;
        b.adj_row = adj_row;
        b.adj_token = adj_token;
        b.adj_rep = adj_rep;
        b.adj_add = adj_add;
        o = (el_output){ids[0], top[0], lse, logits[0], status};
        report(el_step(e, &b, &o, &err) == 0, "edits", err.message);
        float l = plain[0][9];
        l = (l > 0 ? l / 2 : l * 2) + 1;
        report(logits[0][9] == l + 3, "edits", "two edits of one logit, in order");
        report(logits[0][10] == -el_float(0x7f800000u), "edits", "banned");
        logits[0][9] = plain[0][9];
        logits[0][10] = plain[0][10];
        report(memcmp(logits[0], plain[0], sizeof plain[0]) == 0, "edits", "others changed");
        report(ids[2][0] == 1 && top[2][0] == plain[2][1] + 1000, "edits", "raised to the first place");
        report(lse[2] == top[2][0], "edits", "lse of one dominating logit");
        report(ids[1][0] == -1, "status", "a failed row has no candidates");
    }
    el_engine_free(e);
    free_model(m);
}

/* ---- malformed plans and batches ---- */

static int32_t odd_value(void) {
    static const int32_t values[] = {
        -2,        -1,        0,   1,   2, 3, 5, 31, 255, 1 << 20, EL_VECTOR_BASE, EL_VECTOR_BASE + 3,
        INT32_MAX, INT32_MIN, 257, 4096};
    return values[random_below((int32_t)(sizeof values / sizeof *values))];
}

/* Change one field of the plan; what is accepted must run. */
static void check_malformed_plans(void) {
    answer *to = calloc(1, sizeof *to);
    int32_t refused = 0, ran = 0, rounds = QUICK ? 200 : 3000;
    model *m = new_model(SMALL);
    model *copy = malloc(sizeof *copy);
    for (int32_t round = 0; round < rounds; round++) {
        *copy = *m;
        copy->m.ops = copy->ops;
        copy->m.buffers = copy->buffers;
        copy->m.weights = copy->weights;
        copy->m.vectors = copy->vectors;
        copy->m.ropes = copy->ropes;
        copy->m.cache_layers = copy->layers;
        set_pack(copy, 0);
        el_config c = config(1 + round % 2, NULL);
        el_op *o = &copy->ops[random_below(copy->m.n_ops)];
        switch (random_below(8)) {
        case 0: o->code = odd_value(); break;
        case 1: o->v[random_below(4)].buf = odd_value(); break;
        case 2: o->v[random_below(4)].start = odd_value(); break;
        case 3: o->v[random_below(4)].width = odd_value(); break;
        case 4:
            o->w[random_below(8)] = random_below(2) ? odd_value() : random_below(copy->m.n_weights + 1);
            break;
        case 5: o->i[random_below(7)] = odd_value(); break;
        case 6:
            o->f[random_below(4)] = random_below(2) ? el_float(0x7fc00000u) : el_float(0xff800000u);
            break;
        default:
            switch (random_below(12)) { /* tables; sizes may only shrink, since pointers are trusted */
            case 0: copy->buffers[random_below(copy->m.n_buffers)].width = odd_value(); break;
            case 1: copy->buffers[random_below(copy->m.n_buffers)].axis = odd_value(); break;
            case 2: copy->buffers[random_below(copy->m.n_buffers)].dtype = odd_value(); break;
            case 3: copy->weights[random_below(copy->m.n_weights)].n_bytes = odd_value(); break;
            case 4: copy->weights[random_below(copy->m.n_weights)].n_rows = odd_value(); break;
            case 5: copy->weights[random_below(copy->m.n_weights)].qtype = odd_value(); break;
            case 6: copy->layers[random_below(2)].n_heads = odd_value() & 1023; break;
            case 7: copy->layers[random_below(2)].k_dim = odd_value(); break;
            case 8: copy->layers[random_below(2)].cls = odd_value(); break;
            case 9: copy->m.logits = odd_value(); break;
            case 10: copy->m.n_act_slots = random_below(2); break;
            default: copy->m.n_classes = random_below(3); break;
            }
        }
        el_error err = {0};
        el_engine *e = el_engine_new(&copy->m, &c, &err);
        if (!e) {
            refused++;
            report(err.code >= EL_E_ARGUMENT && err.code <= EL_E_SYSTEM && err.message[0], "plan",
                   "refused without a reason");
            continue;
        }
        ran++;
        stream s;
        start_stream(&s, 0, LENGTH, 9);
        int32_t n = 3;
        int32_t code = run_step(e, &s, &n, 1, to, &err);
        report(code == EL_OK || code == EL_E_ARGUMENT, "plan", err.message);
        el_engine_free(e);
    }
    report(refused > rounds / 4 && ran > 10, "plan", "the changes did not change much");
    free(copy);
    free_model(m);
    free(to);
}

static void refuses(const model *m, const el_config *c, int32_t code, const char *expected) {
    el_error err = {0};
    el_engine *e = el_engine_new(&m->m, c, &err);
    report(e == NULL, "accepted", expected);
    report(err.code == code && strstr(err.message, expected) != NULL, err.message, expected);
    el_engine_free(e);
}

static void check_messages(void) {
    model *m = new_model(SMALL);
    el_config c = config(1, NULL);
    m->ops[3].w[0] = 99;
    refuses(m, &c, EL_E_ARGUMENT, "op 3 (LINEAR) w0: 99, expected a matrix, 0 to");
    m->ops[3].w[0] = 1;
    m->ops[3].i[1] = -1;
    refuses(m, &c, EL_E_ARGUMENT, "activations are float32 (slot -1), but matrix 1 (Q8_0) takes A32");
    m->ops[3].i[1] = 0;
    m->weights[2].qtype = EL_BF16;
    refuses(m, &c, EL_E_UNSUPPORTED, "weights[2]: no kernels for weight type BF16 (30)");
    m->weights[2].qtype = EL_Q8_0;
    m->m.size = 3;
    refuses(m, &c, EL_E_ARGUMENT, "model: size is 3, expected");
    m->m.size = sizeof m->m;
    c.isa = "mmx";
    refuses(m, &c, EL_E_UNSUPPORTED, "isa is \"mmx\"");
    c.isa = NULL;
    c.n_threads = -1;
    refuses(m, &c, EL_E_ARGUMENT, "n_threads is -1");
    c.n_threads = 1;
    m->ropes[0].n_positions = 5;
    refuses(m, &c, EL_E_ARGUMENT, "at least 320 positions (n_ctx)");
    free_model(m);
}

static void check_malformed_batches(void) {
    model *m = new_model(SMALL);
    el_error err = {0};
    el_config c = config(2, NULL);
    el_engine *e = el_engine_new(&m->m, &c, &err);
    int32_t refused = 0, rounds = QUICK ? 500 : 20000;
    static float logits[LENGTH][VOCAB], top[LENGTH][TOP_K], lse[LENGTH];
    static int32_t ids[LENGTH][TOP_K];
    for (int32_t round = 0; e && round < rounds; round++) {
        int32_t tokens[] = {3, 4, 7, 5, 6}, positions[] = {33, 34, 0, 0, 1}, seq_start[] = {0, 2, 3, 5},
                rows[] = {1, 2, 4};
        int32_t pages[][2] = {{5, 0}, {1, 3}, {2, 4}}, strides[] = {2, 2}, status[3], adj_row[] = {0, 1, 2};
        int32_t adj_token[] = {9, 10, 1};
        float adj_rep[] = {2, 1, 1}, adj_add[] = {1, 2, 3};
        const int32_t *tables[] = {pages[0], pages[0]};
        el_batch b = {sizeof b,  5,    3,      3,       TOP_K,   3,         tokens,  positions,
                      seq_start, rows, tables, strides, adj_row, adj_token, adj_rep, adj_add};
        el_output o = {ids[0], top[0], lse, logits[0], status};
        float odd_float = random_below(2) ? el_float(0x7fc00000u) : -1.0f;
        switch (random_below(16)) {
        case 0: b.size = odd_value(); break;
        case 1:
            b.n_tokens = random_below(6);
            break; /* arrays are as long as the counts say: counts may shrink only */
        case 2: b.n_seqs = random_below(4); break;
        case 3: b.n_rows = random_below(4); break;
        case 4: b.top_k = random_below(2) ? random_below(TOP_K) : -random_below(9); break;
        case 5: b.n_adjust = random_below(5) - 1 < 3 ? random_below(4) : -1; break;
        case 6: tokens[random_below(5)] = odd_value(); break;
        case 7: positions[random_below(5)] = odd_value(); break;
        case 8: seq_start[random_below(4)] = odd_value(); break;
        case 9: rows[random_below(3)] = odd_value(); break;
        case 10: pages[random_below(3)][random_below(2)] = odd_value(); break;
        case 11: strides[random_below(2)] = random_below(3); break;
        case 12: adj_row[random_below(3)] = odd_value(); break;
        case 13: adj_token[random_below(3)] = odd_value(); break;
        case 14: adj_rep[random_below(3)] = odd_float; break;
        default:
            switch (random_below(6)) {
            case 0: b.tokens = NULL; break;
            case 1: b.pages = NULL; break;
            case 2: tables[random_below(2)] = NULL; break;
            case 3: o.status = NULL; break;
            case 4: o.top_ids = NULL; break;
            default: adj_add[random_below(3)] = el_float(0x7fc00000u); break;
            }
        }
        err = (el_error){0};
        int32_t code = el_step(e, &b, &o, &err);
        report(code == EL_OK || (code == EL_E_ARGUMENT && err.message[0]), "batch", err.message);
        refused += code != EL_OK;
    }
    report(e && refused > rounds / 4, "batch", "the changes did not change much");
    report(el_step(NULL, NULL, NULL, NULL) == EL_E_ARGUMENT, "batch", "NULL");
    el_engine_free(e);
    el_engine_free(NULL);
    free_model(m);
}

/* ---- the pool ---- */

typedef struct counting {
    int32_t phases, n_chunks, phase;
    _Atomic int32_t chunks;
    int32_t seen[64]; /* plain: a phase's writes must be visible in the next */
} counting;

static void count_chunk(void *context, int32_t thread, int32_t chunk) {
    counting *c = context;
    (void)thread;
    c->seen[chunk]++;
    atomic_fetch_add_explicit(&c->chunks, 1, memory_order_relaxed);
}

static int32_t count_next(void *context, int32_t thread) {
    counting *c = context;
    (void)thread;
    return c->phase++ < c->phases ? c->n_chunks : 0;
}

static void check_pool(void) {
    for (int32_t threads = 1; threads <= 6; threads++) {
        int32_t failed;
        el_pool *pool = el_pool_new(threads, &failed);
        if (!report(pool != NULL, "pool", "not made")) continue;
        for (int32_t job = 0; job < 50; job++) {
            counting c = {.phases = QUICK ? 20 : 200, .n_chunks = 1 + job};
            el_pool_run(pool, &(el_job){count_chunk, count_next, &c});
            report(c.chunks == c.phases * c.n_chunks, "pool", "chunks lost or run twice");
            for (int32_t i = 0; i < c.n_chunks; i++)
                report(c.seen[i] == c.phases, "pool", "a chunk was missed");
        }
        el_pool_free(pool);
    }
}

static void bench(void) {
    for (int32_t threads = 1; threads <= 4; threads++) {
        int32_t failed;
        el_pool *pool = el_pool_new(threads, &failed);
        for (int32_t n = threads; n <= 16; n *= 4) {
            counting c = {.phases = 200000, .n_chunks = n};
            uint64_t start = el_os_now();
            el_pool_run(pool, &(el_job){count_chunk, count_next, &c});
            double seconds = (double)(el_os_now() - start) * 1e-9;
            printf("%d threads, %2d chunks a phase: %.2f million phases/s, %.0f ns a phase\n", threads, n,
                   c.phases / seconds / 1e6, seconds / c.phases * 1e9);
        }
        el_pool_free(pool);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "bench") == 0) {
        bench();
        return 0;
    }
    static const struct {
        const char *name;
        void (*run)(void);
    } checks[] = {
        {"pool", check_pool},
        {"bits", check_bits},
        {"environment", check_environment},
        {"pages", check_pages},
        {"status and edits", check_status_and_edits},
        {"messages", check_messages},
        {"malformed plans", check_malformed_plans},
        {"malformed batches", check_malformed_batches},
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (argc > 1 && strcmp(argv[1], checks[i].name) != 0) continue;
        uint64_t start = el_os_now();
        checks[i].run();
        printf("%s: %.1f s\n", checks[i].name, (double)(el_os_now() - start) * 1e-9);
        fflush(stdout);
    }
    printf(n_failed ? "%d failures\n" : "ok\n", n_failed);
    return n_failed != 0;
}
