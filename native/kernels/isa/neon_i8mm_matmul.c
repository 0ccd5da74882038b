/* Matmul at level neon_i8mm: the level's table entries. Up to four columns are neon_dotprod's, everything else is that of
 * level neon. */
#define EL_MMLA 1
#include "neon_matmul.h"

void el_neon_i8mm_matmul_kernels(el_kernels *table) {
    el_neon_i8mm_matmul_legacy(table);
    el_neon_i8mm_matmul_kquants(table);
    table->int8_peak = el_multiply_only;
}
