/* AVX-VNNI matmul of the 32-block types: the bodies of level avx2 with vpdpbusd. */
#define EL_DPBUSD 1
#include "avx2_matmul.h"

#include "avx2_matmul_legacy.inl"

void el_avx_vnni_matmul_legacy(el_kernels *table) { set_legacy(table); }
