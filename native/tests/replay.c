/* replay: the steps of an engine that a Python process recorded (tests/distribution/trace.py), on the machine at hand.
 *
 *     replay TRACE [LEVEL [THREADS]]
 *
 * Makes the engine, runs every batch through el_step and prints the level and the SHA-256 of all logits: the same on
 * every machine and at every level. Exit status: 0, 1 when the engine refuses or fails, 2 usage or a file that is no trace.
 *
 * A trace: 8 bytes "ELTRACE1", then arrays, each its size in bytes as int64 and its data padded to 64 bytes, from a multiple
 * of 64 on. Little-endian. In this order:
 *   int32[17]  n_ops n_buffers n_weights n_vectors n_ropes n_classes n_cache_layers n_act_slots n_vocab logits
 *              max_tokens max_rows max_seqs n_ctx k_type v_type n_batches
 *   el_op[], el_buffer[], el_cache_layer[], int32 n_pages[n_classes]
 *   for each weight   int32[5] qtype n_rows n_cols n_stack pack; its bytes
 *   for each vector   float[]
 *   for each rope     int32[2] n_positions n_rot; cos; sin
 *   for each batch    int32[3] n_tokens n_seqs n_rows; tokens, positions, seq_start, rows; for each class its page table
 */
#include "edgellm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- SHA-256 (FIPS 180-4) ---- */

typedef struct sha256 {
    uint32_t h[8];
    uint8_t block[64];
    uint64_t n_bytes;
} sha256;

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void add_block(sha256 *s) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) {
        const uint8_t *b = s->block + 4 * i;
        w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    }
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t e = v[4], a = v[0];
        const uint32_t one =
            v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + K[i] + w[i];
        const uint32_t two =
            (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[0] = one + two;
        v[4] += one;
    }
    for (int i = 0; i < 8; i++) s->h[i] += v[i];
}

static void sha256_add(sha256 *s, const void *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        s->block[s->n_bytes++ % 64] = ((const uint8_t *)data)[i];
        if (s->n_bytes % 64 == 0) add_block(s);
    }
}

static void sha256_print(sha256 *s) {
    const uint64_t bits = 8 * s->n_bytes;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(s, &(uint8_t){0x80}, 1);
    while (s->n_bytes % 64 != 56) sha256_add(s, &(uint8_t){0}, 1);
    sha256_add(s, length, 8);
    for (int i = 0; i < 8; i++) printf("%08x", s->h[i]);
}

/* ---- the trace ---- */

typedef struct trace {
    uint8_t *data;
    size_t n_bytes, at;
} trace;

static void give_up(const char *what) {
    printf("replay: %s\n", what);
    exit(2);
}

static void *allocate(size_t n) {
    void *p = calloc(n ? n : 1, 1);
    if (!p) give_up("out of memory");
    return p;
}

/* The next array, of n_bytes; of any size where n_bytes is NULL, which then is told in *found. */
static const void *next_of(trace *t, size_t n_bytes, int64_t *found) {
    int64_t n;
    if (t->at + 64 > t->n_bytes) give_up("the trace ends too early");
    memcpy(&n, t->data + t->at, sizeof n);
    if (n < 0 || (uint64_t)n > t->n_bytes - t->at - 64) give_up("the trace ends too early");
    if (!found && (size_t)n != n_bytes) give_up("an array of the trace has another size than it should");
    if (found) *found = n;
    const void *data = t->data + t->at + 64;
    t->at += 64 + (((size_t)n + 63) & ~(size_t)63);
    return data;
}
static const void *next(trace *t, size_t n_bytes) { return next_of(t, n_bytes, NULL); }
static const int32_t *next_i32(trace *t, int32_t n) { return next(t, (size_t)n * sizeof(int32_t)); }

static trace read_trace(const char *path) {
    trace t = {0};
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) give_up("cannot open the trace");
    const long size = ftell(f);
    rewind(f);
    if (size < 64) give_up("this is no trace");
    t.n_bytes = (size_t)size;
    uint8_t *memory = allocate(t.n_bytes + 64);
    t.data = memory + (0 - (uintptr_t)memory) % 64;
    if (fread(t.data, 1, t.n_bytes, f) != t.n_bytes) give_up("cannot read the trace");
    fclose(f);
    if (memcmp(t.data, "ELTRACE1", 8)) give_up("this is no trace");
    t.at = 64;
    return t;
}

/* Fields of the first array. */
enum {
    OPS,
    BUFFERS,
    WEIGHTS,
    VECTORS,
    ROPES,
    CLASSES,
    LAYERS,
    SLOTS,
    VOCABULARY,
    LOGITS,
    TOKENS,
    ROWS,
    SEQS
};
enum { CONTEXT = SEQS + 1, K_TYPE, V_TYPE, BATCHES, N_FIELDS };

static el_model read_model(trace *t, const int32_t *n) {
    el_model m = {.size = sizeof m,
                  .n_ops = n[OPS],
                  .n_buffers = n[BUFFERS],
                  .n_weights = n[WEIGHTS],
                  .n_vectors = n[VECTORS],
                  .n_ropes = n[ROPES],
                  .n_classes = n[CLASSES],
                  .n_cache_layers = n[LAYERS],
                  .n_act_slots = n[SLOTS],
                  .n_vocab = n[VOCABULARY],
                  .logits = n[LOGITS]};
    m.ops = next(t, (size_t)n[OPS] * sizeof *m.ops);
    m.buffers = next(t, (size_t)n[BUFFERS] * sizeof *m.buffers);
    m.cache_layers = next(t, (size_t)n[LAYERS] * sizeof *m.cache_layers);
    return m;
}

static void read_weights(trace *t, el_model *m) {
    el_weight *weights = allocate((size_t)m->n_weights * sizeof *weights);
    el_vector *vectors = allocate((size_t)m->n_vectors * sizeof *vectors);
    el_rope *ropes = allocate((size_t)m->n_ropes * sizeof *ropes);
    for (int32_t i = 0; i < m->n_weights; i++) {
        const int32_t *w = next_i32(t, 5);
        weights[i] =
            (el_weight){.qtype = w[0], .n_rows = w[1], .n_cols = w[2], .n_stack = w[3], .pack = w[4]};
        weights[i].data = next_of(t, 0, &weights[i].n_bytes);
    }
    for (int32_t i = 0; i < m->n_vectors; i++) {
        vectors[i].data = next_of(t, 0, &vectors[i].n);
        vectors[i].n /= (int64_t)sizeof(float);
    }
    for (int32_t i = 0; i < m->n_ropes; i++) {
        const int32_t *r = next_i32(t, 2);
        const size_t bytes = (size_t)r[0] * (size_t)(r[1] / 2) * sizeof(float);
        ropes[i] = (el_rope){.n_positions = r[0], .n_rot = r[1]};
        ropes[i].cos = next(t, bytes);
        ropes[i].sin = next(t, bytes);
    }
    m->weights = weights;
    m->vectors = vectors;
    m->ropes = ropes;
}

/* Run the next batch; its logits join the hash. */
static int32_t replay_batch(trace *t, el_engine *engine, const int32_t *n, sha256 *hash, el_error *err) {
    const int32_t *counts = next_i32(t, 3), *pages[16];
    int32_t strides[16], *status = allocate((size_t)n[SEQS] * sizeof *status);
    el_batch b = {.size = sizeof b, .n_tokens = counts[0], .n_seqs = counts[1], .n_rows = counts[2]};
    b.tokens = next_i32(t, b.n_tokens);
    b.positions = next_i32(t, b.n_tokens);
    b.seq_start = next_i32(t, b.n_seqs + 1);
    b.rows = next_i32(t, b.n_rows);
    b.pages = pages;
    b.page_stride = strides;
    if (b.n_seqs < 1 || n[CLASSES] > 16) give_up("a batch of no sequences, or too many cache classes");
    for (int32_t c = 0; c < n[CLASSES]; c++) {
        int64_t bytes;
        pages[c] = next_of(t, 0, &bytes);
        strides[c] = (int32_t)(bytes / (int64_t)sizeof(int32_t) / b.n_seqs);
    }
    const size_t n_logits = (size_t)b.n_rows * (size_t)n[VOCABULARY];
    float *logits = allocate(n_logits * sizeof *logits);
    const el_output out = {.logits = logits, .status = status};
    int32_t code = el_step(engine, &b, &out, err);
    for (int32_t s = 0; s < b.n_seqs && !code; s++) {
        if (status[s]) code = -1;
    }
    sha256_add(hash, logits, n_logits * sizeof *logits);
    free(logits);
    free(status);
    return code;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 4) give_up("usage: replay TRACE [LEVEL [THREADS]]");
    trace t = read_trace(argv[1]);
    const int32_t *n = next_i32(&t, N_FIELDS);
    el_model model = read_model(&t, n);
    const el_config config = {.size = sizeof config,
                              .n_threads = argc > 3 ? atoi(argv[3]) : 2,
                              .max_tokens = n[TOKENS],
                              .max_rows = n[ROWS],
                              .max_seqs = n[SEQS],
                              .n_ctx = n[CONTEXT],
                              .k_type = n[K_TYPE],
                              .v_type = n[V_TYPE],
                              .n_pages = next_i32(&t, n[CLASSES]),
                              .isa = argc > 2 ? argv[2] : NULL};
    read_weights(&t, &model);
    el_error err = {0};
    el_engine *engine = el_engine_new(&model, &config, &err);
    if (!engine) {
        printf("replay: %s\n", err.message);
        return 1;
    }
    el_info info;
    el_engine_info(engine, &info);
    sha256 hash = {.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
                         0x5be0cd19}};
    for (int32_t i = 0; i < n[BATCHES]; i++) {
        const int32_t code = replay_batch(&t, engine, n, &hash, &err);
        if (code) {
            printf("replay: batch %d: %s\n", i, code < 0 ? "a value is not finite" : err.message);
            return 1;
        }
    }
    printf("%s ", info.isa);
    sha256_print(&hash);
    printf("\n");
    el_engine_free(engine);
    return 0;
}
