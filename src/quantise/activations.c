/* Activations of all rows between two blocks. A file of them has a random name while it is written, and none after. */
#include "io/file/file.h"
#include "quantise/quantise_internal.h"

#include <string.h>

tm_status activations_open(activations *a, uint64_t token_bytes, uint64_t tokens, bool in_memory, const char *path) {
    *a = (activations){.token_bytes = token_bytes, .tokens = tokens, .path = path};
    if (!in_memory) return TM_OK;
    a->memory = tm_calloc(tokens, token_bytes);
    return a->memory ? TM_OK : tm_nomem(tokens * token_bytes);
}

tm_status activations_read(activations *a, uint64_t token, uint64_t n, void *to) {
    uint64_t at = token * a->token_bytes, bytes = n * a->token_bytes;
    if (a->memory) {
        memcpy(to, a->memory + at, bytes);
        return TM_OK;
    }
    TM_TRY(tm_file_read_at(a->in, at, to, bytes));
    tm_file_forget(a->in, at, bytes);
    return TM_OK;
}

tm_status activations_write(activations *a, uint64_t token, uint64_t n, const void *from) {
    const uint64_t often = 64 * TM_MIB;
    uint64_t bytes = n * a->token_bytes;
    if (a->memory) {
        memcpy(a->memory + token * a->token_bytes, from, bytes);
        return TM_OK;
    }
    if (!a->out) TM_TRY(tm_out_create_scratch(&a->out, a->path));
    TM_TRY(tm_out_append(a->out, from, bytes));
    a->since += bytes;
    if (a->since < often) return TM_OK;
    a->since = 0;
    return tm_out_flush(a->out);
}

tm_status activations_turn(activations *a) {
    if (a->memory) return TM_OK;
    tm_out *o = a->out;
    TM_ASSERT(o);
    a->out = NULL;
    a->since = 0;
    tm_file_close(a->in);
    return tm_out_read_back(o, &a->in);
}

void activations_close(activations *a) {
    tm_out_abandon(a->out);
    tm_file_close(a->in);
    tm_free(a->memory);
    *a = (activations){0};
}
