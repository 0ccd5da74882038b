/* The scalar kernel table. */
#include "scalar.h"

#include <string.h>

void el_scalar_kernels(el_kernels *table) {
    memset(table, 0, sizeof *table);
    table->level = "scalar";
    el_scalar_pack_kernels(table);
    el_scalar_matmul_kernels(table);
    el_scalar_attention_kernels(table);
    el_scalar_row_kernels(table);
    el_dequant_kernels(table);
    el_codebook_kernels(table);
}
