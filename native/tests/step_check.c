/* Runs small random models through whole steps and compares bits: thread counts, repacked or not, prompt chunkings, alone
 * or beside others, ISA levels. Then malformed plans and batches, which must be refused or run, never crash.
 *
 *     step_check          everything; prints what differs, ends with 1 if anything does
 *     step_check bench    how many empty phases a second the thread pool manages
 */
#include "step_check/step_check.h"

#include "os.h"

static int32_t n_failed;

int32_t report(int32_t ok, const char *what, const char *detail) {
    if (!ok) {
        n_failed++;
        printf("FAILED %s: %s\n", what, detail);
    }
    return ok;
}

int32_t failures(void) { return n_failed; }

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "bench") == 0) {
        bench_pool();
        return 0;
    }
    static const struct {
        const char *name;
        void (*run)(void);
    } checks[] = {
        {"pool", check_pool},
        {"bits", check_bits},
        {"environment", check_environment},
        {"pages", check_pages},
        {"parts", check_parts},
        {"status and edits", check_status_and_edits},
        {"hidden", check_hidden},
        {"messages", check_messages},
        {"malformed plans", check_malformed_plans},
        {"malformed batches", check_malformed_batches},
    };
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (argc > 1 && strcmp(argv[1], checks[i].name) != 0) continue;
        uint64_t start = el_os_now();
        checks[i].run();
        printf("%s: %.1f s\n", checks[i].name, (double)(el_os_now() - start) * 1e-9);
        fflush(stdout);
    }
    printf(n_failed ? "%d failures\n" : "ok\n", n_failed);
    return n_failed != 0;
}
