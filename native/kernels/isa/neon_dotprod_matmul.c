/* Matmul at level neon_dotprod: the level's table entries. Everything else is that of level neon. */
#define EL_DOTPROD 1
#include "neon_matmul.h"

void el_neon_dotprod_matmul_kernels(el_kernels *table) {
    el_neon_dotprod_matmul_legacy(table);
    el_neon_dotprod_matmul_kquants(table);
    table->int8_peak = el_multiply_only;
}
