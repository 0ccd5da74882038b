/* AVX-512 VNNI matmul: the level's table entries. Everything else is that of level avx512. */
#include "avx512_matmul.h"

#include "../cpu.h"

#if defined(EDGELLM_EMULATE_AVX512)
const el_cpu el_avx512_vnni_cpu = EL_CPU_AVX2;
#else
const el_cpu el_avx512_vnni_cpu = EL_CPU_AVX512_VNNI;
#endif

void el_avx512_vnni_matmul_kernels(el_kernels *table) {
    el_avx512_vnni_matmul_legacy(table);
    el_avx512_vnni_matmul_kquants(table);
    table->int8_peak = el_multiply_only;
    table->read = el_read_only;
}
