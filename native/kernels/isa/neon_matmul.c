/* Matmul at level neon: the level's table entries. NVFP4 runs scalar's at every level, pack that of the baseline. */
#include "neon_matmul.h"

void el_neon_matmul_kernels(el_kernels *table) {
    el_neon_matmul_legacy(table);
    el_neon_matmul_kquants(table);
    el_neon_matmul_float(table);
    el_neon_matmul_quantize(table);
    table->int8_peak = el_multiply_only;
}
