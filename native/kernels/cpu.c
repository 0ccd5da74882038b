/* Feature detection. On x86: CPUID leaves 1 and 7 for the instructions, XGETBV for the registers that the system saves.
 * On Arm the system is asked (os.h). */
#include "cpu.h"

#include <stddef.h>

typedef struct need {
    uint32_t present;
    const char *missing;
} need;

/* The first thing that is missing, "" if nothing is. */
static const char *first_missing(const need *needs, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!needs[i].present) return needs[i].missing;
    }
    return "";
}

const char *el_cpu_lacks(const el_cpuid *id, el_cpu level) {
    const need avx2[] = {
        {id->ecx1 & (1u << 28), "the processor has no AVX"},
        {id->ebx7 & (1u << 5), "the processor has no AVX2"},
        {id->ecx1 & (1u << 12), "the processor has no FMA"},
        {id->ecx1 & (1u << 29), "the processor has no F16C"},
        {id->ecx1 & (1u << 27), "the system does not use XSAVE"},
        {(id->xcr0 & 0x6u) == 0x6u, "the system does not save AVX registers"},
    };
    const need avx_vnni[] = {{id->eax7_1 & (1u << 4), "the processor has no AVX-VNNI"}};
    const need avx512[] = {
        {id->ebx7 & (1u << 16), "the processor has no AVX-512 F"},
        {id->ebx7 & (1u << 30), "the processor has no AVX-512 BW"},
        {id->ebx7 & (1u << 31), "the processor has no AVX-512 VL"},
        {id->ebx7 & (1u << 17), "the processor has no AVX-512 DQ"},
        {(id->xcr0 & 0xe6u) == 0xe6u, "the system does not save AVX-512 registers"},
    };
    const need avx512_vnni[] = {{id->ecx7 & (1u << 11), "the processor has no AVX-512 VNNI"}};

    const char *lacks = first_missing(avx2, sizeof avx2 / sizeof *avx2);
    if (*lacks || level == EL_CPU_AVX2) return lacks;
    if (level == EL_CPU_AVX_VNNI) return first_missing(avx_vnni, 1);
    lacks = first_missing(avx512, sizeof avx512 / sizeof *avx512);
    return *lacks || level == EL_CPU_AVX512 ? lacks : first_missing(avx512_vnni, 1);
}

const char *el_arm_lacks(uint32_t features, el_arm level) {
    const need needs[] = {
        {features & EL_ARM_HAS_DOTPROD, "the processor has no dot product instructions"},
        {features & EL_ARM_HAS_I8MM, "the processor has no int8 matrix multiplication"},
    };
    return first_missing(needs, (size_t)level);
}

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

const char *el_this_cpu_lacks(el_cpu level) {
    uint32_t eax, ebx, ecx, edx, low, high;
    el_cpuid id = {0};
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) id.ecx1 = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        const uint32_t last = eax; /* of leaf 7's parts */
        id.ebx7 = ebx;
        id.ecx7 = ecx;
        if (last >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) id.eax7_1 = eax;
    }
    if (id.ecx1 & (1u << 27)) { /* OSXSAVE: the instruction below exists */
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        id.xcr0 = low;
    }
    return el_cpu_lacks(&id, level);
}

#else

const char *el_this_cpu_lacks(el_cpu level) {
    (void)level;
    return "not an x86 processor";
}

#endif
