/* AVX-512 VNNI matmul: the level's table entries. */
#include "avx512_vnni_matmul.h"

void el_avx512_vnni_matmul_kernels(el_kernels *table) {
    el_avx512_vnni_matmul_legacy(table);
    el_avx512_vnni_matmul_kquants(table);
    el_avx512_vnni_matmul_float(table);
}
