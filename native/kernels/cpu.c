/* Feature detection. On x86: CPUID leaves 1 and 7 for the instructions, XGETBV for the registers that the system saves. */
#include "cpu.h"

#include <stddef.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

/* Extended control register 0, which says what the system saves. Only where CPUID reports OSXSAVE. */
static uint32_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

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

uint32_t el_cpu_features(const char *why[2]) {
    uint32_t eax, ebx, ecx, edx, ecx1 = 0, ebx7 = 0, ecx7 = 0, state = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) ecx1 = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        ebx7 = ebx;
        ecx7 = ecx;
    }
    if (ecx1 & (1u << 27)) state = saved_state();

    const need avx2[] = {
        {ecx1 & (1u << 28), "the processor has no AVX"},
        {ebx7 & (1u << 5), "the processor has no AVX2"},
        {ecx1 & (1u << 12), "the processor has no FMA"},
        {ecx1 & (1u << 29), "the processor has no F16C"},
        {ecx1 & (1u << 27), "the system does not use XSAVE"},
        {(state & 0x6u) == 0x6u, "the system does not save AVX registers"},
    };
    const need avx512[] = {
        {ebx7 & (1u << 16), "the processor has no AVX-512 F"},
        {ebx7 & (1u << 30), "the processor has no AVX-512 BW"},
        {ebx7 & (1u << 31), "the processor has no AVX-512 VL"},
        {ebx7 & (1u << 17), "the processor has no AVX-512 DQ"},
        {ecx7 & (1u << 11), "the processor has no AVX-512 VNNI"},
        {(state & 0xe6u) == 0xe6u, "the system does not save AVX-512 registers"},
    };
    const char *no_avx2 = first_missing(avx2, sizeof avx2 / sizeof *avx2);
    const char *no_avx512 = *no_avx2 ? no_avx2 : first_missing(avx512, sizeof avx512 / sizeof *avx512);
    if (why) {
        why[0] = no_avx2;
        why[1] = no_avx512;
    }
    return (*no_avx2 ? 0u : (uint32_t)EL_CPU_AVX2) | (*no_avx512 ? 0u : (uint32_t)EL_CPU_AVX512_VNNI);
}

#else

uint32_t el_cpu_features(const char *why[2]) {
    if (why) why[0] = why[1] = "not an x86 processor";
    return 0;
}

#endif
