/* Several decode steps in one call: edit, step, choose, feed back. */
#include "engine.h"
#include "fp.h"

/* The picks' edits, and room for those of any step. */
static int32_t check_edits(const el_batch *b, const el_run_spec *run, el_error *err) {
    int64_t most = 0;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        const el_edits *e = run->picks[s].edits;
        if (!e) continue;
        int32_t code = el_edits_check(e, run->n_steps, err);
        if (code) return code;
        most += (int64_t)e->n_bias + e->n_ends + (e->last_n ? (int64_t)e->n_seen + run->n_steps : 0);
    }
    if (most > run->edit_room ||
        (most > 0 && (!run->edit_row || !run->edit_token || !run->edit_rep || !run->edit_add))) {
        return el_fail(err, EL_E_ARGUMENT,
                       "run: edit_room is %d, expected at least %lld and four arrays of that size",
                       run->edit_room, (long long)most);
    }
    return EL_OK;
}

static int32_t check_picks(const el_batch *b, const el_run_spec *run, el_error *err) {
    for (int32_t s = 0; s < b->n_seqs; s++) {
        const el_pick *p = &run->picks[s];
        if (!(p->temperature >= 0.0 && p->temperature <= 1e6)) {
            return el_fail(err, EL_E_ARGUMENT, "run: picks[%d].temperature is %g, expected 0 to 1e6", s,
                           p->temperature);
        }
        if (!(p->top_p >= 0.0 && p->top_p <= 1.0) || !(p->min_p >= 0.0 && p->min_p <= 1.0)) {
            return el_fail(err, EL_E_ARGUMENT, "run: picks[%d].top_p is %g and min_p is %g, expected 0 to 1",
                           s, p->top_p, p->min_p);
        }
        if (p->top_k < 1 || p->top_k > b->top_k) {
            return el_fail(err, EL_E_ARGUMENT,
                           "run: picks[%d].top_k is %d, expected 1 to %d (the batch's top_k)", s, p->top_k,
                           b->top_k);
        }
        if (p->n_generated < 0 || p->n_generated > INT64_MAX - run->n_steps) {
            return el_fail(err, EL_E_ARGUMENT, "run: picks[%d].n_generated is %lld, expected 0 or more", s,
                           (long long)p->n_generated);
        }
    }
    return EL_OK;
}

static int32_t check_run(const el_engine *e, const el_batch *b, const el_run_spec *run, const el_output *out,
                         el_error *err) {
    if (run->size != (int32_t)sizeof *run) {
        return el_fail(err, EL_E_ARGUMENT, "run: size is %d, expected %zu", run->size, sizeof *run);
    }
    if (run->n_steps < 1 || run->n_steps > e->limits.n_ctx) {
        return el_fail(err, EL_E_ARGUMENT, "run: n_steps is %d, expected 1 to %d", run->n_steps,
                       e->limits.n_ctx);
    }
    if (run->n_ends < 0 || (run->n_ends > 0 && !run->ends) || !run->picks || !run->tokens) {
        return el_fail(err, EL_E_ARGUMENT, "run: picks, tokens or ends is NULL, or n_ends is %d",
                       run->n_ends);
    }
    if (b->n_tokens != b->n_seqs || b->n_rows != b->n_seqs || b->top_k < 1 || b->n_adjust != 0) {
        return el_fail(err, EL_E_ARGUMENT,
                       "run: the batch has %d tokens, %d sequences, %d rows, top_k %d and %d edits, expected "
                       "one token and one row of each sequence, top_k from 1 and no edits",
                       b->n_tokens, b->n_seqs, b->n_rows, b->top_k, b->n_adjust);
    }
    int32_t code = el_batch_check((el_engine *)(uintptr_t)e, b, out, err);
    if (!code) code = check_picks(b, run, err);
    return code ? code : check_edits(b, run, err);
}

/* The edits of the step after `step` others, for batch `b`. */
static int32_t edit(const el_engine *e, const el_run_spec *run, int32_t step, el_batch *b, el_error *err) {
    int32_t n = 0;
    for (int32_t s = 0; s < b->n_seqs; s++) {
        const el_pick *p = &run->picks[s];
        if (!p->edits) continue;
        int32_t more =
            el_edits_write(p->edits, p->n_generated + step, e->plan.n_vocab, s, run->edit_room - n,
                           run->edit_row + n, run->edit_token + n, run->edit_rep + n, run->edit_add + n);
        if (more < 0) return el_fail(err, EL_E_ARGUMENT, "run: edit_room is %d, too little", run->edit_room);
        n += more;
    }
    b->n_adjust = n;
    b->adj_row = run->edit_row;
    b->adj_token = run->edit_token;
    b->adj_rep = run->edit_rep;
    b->adj_add = run->edit_add;
    return EL_OK;
}

/* Choose every sequence's token; 1 when the caller has something to decide. */
static int32_t choose(const el_engine *e, const el_batch *b, const el_run_spec *run, const el_output *out,
                      int32_t step) {
    int32_t decide = 0, n = el_min(b->top_k, e->plan.n_vocab);
    for (int32_t s = 0; s < b->n_seqs; s++) {
        const size_t row = (size_t)s * (size_t)b->top_k;
        el_pick pick = run->picks[s];
        pick.n_generated += step;
        int32_t rank = out->status[s] ? 0 : el_pick_rank(&pick, out->top_logits + row, n);
        int32_t token = out->top_ids[row + (size_t)rank];
        if (out->top_logits[row] == el_float(0xff800000u)) token = -1; /* every token is banned */
        run->tokens[(size_t)step * (size_t)b->n_seqs + (size_t)s] = token;
        if (out->status[s] || token < 0 || token >= e->plan.n_token_ids) decide = 1;
        for (int32_t i = 0; i < run->n_ends; i++) decide |= token == run->ends[i];
        if (pick.edits && token >= 0) el_edits_add(pick.edits, &token, 1, NULL);
    }
    return decide;
}

int32_t el_run(el_engine *engine, const el_batch *batch, const el_run_spec *run, const el_output *out,
               int32_t *n_done, el_error *err) {
    if (!engine || !batch || !run || !out || !n_done) {
        return el_fail(err, EL_E_ARGUMENT, "engine, batch, run, output or n_done is NULL");
    }
    *n_done = 0;
    int32_t code = check_run(engine, batch, run, out, err);
    el_batch b = *batch;
    while (!code) {
        code = edit(engine, run, *n_done, &b, err);
        if (!code) code = el_step(engine, &b, out, err);
        if (code) break;
        int32_t step = (*n_done)++;
        if (choose(engine, batch, run, out, step) || *n_done == run->n_steps) break;
        if (run->halt && __atomic_load_n(run->halt, __ATOMIC_RELAXED)) break;
        for (int32_t s = 0; s < batch->n_seqs; s++) {
            engine->run_tokens[s] = run->tokens[(size_t)step * (size_t)batch->n_seqs + (size_t)s];
            engine->run_positions[s] = batch->positions[s] + step + 1;
        }
        b.tokens = engine->run_tokens;
        b.positions = engine->run_positions;
    }
    return code;
}
