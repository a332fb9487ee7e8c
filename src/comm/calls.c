/* The calls that block: operations that are submitted and waited for, and agreements made of them. */
#include "base/change.h"
#include "comm/remote_internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

tm_status tm_comm_barrier(tm_comm *c, uint32_t group) {
    tm_comm_op op = {.code = TM_COMM_BARRIER, .group = group, .type = TM_COMM_BYTE};
    return tm_comm_run(c, &op);
}

tm_status tm_comm_broadcast(tm_comm *c, uint32_t group, uint32_t root, void *bytes, uint64_t n) {
    tm_comm_op op = {
        .code = TM_COMM_BROADCAST, .group = group, .type = TM_COMM_BYTE, .recv = bytes, .count = n, .peer = root};
    return tm_comm_run(c, &op);
}

static tm_status all_reduce(tm_comm *c, uint32_t group, tm_comm_type type, tm_comm_reduce how, void *values,
                            uint64_t n) {
    tm_comm_op op = {.code = TM_COMM_ALL_REDUCE,
                     .group = group,
                     .type = type,
                     .reduce = how,
                     .send = values,
                     .recv = values,
                     .count = n};
    return tm_comm_run(c, &op);
}

tm_status tm_comm_all_reduce_f64(tm_comm *c, uint32_t group, tm_comm_reduce how, double *values, uint64_t n) {
    return all_reduce(c, group, TM_COMM_F64, how, values, n);
}

tm_status tm_comm_all_reduce_u64(tm_comm *c, uint32_t group, tm_comm_reduce how, uint64_t *values, uint64_t n) {
    return all_reduce(c, group, TM_COMM_U64, how, values, n);
}

static bool quiet;
enum { LET_SPEAK_MS = 600 };

void tm_comm_let_speak(void) {
    struct timespec t = {.tv_nsec = LET_SPEAK_MS * 1000L * 1000};
    while (nanosleep(&t, &t) != 0) {
    }
}

bool tm_comm_quiet(void) {
    if (quiet) tm_comm_let_speak();
    return quiet;
}

void comm_be_quiet(bool is_quiet) {
    quiet = is_quiet;
}

/* One number of each rank into c->scratch. */
static tm_status everyones(tm_comm *c, uint64_t mine) {
    tm_comm_op op = {
        .code = TM_COMM_ALL_GATHER, .type = TM_COMM_U64, .recv = c->scratch, .count = 1, .uncounted = true};
    c->scratch[c->rank] = mine;
    return tm_comm_run(c, &op);
}

/* A rank's failure, and what it advises. */
typedef struct comm_failure {
    tm_error error;
    char change[TM_CHANGE_BYTES];
} comm_failure;

static tm_status spread_failure(tm_comm *c, uint32_t root, comm_failure *failure) {
    tm_comm_op op = {.code = TM_COMM_BROADCAST,
                     .type = TM_COMM_BYTE,
                     .recv = failure,
                     .count = sizeof *failure,
                     .peer = root,
                     .uncounted = true};
    return tm_comm_run(c, &op);
}

tm_status tm_comm_agree(tm_comm *c, tm_status mine) {
    if (c->size == 1 || c->imagined) return mine;
    comm_failure failure = {.error = *tm_error_get()};
    snprintf(failure.change, sizeof failure.change, "%s", tm_change_advised());
    failure.error.code = mine;
    tm_error_clear();
    TM_TRY(everyones(c, (uint64_t)mine));
    uint32_t first = 0;
    while (first < c->size && c->scratch[first] == TM_OK) first++;
    if (first == c->size) return TM_OK;
    TM_TRY(spread_failure(c, first, &failure));
    comm_be_quiet(c->rank != 0);
    tm_error named = failure.error;
    snprintf(named.text, sizeof named.text, "rank %u: %.*s", first, (int)sizeof named.text - 32, failure.error.text);
    tm_error_set(&named);
    failure.change[sizeof failure.change - 1] = 0;
    if (*failure.change) tm_change_advise("%s", failure.change);
    return named.code;
}

/* How many ranks have what rank r has. */
static uint32_t supporters(const tm_comm *c, uint32_t r) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->size; k++) n += c->scratch[k] == c->scratch[r];
    return n;
}

tm_status tm_comm_same(tm_comm *c, const char *what, uint64_t hash) {
    if (c->imagined) return TM_OK;
    TM_TRY(everyones(c, hash));
    uint32_t right = 0, odd = 0;
    for (uint32_t r = 1; r < c->size; r++)
        if (supporters(c, r) > supporters(c, right)) right = r;
    while (odd < c->size && c->scratch[odd] == c->scratch[right]) odd++;
    if (odd == c->size) return TM_OK;
    uint32_t others = supporters(c, right);
    comm_be_quiet(c->rank != 0);
    if (others == 1 && c->size > 2) return tm_fail(TM_EINPUT, "%s differs on every rank; start all ranks alike", what);
    return tm_fail(TM_EINPUT, "%s of rank %u (%s) is not that of %s%u%s; start all ranks alike", what, odd,
                   c->host[odd], others == 1 ? "rank " : "the other ", others == 1 ? right : others,
                   others == 1 ? "" : " ranks");
}

typedef struct comm_new_group {
    uint32_t group, colour;
} comm_new_group;

static tm_status make_comm(tm_comm *c, void *arg) {
    const comm_new_group *g = arg;
    return comm_make_group_comm(c, g->group, g->colour);
}

tm_status tm_comm_split(tm_comm *c, uint32_t colour, uint32_t *group) {
    TM_TRY(everyones(c, colour));
    uint32_t *world = tm_malloc(c->size * sizeof *world), n = 0;
    for (uint32_t r = 0; world && r < c->size; r++)
        if (c->scratch[r] == colour) world[n++] = r;
    TM_TRY(comm_group_add(c, world, n, group));
    comm_new_group new_group = {*group, colour};
    return c->remote ? comm_run_errand(c, make_comm, &new_group) : TM_OK;
}
