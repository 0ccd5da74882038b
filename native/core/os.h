/* Everything the core asks of the operating system: threads, sleeping on a word, address space, the machine's shape.
 * One file per system, os_<system>.c, implements it. Nothing here prints, aborts or keeps state. */
#ifndef EL_OS_H
#define EL_OS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Nanoseconds of a clock that never goes back. */
uint64_t el_os_now(void);

/* Address space of `bytes` bytes, page aligned, reading as zeros, memory only where it is touched. huge: ask for huge
 * pages, aligned to 2 MiB. NULL when there is none. */
void *el_os_reserve(size_t bytes, int32_t huge);
/* Give back a whole reservation. NULL is allowed. */
void el_os_release(void *memory, size_t bytes);
/* Give the memory of the whole pages inside a range of a reservation back; the contents become undefined. */
void el_os_discard(void *memory, size_t bytes);

/* Copy from memory that may be a map of a file which another program has cut short since: touching such a page ends the
 * process, copying it this way returns -1. 0 when all has been copied. */
int32_t el_os_copy(void *to, const void *from, size_t bytes);

/* Read bytes of an open file from `offset` on: 0, or -1 where it ends before that or cannot be read. */
int32_t el_os_read(int32_t fd, int64_t offset, void *to, size_t bytes);

typedef struct el_os_thread {
    uintptr_t handle;
} el_os_thread;
/* 0, or the system's error number. */
int32_t el_os_thread_start(el_os_thread *thread, void (*run)(void *), void *argument);
void el_os_thread_join(el_os_thread *thread);

/* Sleep while *word == seen; may return early. Wake all sleepers of a word. */
void el_os_wait(_Atomic uint32_t *word, uint32_t seen);
void el_os_wake_all(_Atomic uint32_t *word);

/* The processors of the machine: all but n_threads of an el_cores (edgellm.h), each number at least 1. */
struct el_cores;
void el_os_cores(struct el_cores *cores);

/* Tell the processor that this is a waiting loop. */
static inline void el_os_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

#endif
