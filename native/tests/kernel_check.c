/* kernel_check: every kernel of every level that this machine can run, over tables of shapes and data, must equal scalar
 * bit for bit; scalar itself is checked against independent arithmetic.
 *
 *     kernel_check [--level NAME] [--kernel TEXT] [--seed N] [--full] [--every N] [--digest] [--list] [--bench]
 *
 * --digest prints, per level, a hash of every result on the tables' data, scalar included: it is the same on every machine
 * and for every compiler. --every N runs one case in N of the long tables, which have another digest. --list names the
 * levels. --bench times the kernels instead.
 *
 * Exit status: 0 all equal, 1 a difference (kernel, level, case, first index and both values are printed), 2 usage.
 */
#include "kernel_check/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct test {
    const char *name;
    void (*plain)(check *);
    void (*typed)(check *, int32_t);
    int32_t type;       /* of typed */
    int32_t is_meaning; /* checks scalar; run once */
} test;

static const test TESTS[] = {
    {"functions.meaning", check_functions_meaning, NULL, 0, 1},
    {"functions", check_functions, NULL, 0, 0},
    {"dequant.F32.meaning", NULL, check_dequant_meaning, EL_F32, 1},
    {"dequant.F16.meaning", NULL, check_dequant_meaning, EL_F16, 1},
    {"dequant.BF16.meaning", NULL, check_dequant_meaning, EL_BF16, 1},
    {"dequant.Q8_0.meaning", NULL, check_dequant_meaning, EL_Q8_0, 1},
    {"dequant.Q4_0.meaning", NULL, check_dequant_meaning, EL_Q4_0, 1},
    {"dequant.Q4_1.meaning", NULL, check_dequant_meaning, EL_Q4_1, 1},
    {"dequant.Q5_0.meaning", NULL, check_dequant_meaning, EL_Q5_0, 1},
    {"dequant.Q5_1.meaning", NULL, check_dequant_meaning, EL_Q5_1, 1},
    {"dequant.Q2_K.meaning", NULL, check_dequant_meaning, EL_Q2_K, 1},
    {"dequant.Q3_K.meaning", NULL, check_dequant_meaning, EL_Q3_K, 1},
    {"dequant.Q4_K.meaning", NULL, check_dequant_meaning, EL_Q4_K, 1},
    {"dequant.Q5_K.meaning", NULL, check_dequant_meaning, EL_Q5_K, 1},
    {"dequant.Q6_K.meaning", NULL, check_dequant_meaning, EL_Q6_K, 1},
    {"dequant.IQ4_NL.meaning", NULL, check_dequant_meaning, EL_IQ4_NL, 1},
    {"dequant.IQ4_XS.meaning", NULL, check_dequant_meaning, EL_IQ4_XS, 1},
    {"dequant.MXFP4.meaning", NULL, check_dequant_meaning, EL_MXFP4, 1},
    {"dequant.NVFP4.meaning", NULL, check_dequant_meaning, EL_NVFP4, 1},
    {"dequant.TQ1_0.meaning", NULL, check_dequant_meaning, EL_TQ1_0, 1},
    {"dequant.TQ2_0.meaning", NULL, check_dequant_meaning, EL_TQ2_0, 1},
    {"dequant.IQ1_S.meaning", NULL, check_dequant_meaning, EL_IQ1_S, 1},
    {"dequant.IQ1_M.meaning", NULL, check_dequant_meaning, EL_IQ1_M, 1},
    {"dequant.IQ2_XXS.meaning", NULL, check_dequant_meaning, EL_IQ2_XXS, 1},
    {"dequant.IQ2_XS.meaning", NULL, check_dequant_meaning, EL_IQ2_XS, 1},
    {"dequant.IQ2_S.meaning", NULL, check_dequant_meaning, EL_IQ2_S, 1},
    {"dequant.IQ3_XXS.meaning", NULL, check_dequant_meaning, EL_IQ3_XXS, 1},
    {"dequant.IQ3_S.meaning", NULL, check_dequant_meaning, EL_IQ3_S, 1},
    {"quantize.A16.meaning", NULL, check_quantize_meaning, EL_ACT_A16, 1},
    {"quantize.A256.meaning", NULL, check_quantize_meaning, EL_ACT_A256, 1},
    {"mm.Q8_0.meaning", NULL, check_mm_meaning, EL_Q8_0, 1},
    {"mm.Q4_0.meaning", NULL, check_mm_meaning, EL_Q4_0, 1},
    {"mm.Q4_1.meaning", NULL, check_mm_meaning, EL_Q4_1, 1},
    {"mm.Q5_0.meaning", NULL, check_mm_meaning, EL_Q5_0, 1},
    {"mm.Q5_1.meaning", NULL, check_mm_meaning, EL_Q5_1, 1},
    {"mm.Q2_K.meaning", NULL, check_mm_meaning, EL_Q2_K, 1},
    {"mm.Q3_K.meaning", NULL, check_mm_meaning, EL_Q3_K, 1},
    {"mm.Q4_K.meaning", NULL, check_mm_meaning, EL_Q4_K, 1},
    {"mm.Q5_K.meaning", NULL, check_mm_meaning, EL_Q5_K, 1},
    {"mm.Q6_K.meaning", NULL, check_mm_meaning, EL_Q6_K, 1},
    {"mm.IQ4_NL.meaning", NULL, check_mm_meaning, EL_IQ4_NL, 1},
    {"mm.IQ4_XS.meaning", NULL, check_mm_meaning, EL_IQ4_XS, 1},
    {"mm.MXFP4.meaning", NULL, check_mm_meaning, EL_MXFP4, 1},
    {"mm.NVFP4.meaning", NULL, check_mm_meaning, EL_NVFP4, 1},
    {"mm.TQ1_0.meaning", NULL, check_mm_meaning, EL_TQ1_0, 1},
    {"mm.TQ2_0.meaning", NULL, check_mm_meaning, EL_TQ2_0, 1},
    {"mm.IQ1_S.meaning", NULL, check_mm_meaning, EL_IQ1_S, 1},
    {"mm.IQ1_M.meaning", NULL, check_mm_meaning, EL_IQ1_M, 1},
    {"mm.IQ2_XXS.meaning", NULL, check_mm_meaning, EL_IQ2_XXS, 1},
    {"mm.IQ2_XS.meaning", NULL, check_mm_meaning, EL_IQ2_XS, 1},
    {"mm.IQ2_S.meaning", NULL, check_mm_meaning, EL_IQ2_S, 1},
    {"mm.IQ3_XXS.meaning", NULL, check_mm_meaning, EL_IQ3_XXS, 1},
    {"mm.IQ3_S.meaning", NULL, check_mm_meaning, EL_IQ3_S, 1},
    {"mm.F16.meaning", NULL, check_mm_meaning, EL_F16, 1},
    {"mm.BF16.meaning", NULL, check_mm_meaning, EL_BF16, 1},
    {"mm.F32.meaning", NULL, check_mm_meaning, EL_F32, 1},
    {"attention.meaning", check_attn_meaning, NULL, 0, 1},
    {"kv.meaning", check_kv_meaning, NULL, 0, 1},
    {"norms.meaning", check_norm_meaning, NULL, 0, 1},
    {"selection.meaning", check_selection_meaning, NULL, 0, 1},
    {"pack.Q8_0", NULL, check_pack, EL_Q8_0, 0},
    {"pack.Q4_0", NULL, check_pack, EL_Q4_0, 0},
    {"pack.Q4_1", NULL, check_pack, EL_Q4_1, 0},
    {"pack.Q5_0", NULL, check_pack, EL_Q5_0, 0},
    {"pack.Q5_1", NULL, check_pack, EL_Q5_1, 0},
    {"pack.Q2_K", NULL, check_pack, EL_Q2_K, 0},
    {"pack.Q3_K", NULL, check_pack, EL_Q3_K, 0},
    {"pack.Q4_K", NULL, check_pack, EL_Q4_K, 0},
    {"pack.Q5_K", NULL, check_pack, EL_Q5_K, 0},
    {"pack.Q6_K", NULL, check_pack, EL_Q6_K, 0},
    {"pack.IQ4_NL", NULL, check_pack, EL_IQ4_NL, 0},
    {"pack.IQ4_XS", NULL, check_pack, EL_IQ4_XS, 0},
    {"pack.MXFP4", NULL, check_pack, EL_MXFP4, 0},
    {"pack.NVFP4", NULL, check_pack, EL_NVFP4, 0},
    {"pack.TQ1_0", NULL, check_pack, EL_TQ1_0, 0},
    {"pack.TQ2_0", NULL, check_pack, EL_TQ2_0, 0},
    {"pack.IQ1_S", NULL, check_pack, EL_IQ1_S, 0},
    {"pack.IQ1_M", NULL, check_pack, EL_IQ1_M, 0},
    {"pack.IQ2_XXS", NULL, check_pack, EL_IQ2_XXS, 0},
    {"pack.IQ2_XS", NULL, check_pack, EL_IQ2_XS, 0},
    {"pack.IQ2_S", NULL, check_pack, EL_IQ2_S, 0},
    {"pack.IQ3_XXS", NULL, check_pack, EL_IQ3_XXS, 0},
    {"pack.IQ3_S", NULL, check_pack, EL_IQ3_S, 0},
    {"pack.F16", NULL, check_pack, EL_F16, 0},
    {"pack.BF16", NULL, check_pack, EL_BF16, 0},
    {"pack.F32", NULL, check_pack, EL_F32, 0},
    {"quantize.A16", NULL, check_quantize, EL_ACT_A16, 0},
    {"quantize.A256", NULL, check_quantize, EL_ACT_A256, 0},
    {"mm.Q8_0", NULL, check_mm, EL_Q8_0, 0},
    {"mm.Q4_0", NULL, check_mm, EL_Q4_0, 0},
    {"mm.Q4_1", NULL, check_mm, EL_Q4_1, 0},
    {"mm.Q5_0", NULL, check_mm, EL_Q5_0, 0},
    {"mm.Q5_1", NULL, check_mm, EL_Q5_1, 0},
    {"mm.Q2_K", NULL, check_mm, EL_Q2_K, 0},
    {"mm.Q3_K", NULL, check_mm, EL_Q3_K, 0},
    {"mm.Q4_K", NULL, check_mm, EL_Q4_K, 0},
    {"mm.Q5_K", NULL, check_mm, EL_Q5_K, 0},
    {"mm.Q6_K", NULL, check_mm, EL_Q6_K, 0},
    {"mm.IQ4_NL", NULL, check_mm, EL_IQ4_NL, 0},
    {"mm.IQ4_XS", NULL, check_mm, EL_IQ4_XS, 0},
    {"mm.MXFP4", NULL, check_mm, EL_MXFP4, 0},
    {"mm.NVFP4", NULL, check_mm, EL_NVFP4, 0},
    {"mm.TQ1_0", NULL, check_mm, EL_TQ1_0, 0},
    {"mm.TQ2_0", NULL, check_mm, EL_TQ2_0, 0},
    {"mm.IQ1_S", NULL, check_mm, EL_IQ1_S, 0},
    {"mm.IQ1_M", NULL, check_mm, EL_IQ1_M, 0},
    {"mm.IQ2_XXS", NULL, check_mm, EL_IQ2_XXS, 0},
    {"mm.IQ2_XS", NULL, check_mm, EL_IQ2_XS, 0},
    {"mm.IQ2_S", NULL, check_mm, EL_IQ2_S, 0},
    {"mm.IQ3_XXS", NULL, check_mm, EL_IQ3_XXS, 0},
    {"mm.IQ3_S", NULL, check_mm, EL_IQ3_S, 0},
    {"mm.F16", NULL, check_mm, EL_F16, 0},
    {"mm.BF16", NULL, check_mm, EL_BF16, 0},
    {"mm.F32", NULL, check_mm, EL_F32, 0},
    {"attn_segment", check_attn_segment, NULL, 0, 0},
    {"attn_any", check_attn_any, NULL, 0, 0},
    {"attn_fold", check_attn_fold, NULL, 0, 0},
    {"kv_store", check_kv_store, NULL, 0, 0},
    {"rms_norm", check_rms_norm, NULL, 0, 0},
    {"layer_norm", check_layer_norm, NULL, 0, 0},
    {"glu", check_glu, NULL, 0, 0},
    {"act", check_act, NULL, 0, 0},
    {"elementwise", check_elementwise, NULL, 0, 0},
    {"rope", check_rope, NULL, 0, 0},
    {"top_k", check_top_k, NULL, 0, 0},
    {"lse_segment", check_lse_segment, NULL, 0, 0},
    {"nonfinite", check_nonfinite, NULL, 0, 0},
    {"int8_peak", check_int8_peak, NULL, 0, 0},
    {"read", check_read, NULL, 0, 0},
};
enum { N_TESTS = sizeof TESTS / sizeof *TESTS };

static check CHECK; /* static: the handler below reads it */

/* A kernel touched memory that is not its own: say which, and where in the tables. */
static void on_fault(int number) {
    printf("FAIL kernel %s, level %s, %s: reached memory outside its buffers (signal %d)\n", CHECK.kernel,
           CHECK.level->level, CHECK.shape, number);
    fflush(stdout);
    _Exit(1);
}

/* A new type or kernel of the table must be met by a test. */
static int32_t table_is_covered(const el_kernels *table) {
    int32_t covered = 1;
    for (int32_t type = 0; type < EL_QTYPE_LIMIT; type++) {
        int32_t tests[3] = {0};
        for (int32_t i = 0; i < N_TESTS; i++) {
            if (TESTS[i].type != type) continue;
            tests[0] |= TESTS[i].typed == check_pack;
            tests[1] |= TESTS[i].typed == check_mm;
            tests[2] |= TESTS[i].typed == check_dequant_meaning;
        }
        if ((table->pack[type] != NULL) != tests[0] || (table->mm[type] != NULL) != tests[1] ||
            (table->dequant[type] != NULL) != tests[2] || (el_tile_of(type) != NULL) != tests[1]) {
            printf("FAIL level %s: weight type %d has kernels without a test, or a test without kernels\n",
                   table->level, type);
            covered = 0;
        }
    }
    return covered;
}

typedef struct options {
    const char *filter; /* tests whose name contains it */
    uint64_t seed;
    int32_t digest;
} options;

/* Runs the tests of one level. Returns how many kernels differed. */
static int32_t run_level(check *c, const options *o, int32_t *n_run) {
    int32_t n_failed = !table_is_covered(c->level);
    c->digest = 0xcbf29ce484222325u;
    for (int32_t i = 0; i < N_TESTS; i++) {
        const test *t = &TESTS[i];
        if (!strstr(t->name, o->filter) || t->is_meaning != (c->is_scalar && !o->digest)) continue;
        c->kernel = t->name;
        c->rng = 0x9e3779b97f4a7c15u + o->seed * 0x2545f4914f6cdd1du; /* the same data whatever ran before */
        c->failed = 0;
        c->n_cases = 0;
        c->turn = 0;
        (*n_run)++;
        if (t->plain) {
            t->plain(c);
        } else {
            t->typed(c, t->type);
        }
        if (!c->failed)
            printf("ok   %-12s %-22s %8lld cases\n", c->level->level, t->name, (long long)c->n_cases);
        fflush(stdout);
        n_failed += c->failed;
    }
    if (o->digest) printf("digest %s %016llx\n", c->level->level, (unsigned long long)c->digest);
    return n_failed;
}

static int usage(const char *message, const char *value) {
    printf("kernel_check: %s%s\n"
           "usage: kernel_check [--level NAME] [--kernel TEXT] [--seed N] [--full] [--every N] [--digest] "
           "[--list] [--bench]\n",
           message, value);
    return 2;
}

int main(int argc, char **argv) {
    const char *level = NULL, *why;
    options o = {.filter = ""};
    int32_t wants_bench = 0, wants_list = 0, n_failed = 0, n_levels = 0, n_run = 0;
    el_kernels scalar, table;
    check *c = &CHECK;
    for (int i = 1; i < argc; i++) {
        int32_t has_value = i + 1 < argc;
        if (!strcmp(argv[i], "--level") && has_value) {
            level = argv[++i];
        } else if (!strcmp(argv[i], "--kernel") && has_value) {
            o.filter = argv[++i];
        } else if (!strcmp(argv[i], "--seed") && has_value) {
            o.seed = strtoull(argv[++i], NULL, 0);
        } else if (!strcmp(argv[i], "--every") && has_value) {
            c->every = atoi(argv[++i]);
        } else if (!strcmp(argv[i], "--full")) {
            c->full = 1;
        } else if (!strcmp(argv[i], "--digest")) {
            o.digest = 1;
        } else if (!strcmp(argv[i], "--list")) {
            wants_list = 1;
        } else if (!strcmp(argv[i], "--bench")) {
            wants_bench = 1;
        } else {
            return usage("cannot use the argument ", argv[i]);
        }
    }
    for (int32_t i = 0; wants_list && i < EL_N_LEVELS; i++) {
        int32_t available = EL_LEVELS[i].available(&why);
        printf("%s %s%s%s\n", EL_LEVELS[i].name, available ? "available" : "missing", available ? "" : ": ",
               why);
    }
    if (wants_list) return 0;
    if (level && el_kernels_select(level, &table, &why) != EL_OK) return usage(why, "");

    signal(SIGSEGV, on_fault);
#if defined(SIGBUS)
    signal(SIGBUS, on_fault);
#endif
    if (el_kernels_select("scalar", &scalar, &why) != EL_OK) return usage(why, "");
    for (int32_t i = 0; i < EL_N_LEVELS; i++) {
        if (level ? strcmp(level, EL_LEVELS[i].name) : !EL_LEVELS[i].available(NULL)) continue;
        el_kernels_select(EL_LEVELS[i].name, &table, &why);
        c->scalar = &scalar;
        c->level = &table;
        c->is_scalar = strcmp(table.level, "scalar") == 0;
        n_levels++;
        c->rng = 1;
        if (wants_bench) {
            bench(c, o.filter);
        } else {
            n_failed += run_level(c, &o, &n_run);
        }
    }
    if (!wants_bench && n_run == 0) return usage("no kernel's name contains ", o.filter);
    printf("%d levels, %d kernels failed\n", n_levels, n_failed);
    return n_failed ? 1 : 0;
}
