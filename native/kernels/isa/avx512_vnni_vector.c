/* Attention, row operations and selection at level avx512_vnni. */
#include "isa/simd_avx512.h"

#include "generic/vector_kernels.inl"

void el_avx512_vnni_vector_kernels(el_kernels *table) { set_vector_kernels(table); }
