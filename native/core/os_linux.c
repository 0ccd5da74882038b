/* The operating system layer for Linux. */
#include "os.h"

#include "edgellm.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__aarch64__)
#include "cpu.h"

#include <sys/auxv.h>
#endif

enum { HUGE_PAGE = 2 << 20, MAX_CPUS = 4096, PATH_BYTES = 512 };

/* ---- memory ---- */

void *el_os_reserve(size_t bytes, int32_t huge) {
    if (bytes == 0 || bytes > (size_t)1 << 46) return NULL;
    size_t extra = huge ? HUGE_PAGE : 0;
    char *p =
        mmap(NULL, bytes + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (!huge) return p;
    /* Keep the part that starts on a huge page. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t head = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    size_t kept = (bytes + page - 1) / page * page;
    if (head) munmap(p, head);
    if (extra > head && kept < bytes + extra - head) munmap(p + head + kept, bytes + extra - head - kept);
    madvise(p + head, kept, MADV_HUGEPAGE); /* a hint: refused where the kernel lacks it */
    return p + head;
}

/* The kernel copies, and reports a page that cannot be had instead of raising SIGBUS. Where a sandbox forbids the call
 * there is only the plain way. */
int32_t el_os_copy(void *to, const void *from, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        struct iovec ours = {(char *)to + done, bytes - done};
        struct iovec theirs = {(char *)(uintptr_t)from + done, bytes - done};
        ssize_t n = process_vm_readv(getpid(), &ours, 1, &theirs, 1, 0);
        if (n < 0 && (errno == ENOSYS || errno == EPERM)) {
            memcpy((char *)to + done, (const char *)from + done, bytes - done);
            return 0;
        }
        if (n <= 0) return -1;
        done += (size_t)n;
    }
    return 0;
}

/* ---- sleeping ---- */

void el_os_wait(_Atomic uint32_t *word, uint32_t seen) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

void el_os_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- the machine ---- */

/* First line of a file without its newline; 0 when it cannot be read. */
static int32_t read_line(const char *path, char *line, size_t n) {
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    int32_t ok = fgets(line, (int)n, f) != NULL;
    fclose(f);
    if (ok) line[strcspn(line, "\n")] = '\0';
    return ok;
}

/* Set in `set` the processors of a list such as "0-3,8". */
static void parse_list(const char *text, uint8_t set[MAX_CPUS]) {
    while (*text) {
        char *end;
        long a = strtol(text, &end, 10), b = a;
        if (end == text) return;
        if (*end == '-') b = strtol(end + 1, &end, 10);
        for (long i = a; i <= b && i >= 0 && i < MAX_CPUS; i++) set[i] = 1;
        text = *end == ',' ? end + 1 : end;
        if (*end != ',') return;
    }
}

/* The processors of the affinity mask; returns how many. */
static int32_t affinity(uint8_t set[MAX_CPUS]) {
    int32_t n = 0;
    cpu_set_t *mask = CPU_ALLOC(MAX_CPUS);
    size_t size = CPU_ALLOC_SIZE(MAX_CPUS);
    memset(set, 0, MAX_CPUS);
    if (mask && sched_getaffinity(0, size, mask) == 0) {
        for (int i = 0; i < MAX_CPUS; i++) {
            set[i] = CPU_ISSET_S(i, size, mask) != 0;
            n += set[i];
        }
    }
    if (mask) CPU_FREE(mask);
    if (n == 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        n = online < 1 ? 1 : online > MAX_CPUS ? MAX_CPUS : (int32_t)online;
        memset(set, 1, (size_t)n);
    }
    return n;
}

/* Drop the slow cores of a hybrid processor: Intel names the fast ones, Arm gives each a capacity. */
static void keep_fast(uint8_t set[MAX_CPUS]) {
    char line[1024], path[PATH_BYTES];
    uint8_t fast[MAX_CPUS] = {0};
    int32_t any = 0;
    if (read_line("/sys/devices/cpu_core/cpus", line, sizeof line)) {
        parse_list(line, fast);
    } else {
        long best = 0;
        for (int32_t pass = 0; pass < 2; pass++) {
            for (int32_t i = 0; i < MAX_CPUS; i++) {
                if (!set[i]) continue;
                snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpu_capacity", i);
                if (!read_line(path, line, sizeof line)) return;
                long capacity = strtol(line, NULL, 10);
                if (pass == 0 && capacity > best) best = capacity;
                if (pass == 1) fast[i] = capacity * 2 > best;
            }
        }
    }
    for (int32_t i = 0; i < MAX_CPUS; i++) any |= set[i] & fast[i];
    for (int32_t i = 0; any && i < MAX_CPUS; i++) set[i] &= fast[i];
}

/* Keep one processor of each core. */
static void keep_cores(uint8_t set[MAX_CPUS]) {
    char line[1024], path[PATH_BYTES];
    for (int32_t i = 0; i < MAX_CPUS; i++) {
        if (!set[i]) continue;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
        if (!read_line(path, line, sizeof line)) continue;
        uint8_t siblings[MAX_CPUS] = {0};
        parse_list(line, siblings);
        for (int32_t j = i + 1; j < MAX_CPUS; j++) {
            if (siblings[j]) set[j] = 0;
        }
    }
}

/* The smaller of `limit` and the quota in <dir>/cpu.max (version 2) or <dir>/cpu.cfs_* (version 1), in processors. */
static double quota_of(const char *dir, int32_t version, double limit) {
    char path[2 * PATH_BYTES], line[128];
    double quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/%s", dir, version == 2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (!read_line(path, line, sizeof line)) return limit;
    char *end;
    quota = strtod(line, &end);
    if (end == line || quota <= 0) return limit; /* "max", or -1: none */
    if (version == 2) {
        period = strtod(end, NULL);
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", dir);
        if (!read_line(path, line, sizeof line)) return limit;
        period = strtod(line, NULL);
    }
    if (period > 0 && quota / period < limit) return quota / period;
    return limit;
}

/* The CPU quota of this process's control group and those above it, in processors. */
static double cpu_quota(double limit) {
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f) return limit;
    char line[PATH_BYTES], dir[PATH_BYTES + 64];
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        controllers++;
        int32_t version = *controllers == '\0' ? 2 : 1;
        if (version == 1 && strcmp(controllers, "cpu") != 0 && strncmp(controllers, "cpu,", 4) != 0 &&
            !strstr(controllers, ",cpu,") &&
            (strlen(controllers) < 4 || strcmp(controllers + strlen(controllers) - 4, ",cpu") != 0)) {
            continue;
        }
        const char *root = version == 2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
        for (;;) { /* this group, then its parents; inside a container the root is the group itself */
            snprintf(dir, sizeof dir, "%s%s", root, strcmp(path, "/") == 0 ? "" : path);
            limit = quota_of(dir, version, limit);
            char *slash = strrchr(path, '/');
            if (!slash || (slash == path && path[1] == '\0')) break;
            slash[slash == path] = '\0';
        }
    }
    fclose(f);
    return limit;
}

static int32_t count(const uint8_t set[MAX_CPUS]) {
    int32_t n = 0;
    for (int32_t i = 0; i < MAX_CPUS; i++) n += set[i];
    return n;
}

void el_os_cores(el_cores *cores) {
    uint8_t set[MAX_CPUS];
    const double none = MAX_CPUS;
    cores->n_allowed = affinity(set);
    keep_fast(set);
    cores->n_fast = count(set);
    keep_cores(set);
    cores->n_cores = count(set);
    double quota = cpu_quota(none);
    cores->quota = quota < none ? quota : 0;
}

#if defined(__aarch64__)
uint32_t el_os_arm_features(void) {
    enum { ASIMDDP = 1 << 20, I8MM = 1 << 13 }; /* of the kernel's interface; headers may be older than it */
    uint32_t features = 0;
    if (getauxval(AT_HWCAP) & ASIMDDP) features |= EL_ARM_HAS_DOTPROD;
    if (getauxval(AT_HWCAP2) & I8MM) features |= EL_ARM_HAS_I8MM;
    return features;
}
#endif
