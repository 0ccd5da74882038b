/* Measures the machine for `doctor`: how fast threads read memory, and how fast they multiply int8. */
#include "engine.h"
#include "os.h"

#include <string.h>

enum { READ_CHUNK = 256 << 10, ROUNDS = 5, ROUNDS_PER_CHUNK = 4096, CHUNKS_PER_THREAD = 64 };

typedef struct probe {
    int32_t n_chunks, started;
    const uint64_t *memory; /* [n_chunks][READ_CHUNK / 8] */
    _Atomic uint64_t sum;   /* keeps the reads; of multiply-adds their number */
    el_int8_peak_fn *int8_peak;
} probe;

static int32_t next(void *context, int32_t thread) {
    probe *p = context;
    (void)thread;
    return p->started++ ? 0 : p->n_chunks;
}

static double run(el_pool *pool, void (*chunk)(void *, int32_t, int32_t), probe *p) {
    uint64_t best = UINT64_MAX;
    for (int32_t i = 0; i < ROUNDS; i++) {
        p->started = 0;
        uint64_t start = el_os_now();
        el_pool_run(pool, &(el_job){chunk, next, p});
        uint64_t time = el_os_now() - start;
        if (time < best) best = time;
    }
    return (double)(best ? best : 1) * 1e-9;
}

static el_pool *start_threads(int32_t n_threads) {
    int32_t failed;
    if (n_threads < 0 || n_threads > EL_MAX_THREADS) return NULL;
    return el_pool_new(n_threads ? n_threads : el_os_default_threads(), &failed);
}

static void read_chunk(void *context, int32_t thread, int32_t chunk) {
    probe *p = context;
    (void)thread;
    const uint64_t *at = p->memory + (size_t)chunk * (READ_CHUNK / 8);
    uint64_t sums[8] = {0};
    for (size_t i = 0; i < READ_CHUNK / 8; i += 8) {
        for (size_t j = 0; j < 8; j++) sums[j] += at[i + j];
    }
    uint64_t sum = 0;
    for (size_t j = 0; j < 8; j++) sum += sums[j];
    atomic_fetch_add_explicit(&p->sum, sum, memory_order_relaxed);
}

double el_probe_bandwidth(int32_t n_threads, int64_t n_bytes) {
    if (n_bytes < READ_CHUNK || n_bytes / READ_CHUNK > EL_MAX_CHUNKS) return 0;
    el_pool *pool = start_threads(n_threads);
    size_t bytes = (size_t)(n_bytes / READ_CHUNK) * READ_CHUNK;
    char *memory = el_os_reserve(bytes, 1);
    double seconds = 0;
    if (pool && memory) {
        memset(memory, 1, bytes);
        probe p = {.n_chunks = (int32_t)(bytes / READ_CHUNK),
                   .memory = (const uint64_t *)(const void *)memory};
        seconds = run(pool, read_chunk, &p);
    }
    el_os_release(memory, bytes);
    el_pool_free(pool);
    return seconds > 0 ? (double)bytes / seconds : 0;
}

static void multiply_chunk(void *context, int32_t thread, int32_t chunk) {
    probe *p = context;
    (void)thread;
    (void)chunk;
    atomic_fetch_add_explicit(&p->sum, (uint64_t)p->int8_peak(ROUNDS_PER_CHUNK), memory_order_relaxed);
}

double el_probe_int8(int32_t n_threads) {
    el_kernels kernels;
    const char *why;
    if (el_kernels_select(NULL, &kernels, &why)) return 0;
    el_pool *pool = start_threads(n_threads);
    if (!pool) return 0;
    probe p = {.n_chunks = el_pool_threads(pool) * CHUNKS_PER_THREAD, .int8_peak = kernels.int8_peak};
    const double seconds = run(pool, multiply_chunk, &p);
    el_pool_free(pool);
    return (double)p.sum / ROUNDS / seconds;
}
