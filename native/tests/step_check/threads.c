/* The thread pool: nothing lost, nothing run twice; and what an empty phase costs. */
#include "step_check.h"

#include "os.h"
#include "pool.h"

#include <stdatomic.h>

typedef struct counting {
    int32_t phases, n_chunks, phase;
    _Atomic int32_t chunks;
    int32_t seen[64]; /* plain: a phase's writes must be visible in the next */
} counting;

static void count_chunk(void *context, int32_t thread, int32_t chunk) {
    counting *c = context;
    (void)thread;
    c->seen[chunk]++;
    atomic_fetch_add_explicit(&c->chunks, 1, memory_order_relaxed);
}

static int32_t count_next(void *context, int32_t thread) {
    counting *c = context;
    (void)thread;
    return c->phase++ < c->phases ? c->n_chunks : 0;
}

void check_pool(void) {
    for (int32_t threads = 1; threads <= 6; threads++) {
        int32_t failed;
        el_pool *pool = el_pool_new(threads, &failed);
        if (!report(pool != NULL, "pool", "not made")) continue;
        for (int32_t job = 0; job < 50; job++) {
            counting c = {.phases = QUICK ? 20 : 200, .n_chunks = 1 + job};
            el_pool_use(pool, job % 3 ? threads : 1 + job % threads);
            el_pool_run(pool, &(el_job){count_chunk, count_next, &c});
            report(c.chunks == c.phases * c.n_chunks, "pool", "chunks lost or run twice");
            for (int32_t i = 0; i < c.n_chunks; i++)
                report(c.seen[i] == c.phases, "pool", "a chunk was missed");
        }
        el_pool_free(pool);
    }
}

void bench_pool(void) {
    for (int32_t threads = 1; threads <= 4; threads++) {
        int32_t failed;
        el_pool *pool = el_pool_new(threads, &failed);
        for (int32_t n = threads; n <= 16; n *= 4) {
            counting c = {.phases = 200000, .n_chunks = n};
            uint64_t start = el_os_now();
            el_pool_run(pool, &(el_job){count_chunk, count_next, &c});
            double seconds = (double)(el_os_now() - start) * 1e-9;
            printf("%d threads, %2d chunks a phase: %.2f million phases/s, %.0f ns a phase\n", threads, n,
                   c.phases / seconds / 1e6, seconds / c.phases * 1e9);
        }
        el_pool_free(pool);
    }
}
