/* Repacking matrices into tiles at load, and single panels on the fly. Both give the same bytes. */
#include "engine.h"
#include "os.h"

enum { PACK_CHUNK_BYTES = 256 << 10 };

static void pack_panel(const el_mat *m, int32_t index, int32_t panel, void *to) {
    size_t row = (size_t)index * (size_t)m->n_rows + (size_t)panel * EL_TILE_ROWS;
    m->pack(m->data + row * m->row_bytes, m->row_bytes, el_panel_rows(m, panel), m->n_cols, to);
}

const void *el_weights_panel(const el_mat *m, int32_t index, int32_t panel, char **room) {
    if (m->panels) return m->panels + ((size_t)index * (size_t)m->n_panels + (size_t)panel) * m->panel_bytes;
    char *to = *room;
    *room += m->panel_bytes;
    pack_panel(m, index, panel, to);
    return to;
}

/* Loading is one phase; a chunk is a run of panels of one matrix. Its rows are copied out of the file's map first: a file
 * that another program cuts short meanwhile must not end the process. */
typedef struct loading {
    el_plan *plan;
    int32_t *first; /* [n_mats + 1] first chunk of each */
    char *rows;     /* [n_threads][row_room] */
    size_t row_room;
    int32_t started;
    _Atomic int32_t cut;
} loading;

static int64_t all_panels(const el_mat *m) { return (int64_t)m->n_stack * m->n_panels; }

static int64_t chunk_panels(const el_mat *m) {
    int64_t n = PACK_CHUNK_BYTES / (int64_t)m->panel_bytes;
    return n < 1 ? 1 : n;
}

static int32_t next(void *context, int32_t thread) {
    loading *l = context;
    (void)thread;
    if (l->started) return 0;
    l->started = 1;
    return l->first[l->plan->n_mats];
}

static void chunk(void *context, int32_t thread, int32_t number) {
    loading *l = context;
    char *rows = l->rows + (size_t)thread * l->row_room;
    int32_t low = 0, high = l->plan->n_mats; /* first[low] <= number < first[high] */
    while (high - low > 1) {
        int32_t middle = (low + high) / 2;
        if (l->first[middle] <= number) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const el_mat *m = &l->plan->mats[low];
    int64_t a = (number - l->first[low]) * chunk_panels(m), b = a + chunk_panels(m);
    if (b > all_panels(m)) b = all_panels(m);
    for (int64_t i = a; i < b; i++) {
        int32_t panel = (int32_t)(i % m->n_panels), n = el_panel_rows(m, panel);
        size_t row = (size_t)(i / m->n_panels) * (size_t)m->n_rows + (size_t)panel * EL_TILE_ROWS;
        if (el_os_copy(rows, m->data + row * m->row_bytes, (size_t)n * m->row_bytes)) {
            atomic_store_explicit(&l->cut, 1, memory_order_relaxed);
            return;
        }
        m->pack(rows, m->row_bytes, n, m->n_cols, m->panels + (size_t)i * m->panel_bytes);
    }
}

int32_t el_weights_pack(el_engine *e, el_error *err) {
    el_plan *p = &e->plan;
    size_t bytes = 0, row_room = 0;
    int64_t n_chunks = 0;
    for (int32_t i = 0; i < p->n_mats; i++) {
        el_mat *m = &p->mats[i];
        m->repack = m->repack && m->multiplied;
        if (!m->repack) continue;
        bytes += (size_t)all_panels(m) * m->panel_bytes;
        if (EL_TILE_ROWS * m->row_bytes > row_room) row_room = EL_TILE_ROWS * m->row_bytes;
        n_chunks += (all_panels(m) + chunk_panels(m) - 1) / chunk_panels(m);
    }
    if (bytes == 0) return EL_OK;
    e->weights = n_chunks <= EL_MAX_CHUNKS ? el_os_reserve(bytes, 1) : NULL;
    size_t table_bytes = ((size_t)p->n_mats + 1) * sizeof(int32_t);
    int32_t *first = el_os_reserve(table_bytes, 0);
    row_room = (row_room + 4095) / 4096 * 4096;
    char *rows = el_os_reserve(row_room * (size_t)e->n_threads, 0);
    if (!e->weights || !first || !rows) {
        el_os_release(first, table_bytes);
        el_os_release(rows, row_room * (size_t)e->n_threads);
        el_os_release(e->weights, bytes);
        e->weights = NULL;
        return el_fail(err, EL_E_MEMORY, "out of memory: %zu bytes for the weights as tiles", bytes);
    }
    e->weight_bytes = bytes;
    char *at = e->weights;
    for (int32_t i = 0; i < p->n_mats; i++) {
        el_mat *m = &p->mats[i];
        first[i + 1] = first[i];
        if (!m->repack) continue;
        m->panels = at;
        at += (size_t)all_panels(m) * m->panel_bytes;
        first[i + 1] += (int32_t)((all_panels(m) + chunk_panels(m) - 1) / chunk_panels(m));
    }
    loading l = {.plan = p, .first = first, .rows = rows, .row_room = row_room};
    el_pool_run(e->pool, &(el_job){chunk, next, &l});
    el_os_release(first, table_bytes);
    el_os_release(rows, row_room * (size_t)e->n_threads);
    if (!atomic_load_explicit(&l.cut, memory_order_relaxed)) return EL_OK;
    return el_fail(err, EL_E_SYSTEM,
                   "the model's file has been cut short by another program while its weights were loaded");
}
