/* Times of a level's kernels on one thread, for people. Medians of a few runs; weights of matmuls come from more memory than
 * caches hold, so n = 1 shows bandwidth.
 */
#include "check.h"

#include "fp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 7, WEIGHT_BYTES = 96 << 20 };

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Median seconds of one call of f(data), each run long enough to be timed. */
static double time_of(void (*f)(void *), void *data) {
    double runs[RUNS], once = seconds();
    f(data);
    once = seconds() - once;
    int32_t calls = once > 0.02 ? 1 : (int32_t)(0.02 / (once + 1e-8)) + 1;
    for (int32_t i = 0; i < RUNS; i++) {
        double start = seconds();
        for (int32_t j = 0; j < calls; j++) f(data);
        runs[i] = (seconds() - start) / calls;
    }
    qsort(runs, RUNS, sizeof *runs, by_value);
    return runs[RUNS / 2];
}

static void *memory(size_t bytes) {
    void *p = malloc(bytes + 64);
    if (!p) {
        printf("cannot allocate %zu bytes\n", bytes);
        exit(2);
    }
    return (void *)(((uintptr_t)p + 63) & ~(uintptr_t)63); /* until the program ends */
}

static void report(const check *c, const char *name, double time, double bytes, double macs) {
    printf("%-12s %-34s %10.2f us %8.2f GB/s", c->level->level, name, time * 1e6, bytes / time * 1e-9);
    if (macs > 0) printf(" %9.2f GMAC/s", macs / time * 1e-9);
    printf("\n");
    fflush(stdout);
}

/* ---- matmul --------------------------------------------------------------------------------------------------------- */

typedef struct mm_job {
    const el_kernels *table;
    int32_t qtype, k, n, n_panels;
    size_t panel_bytes;
    const uint8_t *panels, *rows;
    const void *x[64];
    float *y[64];
    void *scratch, *packed;
} mm_job;

static void run_mm(void *data) {
    mm_job *j = data;
    for (int32_t p = 0; p < j->n_panels; p++) {
        j->table->mm[j->qtype](j->panels + (size_t)p * j->panel_bytes, j->k, 16, j->x, j->n, j->y, 0,
                               j->scratch);
    }
}

static void run_pack(void *data) {
    mm_job *j = data;
    j->table->pack[j->qtype](j->rows, qtype_row_bytes(j->qtype, j->k), 16, j->k, j->packed);
}

static void bench_mm(check *c, int32_t qtype, uint8_t *panels, const char *filter) {
    static const int32_t ns[] = {1, 2, 4, 8, 16, 64};
    const el_tile *t = el_tile_of(qtype);
    mm_job j = {.table = c->level, .qtype = qtype, .k = 2048, .panels = panels};
    char name[64];
    j.panel_bytes = el_panel_bytes(t, j.k);
    j.n_panels = (int32_t)(WEIGHT_BYTES / j.panel_bytes);
    size_t row_bytes = qtype_row_bytes(qtype, j.k);
    uint8_t *rows = memory(row_bytes * 16);
    for (int32_t r = 0; r < 16; r++) fill_row(c, P_RANDOM, qtype, j.k, rows + row_bytes * (size_t)r);
    j.rows = rows;
    j.packed = memory(j.panel_bytes);
    j.scratch = memory(el_mm_scratch_bytes(j.k));
    c->level->pack[qtype](rows, row_bytes, 16, j.k, j.packed);
    for (int32_t p = 0; p < j.n_panels; p++)
        memcpy(panels + (size_t)p * j.panel_bytes, j.packed, j.panel_bytes);
    float *x = memory(4 * (size_t)j.k);
    fill_floats(c, P_RANDOM, x, (size_t)j.k);
    for (int32_t i = 0; i < 64; i++) {
        char *row = memory(4 * (size_t)j.k + 4096);
        if (t->act < 0) memcpy(row, x, 4 * (size_t)j.k);
        if (t->act >= 0) c->level->quantize[t->act](x, j.k, row);
        j.x[i] = row;
        j.y[i] = memory(64);
    }
    snprintf(name, sizeof name, "pack.%s", qtype_name(qtype));
    if (strstr(name, filter)) report(c, name, time_of(run_pack, &j), (double)row_bytes * 16, 0);
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) {
        snprintf(name, sizeof name, "mm.%s n %d", qtype_name(qtype), ns[i]);
        if (!strstr(name, filter)) continue;
        int32_t all = j.n_panels;
        j.n = ns[i];
        if (j.n > 4) j.n_panels = all / (j.n / 2); /* bound by arithmetic: fewer will do */
        double macs = 16.0 * j.k * j.n * j.n_panels;
        report(c, name, time_of(run_mm, &j), (double)j.panel_bytes * j.n_panels, macs);
        j.n_panels = all;
    }
}

/* ---- attention ------------------------------------------------------------------------------------------------------ */

static void run_attention(void *data) {
    const void *const *d = data;
    ((const el_kernels *)d[0])->attn_segment((const el_attn_segment *)d[1]);
}

static void bench_attention(check *c, const char *filter) {
    static const int32_t dims[] = {64, 128, 256}, n_qs[] = {1, 3, 4, 8, 16, 64};
    float *m = memory(256), *l = memory(256), *o = memory(64 * 256 * 4), *q = memory(64 * 256 * 4);
    char *cache = memory(2 * 256 * 256 * 4);
    void *scratch = memory(el_attn_scratch_bytes(256, 256));
    const float *qs[64];
    int32_t lo[64] = {0}, hi[64];
    const void *k_pages[8], *v_pages[8];
    char name[64];
    fill_floats(c, P_RANDOM, q, 64 * 256);
    for (int32_t i = 0; i < 18 * EL_KV_TYPES; i++) {
        int32_t dim = dims[i / 6 % 3], n = n_qs[i % 6], type = i / 18;
        size_t bytes = el_kv_head_bytes(type, dim);
        for (int32_t r = 0; r < 64; r++) qs[r] = q + r * dim, hi[r] = 256;
        for (int32_t p = 0; p < 8; p++) {
            k_pages[p] = cache + (size_t)p * bytes;
            v_pages[p] = cache + (size_t)(8 + p) * bytes;
            for (int32_t slot = 0; slot < 32; slot++) {
                c->scalar->k_store[type](q + (32 * p + slot) % 64 * dim, dim, slot,
                                         cache + (size_t)p * bytes);
                c->scalar->v_store[type](q + (32 * p + slot) % 64 * dim, dim, slot,
                                         cache + (size_t)(8 + p) * bytes);
            }
        }
        el_attn_segment a = {.n_q = n,
                             .k_dim = dim,
                             .v_dim = dim,
                             .k_type = type,
                             .v_type = type,
                             .q = qs,
                             .lo = lo,
                             .hi = hi,
                             .k_pages = k_pages,
                             .v_pages = v_pages,
                             .scale = 0.125f,
                             .m = m,
                             .l = l,
                             .o = o,
                             .scratch = scratch};
        const void *job[] = {c->level, &a};
        snprintf(name, sizeof name, "attn_segment %s dim %d n_q %d", kv_name(type), dim, n);
        if (strstr(name, filter))
            report(c, name, time_of(run_attention, job), 16.0 * (double)bytes, 2.0 * 256 * dim * n);
    }
}

/* ---- rows ----------------------------------------------------------------------------------------------------------- */

typedef struct row_job {
    const el_kernels *table;
    float *x, *w, *y, *vals;
    int32_t *ids, n;
    void *act;
} row_job;

static void run_a16(void *d) {
    ((row_job *)d)->table->quantize[0](((row_job *)d)->x, 2048, ((row_job *)d)->act);
}
static void run_a256(void *d) {
    ((row_job *)d)->table->quantize[1](((row_job *)d)->x, 2048, ((row_job *)d)->act);
}
static void run_rms(void *d) {
    row_job *j = d;
    j->table->rms_norm(j->x, j->w, NULL, 1e-5f, 2048, j->y);
}
static void run_silu(void *d) {
    row_job *j = d;
    j->table->glu(EL_ACT_SILU, j->x, j->w, 2048, j->y);
}
static void run_gelu(void *d) {
    row_job *j = d;
    j->table->glu(EL_ACT_GELU_TANH, j->x, j->w, 2048, j->y);
}
static void run_add(void *d) {
    ((row_job *)d)->table->add(((row_job *)d)->x, ((row_job *)d)->w, 2048, ((row_job *)d)->y);
}
static void run_softcap(void *d) {
    ((row_job *)d)->table->softcap(((row_job *)d)->x, 30.0f, 2048, ((row_job *)d)->y);
}
static void run_rope(void *d) {
    ((row_job *)d)->table->rope(((row_job *)d)->y, 128, 1, ((row_job *)d)->w, ((row_job *)d)->w);
}
static void run_store(void *d) {
    ((row_job *)d)->table->k_store[0](((row_job *)d)->x, 128, 5, ((row_job *)d)->act);
}
static void run_nonfinite(void *d) { ((row_job *)d)->table->nonfinite(((row_job *)d)->x, 2048); }
static void run_fold(void *d) {
    row_job *j = d;
    float M = 1, L = 2;
    j->table->attn_fold(&M, &L, j->y, 1.5f, 2.5f, j->x, 128);
}
static void run_top_k(void *d) {
    row_job *j = d;
    int32_t have = 0;
    for (int32_t i = 0; i < 49152; i += 1024)
        j->table->top_k(j->x + i, 1024, i, j->n, j->ids, j->vals, &have);
}
static void run_lse(void *d) {
    row_job *j = d;
    for (int32_t i = 0; i < 49152; i += 1024) j->table->lse_segment(j->x + i, 1024, j->y, j->y + 1);
}

static void bench_rows(check *c, const char *filter) {
    static const struct {
        const char *name;
        void (*run)(void *);
        int32_t floats, n;
    } jobs[] = {
        {"quantize.A16 2048", run_a16, 2048, 0},     {"quantize.A256 2048", run_a256, 2048, 0},
        {"rms_norm 2048", run_rms, 2048, 0},         {"glu silu 2048", run_silu, 2048, 0},
        {"glu gelu_tanh 2048", run_gelu, 2048, 0},   {"add 2048", run_add, 2048, 0},
        {"softcap 2048", run_softcap, 2048, 0},      {"rope 128", run_rope, 128, 0},
        {"k_store f16 128", run_store, 128, 0},      {"attn_fold 128", run_fold, 128, 0},
        {"nonfinite 2048", run_nonfinite, 2048, 0},  {"top_k 1 of 49152", run_top_k, 49152, 1},
        {"top_k 40 of 49152", run_top_k, 49152, 40}, {"lse_segment 49152", run_lse, 49152, 0},
    };
    row_job j = {.table = c->level};
    j.x = memory(4 * 49152);
    j.w = memory(4 * 2048);
    j.y = memory(4 * 2048);
    j.act = memory(1 << 16);
    j.vals = memory(4096);
    j.ids = memory(4096);
    fill_floats(c, P_RANDOM, j.x, 49152);
    fill_floats(c, P_RANDOM, j.w, 2048);
    fill_floats(c, P_RANDOM, j.y, 2048);
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        j.n = jobs[i].n;
        if (strstr(jobs[i].name, filter))
            report(c, jobs[i].name, time_of(jobs[i].run, &j), 4.0 * jobs[i].floats, 0);
    }
}

void bench(check *c, const char *filter) {
    uint8_t *panels = memory(WEIGHT_BYTES);
    for (int32_t qtype = 0; qtype < EL_QTYPE_LIMIT; qtype++) {
        if (el_tile_of(qtype)) bench_mm(c, qtype, panels, filter);
    }
    bench_attention(c, filter);
    bench_rows(c, filter);
}
