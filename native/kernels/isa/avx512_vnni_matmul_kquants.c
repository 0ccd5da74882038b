/* AVX-512 VNNI matmul of the k-quants. */
#define EL_VNNI 1
#include "avx512_matmul.h"

#include "avx512_matmul_kquants.inl"

void el_avx512_vnni_matmul_kquants(el_kernels *table) { set_kquants(table); }
