/* How the vector files of all processors write their loops. */
#ifndef EL_LOOPS_H
#define EL_LOOPS_H

#define EL_INLINE static inline __attribute__((always_inline))

/* Unroll the loop that follows completely: its bound is a constant once inlined. */
#if defined(__clang__)
#define EL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define EL_UNROLL _Pragma("GCC unroll 16")
#endif

/* Leave memory as written so far: keeps accumulators that live in memory from being copied to registers and back. */
#define EL_FENCE() __asm__ volatile("" ::: "memory")

#endif
