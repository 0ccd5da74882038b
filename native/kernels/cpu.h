/* What this processor and operating system can run. */
#ifndef EL_CPU_H
#define EL_CPU_H

#include <stdint.h>

/* A bit is set only when the processor has the feature and the system saves the registers it needs. */
enum {
    EL_CPU_AVX2 = 1,        /* AVX2, FMA, F16C; ymm state */
    EL_CPU_AVX512_VNNI = 2, /* the above, AVX-512 F, BW, VL, DQ, VNNI; zmm state */
};

/* The features of this machine. Where one is missing and `why` is not NULL, why[0] (AVX2) and why[1] (AVX-512) name the first
 * thing that is missing, "" otherwise. */
uint32_t el_cpu_features(const char *why[2]);

#endif
