/* Malformed plans and batches are refused with a reason, or run; they never crash. */
#include "step_check.h"

static int32_t odd_value(void) {
    static const int32_t values[] = {
        -2,        -1,        0,   1,   2, 3, 5, 31, 255, 1 << 20, EL_VECTOR_BASE, EL_VECTOR_BASE + 3,
        INT32_MAX, INT32_MIN, 257, 4096};
    return values[random_below((int32_t)(sizeof values / sizeof *values))];
}

/* Change one field of the plan; what is accepted must run. */
void check_malformed_plans(void) {
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

void check_messages(void) {
    model *m = new_model(SMALL);
    el_config c = config(1, NULL);
    m->ops[3].w[0] = 99;
    refuses(m, &c, EL_E_ARGUMENT, "op 3 (LINEAR) w0: 99, expected a matrix, 0 to");
    m->ops[3].w[0] = 1;
    m->ops[3].i[1] = -1;
    refuses(m, &c, EL_E_ARGUMENT, "activations are float32 (slot -1), but matrix 1 (Q8_0) takes A16");
    m->ops[3].i[1] = 0;
    m->weights[2].qtype = 24 /* I8 */;
    refuses(m, &c, EL_E_UNSUPPORTED, "weights[2]: no kernels for weight type ? (24)");
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

/* el_run with one field off: a code, never more steps than asked for, nothing written beyond them. */
static void malformed_runs(el_engine *e) {
    enum { STEPS = 6, SEQS = 3, ROOM = 3 + STEPS, EDITS = 2 + 2 + 3 + STEPS };
    int32_t refused = 0, rounds = QUICK ? 300 : 5000;
    for (int32_t round = 0; round < rounds; round++) {
        int32_t tokens[] = {3, 7, 5}, positions[] = {0, 0, 0}, seq_start[] = {0, 1, 2, 3}, rows[] = {0, 1, 2};
        int32_t pages[] = {5, 1, 2}, strides[] = {1, 1}, status[SEQS], ids[SEQS * 5], ends[] = {-4, 11};
        int32_t chosen[STEPS * SEQS + 1], halt = random_below(4) == 0, n_done = -1;
        float top[SEQS * 5];
        const int32_t *tables[] = {pages, pages};
        int32_t past[ROOM + 1], seen[ROOM + 1], counts[ROOM + 1], biased[] = {2, 11}, row[EDITS + 1],
                                                                  token[EDITS + 1];
        double bias[] = {-1.0, 1e30};
        float rep[EDITS + 1], add[EDITS + 1];
        el_edits edits = {1.5, 0.25, 0.125, 3,     random_below(9) - 1, 2, 2, biased, bias, ends, ROOM, 0,
                          0,   past, seen,  counts};
        past[ROOM] = seen[ROOM] = counts[ROOM] = row[EDITS] = token[EDITS] = 4711;
        el_edits_add(&edits, tokens, 3, NULL);
        el_pick picks[SEQS] = {{0, 1, 0, 1, 0, 0, 1, NULL},
                               {0.8, 0.9, 0.05, 2, 3, 1, 5, &edits},
                               {1e6, 0, 1, UINT64_MAX, 1, -1, 2, NULL}};
        el_batch b = {sizeof b,  3,    3,      3,       5,    0,    tokens, positions,
                      seq_start, rows, tables, strides, NULL, NULL, NULL,   NULL};
        el_output o = {ids, top, NULL, NULL, status, NULL};
        el_run_spec run = {sizeof run, STEPS, 2, picks, ends, &halt, chosen, EDITS, row, token, rep, add};
        switch (random_below(17)) {
        case 0: run.size = odd_value(); break;
        case 1: run.n_steps = random_below(2) ? random_below(STEPS + 1) : odd_value(); break;
        case 2: run.n_ends = random_below(4) - 1; break;
        case 3: run.picks = NULL; break;
        case 4: run.tokens = NULL; break;
        case 5: run.halt = NULL; break;
        case 6: run.ends = NULL; break;
        case 7: picks[random_below(SEQS)].top_k = odd_value(); break;
        case 8:
            picks[random_below(SEQS)].temperature = random_below(2) ? -1.0 : (double)el_float(0x7fc00000u);
            break;
        case 9: picks[random_below(SEQS)].n_generated = -1; break;
        case 10: b.top_k = random_below(6); break;
        case 11: run.edit_room = random_below(2) ? random_below(EDITS) : odd_value(); break;
        case 12: edits.n_bias = edits.n_ends = random_below(4) - 1; break;
        case 13: edits.room = random_below(2) ? random_below(ROOM) : odd_value(); break;
        case 14: edits.n_tokens = random_below(2) ? -1 : ROOM; break;
        case 15: edits.seen = NULL; break;
        default: b.n_rows = random_below(4); break;
        }
        if (run.n_ends > 2) run.n_ends = 2;
        if (edits.n_ends > 2) edits.n_bias = edits.n_ends = 2;
        if (run.n_steps > STEPS) run.n_steps = STEPS;
        chosen[STEPS * SEQS] = 4711;
        el_error err = {0};
        int32_t code = el_run(e, &b, &run, &o, &n_done, &err);
        report(code == EL_OK || (code == EL_E_ARGUMENT && err.message[0]), "run", err.message);
        report(code ? n_done == 0 : n_done >= 1 && n_done <= (halt && run.halt ? 1 : run.n_steps), "run",
               "an odd number of steps");
        report(chosen[STEPS * SEQS] == 4711, "run", "a token beyond the last step");
        report(past[ROOM] == 4711 && seen[ROOM] == 4711 && counts[ROOM] == 4711 && row[EDITS] == 4711 &&
                   token[EDITS] == 4711,
               "run", "an edit beyond the room");
        refused += code != EL_OK;
    }
    report(refused > rounds / 4, "run", "the changes did not change much");
    report(el_run(NULL, NULL, NULL, NULL, NULL, NULL) == EL_E_ARGUMENT, "run", "NULL");
}

void check_malformed_batches(void) {
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
        el_output o = {ids[0], top[0], lse, logits[0], status, NULL};
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
        int32_t done = 0;
        report(el_begin(e, &b, &o, &err) == code, "batch in parts", "taken otherwise than as a step");
        if (!code) el_continue(e, round % 2 ? -1 : 0, &done, &err);
    }
    report(e && refused > rounds / 4, "batch", "the changes did not change much");
    if (e) malformed_runs(e);
    report(el_step(NULL, NULL, NULL, NULL) == EL_E_ARGUMENT, "batch", "NULL");
    el_engine_free(e);
    el_engine_free(NULL);
    free_model(m);
}
