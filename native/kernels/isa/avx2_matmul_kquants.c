/* AVX2 matmul of the k-quants: mm. Their pack is avx2_matmul_kquants_pack.c. */
#include "avx2_matmul.h"

#include "avx2_matmul_kquants.inl"

void el_avx2_matmul_kquants(el_kernels *table) { set_kquants(table); }
