/* Comparison, watched memory and random data for kernel_check. */
#include "check.h"

#include "fp.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#include <windows.h>
#else
#include <sys/mman.h>
#endif

enum { WATCHED = 0xa5, FRONT = 64, GUARD = 1 << 16 };

/* ---- cases and results ------------------------------------------------------------------------------------------- */

void set_case(check *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->shape, sizeof c->shape, format, args);
    va_end(args);
    c->n_cases++;
}

void fail(check *c, const char *format, ...) {
    va_list args;
    c->failed = 1;
    printf("FAIL kernel %s, level %s, %s: ", c->kernel, c->level->level, c->shape);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

static int32_t report_floats(check *c, const char *what, float want, float got, size_t i) {
    fail(c, "%s[%zu] is %.9g (%08x), expected %.9g (%08x)", what, i, (double)got, el_bits(got), (double)want,
         el_bits(want));
    return 0;
}

int32_t left_out(check *c) { return c->every > 1 && c->turn++ % c->every; }

/* FNV-1a, a word at a time. */
static void mix(check *c, uint32_t word) { c->digest = (c->digest ^ word) * 0x100000001b3u; }

int32_t same_floats(check *c, const char *what, const float *want, const float *got, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int32_t both_nan = want[i] != want[i] && got[i] != got[i];
        if (!both_nan && el_bits(want[i]) != el_bits(got[i]))
            return report_floats(c, what, want[i], got[i], i);
        mix(c, both_nan ? 0x7fc00000u : el_bits(got[i])); /* the bits of a nan are the machine's own */
    }
    return 1;
}

int32_t same_values(check *c, const char *what, const float *want, const float *got, size_t n) {
    for (size_t i = 0; i < n; i++) {
        int32_t both_nan = want[i] != want[i] && got[i] != got[i];
        if (!both_nan && !(want[i] == got[i])) return report_floats(c, what, want[i], got[i], i);
    }
    return 1;
}

int32_t same_bytes(check *c, const char *what, const void *want, const void *got, size_t n) {
    const uint8_t *w = want, *g = got;
    for (size_t i = 0; i < n; i++) {
        mix(c, g[i]);
        if (w[i] != g[i]) {
            fail(c, "%s: byte %zu is %02x, expected %02x", what, i, g[i], w[i]);
            return 0;
        }
    }
    return 1;
}

int32_t same_ints(check *c, const char *what, const int32_t *want, const int32_t *got, size_t n) {
    for (size_t i = 0; i < n; i++) {
        mix(c, (uint32_t)got[i]);
        if (want[i] != got[i]) {
            fail(c, "%s[%zu] is %d, expected %d", what, i, got[i], want[i]);
            return 0;
        }
    }
    return 1;
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

static void open_arena(arena *a) {
    size_t bytes = ARENA_BYTES + GUARD;
#if defined(_WIN32)
    DWORD old;
    a->base = VirtualAlloc(NULL, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    if (!a->base || !VirtualProtect(a->base + ARENA_BYTES, GUARD, PAGE_NOACCESS, &old)) {
#else
    a->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a->base == MAP_FAILED || mprotect(a->base + ARENA_BYTES, GUARD, PROT_NONE)) {
#endif
        printf("cannot map %zu bytes\n", bytes);
        exit(2);
    }
    a->guard = a->base + ARENA_BYTES;
}

void *place(check *c, int32_t i, size_t size, size_t gap) {
    arena *a = &c->arenas[i];
    if (!a->base) open_arena(a);
    if (size + gap + FRONT > ARENA_BYTES) {
        printf("a buffer of %zu bytes does not fit an arena\n", size);
        exit(2);
    }
    a->data = a->guard - gap - size;
    a->size = size;
    a->slack = gap;
    memset(a->data - FRONT, WATCHED, FRONT);
    memset(a->data + size, WATCHED, gap);
    return a->data;
}

void *place_aligned(check *c, int32_t i, size_t size) { return place(c, i, size, (64 - size % 64) % 64); }

int32_t untouched(check *c, int32_t i, const char *what) {
    const arena *a = &c->arenas[i];
    for (int32_t j = 0; j < FRONT; j++) {
        if (a->data[j - FRONT] != WATCHED) {
            fail(c, "wrote %d bytes before %s", FRONT - j, what);
            return 0;
        }
    }
    for (size_t j = 0; j < a->slack; j++) {
        if (a->data[a->size + j] != WATCHED) {
            fail(c, "wrote %zu bytes past %s", j, what);
            return 0;
        }
    }
    return 1;
}

/* ---- random data -------------------------------------------------------------------------------------------------- */

uint32_t random_bits(check *c) {
    c->rng ^= c->rng << 13;
    c->rng ^= c->rng >> 7;
    c->rng ^= c->rng << 17;
    return (uint32_t)(c->rng >> 24);
}

int32_t random_below(check *c, int32_t n) {
    return (int32_t)(((uint64_t)random_bits(c) * (uint64_t)n) >> 32);
}

float random_normal(check *c) {
    float sum = 0;
    for (int i = 0; i < 3; i++) sum += (float)random_bits(c) / 2147483648.0f - 1.0f;
    return sum;
}

const char *pattern_name(pattern p) {
    static const char *const names[N_PATTERNS] = {"random",    "zero",     "max",   "min",
                                                  "alternate", "denormal", "spike", "wild"};
    return names[p];
}

void fill_floats(check *c, pattern p, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        switch (p) {
        case P_ZERO: x[i] = random_bits(c) & 1 ? 0.0f : -0.0f; break;
        case P_MAX: x[i] = 1.0f; break;
        case P_MIN: x[i] = -1.0f; break;
        case P_ALTERNATE: x[i] = i & 1 ? -1.0f : 1.0f; break;
        case P_DENORMAL:
            x[i] = el_float((random_bits(c) & 0x80000000u) | (uint32_t)random_below(c, 10 << 23));
            break;
        case P_SPIKE: x[i] = random_below(c, 40) ? random_normal(c) * 1e-3f : random_normal(c) * 1e3f; break;
        case P_WILD: do { x[i] = el_float(random_bits(c));
            } while (!el_is_finite(x[i]));
            break;
        default: x[i] = random_normal(c);
        }
    }
}
