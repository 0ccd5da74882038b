/* The operating system layer for Windows 10 and later. */
#include "os.h"

#include "cpu.h"
#include "edgellm.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <errno.h>
#include <io.h>
#include <process.h>
#include <stdlib.h>

uint64_t el_os_now(void) {
    LARGE_INTEGER rate, count;
    QueryPerformanceFrequency(&rate);
    QueryPerformanceCounter(&count);
    uint64_t c = (uint64_t)count.QuadPart, r = (uint64_t)rate.QuadPart;
    return c / r * 1000000000u + c % r * 1000000000u / r;
}

/* ---- memory ---- */

/* Large pages need a privilege that no ordinary user has: they are not asked for. */
void *el_os_reserve(size_t bytes, int32_t huge) {
    (void)huge;
    if (bytes == 0 || bytes > (size_t)1 << 46) return NULL;
    return VirtualAlloc(NULL, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void el_os_release(void *memory, size_t bytes) {
    (void)bytes;
    if (memory) VirtualFree(memory, 0, MEM_RELEASE);
}

void el_os_discard(void *memory, size_t bytes) {
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    uintptr_t page = system.dwPageSize;
    uintptr_t first = ((uintptr_t)memory + page - 1) / page * page;
    uintptr_t last = ((uintptr_t)memory + bytes) / page * page;
    if (last > first) VirtualAlloc((void *)first, last - first, MEM_RESET, PAGE_READWRITE);
}

/* The kernel copies, and reports a page that cannot be had. */
int32_t el_os_copy(void *to, const void *from, size_t bytes) {
    SIZE_T n = 0;
    return ReadProcessMemory(GetCurrentProcess(), from, to, bytes, &n) && n == bytes ? 0 : -1;
}

/* fd: a descriptor of the C runtime, which Python and this library share (the universal one). */
int32_t el_os_read(int32_t fd, int64_t offset, void *to, size_t bytes) {
    HANDLE file = (HANDLE)_get_osfhandle(fd);
    if (file == INVALID_HANDLE_VALUE) return -1;
    size_t done = 0;
    while (done < bytes) {
        uint64_t at = (uint64_t)offset + done;
        OVERLAPPED where = {.Offset = (DWORD)at, .OffsetHigh = (DWORD)(at >> 32)};
        size_t left = bytes - done;
        DWORD n = 0;
        if (!ReadFile(file, (char *)to + done, left > 1u << 30 ? 1u << 30 : (DWORD)left, &n, &where) ||
            n == 0) {
            return -1;
        }
        done += n;
    }
    return 0;
}

/* ---- threads ---- */

typedef struct start {
    void (*run)(void *);
    void *argument;
} start;

static unsigned __stdcall thread_main(void *argument) {
    start s = *(start *)argument;
    free(argument);
    s.run(s.argument);
    return 0;
}

int32_t el_os_thread_start(el_os_thread *thread, void (*run)(void *), void *argument) {
    start *s = malloc(sizeof *s);
    if (!s) return ENOMEM;
    *s = (start){run, argument};
    uintptr_t handle = _beginthreadex(NULL, 0, thread_main, s, 0, NULL);
    if (handle == 0) {
        free(s);
        return EAGAIN;
    }
    thread->handle = handle;
    return 0;
}

void el_os_thread_join(el_os_thread *thread) {
    WaitForSingleObject((HANDLE)thread->handle, INFINITE);
    CloseHandle((HANDLE)thread->handle);
}

void el_os_wait(_Atomic uint32_t *word, uint32_t seen) {
    WaitOnAddress((volatile void *)word, &seen, sizeof seen, INFINITE);
}

void el_os_wake_all(_Atomic uint32_t *word) { WakeByAddressAll((void *)word); }

/* ---- the machine ---- */

static int32_t count_bits(uint64_t mask) {
    int32_t n = 0;
    for (; mask; mask &= mask - 1) n++;
    return n;
}

/* The affinity mask covers the process's own group of up to 64; a process in several groups has all of theirs. */
static int32_t n_cpus(void) {
    DWORD_PTR ours = 0, all = 0;
    if (GetProcessAffinityMask(GetCurrentProcess(), &ours, &all) && ours) return count_bits((uint64_t)ours);
    DWORD n = GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
    return n < 1 ? 1 : (int32_t)n;
}

/* The cores of the fastest class that the affinity mask touches. */
void el_os_cores(el_cores *cores) {
    *cores = (el_cores){.n_allowed = n_cpus()};
    cores->n_fast = cores->n_cores = cores->n_allowed;
    DWORD n = 0;
    GetLogicalProcessorInformationEx(RelationProcessorCore, NULL, &n);
    char *list = n ? malloc(n) : NULL;
    if (!list || !GetLogicalProcessorInformationEx(
                     RelationProcessorCore, (SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX *)(void *)list, &n)) {
        free(list);
        return;
    }
    DWORD_PTR ours = 0, all = 0;
    int masked = GetProcessAffinityMask(GetCurrentProcess(), &ours, &all) && ours;
    BYTE best = 0;
    int32_t fast = 0, found = 0;
    for (DWORD at = 0; at < n;) {
        SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX *x =
            (SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX *)(void *)(list + at);
        BYTE class = x->Processor.EfficiencyClass;
        uint64_t mask = x->Processor.GroupMask[0].Mask;
        if (masked) mask &= ours;
        if (mask) {
            if (class > best) best = class, fast = 0, found = 0;
            if (class == best) fast += count_bits(mask), found++;
        }
        at += x->Size;
    }
    free(list);
    if (found) cores->n_fast = fast, cores->n_cores = found;
}

#if defined(__aarch64__)
uint32_t el_os_arm_features(void) {
    enum { DOT_PRODUCT = 43, INT8_MATRIX = 66 }; /* PF_ARM_V82_{DP,I8MM}_INSTRUCTIONS_AVAILABLE */
    uint32_t features = 0;
    if (IsProcessorFeaturePresent(DOT_PRODUCT)) features |= EL_ARM_HAS_DOTPROD;
    if (IsProcessorFeaturePresent(INT8_MATRIX)) features |= EL_ARM_HAS_I8MM;
    return features;
}
#endif
