/* Opening and closing, the way of an operation from submit to done, counters. */
#include "comm/remote_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t tm_comm_workspace_bytes(uint32_t ranks) {
    return ranks < 2 ? 0 : (uint64_t)ranks * COMM_WORKSPACE_PER_RANK;
}

static tm_status read_patience(tm_comm *c, const tm_comm_opts *opts) {
    const char *text = getenv("TIDEMILL_COMM_PATIENCE");
    c->patience_seconds = opts->patience_seconds > 0 ? opts->patience_seconds : TM_COMM_PATIENCE_SECONDS;
    if (opts->patience_seconds <= 0 && text && *text) {
        char *end;
        c->patience_seconds = strtod(text, &end);
        if (*end) c->patience_seconds = 0;
    }
    if (c->patience_seconds >= 1 && c->patience_seconds <= 86400) return TM_OK;
    return tm_fail(TM_EINPUT, "TIDEMILL_COMM_PATIENCE=%s: expected seconds, at least 1", text ? text : "");
}

tm_status comm_make_tables(tm_comm *c) {
    c->node_of = tm_calloc(c->size, sizeof *c->node_of);
    c->host = tm_calloc(c->size, sizeof *c->host);
    c->scratch = tm_calloc(c->size, sizeof *c->scratch);
    return c->node_of && c->host && c->scratch ? TM_OK : tm_nomem(c->size * sizeof *c->host);
}

void comm_name_host(comm_host name) {
    char host[56] = "";
    if (gethostname(host, sizeof host - 1) != 0 || !*host) strcpy(host, "a host");
    snprintf(name, sizeof(comm_host), "%s, pid %ld", host, (long)getpid());
}

static tm_status open_alone(tm_comm *c) {
    c->size = 1;
    TM_TRY(comm_make_tables(c));
    comm_name_host(c->host[0]);
    return comm_topology(c);
}

static void free_all(tm_comm *c) {
    for (uint32_t g = 0; g < c->n_groups; g++) comm_group_free(&c->groups[g]);
    TM_FREE_ALL(c->allocated, c->node_of, c->host, c->scratch, c);
}

tm_status tm_comm_open(tm_comm **out, const tm_comm_opts *opts) {
    static const tm_comm_opts defaults;
    if (!opts) opts = &defaults;
    *out = NULL;
    tm_comm *c = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    c->at_abort = opts->at_abort;
    c->workspace = opts->workspace;
    c->workspace_bytes = opts->workspace_bytes ? opts->workspace_bytes : TM_COMM_WORKSPACE_BYTES;
    tm_status rc = read_patience(c, opts);
    if (rc == TM_OK && tm_comm_launched()) rc = comm_remote_open(c, opts);
    if (rc == TM_OK && !c->remote) rc = open_alone(c);
    if (rc == TM_OK)
        *out = c;
    else
        free_all(c);
    return rc;
}

tm_status tm_comm_imagine(tm_comm **out, uint32_t ranks, uint32_t per_node, uint32_t rank) {
    TM_ASSERT(rank < ranks && per_node > 0);
    *out = NULL;
    tm_comm *c = tm_calloc(1, sizeof *c);
    if (!c) return tm_nomem(sizeof *c);
    *c = (tm_comm){.size = ranks, .rank = rank, .imagined = true};
    tm_status rc = comm_make_tables(c);
    for (uint32_t r = 0; rc == TM_OK && r < ranks; r++) {
        c->node_of[r] = r / per_node;
        snprintf(c->host[r], sizeof(comm_host), "imagined rank %u", r);
    }
    if (rc == TM_OK) rc = comm_topology(c);
    if (rc == TM_OK)
        *out = c;
    else
        free_all(c);
    return rc;
}

void tm_comm_close(tm_comm *c) {
    if (!c) return;
    if (c->remote) comm_remote_close(c);
    free_all(c);
}

_Noreturn void tm_comm_abort(tm_comm *c, int exit_status) {
    if (c->remote) comm_remote_abort(c, exit_status);
    exit(exit_status ? exit_status : 1);
}

static void add(atomic_uint_least64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static void count(tm_comm *c, const tm_comm_op *op) {
    if (op->uncounted || op->status != TM_OK) return;
    add(&c->counters.ops[op->code], 1);
    add(&c->counters.busy_ns[op->code], op->complete_ns - op->start_ns);
}

void comm_complete(tm_comm *c, tm_comm_op *op, tm_status status) {
    void (*done)(tm_comm_op *) = op->done;
    op->status = status;
    op->complete_ns = tm_now_ns();
    count(c, op);
    op->under_way = false;
    op->is_done = true;
    if (done) done(op); /* the operation may be gone after this */
}

tm_status tm_comm_submit(tm_comm *c, tm_comm_op *op) {
    TM_TRY(comm_check(c, op));
    if (!c->remote && tm_fault_hit("operation", NULL)) return tm_fail(TM_EIO, "%s failed", tm_comm_code_name(op->code));
    op->submit_ns = op->start_ns = tm_now_ns();
    op->under_way = true;
    op->is_done = false;
    if (c->remote) {
        comm_remote_submit(c, op);
        return TM_OK;
    }
    if (!c->imagined) comm_local(op);
    comm_complete(c, op, TM_OK);
    return TM_OK;
}

tm_status tm_comm_wait(tm_comm *c, tm_comm_op *op) {
    if (c->remote) comm_remote_wait(c, op);
    TM_ASSERT(op->is_done && !op->done);
    return op->status == TM_OK ? TM_OK : tm_comm_op_fail(c, op);
}

tm_status tm_comm_run(tm_comm *c, tm_comm_op *op) {
    TM_ASSERT(!op->done);
    TM_TRY(tm_comm_submit(c, op));
    return tm_comm_wait(c, op);
}

tm_status tm_comm_op_fail(tm_comm *c, const tm_comm_op *op) {
    tm_error error = {.code = TM_OK};
    if (c->remote) comm_remote_error(c, &error);
    if (error.code == TM_OK) return tm_fail(op->status, "%s failed", tm_comm_code_name(op->code));
    error.code = op->status;
    tm_error_set(&error);
    return op->status;
}

void tm_comm_get_stats(const tm_comm *c, tm_comm_stats *out) {
    const comm_counters *from = &c->counters;
    for (unsigned k = 0; k < TM_COMM_CODES; k++) {
        for (unsigned l = 0; l < TM_COMM_LINKS; l++) out->sent_bytes[k][l] = atomic_load(&from->sent_bytes[k][l]);
        out->ops[k] = atomic_load(&from->ops[k]);
        out->busy_ns[k] = atomic_load(&from->busy_ns[k]);
    }
    out->sum_ns = atomic_load(&from->sum_ns);
}
