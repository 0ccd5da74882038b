/* Matmul of the 32-block types at level neon. */
#include "neon_matmul.h"

#include "neon_matmul_legacy.inl"
