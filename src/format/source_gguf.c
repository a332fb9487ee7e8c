#include "format/source_internal.h"

void tm_gguf_close(tm_gguf *g) {
    (void)g;
}
tm_status tm_source_open_gguf(tm_source *src, bool weights) {
    (void)weights;
    return tm_fail(TM_EUNSUPPORTED, "%s: GGUF is not read yet", src->path);
}
tm_status tm_source_gguf_file(const tm_source *src, const char *name, tm_buf *out, bool *found) {
    (void)src, (void)name, (void)out;
    *found = false;
    return TM_OK;
}
