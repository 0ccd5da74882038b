/* What a caller checks before it uses this library. */
#include "edgellm.h"

#include <string.h>

int32_t el_abi_version(void) { return 6; }

int32_t el_struct_size(const char *name) {
    static const struct {
        const char *name;
        int32_t size;
    } structs[] = {
        {"el_error", sizeof(el_error)},
        {"el_view", sizeof(el_view)},
        {"el_op", sizeof(el_op)},
        {"el_buffer", sizeof(el_buffer)},
        {"el_weight", sizeof(el_weight)},
        {"el_vector", sizeof(el_vector)},
        {"el_rope", sizeof(el_rope)},
        {"el_cache_layer", sizeof(el_cache_layer)},
        {"el_model", sizeof(el_model)},
        {"el_config", sizeof(el_config)},
        {"el_batch", sizeof(el_batch)},
        {"el_output", sizeof(el_output)},
        {"el_pick", sizeof(el_pick)},
        {"el_run_spec", sizeof(el_run_spec)},
        {"el_edits", sizeof(el_edits)},
        {"el_info", sizeof(el_info)},
        {"el_phase_time", sizeof(el_phase_time)},
        {"el_cores", sizeof(el_cores)},
    };
    for (size_t i = 0; name && i < sizeof structs / sizeof *structs; i++) {
        if (strcmp(name, structs[i].name) == 0) return structs[i].size;
    }
    return 0;
}
