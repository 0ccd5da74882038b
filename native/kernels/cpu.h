/* What this processor and operating system can run. */
#ifndef EL_CPU_H
#define EL_CPU_H

#include <stdint.h>

/* The levels' needs, ascending as in dispatch.c. */
typedef enum el_cpu {
    EL_CPU_AVX2,        /* AVX2, FMA, F16C; ymm state */
    EL_CPU_AVX_VNNI,    /* the same and AVX-VNNI */
    EL_CPU_AVX512,      /* AVX2's and AVX-512 F, BW, VL, DQ; zmm state */
    EL_CPU_AVX512_VNNI, /* the same and AVX-512 VNNI */
    EL_N_CPU
} el_cpu;

/* What an x86 processor says of itself: CPUID's registers by leaf, and extended control register 0, which says what the
 * system saves (0 where it cannot be asked). Zeros for leaves that are not there. */
typedef struct el_cpuid {
    uint32_t ecx1, ebx7, ecx7, eax7_1, xcr0;
} el_cpuid;

/* The first thing that such a machine lacks for a level, "" if nothing. A feature counts only when the system saves the
 * registers it needs. */
const char *el_cpu_lacks(const el_cpuid *id, el_cpu level);

/* The same for this machine. */
const char *el_this_cpu_lacks(el_cpu level);

/* What the neon levels need beyond Advanced SIMD, which every 64-bit Arm processor has, ascending as in dispatch.c. */
typedef enum el_arm {
    EL_ARM_NEON,
    EL_ARM_DOTPROD, /* the dot product instructions */
    EL_ARM_I8MM,    /* the same and the int8 matrix multiplication */
} el_arm;

/* What the system says that this processor has (core/os_*.c, on 64-bit Arm only). */
enum { EL_ARM_HAS_DOTPROD = 1, EL_ARM_HAS_I8MM = 2 };
uint32_t el_os_arm_features(void);

/* The first thing that a processor with these features lacks for a level, "" if nothing. */
const char *el_arm_lacks(uint32_t features, el_arm level);

/* What the level's files were compiled for (kernels/isa/<level>_matmul.c). */
extern const el_cpu el_avx2_cpu, el_avx_vnni_cpu, el_avx512_cpu, el_avx512_vnni_cpu;

#endif
