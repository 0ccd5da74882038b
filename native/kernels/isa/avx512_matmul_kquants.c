/* AVX-512 matmul of the k-quants. */
#define EL_VNNI 0
#include "avx512_matmul.h"

#include "avx512_matmul_kquants.inl"

void el_avx512_matmul_kquants(el_kernels *table) { set_kquants(table); }
