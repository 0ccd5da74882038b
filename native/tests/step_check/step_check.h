/* Shared by the parts of step_check: small random models, and running them. */
#ifndef STEP_CHECK_H
#define STEP_CHECK_H

#include "edgellm.h"
#include "fp.h"
#include "kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sanitizers slow everything down: fewer combinations. */
#if defined(__SANITIZE_THREAD__)
enum { QUICK = 1, KINDS = 1 }; /* of weight types: threads do not care */
#elif defined(__SANITIZE_ADDRESS__)
enum { QUICK = 1, KINDS = 3 };
#else
enum { QUICK = 0, KINDS = 3 };
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

/* Print and count a failure; returns ok. */
int32_t report(int32_t ok, const char *what, const char *detail);
int32_t failures(void);

/* Pseudo-random numbers from one seed for the whole program. */
uint32_t random_bits(void);
int32_t random_below(int32_t n);
float random_float(void);
/* Start another sequence of them and return the state of the old one. */
uint64_t random_seed(uint64_t seed);

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

/* types: of wq and wk, wv, wo, gate and up, down, head (also the embedding). Layer 0 has a softcap; layer 1 a window,
 * sinks and experts. */
model *new_model(const int32_t types[6]);
void free_model(model *m);
void set_pack(model *m, int32_t pack); /* 0 on the fly, 1 at load, 2 tiles that were made before */
extern const int32_t SMALL[6];

el_config config(int32_t n_threads, const char *isa);

/* What one sequence got, row by row. */
typedef struct answer {
    float logits[LENGTH][VOCAB], lse[LENGTH], top_logits[LENGTH][TOP_K];
    int32_t top_ids[LENGTH][TOP_K], status;
} answer;

/* One sequence on its way. */
typedef struct stream {
    int32_t tokens[LENGTH], length, done, pages[CONTEXT / EL_PAGE_TOKENS];
} stream;

/* Random tokens; pages in an order of its own for each index. */
void start_stream(stream *s, int32_t index, int32_t length, uint64_t seed);

/* 1: run_step computes every step in parts. */
extern int32_t in_parts;

/* One step: n[i] tokens of stream i (0 = not in the batch). The answers of stream 0 are kept. */
int32_t run_step(el_engine *e, stream *streams, const int32_t *n, int32_t n_streams, answer *to,
                 el_error *err);

/* The whole of stream 0 in chunks of `chunk` tokens; with others beside it, those take steps of their own sizes. */
int32_t run_all(model *m, const el_config *c, int32_t chunk, int32_t others, answer *to, el_error *err);

/* The checks (bits.c, behaviour.c, malformed.c, threads.c). */
void check_pool(void);
void check_bits(void);
void check_environment(void);
void check_pages(void);
void check_parts(void);
void check_status_and_edits(void);
void check_hidden(void);
void check_messages(void);
void check_malformed_plans(void);
void check_malformed_batches(void);
void bench_pool(void);
/* Fail unless both got the same bits. */
void compare(const answer *a, const answer *b, const char *what);

#endif
