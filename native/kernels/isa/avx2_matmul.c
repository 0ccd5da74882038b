/* AVX2 matmul: the level's table entries. */
#include "avx2_matmul.h"

#include "../cpu.h"

const el_cpu el_avx2_cpu = EL_CPU_AVX2;

void el_avx2_matmul_kernels(el_kernels *table) {
    el_avx2_matmul_legacy(table);
    el_avx2_matmul_kquants(table);
    el_avx2_matmul_kquants_pack(table);
    el_avx2_matmul_codebooks_pack(table);
    el_avx2_matmul_float(table);
    el_avx2_matmul_quantize(table);
    table->int8_peak = el_multiply_only;
    table->read = el_read_only;
}
