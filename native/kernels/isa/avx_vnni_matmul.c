/* AVX-VNNI matmul: the level's table entries. Everything else is that of level avx2. */
#include "avx2_matmul.h"

#include "../cpu.h"

#if defined(EDGELLM_EMULATE_AVX512)
const el_cpu el_avx_vnni_cpu = EL_CPU_AVX2;
#elif defined(__AVXVNNI__)
const el_cpu el_avx_vnni_cpu = EL_CPU_AVX_VNNI;
#else /* the encoding of AVX-512 VL and VNNI, for tests */
const el_cpu el_avx_vnni_cpu = EL_CPU_AVX512_VNNI;
#endif

void el_avx_vnni_matmul_kernels(el_kernels *table) {
    el_avx_vnni_matmul_legacy(table);
    el_avx_vnni_matmul_kquants(table);
    table->int8_peak = el_multiply_only;
    table->read = el_read_only;
}
