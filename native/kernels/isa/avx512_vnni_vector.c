/* Attention at level avx512_vnni: products of int16 are added in the instruction that makes them. */
#include "isa/simd_avx512.h"

#include "generic/attention_kernels.inl"

void el_avx512_vnni_vector_kernels(el_kernels *table) { set_attention_kernels(table); }
