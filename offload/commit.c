/* What a commit names, written and read again. */
#include "offload/offload_internal.h"

tm_status tm_store_restore(tm_store *s, char *slab) {
    (void)s;
    (void)slab;
    return tm_fail(TM_EBUG, "not yet");
}
