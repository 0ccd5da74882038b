/* The ISA levels in ascending order, and the choice of one. A level exists in this library when its files were compiled
 * (EDGELLM_LEVEL_<NAME>, set by the build); whether the machine can run it is asked at run time. */
#include "cpu.h"
#include "kernels.h"

#include <string.h>

static int32_t scalar_available(const char **why) {
    if (why) *why = "";
    return 1;
}

/* What a level needs is said by its files: compiled to other instructions, for tests, they need another processor. */
#define AVAILABLE(level)                                         \
    static int32_t level##_available(const char **why) {         \
        const char *lacks = el_this_cpu_lacks(el_##level##_cpu); \
        if (why) *why = lacks;                                   \
        return *lacks == '\0';                                   \
    }

#if EDGELLM_LEVEL_AVX2
AVAILABLE(avx2)

static void avx2_override(el_kernels *table) {
    el_avx2_matmul_kernels(table);
    el_avx2_vector_kernels(table);
}
#endif

#if EDGELLM_LEVEL_AVX_VNNI
AVAILABLE(avx_vnni)

static void avx_vnni_override(el_kernels *table) {
    el_avx_vnni_matmul_kernels(table);
    el_avx_vnni_vector_kernels(table);
}
#endif

#if EDGELLM_LEVEL_AVX512
AVAILABLE(avx512)

static void avx512_override(el_kernels *table) {
    el_avx512_matmul_kernels(table);
    el_avx512_vector_kernels(table);
}
#endif

#if EDGELLM_LEVEL_AVX512_VNNI
AVAILABLE(avx512_vnni)

static void avx512_vnni_override(el_kernels *table) {
    el_avx512_vnni_matmul_kernels(table);
    el_avx512_vnni_vector_kernels(table);
}
#endif

/* The neon levels. */
#define ARM_AVAILABLE(level, need)                                    \
    static int32_t level##_available(const char **why) {              \
        const char *lacks = el_arm_lacks(el_os_arm_features(), need); \
        if (why) *why = lacks;                                        \
        return *lacks == '\0';                                        \
    }

#if EDGELLM_LEVEL_NEON
ARM_AVAILABLE(neon, EL_ARM_NEON)

static void neon_override(el_kernels *table) {
    el_neon_matmul_kernels(table);
    el_neon_vector_kernels(table);
}
#endif

#if EDGELLM_LEVEL_NEON_DOTPROD
ARM_AVAILABLE(neon_dotprod, EL_ARM_DOTPROD)
#endif

#if EDGELLM_LEVEL_NEON_I8MM
ARM_AVAILABLE(neon_i8mm, EL_ARM_I8MM)
#endif

const el_level EL_LEVELS[] = {
    {"scalar", scalar_available, el_scalar_kernels},
#if EDGELLM_LEVEL_AVX2
    {"avx2", avx2_available, avx2_override},
#endif
#if EDGELLM_LEVEL_AVX_VNNI
    {"avx_vnni", avx_vnni_available, avx_vnni_override},
#endif
#if EDGELLM_LEVEL_AVX512
    {"avx512", avx512_available, avx512_override},
#endif
#if EDGELLM_LEVEL_AVX512_VNNI
    {"avx512_vnni", avx512_vnni_available, avx512_vnni_override},
#endif
#if EDGELLM_LEVEL_NEON
    {"neon", neon_available, neon_override},
#endif
#if EDGELLM_LEVEL_NEON_DOTPROD
    {"neon_dotprod", neon_dotprod_available, el_neon_dotprod_matmul_kernels},
#endif
#if EDGELLM_LEVEL_NEON_I8MM
    {"neon_i8mm", neon_i8mm_available, el_neon_i8mm_matmul_kernels},
#endif
};
const int32_t EL_N_LEVELS = (int32_t)(sizeof EL_LEVELS / sizeof *EL_LEVELS);

const char *el_isa_level(int32_t index, int32_t *available, const char **why) {
    if (index < 0 || index >= EL_N_LEVELS) {
        if (available) *available = 0;
        if (why) *why = "there is no such level";
        return NULL;
    }
    int32_t can_run = EL_LEVELS[index].available(why);
    if (available) *available = can_run;
    return EL_LEVELS[index].name;
}

int32_t el_kernels_select(const char *level, el_kernels *table, const char **why) {
    const char *reason = "";
    int32_t chosen = -1;
    if (level == NULL || level[0] == '\0') {
        for (int32_t i = 0; i < EL_N_LEVELS; i++) {
            if (EL_LEVELS[i].available(NULL)) chosen = i;
        }
    } else {
        reason = "this library has no ISA level of that name";
        for (int32_t i = 0; i < EL_N_LEVELS; i++) {
            if (strcmp(level, EL_LEVELS[i].name) == 0 && EL_LEVELS[i].available(&reason)) chosen = i;
        }
    }
    if (why) *why = reason;
    if (chosen < 0) return EL_E_UNSUPPORTED;
    for (int32_t i = 0; i <= chosen;
         i++) { /* a level that the machine lacks may lie below: AVX-VNNI below AVX-512 */
        if (!EL_LEVELS[i].available(NULL)) continue;
        memset(table->mm_far, 0, sizeof table->mm_far); /* they belong to the mm of their level */
        EL_LEVELS[i].override(table);
    }
    table->level = EL_LEVELS[chosen].name;
    return EL_OK;
}
