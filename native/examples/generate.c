/* generate: a plan file and token ids in, token ids out, with nothing but edgellm.h and the library.
 *
 *     generate PLAN N TOKEN...      the N likeliest tokens after TOKEN..., one line; fewer where the answer ends
 *
 * dump_plan.py beside this file makes a plan file; docs/c-api.md explains both. Exit status: 0, or 1 with the reason.
 */
#include "edgellm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The file begins with this, then the el_model. Its pointers, and those of the tables it points to, are offsets from the
 * file's first byte, 0 for NULL. */
typedef struct header {
    char magic[16];
    int32_t abi, tile_layout, n_ctx, end; /* end: the token after which an answer ends, -1: none */
    int64_t n_bytes;
    char zeros[24];
} header;

static void fail(const char *what, const char *detail) {
    fprintf(stderr, "generate: %s%s\n", what, detail);
    exit(1);
}

/* The whole file on a 64-byte line, where tiles must lie. A program that stays would map it. */
static char *read_plan(const char *path) {
    FILE *f = fopen(path, "rb");
    header h;
    if (!f || fread(&h, sizeof h, 1, f) != 1) fail("cannot read ", path);
    if (memcmp(h.magic, "edgellm plan 1\n", 16) != 0) fail("not a plan file: ", path);
    if (h.abi != el_abi_version() || h.tile_layout != el_tile_layout())
        fail("made for another version of the library: ", path);
    char *room = malloc((size_t)h.n_bytes + 64);
    if (!room) fail("out of memory", "");
    char *base = (char *)(((uintptr_t)room + 63) / 64 * 64);
    rewind(f);
    if (fread(base, 1, (size_t)h.n_bytes, f) != (size_t)h.n_bytes) fail("the file has been cut: ", path);
    fclose(f);
    return base;
}

#define RELOCATE(pointer) ((pointer) = (pointer) ? (void *)(base + (uintptr_t)(pointer)) : NULL)

/* Offsets become addresses. */
static const el_model *relocate(char *base) {
    el_model *m = (el_model *)(base + sizeof(header));
    RELOCATE(m->ops), RELOCATE(m->buffers), RELOCATE(m->cache_layers);
    RELOCATE(m->weights), RELOCATE(m->vectors), RELOCATE(m->ropes);
    el_weight *weights = (el_weight *)m->weights;
    el_vector *vectors = (el_vector *)m->vectors;
    el_rope *ropes = (el_rope *)m->ropes;
    for (int32_t i = 0; i < m->n_weights; i++) RELOCATE(weights[i].data), RELOCATE(weights[i].tiles);
    for (int32_t i = 0; i < m->n_vectors; i++) RELOCATE(vectors[i].data);
    for (int32_t i = 0; i < m->n_ropes; i++) RELOCATE(ropes[i].cos), RELOCATE(ropes[i].sin);
    return m;
}

int main(int argc, char **argv) {
    if (argc < 4) fail("usage: generate PLAN N TOKEN...", "");
    char *base = read_plan(argv[1]);
    const header *h = (const header *)base;
    const el_model *model = relocate(base);
    const int32_t wanted = atoi(argv[2]), n = argc - 3;
    if (wanted < 1 || n + wanted > h->n_ctx) fail("prompt and answer do not fit the context", "");

    /* One sequence: page i of every cache class holds its positions 32 i to 32 i + 31. */
    const int32_t n_pages = (h->n_ctx + EL_PAGE_TOKENS - 1) / EL_PAGE_TOKENS;
    int32_t table[n_pages], sizes[model->n_classes];
    const int32_t *pages[model->n_classes];
    for (int32_t i = 0; i < n_pages; i++) table[i] = i;
    for (int32_t c = 0; c < model->n_classes; c++) sizes[c] = n_pages, pages[c] = table;

    el_error err;
    const el_config config = {.size = sizeof config,
                              .n_pages = sizes,
                              .n_ctx = h->n_ctx,
                              .max_tokens = n,
                              .max_rows = 1,
                              .max_seqs = 1,
                              .k_type = EL_KV_F16,
                              .v_type = EL_KV_F16};
    el_engine *engine = el_engine_new(model, &config, &err);
    if (!engine) fail("", err.message);

    /* The first step takes the whole prompt, each later one the token that the last one chose. */
    int32_t tokens[n], positions[n], bounds[2] = {0, n}, row = n - 1, next, status;
    float logit;
    for (int32_t t = 0; t < n; t++) tokens[t] = atoi(argv[3 + t]), positions[t] = t;
    el_batch batch = {.size = sizeof batch,
                      .n_tokens = n,
                      .n_seqs = 1,
                      .n_rows = 1,
                      .top_k = 1,
                      .tokens = tokens,
                      .positions = positions,
                      .seq_start = bounds,
                      .rows = &row,
                      .pages = pages,
                      .page_stride = sizes};
    const el_output out = {.top_ids = &next, .top_logits = &logit, .status = &status};
    for (int32_t i = 0; i < wanted; i++) {
        if (el_step(engine, &batch, &out, &err)) fail("", err.message);
        if (status) fail("a value was not finite", "");
        printf(i ? " %d" : "%d", next);
        if (next == h->end) break;
        tokens[0] = next;
        positions[0] = n + i;
        row = 0;
        batch.n_tokens = bounds[1] = 1;
    }
    printf("\n");
    el_engine_free(engine);
    return 0;
}
