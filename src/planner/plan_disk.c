/* What a step's files take: on which path, for what, and whether there is room. */
#include "comm/comm.h"
#include "job/job.h"
#include "planner/plan_internal.h"
#include "planner/planner.h"

#include "io/file/file.h"

#include <stdio.h>
#include <string.h>

static uint32_t bit(tm_kind kind) {
    return (uint32_t)1 << kind;
}

static bool is_for(const tm_machine_path *p, tm_kind kind) {
    return p->kinds == 0 || (p->kinds & bit(kind));
}

/* A path with little room is used for what fits. Folders of one disk share its room. */
static uint64_t room_for(const planning *g, tm_kind kind) {
    const tm_machine *m = &g->machine;
    uint64_t all = 0;
    for (uint32_t i = 0, k; i < m->n_paths; i++) {
        if (!is_for(&m->path[i], kind)) continue;
        for (k = 0; m->path[k].disk != m->path[i].disk || !is_for(&m->path[k], kind); k++) {
        }
        if (k == i) all += m->path[i].rates.bytes;
    }
    return all;
}

static uint64_t room(const planning *g, const job_opts *o) {
    uint64_t all = 0;
    if (g->hardware) return g->machine.disk.bytes;
    if (g->machine.n_paths < 2) return o->n_paths ? tm_free_bytes(o->paths[0]) : 0;
    for (uint32_t i = 0; i < g->machine.n_paths; i++)
        if (g->machine.path[i].disk == i) all += g->machine.path[i].rates.bytes;
    return all;
}

static tm_status fill_paths(const planning *g, const job_opts *o, uint32_t ranks) {
    const tm_plan_info *info = tm_plan_get_info(g->plans.step);
    uint64_t bytes[TM_MACHINE_PATHS] = {0};
    tm_plan_report *out = g->out;
    TM_TRY(tm_store_share(g->job->layout, &g->machine,
                          &(tm_store_opts){.commits = o->commits,
                                           .slots = g->s->cfg->memory.slots,
                                           .spill_bytes = info->spill_file_bytes,
                                           .spill_largest = info->spill_largest_bytes},
                          bytes));
    for (uint32_t i = 0; i < g->machine.n_paths; i++) {
        tm_plan_path *p = &out->path[i];
        snprintf(p->name, sizeof p->name, "%s", o->paths[i]);
        p->kinds = g->machine.path[i].kinds ? g->machine.path[i].kinds : bit(TM_KINDS) - 1;
        p->bytes = bytes[i] * ranks;
        p->free_bytes = g->machine.path[i].rates.bytes;
    }
    return TM_OK;
}

/* "/a, /b": those that are for `kind`. */
static const char *names(const planning *g, const job_opts *o, tm_kind kind, char *buf, size_t cap) {
    size_t n = 0;
    *buf = 0;
    for (uint32_t i = 0; i < g->machine.n_paths && n < cap; i++)
        if (is_for(&g->machine.path[i], kind))
            n += (size_t)snprintf(buf + n, cap - n, "%s%s", n ? ", " : "", o->paths[i]);
    return buf;
}

/* `what`: which of them need `want`. */
static tm_status refuse(const planning *g, const char *what, const char *where, uint64_t want, uint64_t have,
                        uint64_t with_one_slot) {
    char x[32], y[32], text[768];
    tm_plan_change change = {NULL, 0};
    if (g->s->cfg->memory.slots != 1 && with_one_slot <= have) change = (tm_plan_change){"memory.slots", 1};
    snprintf(text, sizeof text, "the offload files%s %s and %s is free%s%s", what, tm_format_size(want, x, sizeof x),
             tm_format_size(have, y, sizeof y), *where ? " in " : "", where);
    return plan_refuse(g, "disk", change, text);
}

static uint64_t update_bytes(const tm_job *job, uint32_t slots) {
    uint64_t bytes = 0;
    for (tm_kind kind = 0; kind < TM_KINDS; kind++)
        if (tm_kind_get(kind)->optimizer) bytes += tm_store_kind_bytes(job->layout, kind, slots, job->opts.commits);
    return bytes;
}

/* Where parameters and what the update needs have paths of their own: each has room there. */
static tm_status check_sets(const planning *g, const job_opts *o, uint32_t ranks) {
    const tm_job *job = g->job;
    uint32_t slots = g->s->cfg->memory.slots;
    char where[512];
    const struct {
        const char *what;
        tm_kind kind;
        uint64_t bytes, with_one_slot;
    } set[] = {{" of the parameters need", TM_KIND_WEIGHT_HI,
                tm_store_kind_bytes(job->layout, TM_KIND_WEIGHT_HI, slots, job->opts.commits),
                tm_store_kind_bytes(job->layout, TM_KIND_WEIGHT_HI, 1, job->opts.commits)},
               {" of the optimizer state need", TM_KIND_EXP_AVG, update_bytes(job, slots), update_bytes(job, 1)}};
    for (size_t i = 0; i < TM_COUNT(set); i++) {
        uint64_t have = room_for(g, set[i].kind), want = set[i].bytes * ranks;
        if (have && want > have)
            return refuse(g, set[i].what, names(g, o, set[i].kind, where, sizeof where), want, have,
                          set[i].with_one_slot * ranks);
    }
    return TM_OK;
}

/* What no plan can do with less: state that could all be in memory, were all memory there for it, has no file. */
static uint64_t least_bytes(const planning *g, const job_opts *o, uint32_t slots) {
    uint64_t bytes = tm_store_state_bytes(g->job->layout, slots, o->commits);
    double held = ((double)o->host_bytes + (double)o->device_bytes) * (slots ? slots : 2);
    return (double)bytes > held ? bytes - (uint64_t)held : 0;
}

/* What plans keep of activations in files is not known yet. */
enum { SPILL_PART = 16 };

tm_status plan_disk_least(const planning *g, const job_opts *o) {
    uint64_t ranks = g->s->comm ? tm_comm_node_size(g->s->comm) : 1, have = room(g, o);
    uint64_t want = least_bytes(g, o, g->s->cfg->memory.slots) * ranks;
    uint64_t in_one = tm_store_state_bytes(g->job->layout, 1, o->commits) * ranks,
             with_spill = in_one + in_one / SPILL_PART;
    if (!have || want <= have) return TM_OK;
    if (with_spill > have && least_bytes(g, o, 1) * ranks <= have)
        return TM_OK; /* whether one slot is enough, its plan says */
    g->out->disk_free_bytes = have;
    g->out->disk_bytes = want;
    return refuse(g, " need at least", "", want, have, with_spill);
}

tm_status plan_disk(const planning *g, const job_opts *o) {
    uint32_t ranks = g->s->comm ? tm_comm_node_size(g->s->comm) : 1;
    tm_plan_report *out = g->out;
    out->disk_free_bytes = room(g, o);
    if (!g->hardware) {
        TM_TRY(fill_paths(g, o, ranks));
        TM_TRY(check_sets(g, o, ranks));
    }
    if (!out->disk_free_bytes || out->disk_bytes <= out->disk_free_bytes) return TM_OK;
    return refuse(g, " need", "", out->disk_bytes, out->disk_free_bytes,
                  job_disk_bytes(g->job, tm_plan_get_info(g->plans.step), 1) * ranks + frozen_own_bytes(g->job));
}
