/* The thread pool. See pool.h.
 *
 * `ticket` hands out chunks: it starts a phase at LIMIT - n, every fetch_add claims one chunk, and a value of LIMIT or
 * more claims nothing. A valid claim proves that its phase is not complete, hence that the job and the phase's tables
 * are not being rewritten, however late the claiming thread gets to look at them; without one it looks at nothing.
 * `epoch` counts phases; waiting threads watch it and sleep on it.
 */
#include "pool.h"

#include "fpenv.h"
#include "os.h"

#include <stdlib.h>

static const uint32_t LIMIT = 0x80000000u;

/* How long a waiter spins before it sleeps: within a job, and between jobs. */
static const uint64_t SPIN_IN_JOB = 30000, SPIN_IDLE = 100000;

typedef struct worker {
    el_pool *pool;
    int32_t index;
    el_os_thread thread;
} worker;

struct el_pool {
    _Alignas(64) _Atomic uint32_t ticket;
    _Alignas(64) _Atomic uint32_t done; /* chunks of this phase that are complete */
    _Alignas(64) _Atomic uint32_t epoch;
    _Alignas(64) _Atomic uint32_t sleepers;
    _Atomic uint32_t running; /* 1 from a job's first phase until its end */
    _Atomic uint32_t stop;
    _Alignas(64) el_job job; /* written between jobs */
    uint32_t n_chunks;       /* written between phases */
    int32_t n_threads;
    worker *workers;
};

static void announce(el_pool *p) {
    atomic_fetch_add(&p->epoch, 1);
    /* A sleeper counts itself before it sleeps, and does not sleep once the epoch has changed: whoever is not seen here
     * does not sleep. The count starts over, so that threads slow to get up are not woken again and again. */
    if (atomic_load(&p->sleepers) && atomic_exchange(&p->sleepers, 0)) el_os_wake_all(&p->epoch);
}

static void wait_change(el_pool *p, uint32_t seen, uint64_t spin) {
    uint64_t start = 0;
    for (uint32_t i = 1;; i++) {
        if (atomic_load_explicit(&p->epoch, memory_order_acquire) != seen) return;
        el_os_pause();
        if (i % 32 == 0) {
            uint64_t now = el_os_now();
            if (start == 0) start = now;
            if (now - start > spin) break;
        }
    }
    atomic_fetch_add(&p->sleepers, 1);
    el_os_wait(&p->epoch, seen);
}

/* Begin the next phase, or end the job. Called by the thread that completed the last one. */
static void advance(el_pool *p, int32_t thread) {
    int32_t n = p->job.next(p->job.context, thread);
    if (n > 0) {
        p->n_chunks = (uint32_t)n;
        atomic_store_explicit(&p->done, 0, memory_order_relaxed);
        atomic_store_explicit(&p->ticket, LIMIT - (uint32_t)n, memory_order_release);
        if (p->n_threads > 1) announce(p);
    } else {
        atomic_store_explicit(&p->running, 0, memory_order_release);
        if (thread != 0) announce(p); /* the caller may wait */
    }
}

/* Claim and run chunks until the phase has none left. */
static void work(el_pool *p, int32_t thread) {
    for (;;) {
        uint32_t t = atomic_fetch_add_explicit(&p->ticket, 1, memory_order_acq_rel);
        if (t >= LIMIT) return;
        uint32_t n = p->n_chunks;
        p->job.chunk(p->job.context, thread, (int32_t)(n - (LIMIT - t)));
        if (atomic_fetch_add_explicit(&p->done, 1, memory_order_acq_rel) + 1 == n) advance(p, thread);
    }
}

static void worker_main(void *argument) {
    worker *w = argument;
    el_pool *p = w->pool;
    el_fp_enter();
    for (;;) {
        uint32_t seen = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return;
        work(p, w->index);
        uint32_t running = atomic_load_explicit(&p->running, memory_order_relaxed);
        wait_change(p, seen, running ? SPIN_IN_JOB : SPIN_IDLE);
    }
}

el_pool *el_pool_new(int32_t n_threads, int32_t *failed) {
    *failed = 1;
    el_pool *p = aligned_alloc(64, sizeof *p);
    if (!p) return NULL;
    *p = (el_pool){.n_threads = 1};
    atomic_init(&p->ticket, LIMIT);
    p->workers = calloc((size_t)n_threads, sizeof *p->workers);
    if (!p->workers) {
        el_pool_free(p);
        return NULL;
    }
    for (int32_t i = 1; i < n_threads; i++) {
        worker *w = &p->workers[i];
        w->pool = p;
        w->index = i;
        if (el_os_thread_start(&w->thread, worker_main, w)) {
            *failed = 2;
            el_pool_free(p);
            return NULL;
        }
        p->n_threads++;
    }
    *failed = 0;
    return p;
}

void el_pool_free(el_pool *pool) {
    if (!pool) return;
    atomic_store(&pool->stop, 1);
    announce(pool);
    for (int32_t i = 1; i < pool->n_threads; i++) el_os_thread_join(&pool->workers[i].thread);
    free(pool->workers);
    free(pool);
}

int32_t el_pool_threads(const el_pool *pool) { return pool->n_threads; }

void el_pool_run(el_pool *pool, const el_job *job) {
    el_fpenv old = el_fp_enter();
    pool->job = *job;
    atomic_store_explicit(&pool->running, 1, memory_order_relaxed);
    advance(pool, 0);
    for (;;) {
        uint32_t seen = atomic_load_explicit(&pool->epoch, memory_order_acquire);
        work(pool, 0);
        if (!atomic_load_explicit(&pool->running, memory_order_acquire)) break;
        wait_change(pool, seen, SPIN_IN_JOB);
    }
    el_fp_leave(old);
}
