/* The operating system layer for macOS. */
#include "os.h"

#include "cpu.h"
#include "edgellm.h"

#include <mach/mach.h>
#include <sys/mman.h>
#include <sys/sysctl.h>

/* ---- memory ---- */

/* There are no huge pages to ask for: the kernel merges what it can. */
void *el_os_reserve(size_t bytes, int32_t huge) {
    (void)huge;
    if (bytes == 0 || bytes > (size_t)1 << 46) return NULL;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* The kernel copies, and reports a page that cannot be had. */
int32_t el_os_copy(void *to, const void *from, size_t bytes) {
    vm_size_t n = 0;
    kern_return_t code =
        vm_read_overwrite(mach_task_self(), (vm_address_t)from, (vm_size_t)bytes, (vm_address_t)to, &n);
    return code == KERN_SUCCESS && n == bytes ? 0 : -1;
}

/* ---- sleeping ---- */

/* What libc++ and Zig's standard library sleep on; the documented os_sync_wait_on_address came with macOS 14.4. */
extern int __ulock_wait(uint32_t operation, void *address, uint64_t value, uint32_t timeout_us);
extern int __ulock_wake(uint32_t operation, void *address, uint64_t value);
enum { UL_COMPARE_AND_WAIT = 1, ULF_WAKE_ALL = 0x100, ULF_NO_ERRNO = 0x1000000 };

void el_os_wait(_Atomic uint32_t *word, uint32_t seen) {
    __ulock_wait(UL_COMPARE_AND_WAIT | ULF_NO_ERRNO, (void *)word, seen, 0);
}

void el_os_wake_all(_Atomic uint32_t *word) {
    __ulock_wake(UL_COMPARE_AND_WAIT | ULF_WAKE_ALL | ULF_NO_ERRNO, (void *)word, 0);
}

/* ---- the machine ---- */

/* A number the kernel knows by name; 0 where it does not. */
static int32_t number(const char *name) {
    int32_t value = 0;
    size_t n = sizeof value;
    return sysctlbyname(name, &value, &n, NULL, 0) == 0 && n == sizeof value ? value : 0;
}

/* perflevel0 are the performance cores of Apple silicon. */
void el_os_cores(el_cores *cores) {
    int32_t all = number("hw.logicalcpu"), fast = number("hw.perflevel0.logicalcpu");
    int32_t n = number("hw.perflevel0.physicalcpu");
    if (n < 1) n = number("hw.physicalcpu");
    cores->n_allowed = all < 1 ? 1 : all;
    cores->n_fast = fast < 1 ? cores->n_allowed : fast;
    cores->n_cores = n < 1 ? 1 : n;
    cores->quota = 0;
}

#if defined(__aarch64__)
uint32_t el_os_arm_features(void) {
    uint32_t features = 0;
    if (number("hw.optional.arm.FEAT_DotProd")) features |= EL_ARM_HAS_DOTPROD;
    if (number("hw.optional.arm.FEAT_I8MM")) features |= EL_ARM_HAS_I8MM;
    return features;
}
#endif
