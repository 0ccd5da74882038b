/* Attention, row operations and selection at level avx2. */
#include "isa/simd_avx2.h"

#include "generic/vector_kernels.inl"

void el_avx2_vector_kernels(el_kernels *table) { set_vector_kernels(table); }
