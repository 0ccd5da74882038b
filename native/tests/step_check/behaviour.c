/* Floating-point environment, pages, failed sequences, edits of the logits. */
#include "step_check.h"

#include "fpenv.h"

void check_environment(void) {
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

void check_pages(void) {
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
            report(el_page_data(e, k, 0, a, 1, 0, &err) == EL_E_ARGUMENT, "page data", "too few bytes");
            report(el_page_data(e, k, PAGES, a, 1, 0, &err) == EL_E_ARGUMENT, "page data", "page beyond");
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

/* A step in parts, other steps in between; one that is given up; what was never begun. */
void check_parts(void) {
    model *m = new_model(SMALL);
    answer *a = malloc(sizeof *a), *b = malloc(sizeof *b);
    el_error err = {0};
    for (int32_t threads = 1; threads <= 4; threads += 3) {
        el_config c = config(threads, NULL);
        report(run_all(m, &c, 96, 2, a, &err) == 0, "parts", err.message);
        in_parts = 1;
        report(run_all(m, &c, 96, 2, b, &err) == 0, "parts", err.message);
        in_parts = 0;
        compare(a, b, "a step in parts");
    }
    el_config c = config(2, NULL);
    el_engine *e = el_engine_new(&m->m, &c, &err);
    int32_t done = 0, status[1];
    if (report(e != NULL, "parts", err.message)) {
        const el_batch bad = {.size = sizeof bad};
        const el_output o = {.status = status};
        report(el_continue(e, 0, &done, &err) == EL_E_ARGUMENT, "parts", "nothing was begun");
        report(el_begin(e, &bad, &o, &err) == EL_E_ARGUMENT, "parts", "an empty batch");
        report(el_continue(e, 0, &done, &err) == EL_E_ARGUMENT, "parts", "it was refused");
        stream s;
        start_stream(&s, 0, LENGTH, 5);
        int32_t n = 40, positions[40], seq_start[] = {0, 40}, strides[] = {2, 2};
        for (int32_t i = 0; i < n; i++) positions[i] = i;
        const int32_t *tables[] = {s.pages, s.pages};
        const el_batch good = {.size = sizeof good,
                               .n_tokens = n,
                               .n_seqs = 1,
                               .tokens = s.tokens,
                               .positions = positions,
                               .seq_start = seq_start,
                               .pages = tables,
                               .page_stride = strides};
        report(el_begin(e, &good, &o, &err) == 0 && el_continue(e, 0, &done, &err) == 0 && !done, "parts",
               "a part of it");
        in_parts =
            1; /* another in its place; the one that is given up has written to pages of the same stream */
        report(run_step(e, &s, &n, 1, b, &err) == 0, "parts", err.message);
        in_parts = 0;
        stream again;
        start_stream(&again, 0, LENGTH, 5);
        report(run_step(e, &again, &n, 1, a, &err) == 0, "parts", err.message);
        report(memcmp(a->logits, b->logits, 40 * sizeof a->logits[0]) == 0, "parts", "after one given up");
        report(el_begin(e, &good, &o, &err) == 0, "parts", "begun when the engine goes");
    }
    el_engine_free(e);
    report(el_begin(NULL, NULL, NULL, NULL) == EL_E_ARGUMENT, "parts", "NULL");
    report(el_continue(NULL, 0, NULL, NULL) == EL_E_ARGUMENT, "parts", "NULL");
    free(a);
    free(b);
    free_model(m);
}

/* Give the head a matrix of its own, without the infinity: as a logit it would fail every sequence. */
static void untie(model *m) {
    el_weight *head = &m->weights[m->m.n_weights];
    *head = m->weights[0];
    char *data = (char *)malloc((size_t)head->n_bytes + 1) + 1; /* free_model expects odd addresses */
    memcpy(data, m->weights[0].data, (size_t)head->n_bytes);
    memcpy(data + (size_t)7 * D * sizeof(float), &(float){0.5f}, sizeof(float));
    head->data = data;
    m->ops[m->m.n_ops - 2].w[0] = m->m.n_weights++; /* the last LINEAR: a softcap follows it */
}

/* A non-finite embedding fails its own sequence only; edits and log-sum-exp; a vocabulary smaller than top_k. */
void check_status_and_edits(void) {
    static const int32_t types[6] = {EL_Q8_0, EL_Q8_0, EL_Q4_1, EL_Q4_1, EL_Q8_0, EL_F32};
    model *m = new_model(types);
    float *row = (float *)(void *)malloc(sizeof(float));
    *row = el_float(0x7f800000u);
    memcpy((char *)(uintptr_t)m->weights[0].data + (size_t)7 * D * sizeof(float), row, sizeof *row);
    free(row);
    untie(m);
    el_error err = {0};
    el_config c = config(2, NULL);
    el_engine *e = el_engine_new(&m->m, &c, &err);
    if (report(e != NULL, "edits", err.message)) {
        int32_t tokens[] = {3, 4, 7, 5, 6}, positions[] = {0, 1, 0, 0, 1}, seq_start[] = {0, 2, 3, 5},
                rows[] = {1, 2, 4};
        int32_t pages[] = {0, 1, 2}, strides[] = {1, 1}, status[3], adj_row[] = {0, 0, 0, 2, 2},
                adj_token[] = {9, 10, 9, 2000, 1};
        float adj_rep[] = {2, 1, 1, 1, 1}, adj_add[] = {1, -el_float(0x7f800000u), 3, 1e30f, 1e30f}, lse[3];
        const int32_t *tables[] = {pages, pages};
        static float logits[3][VOCAB], plain[3][VOCAB], top[3][EL_MAX_TOP_K];
        static int32_t ids[3][EL_MAX_TOP_K];
        el_batch b = {sizeof b,  5,    3,      3,       0,    0,    tokens, positions,
                      seq_start, rows, tables, strides, NULL, NULL, NULL,   NULL};
        el_output o = {NULL, NULL, NULL, plain[0], status, NULL};
        report(el_step(e, &b, &o, &err) == 0, "status", err.message);
        report(status[0] == 0 && status[1] == 1 && status[2] == 0, "status", "expected 0 1 0");
        b.n_adjust = 5;
        b.top_k = EL_MAX_TOP_K;
        b.adj_row = adj_row;
        b.adj_token = adj_token;
        b.adj_rep = adj_rep;
        b.adj_add = adj_add;
        o = (el_output){ids[0], top[0], lse, logits[0], status, NULL};
        report(el_step(e, &b, &o, &err) == 0, "edits", err.message);
        float l = plain[0][9];
        l = (l > 0 ? l / 2 : l * 2) + 1;
        report(logits[0][9] == l + 3, "edits", "two edits of one logit, in order");
        report(logits[0][10] == -el_float(0x7f800000u), "edits", "banned");
        logits[0][9] = plain[0][9];
        logits[0][10] = plain[0][10];
        report(memcmp(logits[0], plain[0], sizeof plain[0]) == 0, "edits", "others changed");
        report(ids[2][0] == 1 && ids[2][1] == 2000 && top[2][0] == 1e30f && top[2][1] == 1e30f, "edits",
               "raised to the first places, the lower id first");
        report(lse[2] == top[2][0], "edits", "lse of one dominating logit");
        report(ids[1][0] == -1, "status", "a failed row has no candidates");
    }
    el_engine_free(e);
    free_model(m);
}

/* The hidden states alone, without the head, and beside everything else; a sequence that fails in them. */
void check_hidden(void) {
    static const int32_t types[6] = {EL_Q8_0, EL_Q8_0, EL_Q4_1, EL_Q4_1, EL_Q8_0, EL_F32};
    model *m = new_model(types);
    memcpy((char *)(uintptr_t)m->weights[0].data + (size_t)7 * D * sizeof(float),
           &(float){el_float(0x7f800000u)}, sizeof(float));
    untie(m);
    el_error err = {0};
    el_config c = config(2, NULL);
    el_engine *e = el_engine_new(&m->m, &c, &err);
    if (report(e != NULL, "hidden", err.message)) {
        int32_t tokens[] = {3, 4, 7, 5, 6}, positions[] = {0, 1, 0, 0, 1}, seq_start[] = {0, 2, 3, 5},
                rows[] = {0, 1, 2, 4}, pages[] = {0, 1, 2}, strides[] = {1, 1}, status[3];
        const int32_t *tables[] = {pages, pages};
        static float logits[4][VOCAB], alone[4][D], beside[4][D];
        el_batch b = {.size = sizeof b,
                      .n_tokens = 5,
                      .n_seqs = 3,
                      .n_rows = 4,
                      .tokens = tokens,
                      .positions = positions,
                      .seq_start = seq_start,
                      .rows = rows,
                      .pages = tables,
                      .page_stride = strides};
        el_output o = {NULL, NULL, NULL, NULL, status, alone[0]};
        report(el_step(e, &b, &o, &err) == 0, "hidden", err.message);
        report(status[0] == 0 && status[1] == 1 && status[2] == 0, "hidden", "expected status 0 1 0");
        o = (el_output){NULL, NULL, NULL, logits[0], status, beside[0]};
        report(el_step(e, &b, &o, &err) == 0, "hidden", err.message);
        for (int32_t r = 0; r < 4; r++) {
            if (r == 2) continue; /* of the sequence that failed */
            report(memcmp(alone[r], beside[r], sizeof alone[r]) == 0, "hidden",
                   "alone and beside logits differ");
        }
    }
    el_engine_free(e);
    free_model(m);
}
