/* "sim:seed=7,shorten=0.1+sync": the layers of an engine and their options. */
#include "io/io_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A new engine is a row here, and its name in io.h. */
static const io_engine *const engines[] = {&io_engine_uring, &io_engine_threads, &io_engine_sync,  &io_engine_null,
                                           &io_engine_mem,   &io_engine_delay,   &io_engine_error, &io_engine_sim};

static const io_engine *engine_named(const char *name) {
    for (size_t i = 0; i < TM_COUNT(engines); i++) {
        if (strcmp(engines[i]->name, name) == 0) return engines[i];
    }
    return NULL;
}

static tm_status add_layer(tm_io *io, const char *name, const char *options) {
    unsigned n = io->bottom ? (unsigned)(io->bottom - io->layer) + 1 : 0;
    TM_ASSERT(n <= IO_LAYERS);
    if (n == IO_LAYERS) return tm_fail(TM_EINPUT, "I/O engine \"%s\": more than %d layers", io->name, IO_LAYERS);
    io_layer *l = &io->layer[n];
    *l = (io_layer){.engine = engine_named(name), .io = io, .options = options};
    if (!l->engine)
        return tm_fail(TM_EINPUT,
                       "I/O engine \"%s\": expected auto, uring, threads, sync, null, mem or a layer "
                       "(delay, error, sim) over one of them",
                       name);
    if (*options && !l->engine->stacks) return tm_fail(TM_EINPUT, "I/O engine \"%s\" takes no options", name);
    if (io->bottom) io->bottom->lower = l;
    io->bottom = l;
    return TM_OK;
}

tm_status io_stack_parse(tm_io *io, const char *spec) {
    size_t n = strlen(spec);
    if (n >= sizeof io->name) return tm_fail(TM_EINPUT, "I/O engine \"%.40s...\": the name is too long", spec);
    memcpy(io->name, spec, n + 1);
    tm_free(io->options);
    io->options = tm_strdup(spec);
    if (!io->options) return tm_nomem(n + 1);
    io->top = io->bottom = NULL;
    for (char *at = io->options, *end; at; at = end) {
        if (io->bottom && !io->bottom->engine->stacks)
            return tm_fail(TM_EINPUT, "I/O engine \"%s\": nothing goes below %s", spec, io->bottom->engine->name);
        end = strchr(at, '+');
        while (end && end > at && end[-1] == 'e') end = strchr(end + 1, '+'); /* 1e+9 */
        if (end) *end++ = 0;
        char *options = strchr(at, ':');
        if (options) *options++ = 0;
        TM_TRY(add_layer(io, at, options ? options : ""));
    }
    if (io->bottom->engine->stacks) TM_TRY(add_layer(io, "mem", ""));
    io->top = &io->layer[0];
    TM_ASSERT(!io->bottom->lower && !io->bottom->engine->stacks);
    return TM_OK;
}

static tm_status set_option(const io_layer *l, const io_option *o, const char *value, size_t n) {
    char text[32], *end = NULL;
    if (n < sizeof text) {
        memcpy(text, value, n);
        text[n] = 0;
        double v = o->is_errno ? io_errno_named(value, n) : strtod(text, &end);
        bool good = o->is_errno ? v > 0 : end != text && !*end && v >= 0 && v <= o->most;
        if (good) {
            *o->number = v;
            return TM_OK;
        }
    }
    return tm_fail(TM_EINPUT, "I/O engine \"%s\": %s=%.*s is out of range", l->engine->name, o->key, (int)n, value);
}

static tm_status parse_options(const io_layer *l, const io_option *table, size_t n) {
    for (const char *at = l->options; *at;) {
        size_t length = strcspn(at, ","), key = strcspn(at, "=,");
        const io_option *o = NULL;
        for (size_t i = 0; i < n; i++)
            if (strlen(table[i].key) == key && strncmp(table[i].key, at, key) == 0) o = &table[i];
        if (!o || key == length)
            return tm_fail(TM_EINPUT, "I/O engine \"%s\": no option \"%.*s\"", l->engine->name, (int)length, at);
        TM_TRY(set_option(l, o, at + key + 1, length - key - 1));
        at += length + (at[length] == ',');
    }
    return TM_OK;
}

tm_status io_layer_take(io_layer *l, const io_option *table, size_t n, size_t each_one) {
    tm_status rc = parse_options(l, table, n);
    l->each_one = each_one;
    l->each = rc == TM_OK ? tm_calloc(l->io->n_pieces, each_one + 1) : NULL;
    if (rc == TM_OK && !l->each) rc = tm_nomem(l->io->n_pieces * each_one);
    if (rc != TM_OK) io_layer_close(l);
    return rc;
}

void *io_layer_of(const io_layer *l, const io_piece *p) {
    TM_ASSERT(p >= l->io->pieces && p < l->io->pieces + l->io->n_pieces);
    return l->each + (size_t)(p - l->io->pieces) * l->each_one;
}

void io_layer_flush(io_layer *l) {
    l->lower->engine->flush(l->lower);
}

void io_layer_close(io_layer *l) {
    tm_free(l->each);
    tm_free(l->ctx);
    l->each = l->ctx = NULL;
}
