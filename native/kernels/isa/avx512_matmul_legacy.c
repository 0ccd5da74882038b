/* AVX-512 matmul of the 32-block types. */
#define EL_VNNI 0
#include "avx512_matmul.h"

#include "avx512_matmul_legacy.inl"

void el_avx512_matmul_legacy(el_kernels *table) { set_legacy(table); }
