/* A pool of threads that runs jobs made of phases, and each phase of chunks.
 *
 * A phase ends when its chunks are done: nobody waits for a thread that holds none, so one that the system has
 * suspended between two chunks costs nothing. The thread that completes a phase's last chunk calls job->next, which
 * may do serial work before it names the next phase's number of chunks. Who waits spins briefly, then sleeps; waking
 * costs a system call only when somebody sleeps.
 */
#ifndef EL_POOL_H
#define EL_POOL_H

#include <stdint.h>

typedef struct el_pool el_pool;

typedef struct el_job {
    /* Run chunk 0 .. n-1 of the current phase on thread 0 .. n_threads-1. */
    void (*chunk)(void *context, int32_t thread, int32_t chunk);
    /* Prepare the next phase (no chunk is running) and return its number of chunks, 0 at the job's end. */
    int32_t (*next)(void *context, int32_t thread);
    void *context;
} el_job;

enum { EL_MAX_THREADS = 1024, EL_MAX_CHUNKS = 1 << 30 };

/* n_threads - 1 threads beside the caller; NULL with *failed = 1 (memory) or 2 (threads). */
el_pool *el_pool_new(int32_t n_threads, int32_t *failed);
/* Stop and join the threads. NULL is allowed. */
void el_pool_free(el_pool *pool);
int32_t el_pool_threads(const el_pool *pool);

/* Run the jobs from now on with n of the pool's threads, the caller among them; the others sleep. Between jobs only. */
void el_pool_use(el_pool *pool, int32_t n);

/* Run a job; the caller is thread 0. The floating-point environment is set on every thread that takes part, and the
 * caller's is put back. One job at a time. */
void el_pool_run(el_pool *pool, const el_job *job);

#endif
