/* cpu_check: which levels run on which processor and system (kernels/cpu.h), with what is missing. No level may be taken
 * for usable when one feature, or the system's share in it, is not there.
 *
 * Exit status: 0 all as it should be, 1 not.
 */
#include "cpu.h"
#include "kernels.h"

#include <stdio.h>
#include <string.h>

enum {
    ECX1 = 1 << 12 | 1 << 27 | 1 << 28 | 1 << 29, /* FMA, OSXSAVE, AVX, F16C */
    AVX2 = 1 << 5,
    F_BW_DQ = 1 << 16 | 1 << 30 | 1 << 17,
    VNNI = 1 << 11,
    AVX_VNNI = 1 << 4,
    YMM = 0x6,
    ZMM = 0xe6,
};
#define VL (1u << 31)

typedef struct machine {
    const char *name;
    el_cpuid id;
    const char *lacks[EL_N_CPU]; /* avx2, avx_vnni, avx512, avx512_vnni: a part of the reason, "" = runs */
} machine;

static const machine MACHINES[] = {
    {"nothing", {0}, {"AVX", "AVX", "AVX", "AVX"}},
    {"AVX2 without FMA", {ECX1 & ~(1u << 12), AVX2, 0, 0, YMM}, {"FMA", "FMA", "FMA", "FMA"}},
    {"AVX2 without F16C", {ECX1 & ~(1u << 29), AVX2, 0, 0, YMM}, {"F16C", "F16C", "F16C", "F16C"}},
    {"no XSAVE", {ECX1 & ~(1u << 27), AVX2, 0, 0, YMM}, {"XSAVE", "XSAVE", "XSAVE", "XSAVE"}},
    {"ymm not saved", {ECX1, AVX2, VNNI, AVX_VNNI, 0x2}, {"save", "save", "save", "save"}},
    {"AVX2", {ECX1, AVX2, 0, 0, YMM}, {"", "AVX-VNNI", "AVX-512 F", "AVX-512 F"}},
    {"AVX-VNNI", {ECX1, AVX2, 0, AVX_VNNI, YMM}, {"", "", "AVX-512 F", "AVX-512 F"}},
    {"AVX-512 but for VL", {ECX1, AVX2 | F_BW_DQ, VNNI, 0, ZMM}, {"", "AVX-VNNI", "VL", "VL"}},
    {"AVX-512 but for BW",
     {ECX1, (AVX2 | F_BW_DQ | VL) & ~(1u << 30), VNNI, 0, ZMM},
     {"", "AVX-VNNI", "BW", "BW"}},
    {"AVX-512 but for DQ",
     {ECX1, (AVX2 | F_BW_DQ | VL) & ~(1u << 17), VNNI, 0, ZMM},
     {"", "AVX-VNNI", "DQ", "DQ"}},
    {"AVX-512", {ECX1, AVX2 | F_BW_DQ | VL, 0, 0, ZMM}, {"", "AVX-VNNI", "", "AVX-512 VNNI"}},
    {"AVX-512 VNNI", {ECX1, AVX2 | F_BW_DQ | VL, VNNI, 0, ZMM}, {"", "AVX-VNNI", "", ""}},
    {"everything", {ECX1, AVX2 | F_BW_DQ | VL, VNNI, AVX_VNNI, ZMM}, {"", "", "", ""}},
    {"zmm not saved",
     {ECX1, AVX2 | F_BW_DQ | VL, VNNI, AVX_VNNI, YMM},
     {"", "", "save AVX-512", "save AVX-512"}},
    {"half of zmm saved", {ECX1, AVX2 | F_BW_DQ | VL, VNNI, 0, 0x66}, {"", "AVX-VNNI", "save", "save"}},
};

/* Arm: EL_ARM_HAS_* and a part of the reason per level, "" = runs. */
static const struct {
    uint32_t features;
    const char *lacks[3];
} ARM[] = {
    {0, {"", "dot product", "dot product"}},
    {EL_ARM_HAS_DOTPROD, {"", "", "matrix"}},
    {EL_ARM_HAS_I8MM, {"", "dot product", "dot product"}},
    {EL_ARM_HAS_DOTPROD | EL_ARM_HAS_I8MM, {"", "", ""}},
};

static int arm_fails(void) {
    int failed = 0;
    for (size_t i = 0; i < sizeof ARM / sizeof *ARM; i++) {
        for (int level = EL_ARM_NEON; level <= EL_ARM_I8MM; level++) {
            const char *want = ARM[i].lacks[level], *got = el_arm_lacks(ARM[i].features, (el_arm)level);
            if (*want ? strstr(got, want) != NULL : *got == '\0') continue;
            printf("FAIL Arm features %u, level %d: lacks \"%s\", expected \"%s\"\n",
                   (unsigned)ARM[i].features, level, got, want);
            failed = 1;
        }
    }
    return failed;
}

int main(void) {
    int failed = arm_fails();
    for (size_t i = 0; i < sizeof MACHINES / sizeof *MACHINES; i++) {
        const machine *m = &MACHINES[i];
        for (int level = 0; level < EL_N_CPU; level++) {
            const char *want = m->lacks[level], *got = el_cpu_lacks(&m->id, (el_cpu)level);
            if (*want ? strstr(got, want) != NULL : *got == '\0') continue;
            printf("FAIL %s, level %d: lacks \"%s\", expected \"%s\"\n", m->name, level, got, want);
            failed = 1;
        }
    }
    for (int32_t i = 0; i < EL_N_LEVELS; i++) { /* a level by name exists exactly where it is available */
        el_kernels table;
        const char *why = "";
        int32_t available = EL_LEVELS[i].available(NULL);
        if ((el_kernels_select(EL_LEVELS[i].name, &table, &why) == EL_OK) == available &&
            (!available || strcmp(table.level, EL_LEVELS[i].name) == 0))
            continue;
        printf("FAIL level %s: available %d, but selecting it says \"%s\"\n", EL_LEVELS[i].name, available,
               why);
        failed = 1;
    }
    if (!failed) printf("%zu machines\n", sizeof MACHINES / sizeof *MACHINES);
    return failed;
}
