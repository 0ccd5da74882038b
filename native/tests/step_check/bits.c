/* The same bits, however a model is run. */
#include "step_check.h"

void compare(const answer *a, const answer *b, const char *what) {
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

void check_bits(void) {
    static const int32_t kinds[][6] = {
        {EL_Q8_0, EL_Q8_0, EL_Q4_1, EL_Q4_1, EL_Q8_0, EL_Q8_0},
        {EL_Q4_K, EL_Q8_0, EL_Q6_K, EL_Q4_K, EL_Q6_K, EL_Q6_K},
        {EL_F16, EL_Q5_0, EL_F32, EL_Q5_0, EL_F16, EL_F32},
    };
    answer *first = malloc(sizeof *first), *other = malloc(sizeof *other);
    for (int32_t kind = 0; kind < KINDS; kind++) {
        model *m = new_model(kinds[kind]);
        el_error err = {0};
        el_config c =
            config(1, QUICK ? NULL : "scalar"); /* the best level stands for all where time is short */
        c.k_type = c.v_type = kind == 1 ? EL_KV_F32 : EL_KV_F16;
        if (!report(run_all(m, &c, LENGTH, 0, first, &err) == 0, "first run", err.message)) {
            free_model(m);
            continue;
        }
        check_answer(first);
        static const struct {
            int32_t threads, pack, chunk, others;
        } runs[] = {{1, 0, LENGTH, 0}, {2, 1, LENGTH, 0}, {4, 0, 96, 0}, {4, 1, 32, 3},
                    {2, 0, 7, 3},      {2, 1, 1, 0},      {4, 0, 1, 2},  {3, 1, LENGTH, 3},
                    {1, 1, 13, 3},     {2, 2, LENGTH, 1}, {3, 2, 9, 3},  {1, 2, 64, 0}};
        int32_t best = 0;
        for (int32_t level = 0, available; el_isa_level(level, &available, NULL); level++) {
            if (available) best = level;
        }
        for (int32_t level = 0; el_isa_level(level, NULL, NULL); level++) {
            int32_t available;
            const char *name = el_isa_level(level, &available, NULL);
            if (!available || (QUICK && level < best)) continue;
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
