/* Matmul at level neon: the level's table entries. NVFP4 runs scalar's at every level. */
#include "neon_matmul.h"

void el_neon_matmul_kernels(el_kernels *table) {
    el_neon_matmul_legacy(table);
    el_neon_matmul_kquants(table);
    el_neon_matmul_float(table);
    el_neon_matmul_quantize(table);
    el_neon_matmul_pack(table);
    table->int8_peak = el_multiply_only;
}
