/* The engine's life, and the step. */
#include "engine.h"

#include "os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps of at most so many tokens wait for the memory, not for the processor. */
enum { FEW_TOKENS = 4 };

el_engine *el_engine_new(const el_model *model, const el_config *config, el_error *err) {
    if (!model || !config) {
        el_fail(err, EL_E_ARGUMENT, "model or config is NULL");
        return NULL;
    }
    if (config->size != (int32_t)sizeof *config) {
        el_fail(err, EL_E_ARGUMENT, "config: size is %d, expected %zu", config->size, sizeof *config);
        return NULL;
    }
    if (config->n_threads < 0 || config->n_threads > EL_MAX_THREADS) {
        el_fail(err, EL_E_ARGUMENT, "config: n_threads is %d, expected 0 (automatic) to %d",
                config->n_threads, EL_MAX_THREADS);
        return NULL;
    }
    if (config->n_decode_threads < 0 || config->n_decode_threads > EL_MAX_THREADS) {
        el_fail(err, EL_E_ARGUMENT, "config: n_decode_threads is %d, expected 0 (as n_threads) to %d",
                config->n_decode_threads, EL_MAX_THREADS);
        return NULL;
    }
    el_engine *e = calloc(1, sizeof *e);
    if (!e) {
        el_fail(err, EL_E_MEMORY, "out of memory for an engine");
        return NULL;
    }
    const char *why = "";
    int32_t failed = 0, code = el_kernels_select(config->isa, &e->kernels, &why);
    if (code) el_fail(err, code, "config: isa is \"%s\": %s", config->isa ? config->isa : "", why);
    if (!code) code = el_plan_compile(&e->plan, model, config, &e->kernels, err);
    if (!code) {
        e->limits = (el_limits){config->max_tokens, config->max_rows, config->max_seqs, config->n_ctx};
        e->n_threads = config->n_threads ? config->n_threads : el_default_threads();
        e->n_decode_threads = config->n_decode_threads && config->n_decode_threads < e->n_threads
                                  ? config->n_decode_threads
                                  : e->n_threads;
        e->pool = el_pool_new(e->n_threads, &failed);
        if (failed == 1)
            code = el_fail(err, EL_E_MEMORY, "out of memory for a pool of %d threads", e->n_threads);
        if (failed == 2)
            code = el_fail(err, EL_E_SYSTEM, "the system refused to start %d threads", e->n_threads);
    }
    if (!code) code = el_memory_new(e, err);
    if (!code) code = el_caches_new(e, err);
    if (!code) code = el_weights_pack(e, err);
    if (code) {
        el_engine_free(e);
        return NULL;
    }
    return e;
}

static void free_side(el_engine *side) {
    if (!side) return;
    side->caches = side->weights = NULL; /* the engine's */
    side->cache_bytes = side->weight_bytes = 0;
    el_memory_free(side);
    free(side->plan.ops);
    free(side->plan.phases);
    free(side->todo);
    free(side->left);
    free(side);
}

void el_engine_free(el_engine *engine) {
    if (!engine) return;
    el_pool_free(engine->pool);
    free_side(engine->side);
    el_memory_free(engine);
    el_plan_free(&engine->plan);
    free(engine);
}

void el_engine_info(const el_engine *engine, el_info *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->isa, sizeof info->isa, "%s", engine->kernels.level);
    info->n_threads = engine->n_threads;
    info->n_decode_threads = engine->n_decode_threads;
    info->weight_bytes = (int64_t)engine->weight_bytes;
    info->scratch_bytes = (int64_t)engine->memory_bytes;
    info->cache_bytes = (int64_t)engine->cache_bytes;
}

/* ---- the step ---- */

void el_mark_failed(el_engine *e, int32_t axis, int32_t row) {
    int32_t token = axis ? e->batch->rows[row] : row;
    atomic_store_explicit(&e->failed[e->sequence[token]], 1, memory_order_relaxed);
}

static void run_chunk(el_engine *e, int32_t thread, int32_t chunk) {
    if (e->phase == e->plan.n_phases) {
        el_select_chunk(e, thread, chunk);
        return;
    }
    const el_phase *phase = &e->plan.phases[e->phase];
    switch (phase->kind) {
    case EL_PHASE_ROWS: el_rows_chunk(e, phase, thread, chunk); break;
    case EL_PHASE_MATMUL: el_matmul_chunk(e, phase, thread, chunk); break;
    default: el_attention_chunk(e, phase, thread, chunk); break;
    }
}

static void step_chunk(void *context, int32_t thread, int32_t chunk) {
    el_engine *e = context;
    if (!e->times) {
        run_chunk(e, thread, chunk);
        return;
    }
    int64_t *busy = &e->times[e->phase].busy;
    const uint64_t start = el_os_now();
    run_chunk(e, thread, chunk);
    __atomic_fetch_add(busy, (int64_t)(el_os_now() - start), __ATOMIC_RELAXED);
}

/* The running phase ends, if there is one, and the next begins. */
static void time_phase(el_engine *e) {
    const uint64_t now = el_os_now();
    if (e->phase_start) {
        el_phase_time *t = &e->times[e->phase];
        t->n_runs++;
        t->wall += (int64_t)(now - e->phase_start);
    }
    e->phase_start = now;
}

static int32_t begin_phase(el_engine *e, int32_t thread) {
    if (e->phase == e->plan.n_phases) return el_select_begin(e);
    el_phase *phase = &e->plan.phases[e->phase];
    switch (phase->kind) {
    case EL_PHASE_ROWS: return el_rows_begin(e, phase, thread);
    case EL_PHASE_MATMUL: return el_matmul_begin(e, phase);
    default: return el_attention_begin(e, phase);
    }
}

/* The next phase that is worth a hand-over: small ones are run here. */
static int32_t step_next(void *context, int32_t thread) {
    el_engine *e = context;
    for (;;) {
        if (e->times) time_phase(e);
        if (++e->phase > e->last_phase) return 0;
        int32_t n = begin_phase(e, thread);
        if (n > 1 && e->n_threads > 1) return n;
        for (int32_t i = 0; i < n; i++) step_chunk(e, thread, i);
    }
}

/* A chunk of a step in parts: when the time is up it is left for the next part, unless it is the first of this one. */
static void part_chunk(void *context, int32_t thread, int32_t number) {
    el_engine *e = context;
    const int32_t chunk = e->n_todo ? e->todo[number] : number;
    const int32_t first = !atomic_load_explicit(&e->has_run, memory_order_relaxed) &&
                          !atomic_exchange_explicit(&e->has_run, 1, memory_order_relaxed);
    if (first || e->whole || el_os_now() < e->pause_at) {
        step_chunk(e, thread, chunk);
    } else {
        e->left[atomic_fetch_add_explicit(&e->n_left, 1, memory_order_relaxed)] = chunk;
    }
}

/* Room for n chunks that are left; without memory for it the phase is not interrupted. */
static int32_t part_room(el_engine *e, int32_t n) {
    if (n <= e->room) return 1;
    free(e->todo);
    free(e->left);
    e->todo = malloc((size_t)n * sizeof *e->todo);
    e->left = malloc((size_t)n * sizeof *e->left);
    e->room = e->todo && e->left ? n : 0;
    return e->room > 0;
}

/* The same as step_next for a step in parts. It pauses where chunks were left, and between phases. */
static int32_t part_next(void *context, int32_t thread) {
    el_engine *e = context;
    for (;;) {
        int32_t n = 0;
        if (atomic_load_explicit(&e->n_left, memory_order_relaxed)) {
            int32_t *todo = e->left;
            e->left = e->todo;
            e->todo = todo;
            e->n_todo = atomic_load_explicit(&e->n_left, memory_order_relaxed);
            atomic_store_explicit(&e->n_left, 0, memory_order_relaxed);
            if (e->times) e->times[e->phase].wall += (int64_t)(el_os_now() - e->phase_start);
            return 0;
        }
        if (e->resumes) {
            e->resumes = 0;
            n = e->n_todo;
        } else {
            if (e->times) time_phase(e);
            e->n_todo = 0;
            if (e->phase < e->last_phase && el_os_now() >= e->pause_at &&
                atomic_load_explicit(&e->has_run, memory_order_relaxed)) {
                return 0;
            }
            if (++e->phase > e->last_phase) return 0;
            n = begin_phase(e, thread);
            e->whole = !part_room(e, n);
        }
        if (n > 1 && e->n_threads > 1) return n;
        for (int32_t i = 0; i < n; i++) part_chunk(e, thread, i);
    }
}

/* The rows that the head multiplies. */
static void copy_hidden(el_engine *e) {
    const el_view *v = &e->plan.hidden;
    for (int32_t r = 0; r < e->n_rows[1]; r++) {
        const float *x = el_row(e, v, r);
        if (e->kernels.nonfinite(x, v->width)) el_mark_failed(e, 1, r);
        memcpy(e->output->hidden + (size_t)r * (size_t)v->width, x, (size_t)v->width * sizeof *x);
    }
}

/* Make a batch the step that is computed next. */
static int32_t begin_step(el_engine *e, const el_batch *batch, const el_output *out, el_error *err) {
    int32_t code = el_batch_check(e, batch, out, err);
    if (code) return code;
    e->batch = batch;
    e->output = out;
    e->n_rows[0] = batch->n_tokens;
    e->n_rows[1] = batch->n_rows;
    e->phase = -1;
    e->n_todo = 0;
    const int32_t headless = out->hidden && !batch->top_k && !out->lse && !out->logits;
    e->last_phase = headless ? e->plan.n_body - 1 : e->plan.n_phases;
    atomic_store_explicit(&e->cut, 0, memory_order_relaxed);
    for (int32_t s = 0; s < batch->n_seqs; s++) {
        atomic_store_explicit(&e->failed[s], 0, memory_order_relaxed);
    }
    return EL_OK;
}

/* Compute all of it. */
static void run_step(el_engine *e) {
    e->phase_start = 0;
    el_pool_use(e->pool, e->batch->n_tokens <= FEW_TOKENS ? e->n_decode_threads : e->n_threads);
    el_pool_run(e->pool, &(el_job){step_chunk, step_next, e});
}

/* What a step that is complete leaves behind beside its logits. */
static int32_t end_step(el_engine *e, el_error *err) {
    if (e->output->hidden) copy_hidden(e);
    for (int32_t s = 0; s < e->batch->n_seqs; s++) {
        e->output->status[s] = atomic_load_explicit(&e->failed[s], memory_order_relaxed);
    }
    if (atomic_load_explicit(&e->cut, memory_order_relaxed)) {
        return el_fail(err, EL_E_SYSTEM,
                       "the model's file has been cut short by another program: a token's embedding is gone");
    }
    return EL_OK;
}

int32_t el_step(el_engine *engine, const el_batch *batch, const el_output *out, el_error *err) {
    if (!engine || !batch || !out) return el_fail(err, EL_E_ARGUMENT, "engine, batch or output is NULL");
    int32_t code = begin_step(engine, batch, out, err);
    if (code) return code;
    run_step(engine);
    return end_step(engine, err);
}

/* ---- a step in parts ---- */

/* The other engine: ops and phases are its own, too, since how a phase was cut is written there. */
static el_engine *new_side(const el_engine *e, el_error *err) {
    const size_t ops = (size_t)e->plan.n_ops * sizeof *e->plan.ops;
    const size_t phases = (size_t)e->plan.n_phases * sizeof *e->plan.phases;
    el_engine *side = malloc(sizeof *side);
    if (!side) {
        el_fail(err, EL_E_MEMORY, "out of memory for a step in parts");
        return NULL;
    }
    *side = *e;
    side->memory = NULL;
    side->plan.ops = malloc(ops);
    side->plan.phases = malloc(phases);
    if (!side->plan.ops || !side->plan.phases) {
        el_fail(err, EL_E_MEMORY, "out of memory for a step in parts");
    } else {
        memcpy(side->plan.ops, e->plan.ops, ops);
        memcpy(side->plan.phases, e->plan.phases, phases);
        if (!el_memory_new(side, err)) return side;
    }
    free_side(side);
    return NULL;
}

int32_t el_begin(el_engine *engine, const el_batch *batch, const el_output *out, el_error *err) {
    if (!engine || !batch || !out) return el_fail(err, EL_E_ARGUMENT, "engine, batch or output is NULL");
    if (!engine->side) engine->side = new_side(engine, err);
    if (!engine->side) return EL_E_MEMORY;
    engine->side->batch = NULL;
    int32_t code = begin_step(engine->side, batch, out, err);
    if (code) engine->side->batch = NULL;
    return code;
}

int32_t el_continue(el_engine *engine, int64_t nanoseconds, int32_t *done, el_error *err) {
    el_engine *side = engine ? engine->side : NULL;
    if (!side || !side->batch || !done) {
        return el_fail(err, EL_E_ARGUMENT, "no step in parts was begun, or done is NULL");
    }
    side->times = engine->times;
    side->resumes = side->n_todo > 0;
    side->phase_start = side->resumes ? el_os_now() : 0;
    side->pause_at = nanoseconds < 0 ? UINT64_MAX : el_os_now() + (uint64_t)nanoseconds;
    atomic_store_explicit(&side->has_run, 0, memory_order_relaxed);
    el_pool_use(side->pool, side->batch->n_tokens <= FEW_TOKENS ? side->n_decode_threads : side->n_threads);
    el_pool_run(side->pool, &(el_job){part_chunk, part_next, side});
    *done = side->phase > side->last_phase;
    if (!*done) return EL_OK;
    int32_t code = end_step(side, err);
    side->batch = NULL;
    return code;
}

int32_t el_n_phases(const el_engine *engine) { return engine ? engine->plan.n_phases + 1 : 0; }

int32_t el_time_phases(el_engine *engine, el_phase_time *times, int32_t n, el_error *err) {
    if (!engine || (times && n != el_n_phases(engine))) {
        return el_fail(err, EL_E_ARGUMENT, "engine is NULL, or times has %d entries, expected %d", n,
                       el_n_phases(engine));
    }
    for (int32_t i = 0; times && i < n; i++) {
        const int32_t last = i == engine->plan.n_phases;
        times[i].first_op = last ? engine->plan.n_ops : engine->plan.phases[i].first;
        times[i].n_ops = last ? 0 : engine->plan.phases[i].n_ops;
    }
    engine->times = times;
    return EL_OK;
}

/* ---- pages ---- */

static int32_t check_page(const el_engine *e, int32_t cls, int32_t page, el_error *err) {
    if (cls < 0 || cls >= e->plan.n_classes) {
        return el_fail(err, EL_E_ARGUMENT, "cache class %d, expected 0 to %d", cls, e->plan.n_classes - 1);
    }
    if (page < 0 || page >= e->plan.classes[cls].n_pages) {
        return el_fail(err, EL_E_ARGUMENT, "page %d of cache class %d, expected 0 to %d", page, cls,
                       e->plan.classes[cls].n_pages - 1);
    }
    return EL_OK;
}

int32_t el_copy_page(el_engine *engine, int32_t cls, int32_t src, int32_t dst, el_error *err) {
    if (!engine) return el_fail(err, EL_E_ARGUMENT, "engine is NULL");
    int32_t code = check_page(engine, cls, src, err);
    if (!code) code = check_page(engine, cls, dst, err);
    if (code || src == dst) return code;
    const el_class *k = &engine->plan.classes[cls];
    memcpy(k->pool + (size_t)dst * k->page_bytes, k->pool + (size_t)src * k->page_bytes, k->page_bytes);
    return EL_OK;
}

int32_t el_page_data(el_engine *engine, int32_t cls, int32_t page, void *bytes, int64_t n_bytes,
                     int32_t write, el_error *err) {
    if (!engine || !bytes) return el_fail(err, EL_E_ARGUMENT, "engine or bytes is NULL");
    int32_t code = check_page(engine, cls, page, err);
    if (code) return code;
    const el_class *k = &engine->plan.classes[cls];
    if (n_bytes != (int64_t)k->page_bytes) {
        return el_fail(err, EL_E_ARGUMENT, "%lld bytes, but a page of cache class %d has %zu",
                       (long long)n_bytes, cls, k->page_bytes);
    }
    char *at = k->pool + (size_t)page * k->page_bytes;
    if (write) {
        memcpy(at, bytes, k->page_bytes);
    } else {
        memcpy(bytes, at, k->page_bytes);
    }
    return EL_OK;
}

int32_t el_release_pages(el_engine *engine, int32_t cls, const int32_t *pages, int32_t n, el_error *err) {
    if (!engine || n < 0 || (n > 0 && !pages)) {
        return el_fail(err, EL_E_ARGUMENT, "engine or pages is NULL, or n is %d", n);
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t code = check_page(engine, cls, pages[i], err);
        if (code) return code;
    }
    for (int32_t i = 0; i < n;) { /* neighbours at once: the system gives back whole pages of its own */
        const el_class *k = &engine->plan.classes[cls];
        int32_t run = 1;
        while (i + run < n && pages[i + run] == pages[i] + run) run++;
        el_os_discard(k->pool + (size_t)pages[i] * k->page_bytes, (size_t)run * k->page_bytes);
        i += run;
    }
    return EL_OK;
}
