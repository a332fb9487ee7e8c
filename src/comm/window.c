/* Memory that the ranks of a node share. */
#include "comm/comm_internal.h"

#include <stdlib.h>
#include <string.h>

enum { PART_ALIGN = 4096 };

struct tm_comm_window {
    tm_comm *c;
    char *mine; /* a job of one */
    uint64_t bytes;
};

tm_status tm_comm_window_open(tm_comm_window **out, tm_comm *c, uint64_t my_bytes) {
    tm_comm_window *w = tm_calloc(1, sizeof *w);
    *out = NULL;
    if (!w) return tm_nomem(sizeof *w);
    w->c = c;
    w->bytes = my_bytes;
    w->mine = tm_malloc(my_bytes + PART_ALIGN);
    if (!w->mine) {
        tm_free(w);
        return tm_nomem(my_bytes);
    }
    *out = w;
    return TM_OK;
}

void *tm_comm_window_part(const tm_comm_window *w, uint32_t node_rank, uint64_t *bytes) {
    TM_ASSERT(node_rank < w->c->node_size);
    if (bytes) *bytes = w->bytes;
    return w->mine + (PART_ALIGN - (uintptr_t)w->mine % PART_ALIGN) % PART_ALIGN;
}

void tm_comm_window_close(tm_comm_window *w) {
    if (!w) return;
    tm_free(w->mine);
    tm_free(w);
}
