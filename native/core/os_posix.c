/* What Linux and macOS have in common: the clock, giving memory back, reading, threads. */
#include "os.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef __APPLE__
enum { GIVE_BACK = MADV_FREE }; /* there, MADV_DONTNEED keeps the memory */
#else
enum { GIVE_BACK = MADV_DONTNEED };
#endif

uint64_t el_os_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void el_os_release(void *memory, size_t bytes) {
    if (memory) munmap(memory, bytes);
}

void el_os_discard(void *memory, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)memory + page - 1) / page * page;
    uintptr_t last = ((uintptr_t)memory + bytes) / page * page;
    if (last > first) madvise((void *)first, last - first, GIVE_BACK);
}

int32_t el_os_read(int32_t fd, int64_t offset, void *to, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (char *)to + done, bytes - done, (off_t)offset + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return -1;
        done += (size_t)n;
    }
    return 0;
}

/* ---- threads ---- */

typedef struct start {
    void (*run)(void *);
    void *argument;
} start;

static void *thread_main(void *argument) {
    start s = *(start *)argument;
    free(argument);
    s.run(s.argument);
    return NULL;
}

int32_t el_os_thread_start(el_os_thread *thread, void (*run)(void *), void *argument) {
    start *s = malloc(sizeof *s);
    if (!s) return ENOMEM;
    *s = (start){run, argument};
    /* Signals belong to the caller's threads: Python handles Ctrl-C in its main thread. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t id;
    int code = pthread_create(&id, NULL, thread_main, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code) {
        free(s);
        return code;
    }
    thread->handle = (uintptr_t)id;
    return 0;
}

void el_os_thread_join(el_os_thread *thread) { pthread_join((pthread_t)thread->handle, NULL); }
