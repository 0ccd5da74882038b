/* The thread pool. See pool.h.
 *
 * A phase's chunks are dealt out as one run of neighbours for each thread, so that a thread reads on where it stopped;
 * a thread that has finished its run helps with the others. The ticket of a run starts at LIMIT - length; every
 * fetch_add claims one chunk, and a value of LIMIT or more claims nothing. Threads count what they have completed and
 * report it when they find nothing more to claim. A chunk that is claimed but not reported keeps its phase from ending,
 * hence the job and the phase's tables from being rewritten: a thread looks at them only while it has one.
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

typedef struct run {
    _Alignas(64) _Atomic uint32_t ticket;
    uint32_t end; /* written between phases: the chunk after the last */
} run;

struct el_pool {
    _Alignas(64) _Atomic uint32_t done; /* chunks of this phase that are complete */
    _Alignas(64) _Atomic uint32_t epoch;
    _Alignas(64) _Atomic uint32_t sleepers;
    _Atomic uint32_t running; /* 1 from a job's first phase until its end */
    _Atomic uint32_t stop;
    _Atomic uint32_t active; /* threads that take part; written between jobs, and at the end */
    _Alignas(64) el_job job; /* written between jobs */
    uint32_t n_chunks;       /* written between phases */
    int32_t n_threads, n_started;
    run *runs; /* [n_threads] */
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
        const uint32_t active = atomic_load_explicit(&p->active, memory_order_relaxed);
        uint32_t start = 0;
        for (uint32_t i = 0; i < active; i++) {
            run *r = &p->runs[i];
            uint32_t end = (uint32_t)((uint64_t)n * (uint64_t)(i + 1) / active);
            r->end = end; /* not read again: once the last run is on offer, the phase may end at any time */
            atomic_store_explicit(&r->ticket, LIMIT - (end - start), memory_order_release);
            start = end;
        }
        if (active > 1) announce(p);
    } else {
        atomic_store_explicit(&p->running, 0, memory_order_release);
        if (thread != 0) announce(p); /* the caller may wait */
    }
}

/* Claim a chunk of a run: 1 and its number, or 0. */
static int32_t claim(run *r, int32_t *chunk) {
    if (atomic_load_explicit(&r->ticket, memory_order_relaxed) >= LIMIT) return 0;
    uint32_t t = atomic_fetch_add_explicit(&r->ticket, 1, memory_order_acq_rel);
    if (t >= LIMIT) return 0;
    *chunk = (int32_t)(r->end - (LIMIT - t));
    return 1;
}

/* Run chunks until there are none to claim, of this phase and of those that this thread gets to begin. */
static void work(el_pool *p, int32_t thread) {
    const int32_t n_threads = (int32_t)atomic_load_explicit(&p->active, memory_order_relaxed);
    for (;;) {
        uint32_t n_done = 0;
        int32_t chunk;
        for (int32_t i = thread, tried = 0; tried < n_threads;) {
            if (claim(&p->runs[i], &chunk)) {
                p->job.chunk(p->job.context, thread, chunk);
                n_done++;
            } else {
                tried++;
                i = i + 1 < n_threads ? i + 1 : 0;
            }
        }
        if (n_done == 0) return;
        uint32_t n = p->n_chunks;
        if (atomic_fetch_add_explicit(&p->done, n_done, memory_order_acq_rel) + n_done < n) return;
        advance(p, thread);
    }
}

static void worker_main(void *argument) {
    worker *w = argument;
    el_pool *p = w->pool;
    el_fp_enter();
    for (;;) {
        uint32_t seen = atomic_load_explicit(&p->epoch, memory_order_acquire);
        if (atomic_load_explicit(&p->stop, memory_order_acquire)) return;
        uint32_t active = atomic_load_explicit(&p->active, memory_order_acquire);
        if ((uint32_t)w->index >= active) {
            el_os_wait(&p->active, active);
            continue;
        }
        work(p, w->index);
        uint32_t running = atomic_load_explicit(&p->running, memory_order_relaxed);
        wait_change(p, seen, running ? SPIN_IN_JOB : SPIN_IDLE);
    }
}

el_pool *el_pool_new(int32_t n_threads, int32_t *failed) {
    *failed = 1;
    el_pool *p = el_os_reserve(sizeof *p, 0); /* a page: what is aligned in it stays so */
    if (!p) return NULL;
    p->n_threads = n_threads;
    atomic_store_explicit(&p->active, (uint32_t)n_threads, memory_order_relaxed);
    p->workers = calloc((size_t)n_threads, sizeof *p->workers);
    p->runs = el_os_reserve((size_t)n_threads * sizeof *p->runs, 0);
    if (!p->workers || !p->runs) {
        el_pool_free(p);
        return NULL;
    }
    for (int32_t i = 0; i < n_threads; i++) p->runs[i] = (run){.ticket = LIMIT};
    for (int32_t i = 1; i < n_threads; i++) {
        worker *w = &p->workers[i];
        w->pool = p;
        w->index = i;
        if (el_os_thread_start(&w->thread, worker_main, w)) {
            *failed = 2;
            el_pool_free(p);
            return NULL;
        }
        p->n_started++;
    }
    *failed = 0;
    return p;
}

void el_pool_free(el_pool *pool) {
    if (!pool) return;
    atomic_store(&pool->stop, 1);
    el_pool_use(pool, pool->n_threads);
    announce(pool);
    for (int32_t i = 1; i <= pool->n_started; i++) el_os_thread_join(&pool->workers[i].thread);
    free(pool->workers);
    el_os_release(pool->runs, (size_t)pool->n_threads * sizeof *pool->runs);
    el_os_release(pool, sizeof *pool);
}

int32_t el_pool_threads(const el_pool *pool) { return pool->n_threads; }

void el_pool_use(el_pool *pool, int32_t n) {
    uint32_t active = (uint32_t)(n < 1 || n > pool->n_threads ? pool->n_threads : n);
    if (active > atomic_exchange(&pool->active, active)) el_os_wake_all(&pool->active);
}

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
