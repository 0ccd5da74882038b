/* Repacking matrices into tiles: at load, for a file of tiles, and single panels on the fly. All give the same bytes. */
#include "engine.h"
#include "os.h"

enum { PACK_CHUNK_BYTES = 128 << 10 };

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

/* Loading is one phase; a chunk is a run of panels of one matrix. Its rows are read, or copied out of the file's map, before
 * they are packed: a file that another program cuts short meanwhile must not end the process. Reading touches no page of
 * the map, so there is nothing to give back, and at no time does memory hold the weights twice. */
typedef struct loading {
    el_plan *plan;
    int32_t *first; /* [n_mats + 1] first chunk of each */
    char *panels;   /* of all matrices */
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

/* The first row of a panel, counted over the whole stack. */
static size_t first_row(const el_mat *m, int64_t panel) {
    return (size_t)(panel / m->n_panels) * (size_t)m->n_rows + (size_t)(panel % m->n_panels) * EL_TILE_ROWS;
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
    if (atomic_load_explicit(&l->cut, memory_order_relaxed)) return;
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
    char *rows = l->rows + (size_t)thread * l->row_room;
    size_t from = first_row(m, a) * m->row_bytes, bytes = first_row(m, b) * m->row_bytes - from;
    int32_t gone = m->repack == 2 ? el_os_read(m->fd, m->offset + (int64_t)from, rows, bytes)
                                  : el_os_copy(rows, m->data + from, bytes);
    if (gone) {
        atomic_store_explicit(&l->cut, 1, memory_order_relaxed);
        return;
    }
    char *to = l->panels + (m->panels - l->panels) + (size_t)a * m->panel_bytes;
    for (int64_t i = a; i < b; i++, to += m->panel_bytes) {
        int32_t n = el_panel_rows(m, (int32_t)(i % m->n_panels));
        m->pack(rows, m->row_bytes, n, m->n_cols, to);
        rows += (size_t)n * m->row_bytes;
    }
}

int32_t el_weights_pack(el_engine *e, el_error *err) {
    el_plan *p = &e->plan;
    size_t bytes = 0, row_room = 0;
    int64_t n_chunks = 0;
    for (int32_t i = 0; i < p->n_mats; i++) {
        el_mat *m = &p->mats[i];
        if (!m->multiplied) m->repack = 0;
        if (!m->repack) continue;
        bytes += (size_t)all_panels(m) * m->panel_bytes;
        size_t room = (size_t)chunk_panels(m) * EL_TILE_ROWS * m->row_bytes;
        if (room > row_room) row_room = room;
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
    loading l = {.plan = p, .first = first, .panels = e->weights, .rows = rows, .row_room = row_room};
    el_pool_run(e->pool, &(el_job){chunk, next, &l});
    el_os_release(first, table_bytes);
    el_os_release(rows, row_room * (size_t)e->n_threads);
    if (!atomic_load_explicit(&l.cut, memory_order_relaxed)) return EL_OK;
    return el_fail(err, EL_E_SYSTEM,
                   "the model's file has been cut short by another program while its weights were loaded");
}

/* ---- for a file of tiles ---- */

enum { TILE_LAYOUT = 1, MAX_ROWS = 1 << 28, MAX_COLUMNS = 1 << 24 };

int32_t el_tile_layout(void) { return TILE_LAYOUT; }

int64_t el_tile_bytes(int32_t qtype, int32_t n_rows, int32_t n_cols) {
    const el_tile *tile = el_tile_of(qtype);
    if (!tile || n_rows < 1 || n_rows > MAX_ROWS || n_cols < 1 || n_cols > MAX_COLUMNS ||
        n_cols % tile->block) {
        return 0;
    }
    return ((int64_t)n_rows + EL_TILE_ROWS - 1) / EL_TILE_ROWS * (int64_t)el_panel_bytes(tile, n_cols);
}

int32_t el_pack_tiles(const char *isa, int32_t qtype, int32_t n_rows, int32_t n_cols, const void *rows,
                      int64_t n_bytes, void *tiles, int64_t n_tile_bytes, el_error *err) {
    el_kernels kernels;
    const char *why = "";
    int32_t code = el_kernels_select(isa, &kernels, &why);
    if (code) return el_fail(err, code, "isa is \"%s\": %s", isa ? isa : "", why);
    int64_t expected = el_tile_bytes(qtype, n_rows, n_cols);
    if (expected == 0 || !kernels.pack[qtype]) {
        return el_fail(err, EL_E_UNSUPPORTED, "no tiles for %d rows of %d weights of type %s (%d)", n_rows,
                       n_cols, el_qtype_name(qtype), qtype);
    }
    const el_tile *tile = el_tile_of(qtype);
    size_t row_bytes = (size_t)(n_cols / tile->block) * (size_t)tile->row_bytes;
    size_t panel_bytes = el_panel_bytes(tile, n_cols);
    if (!rows || !tiles || (uintptr_t)tiles % 64 || n_bytes != (int64_t)row_bytes * n_rows ||
        n_tile_bytes != expected) {
        return el_fail(
            err, EL_E_ARGUMENT,
            "%lld bytes of rows at %s, room for %lld bytes of tiles at %s; expected %lld and %lld, the "
            "tiles on a 64-byte line",
            (long long)n_bytes, rows ? "an address" : "NULL", (long long)n_tile_bytes,
            tiles ? "an address" : "NULL", (long long)row_bytes * n_rows, (long long)expected);
    }
    const char *from = rows;
    char *to = tiles;
    for (int32_t left = n_rows; left > 0; left -= EL_TILE_ROWS) {
        int32_t n = left < EL_TILE_ROWS ? left : EL_TILE_ROWS;
        kernels.pack[qtype](from, row_bytes, n, n_cols, to);
        from += (size_t)n * row_bytes;
        to += panel_bytes;
    }
    return EL_OK;
}
