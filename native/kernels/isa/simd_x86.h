/* The x86 intrinsics. Files that are compiled for SIMDe (SIMDE_ENABLE_NATIVE_ALIASES, set by CMake for the AVX-512 files
 * of the emulated library alone) get the AVX-512 names from SIMDe, which builds each from 256-bit instructions. */
#ifndef EL_SIMD_X86_H
#define EL_SIMD_X86_H

#if defined(EDGELLM_EMULATE_AVX512) && defined(SIMDE_ENABLE_NATIVE_ALIASES)
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#else
#include <immintrin.h>
#endif

#define EL_INLINE static inline __attribute__((always_inline))

/* Unroll the loop that follows completely: its bound is a constant once inlined. */
#if defined(__clang__)
#define EL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define EL_UNROLL _Pragma("GCC unroll 16")
#endif

/* Compute v here: keeps the compiler from reordering a chain of integer additions, which costs it the registers. */
#define EL_PIN(v) __asm__("" : "+x"(v))

/* Leave memory as written so far: keeps accumulators that live in memory from being copied to registers and back. */
#define EL_FENCE() __asm__ volatile("" ::: "memory")

#endif
