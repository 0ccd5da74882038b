/* Measures what the machine can do: how fast threads read memory, and how fast they multiply int8. */
#include "engine.h"
#include "os.h"

#include <string.h>

void el_find_cores(el_cores *cores) {
    if (!cores) return;
    el_os_cores(cores);
    int32_t n = cores->n_cores;
    if (cores->quota > 0 && cores->quota < (double)n) n = (int32_t)cores->quota;
    cores->n_threads = n < 1 ? 1 : n;
}

int32_t el_default_threads(void) {
    el_cores cores;
    el_find_cores(&cores);
    return cores.n_threads;
}

enum { FAR_K = 4096, READ_CHUNK = 256 << 10, ROUNDS = 5, ROUNDS_PER_CHUNK = 4096, CHUNKS_PER_THREAD = 64 };

typedef struct probe {
    int32_t n_chunks, started;
    char *memory;         /* [n_chunks][READ_CHUNK] */
    _Atomic uint64_t sum; /* keeps the reads; of multiply-adds their number */
    const el_kernels *kernels;
    el_mm_fn *mm; /* of el_probe_far */
    size_t panel;
    const char *x; /* activations of a column: zeros */
    char *scratch; /* [n_threads][el_mm_scratch_bytes(FAR_K)] */
} probe;

static int32_t next(void *context, int32_t thread) {
    probe *p = context;
    (void)thread;
    return p->started++ ? 0 : p->n_chunks;
}

/* Seconds of the quickest of several rounds. */
static double run(el_pool *pool, void (*chunk)(void *, int32_t, int32_t), probe *p, int32_t rounds) {
    uint64_t best = UINT64_MAX;
    for (int32_t i = 0; i < rounds; i++) {
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
    return el_pool_new(n_threads ? n_threads : el_default_threads(), &failed);
}

/* The threads that will read a part write it first, so that it lies near them. */
static void write_chunk(void *context, int32_t thread, int32_t chunk) {
    probe *p = context;
    (void)thread;
    uint64_t *at = (uint64_t *)(void *)(p->memory + (size_t)chunk * READ_CHUNK);
    for (size_t i = 0; i < READ_CHUNK / 8; i++) at[i] = i;
}

static void read_chunk(void *context, int32_t thread, int32_t chunk) {
    probe *p = context;
    (void)thread;
    uint64_t words = p->kernels->read(p->memory + (size_t)chunk * READ_CHUNK, READ_CHUNK);
    atomic_fetch_add_explicit(&p->sum, words, memory_order_relaxed);
}

int32_t el_probe_bandwidths(const int32_t *n_threads, int32_t n, int64_t n_bytes, double *bandwidths) {
    el_kernels kernels;
    const char *why;
    if (!n_threads || !bandwidths || n < 1 || n_bytes < READ_CHUNK || n_bytes / READ_CHUNK > EL_MAX_CHUNKS) {
        return EL_E_ARGUMENT;
    }
    int32_t code = el_kernels_select(NULL, &kernels, &why);
    if (code) return code;
    size_t bytes = (size_t)(n_bytes / READ_CHUNK) * READ_CHUNK;
    probe p = {.n_chunks = (int32_t)(bytes / READ_CHUNK), .kernels = &kernels};
    p.memory = el_os_reserve(bytes, 1);
    if (!p.memory) return EL_E_MEMORY;
    for (int32_t i = n - 1; i >= 0 && !code; i--) { /* most threads first: they write the buffer */
        el_pool *pool = start_threads(n_threads[i]);
        if (!pool) code = EL_E_SYSTEM;
        if (!code && i == n - 1) run(pool, write_chunk, &p, 1);
        if (!code) bandwidths[i] = (double)bytes / run(pool, read_chunk, &p, ROUNDS);
        el_pool_free(pool);
    }
    el_os_release(p.memory, bytes);
    return code;
}

double el_probe_bandwidth(int32_t n_threads, int64_t n_bytes) {
    double bandwidth = 0;
    return el_probe_bandwidths(&n_threads, 1, n_bytes, &bandwidth) ? 0 : bandwidth;
}

static void multiply_chunk(void *context, int32_t thread, int32_t chunk) {
    probe *p = context;
    (void)thread;
    (void)chunk;
    uint64_t n = (uint64_t)p->kernels->int8_peak(ROUNDS_PER_CHUNK);
    atomic_fetch_add_explicit(&p->sum, n, memory_order_relaxed);
}

double el_probe_matmul(int32_t qtype, const char *isa) {
    enum { K = 4096, CALLS = 16 };
    el_kernels kernels;
    const char *why;
    const el_tile *tile = el_tile_of(qtype);
    if (!tile || el_kernels_select(isa, &kernels, &why) || !kernels.mm[qtype]) return 0;
    const size_t panel = el_panel_bytes(tile, K), x_bytes = K * sizeof(float) * 2;
    const size_t bytes = (panel + 63) / 64 * 64 + x_bytes + el_mm_scratch_bytes(K);
    char *memory = el_os_reserve(bytes, 0);
    if (!memory) return 0;
    char *x = memory + (panel + 63) / 64 * 64;
    const void *columns[1] = {x};
    float y[EL_TILE_ROWS], *rows[1] = {y};
    uint64_t best = UINT64_MAX;
    for (int32_t round = 0; round <= ROUNDS; round++) { /* the first one warms up */
        uint64_t start = el_os_now();
        for (int32_t i = 0; i < CALLS; i++) {
            kernels.mm[qtype](memory, K, EL_TILE_ROWS, columns, 1, rows, 0, x + x_bytes);
        }
        uint64_t time = el_os_now() - start;
        if (round && time < best) best = time;
    }
    el_os_release(memory, bytes);
    return (double)panel * CALLS / ((double)(best ? best : 1) * 1e-9);
}

static void clear_chunk(void *context, int32_t thread, int32_t chunk) {
    probe *p = context;
    (void)thread;
    memset(p->memory + (size_t)chunk * READ_CHUNK, 0, READ_CHUNK);
}

/* The panels that begin in a chunk; the last ones of the memory are left out. */
static void far_chunk(void *context, int32_t thread, int32_t chunk) {
    probe *p = context;
    const void *columns[1] = {p->x};
    float y[EL_TILE_ROWS], *rows[1] = {y};
    const size_t end = (size_t)p->n_chunks * READ_CHUNK, last = (size_t)(chunk + 1) * READ_CHUNK;
    size_t at = ((size_t)chunk * READ_CHUNK + p->panel - 1) / p->panel * p->panel;
    for (; at < last && at + p->panel <= end; at += p->panel) {
        p->mm(p->memory + at, FAR_K, EL_TILE_ROWS, columns, 1, rows, 0,
              p->scratch + (size_t)thread * el_mm_scratch_bytes(FAR_K));
    }
}

int32_t el_probe_far(int32_t n_threads, const char *isa, int64_t n_bytes, const int32_t *qtypes, int32_t n,
                     double *gains) {
    el_kernels kernels;
    const char *why;
    if (!qtypes || !gains || n < 1 || n_bytes < READ_CHUNK || n_bytes / READ_CHUNK > EL_MAX_CHUNKS) {
        return EL_E_ARGUMENT;
    }
    int32_t code = el_kernels_select(isa, &kernels, &why);
    if (code) return code;
    probe p = {.n_chunks = (int32_t)(n_bytes / READ_CHUNK), .kernels = &kernels};
    const size_t bytes = (size_t)p.n_chunks * READ_CHUNK, x_bytes = FAR_K * sizeof(float) * 2;
    el_pool *pool = start_threads(n_threads);
    if (!pool) return EL_E_SYSTEM;
    const size_t more = x_bytes + (size_t)el_pool_threads(pool) * el_mm_scratch_bytes(FAR_K);
    char *small = el_os_reserve(more, 0);
    p.memory = el_os_reserve(bytes, 1);
    if (!small || !p.memory) code = EL_E_MEMORY;
    p.x = small;
    p.scratch = small + x_bytes;
    int32_t touched = 0;
    for (int32_t i = 0; i < n && !code; i++) {
        const el_tile *tile = el_tile_of(qtypes[i]);
        gains[i] = 0;
        if (!tile || !kernels.mm_far[qtypes[i]]) continue;
        if (!touched++) run(pool, clear_chunk, &p, 1);
        p.panel = el_panel_bytes(tile, FAR_K);
        double
            ratios[ROUNDS]; /* ascending; the middle one counts: now and then somebody else computes, too */
        for (int32_t round = 0; round < ROUNDS; round++) {
            p.mm = kernels.mm[qtypes[i]];
            double ratio = run(pool, far_chunk, &p, 1);
            p.mm = kernels.mm_far[qtypes[i]];
            ratio /= run(pool, far_chunk, &p, 1);
            int32_t at = round;
            for (; at > 0 && ratios[at - 1] > ratio; at--) ratios[at] = ratios[at - 1];
            ratios[at] = ratio;
        }
        gains[i] = ratios[ROUNDS / 2];
    }
    el_pool_free(pool);
    el_os_release(small, more);
    el_os_release(p.memory, bytes);
    return code;
}

double el_probe_int8(int32_t n_threads, const char *isa) {
    el_kernels kernels;
    const char *why;
    if (el_kernels_select(isa, &kernels, &why)) return 0;
    el_pool *pool = start_threads(n_threads);
    if (!pool) return 0;
    probe p = {.n_chunks = el_pool_threads(pool) * CHUNKS_PER_THREAD, .kernels = &kernels};
    const double seconds = run(pool, multiply_chunk, &p, ROUNDS);
    el_pool_free(pool);
    return (double)p.sum / ROUNDS / seconds;
}
