/* Matmul of the 32-block types at level neon_i8mm. */
#define EL_MMLA 1
#include "neon_matmul.h"

#include "neon_matmul_legacy.inl"
