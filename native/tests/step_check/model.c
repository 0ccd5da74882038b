/* A random llama-like model of two layers, and running it step by step. */
#include "step_check.h"

#include "qblocks.h"

static uint64_t random_state = 1;

uint32_t random_bits(void) { /* splitmix64 */
    uint64_t z = (random_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

int32_t random_below(int32_t n) { return (int32_t)(random_bits() % (uint32_t)n); }
float random_float(void) { return (float)(int32_t)random_bits() * (1.0f / 2147483648.0f); }

uint64_t random_seed(uint64_t seed) {
    uint64_t old = random_state;
    random_state = seed;
    return old;
}

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

static int32_t buffer(model *m, int32_t width, int32_t axis, int32_t dtype) {
    m->buffers[m->m.n_buffers] = (el_buffer){width, axis, dtype};
    return m->m.n_buffers++;
}

static int32_t weight(model *m, int32_t qtype, int32_t n_stack, int32_t n_rows, int32_t n_cols) {
    const el_tile *tile = el_tile_of(qtype);
    size_t blocks = (size_t)n_stack * (size_t)n_rows * (size_t)(n_cols / tile->block);
    char *data = malloc(blocks * (size_t)tile->row_bytes + 1); /* odd addresses are allowed */
    for (size_t i = 0; i < blocks; i++) random_block(qtype, data + 1 + i * (size_t)tile->row_bytes);
    m->weights[m->m.n_weights] = (el_weight){
        .data = data + 1,
        .n_bytes = (int64_t)blocks * tile->row_bytes,
        .qtype = qtype,
        .n_rows = n_rows,
        .n_cols = n_cols,
        .n_stack = n_stack,
        .pack = 1,
    };
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
model *new_model(const int32_t types[6]) {
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

void free_model(model *m) {
    set_pack(m, 0);
    for (int32_t i = 0; i < m->m.n_weights; i++) free((char *)(uintptr_t)m->weights[i].data - 1);
    free(m);
}

const int32_t SMALL[6] = {EL_Q8_0, EL_Q8_0, EL_Q4_1, EL_Q4_1, EL_Q8_0, EL_Q8_0};

/* ---- running ---- */

static const int32_t N_PAGES[2] = {PAGES, PAGES};

el_config config(int32_t n_threads, const char *isa) {
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

void start_stream(stream *s, int32_t index, int32_t length, uint64_t seed) {
    uint64_t saved = random_seed(seed);
    for (int32_t i = 0; i < LENGTH; i++) s->tokens[i] = random_below(VOCAB);
    random_seed(saved);
    s->length = length;
    s->done = 0;
    for (int32_t j = 0; j < CONTEXT / EL_PAGE_TOKENS; j++)
        s->pages[j] = (7 * j + 13 * index + 5) % 16 + 16 * index;
}

int32_t in_parts;

/* The step as small parts, after each of which another sequence takes one: on the pages of the last stream. */
static int32_t step_in_parts(el_engine *e, const el_batch *b, const el_output *o, el_error *err) {
    int32_t tokens[] = {8, 9, 10}, positions[] = {0, 1, 2}, seq_start[] = {0, 3}, rows[] = {2}, status[1],
            ids[1];
    int32_t page = PAGES - 1, strides[] = {1, 1}, done = 0;
    float top[1];
    const int32_t *tables[] = {&page, &page};
    const el_batch other = {.size = sizeof other,
                            .n_tokens = 3,
                            .n_seqs = 1,
                            .n_rows = 1,
                            .top_k = 1,
                            .tokens = tokens,
                            .positions = positions,
                            .seq_start = seq_start,
                            .rows = rows,
                            .pages = tables,
                            .page_stride = strides};
    const el_output there = {ids, top, NULL, NULL, status, NULL};
    int32_t code = el_begin(e, b, o, err);
    while (!code && !done) {
        code = el_continue(e, 0, &done, err);
        if (!code && !done) code = el_step(e, &other, &there, err);
    }
    return code;
}

/* One step: n[i] tokens of stream i (0 = not in the batch). The answers of stream 0 are kept. */
int32_t run_step(el_engine *e, stream *streams, const int32_t *n, int32_t n_streams, answer *to,
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
    el_output o = {to->top_ids[done], to->top_logits[done], &to->lse[done], to->logits[done], status, NULL};
    int32_t code = in_parts ? step_in_parts(e, &b, &o, err) : el_step(e, &b, &o, err);
    if (code) return code;
    for (int32_t i = 0; i < n_streams; i++) streams[i].done += n[i];
    if (at >= 0) to->status |= status[at];
    return 0;
}

/* The whole of stream 0 in chunks of `chunk` tokens; with others beside it, those take steps of their own sizes. */
int32_t run_all(model *m, const el_config *c, int32_t chunk, int32_t others, answer *to, el_error *err) {
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

/* On a 64-byte line and no larger than asked for: a sanitizer sees who reads past the end. */
#ifdef _WIN32
#include <malloc.h>
static void *aligned(size_t bytes) { return _aligned_malloc(bytes, 64); }
static void free_aligned(void *p) { _aligned_free(p); }
#else
static void *aligned(size_t bytes) { return aligned_alloc(64, bytes); }
static void free_aligned(void *p) { free(p); }
#endif

static void keep_tiles(el_weight *w) {
    int64_t bytes = el_tile_bytes(w->qtype, w->n_rows, w->n_cols), row = w->n_bytes / w->n_stack;
    char *tiles = aligned((size_t)(bytes * w->n_stack));
    el_error err = {0};
    for (int32_t i = 0; tiles && i < w->n_stack; i++) {
        int32_t code = el_pack_tiles(i % 2 ? "scalar" : NULL, w->qtype, w->n_rows, w->n_cols,
                                     (const char *)w->data + i * row, row, tiles + i * bytes, bytes, &err);
        report(code == EL_OK, "tiles", err.message);
    }
    w->tiles = tiles;
    w->n_tile_bytes = bytes * w->n_stack;
}

void set_pack(model *m, int32_t pack) {
    for (int32_t i = 0; i < m->m.n_weights; i++) {
        el_weight *w = &m->weights[i];
        free_aligned((void *)(uintptr_t)w->tiles);
        w->tiles = NULL;
        w->pack = pack == 2 ? 0 : pack;
        if (pack == 2) keep_tiles(w);
    }
}
