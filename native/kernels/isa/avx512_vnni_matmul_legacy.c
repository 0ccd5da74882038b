/* AVX-512 VNNI matmul of the 32-block types. */
#define EL_VNNI 1
#include "avx512_matmul.h"

#include "avx512_matmul_legacy.inl"

void el_avx512_vnni_matmul_legacy(el_kernels *table) { set_legacy(table); }
