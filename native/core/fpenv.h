/* The floating-point environment of a step: round to nearest, subnormals kept, exceptions masked (docs/numerics.md).
 * A library built with fast-math turns flushing on in every thread that loads it, so a step sets it and puts back
 * what it found. */
#ifndef EL_FPENV_H
#define EL_FPENV_H

#include <stdint.h>

#if defined(__x86_64__) || defined(__SSE__)
#include <xmmintrin.h>

typedef uint32_t el_fpenv;
static inline el_fpenv el_fp_enter(void) {
    el_fpenv old = _mm_getcsr();
    _mm_setcsr(0x1f80);
    return old;
}
static inline void el_fp_leave(el_fpenv old) { _mm_setcsr(old); }

#elif defined(__aarch64__)

typedef uint64_t el_fpenv;
static inline el_fpenv el_fp_enter(void) {
    el_fpenv old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return old;
}
static inline void el_fp_leave(el_fpenv old) { __asm__ volatile("msr fpcr, %0" : : "r"(old)); }

#else
#include <fenv.h>

typedef fenv_t el_fpenv;
static inline el_fpenv el_fp_enter(void) {
    el_fpenv old;
    fegetenv(&old);
    fesetenv(FE_DFL_ENV);
    return old;
}
static inline void el_fp_leave(el_fpenv old) { fesetenv(&old); }

#endif

#endif
