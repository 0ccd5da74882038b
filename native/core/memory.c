/* Lays out all memory of an engine: one reservation for the caches, one for everything a step works in. It is address
 * space until it is touched. The same code runs twice: first to add up, then to hand out. */
#include "engine.h"
#include "os.h"

enum { MIN_PACK_BYTES = 256 << 10, MAX_PARTIAL_BYTES = 64 << 20 };

/* Under the address sanitizer a forbidden gap follows each array, since all share one reservation. */
#if defined(__SANITIZE_ADDRESS__)
void __asan_poison_memory_region(void const volatile *memory, size_t bytes);
void __asan_unpoison_memory_region(void const volatile *memory, size_t bytes);
enum { GAP = 192 };
#else
enum { GAP = 0 };
#define __asan_poison_memory_region(memory, bytes)   ((void)(memory), (void)(bytes))
#define __asan_unpoison_memory_region(memory, bytes) ((void)(memory), (void)(bytes))
#endif

typedef struct layout {
    char *base; /* NULL: adding up */
    size_t used;
    int32_t overflow;
} layout;

/* count * size bytes on a 64-byte line; NULL while adding up. */
static void *take(layout *l, size_t count, size_t size) {
    const size_t limit = (size_t)1 << 42; /* 4 TiB; keeps the number of chunks of a phase far from overflow */
    if (size && count > limit / size) {
        l->overflow = 1;
        return NULL;
    }
    size_t bytes = (count * size + 63) & ~(size_t)63;
    if (bytes > limit - l->used) {
        l->overflow = 1;
        return NULL;
    }
    char *at = l->base ? l->base + l->used : NULL;
    if (at) __asan_poison_memory_region(at + count * size, bytes - count * size + GAP);
    l->used += bytes + GAP;
    return at;
}

/* Begin a new page, so that threads do not share lines and large arrays start clean. */
static void page(layout *l) { l->used = (l->used + 4095) & ~(size_t)4095; }

static void lay_scratch(el_engine *e, layout *l, el_scratch *s) {
    const el_plan *p = &e->plan;
    page(l);
    s->x = take(l, EL_MAX_COLUMNS, sizeof *s->x);
    s->y = take(l, EL_MAX_COLUMNS, sizeof *s->y);
    s->rows = take(l, EL_MAX_COLUMNS, sizeof *s->rows);
    s->residual = take(l, EL_MAX_COLUMNS, sizeof *s->residual);
    s->gate = take(l, EL_TILE_FLOATS, sizeof *s->gate);
    s->up = take(l, EL_TILE_FLOATS, sizeof *s->up);
    s->panels = take(l, e->packed_bytes, 1);
    s->mm = take(l, el_mm_scratch_bytes(p->max_k), 1);
    s->row = take(l, (size_t)p->max_row, sizeof *s->row);
    s->m = take(l, EL_ATTN_ROWS, sizeof *s->m);
    s->l = take(l, EL_ATTN_ROWS, sizeof *s->l);
    s->M = take(l, EL_ATTN_ROWS, sizeof *s->M);
    s->L = take(l, EL_ATTN_ROWS, sizeof *s->L);
    s->o = take(l, (size_t)EL_ATTN_ROWS * (size_t)p->max_v_dim, sizeof *s->o);
    s->O = take(l, (size_t)EL_ATTN_ROWS * (size_t)p->max_v_dim, sizeof *s->O);
    s->attention = take(l, el_attn_scratch_bytes(p->max_k_dim, p->max_v_dim), 1);
}

static void lay_out(el_engine *e, layout *l) {
    const el_plan *p = &e->plan;
    const size_t tokens = (size_t)e->limits.max_tokens, rows = (size_t)e->limits.max_rows;
    const size_t seqs = (size_t)e->limits.max_seqs, threads = (size_t)e->n_threads;

    e->buffers = take(l, (size_t)p->n_buffers, sizeof *e->buffers);
    e->strides = take(l, (size_t)p->n_buffers, sizeof *e->strides);
    e->slots = take(l, (size_t)p->n_slots, sizeof *e->slots);
    e->scratch = take(l, threads, sizeof *e->scratch);
    e->sequence = take(l, tokens, sizeof *e->sequence);
    e->block_first = take(l, (size_t)p->n_shapes * (seqs + 1), sizeof *e->block_first);
    e->failed = take(l, seqs, sizeof *e->failed);
    e->run_tokens = take(l, seqs, sizeof *e->run_tokens);
    e->run_positions = take(l, seqs, sizeof *e->run_positions);

    el_groups *g = &e->groups;
    g->active = take(l, (size_t)p->max_experts, sizeof *g->active);
    g->first = take(l, (size_t)p->max_experts + 1, sizeof *g->first);
    g->count = take(l, (size_t)p->max_experts, sizeof *g->count);
    g->pairs = take(l, tokens * (size_t)p->max_rank, sizeof *g->pairs);

    /* Attention is split by segments only while there are fewer units than 4 a thread. One decoding sequence needs
     * max_heads rows per segment of its context. */
    el_units *u = &e->units;
    size_t segments = ((size_t)e->limits.n_ctx + EL_SEGMENT - 1) / EL_SEGMENT + 1;
    size_t floats = segments * (size_t)p->max_heads * ((size_t)p->max_v_dim + 2 * EL_ATTN_ROWS + 16) * 2;
    if (floats > MAX_PARTIAL_BYTES / sizeof(float)) floats = MAX_PARTIAL_BYTES / sizeof(float);
    e->partial_floats = p->n_shapes ? floats : 0;
    u->first = take(l, 4 * threads + 1, sizeof *u->first);
    u->done = take(l, 4 * threads, sizeof *u->done);
    u->partials = take(l, e->partial_floats, sizeof *u->partials);

    el_select *s = &e->select;
    size_t all_segments = ((size_t)p->n_vocab + EL_TOP_SEGMENT - 1) / EL_TOP_SEGMENT;
    size_t chunks = 8 * threads + EL_TOP_GROUPS; /* of rows that are cut at all */
    s->ids = take(l, chunks * EL_MAX_TOP_K, sizeof *s->ids);
    s->values = take(l, chunks * EL_MAX_TOP_K, sizeof *s->values);
    s->have = take(l, chunks, sizeof *s->have);
    s->m = take(l, rows * all_segments, sizeof *s->m);
    s->l = take(l, rows * all_segments, sizeof *s->l);
    s->done = take(l, rows, sizeof *s->done);
    s->broken = take(l, rows, sizeof *s->broken);

    e->packed_bytes = p->max_unpacked && p->max_unpacked < MIN_PACK_BYTES ? MIN_PACK_BYTES : p->max_unpacked;
    for (size_t t = 0; t < threads; t++) {
        el_scratch unused;
        lay_scratch(e, l, e->scratch ? &e->scratch[t] : &unused);
    }
    for (int32_t i = 0; i < p->n_slots; i++) {
        page(l);
        void *slot = take(l, p->slot_bytes[i], 1);
        if (e->slots) e->slots[i] = slot;
    }
    for (int32_t i = 0; i < p->n_buffers; i++) {
        size_t stride = ((size_t)p->buffers[i].width + 15) & ~(size_t)15;
        page(l);
        void *buffer = take(l, (p->buffers[i].axis ? rows : tokens) * stride, sizeof(float));
        if (!e->buffers) continue;
        e->buffers[i] = buffer;
        e->strides[i] = stride;
    }
}

int32_t el_memory_new(el_engine *e, el_error *err) {
    layout l = {0};
    lay_out(e, &l);
    e->memory = l.overflow ? NULL : el_os_reserve(l.used, 0);
    if (!e->memory) {
        return el_fail(err, EL_E_MEMORY,
                       "out of memory: %zu bytes of scratch for %d tokens and %d output rows", l.used,
                       e->limits.max_tokens, e->limits.max_rows);
    }
    e->memory_bytes = l.used;
    l = (layout){.base = e->memory};
    lay_out(e, &l);
    return EL_OK;
}

int32_t el_caches_new(el_engine *e, el_error *err) {
    size_t bytes = 0;
    for (int32_t c = 0; c < e->plan.n_classes; c++) {
        const el_class *k = &e->plan.classes[c];
        bytes += (k->page_bytes * (size_t)k->n_pages + 4095) &
                 ~(size_t)4095; /* at most 64 classes of 2^46 bytes */
    }
    if (bytes == 0) return EL_OK;
    /* On huge pages: attention reads a few KB here and there, and would wait for a page table each time. */
    e->caches = el_os_reserve(bytes, 1);
    if (!e->caches) return el_fail(err, EL_E_MEMORY, "out of memory: %zu bytes for the caches", bytes);
    e->cache_bytes = bytes;
    char *at = e->caches;
    for (int32_t c = 0; c < e->plan.n_classes; c++) {
        el_class *k = &e->plan.classes[c];
        k->pool = at;
        at += (k->page_bytes * (size_t)k->n_pages + 4095) & ~(size_t)4095;
    }
    return EL_OK;
}

void el_memory_free(el_engine *e) {
    if (e->memory) __asan_unpoison_memory_region(e->memory, e->memory_bytes);
    el_os_release(e->memory, e->memory_bytes);
    el_os_release(e->caches, e->cache_bytes);
    el_os_release(e->weights, e->weight_bytes);
}
