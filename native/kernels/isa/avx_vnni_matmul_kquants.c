/* AVX-VNNI matmul of the k-quants: the bodies of level avx2 with vpdpbusd. */
#define EL_DPBUSD 1
#include "avx2_matmul.h"

#include "avx2_matmul_kquants.inl"

void el_avx_vnni_matmul_kquants(el_kernels *table) { set_kquants(table); }
