/* Measures the machine for `doctor`: how fast threads read memory, and how fast they multiply int8. */
#include "engine.h"
#include "os.h"

#include <string.h>

enum {
    READ_CHUNK = 256 << 10,
    ROUNDS = 5,
    COLUMNS = 64,
    K = 4096,
    PANELS_PER_CHUNK = 4,
    CHUNKS_PER_THREAD = 64
};

typedef struct probe {
    int32_t n_chunks, started;
    const uint64_t *memory; /* [n_chunks][READ_CHUNK / 8] */
    _Atomic uint64_t sum;   /* keeps the reads */
    el_mm_fn *mm;
    const char *panels; /* [n_threads][panel] */
    size_t panel_bytes;
    const void *x[COLUMNS];
    char *scratch; /* [n_threads][scratch_bytes] */
    size_t scratch_bytes;
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
    (void)chunk;
    float results[COLUMNS][EL_TILE_ROWS];
    float *y[COLUMNS];
    for (int32_t i = 0; i < COLUMNS; i++) y[i] = results[i];
    for (int32_t i = 0; i < PANELS_PER_CHUNK; i++) {
        p->mm(p->panels + (size_t)thread * p->panel_bytes, K, EL_TILE_ROWS, p->x, COLUMNS, y, 0,
              p->scratch + (size_t)thread * p->scratch_bytes);
    }
}

double el_probe_int8(int32_t n_threads) {
    el_kernels kernels;
    const char *why;
    if (el_kernels_select(NULL, &kernels, &why)) return 0;
    el_pool *pool = start_threads(n_threads);
    if (!pool) return 0;
    int32_t n = el_pool_threads(pool);
    const el_tile *tile = el_tile_of(EL_Q4_K);
    probe p = {.n_chunks = n * CHUNKS_PER_THREAD, .mm = kernels.mm[EL_Q4_K]};
    p.panel_bytes = (el_panel_bytes(tile, K) + 4095) & ~(size_t)4095;
    p.scratch_bytes = (el_mm_scratch_bytes(K) + 4095) & ~(size_t)4095;
    size_t x_bytes = el_a256_bytes(K);
    size_t bytes = (size_t)n * (p.panel_bytes + p.scratch_bytes) + COLUMNS * x_bytes;
    char *memory = el_os_reserve(bytes, 0);
    double seconds = 0;
    if (memory) {
        memset(memory, 0, bytes);
        p.panels = memory;
        p.scratch = memory + (size_t)n * p.panel_bytes;
        for (int32_t i = 0; i < COLUMNS; i++)
            p.x[i] = p.scratch + (size_t)n * p.scratch_bytes + (size_t)i * x_bytes;
        seconds = run(pool, multiply_chunk, &p);
    }
    el_os_release(memory, bytes);
    el_pool_free(pool);
    double products = (double)p.n_chunks * PANELS_PER_CHUNK * COLUMNS * EL_TILE_ROWS * (double)K;
    return seconds > 0 ? products / seconds : 0;
}
