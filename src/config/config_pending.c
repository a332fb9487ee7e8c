/* What a configuration can say, and the trainer does not do yet. */
#include "config/config_internal.h"

tm_status tm_config_pending(const tm_config *c) {
    const char *what = c->quantization.type != TM_QUANTIZE_NONE ? "a base in 4 bits (\"quantization\")" : NULL;
    if (!what) return TM_OK;
    return tm_fail(TM_EUNSUPPORTED, "%s: not supported yet by this version; leave them out", what);
}
