/* AVX-512 matmul: the level's table entries. pack is that of level avx2. */
#include "avx512_matmul.h"

#include "../cpu.h"

#if defined(EDGELLM_EMULATE_AVX512)
const el_cpu el_avx512_cpu = EL_CPU_AVX2;
#else
const el_cpu el_avx512_cpu = EL_CPU_AVX512;
#endif

void el_avx512_matmul_kernels(el_kernels *table) {
    el_avx512_matmul_legacy(table);
    el_avx512_matmul_kquants(table);
    el_avx512_matmul_float(table);
    el_avx512_matmul_quantize(table);
    table->int8_peak = el_multiply_only;
    table->read = el_read_only;
}
