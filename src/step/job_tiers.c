/* What a job's plans run on: files, slab, arena, the executor; and the state as it is before the first step. */
#include "base/change.h"
#include "comm/comm.h"
#include "io/file/file.h"
#include "kernels/kernels.h"
#include "step/ops_internal.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

/* One slot of each extent takes about half, and gives up restarts. `had`: free before anything was made; other ranks of the node
 * may have taken theirs before that, and hold it still. */
static bool one_slot_fits(const tm_job *job, const job_opts *opts, const char *path, uint64_t had) {
    uint64_t ranks = job->ranks.comm ? tm_comm_node_size(job->ranks.comm) : 1;
    uint64_t state = tm_store_state_bytes(job->layout, 1, opts->commits);
    uint64_t spill = tm_store_spill_bytes(1, job->account.needs.spill, job->account.needs.spill_largest);
    if (!opts->optimizer || opts->slots == 1 || opts->resume || opts->n_paths > 1) return false;
    return (state + spill) * ranks <= tm_max_u64(had, tm_free_bytes(path));
}

/* Nothing was started: the user can mend it. */
static tm_status refuse_full(bool one_slot) {
    tm_error full = *tm_error_get();
    size_t n = strlen(full.text);
    full.code = TM_EINPUT;
    if (one_slot)
        snprintf(full.text + n, sizeof full.text - n,
                 ", or keep one state in place of two, without restarts: --set memory.slots=1");
    tm_error_clear();
    tm_error_set(&full);
    if (one_slot) tm_change_advise("memory.slots=1");
    return TM_EINPUT;
}

static tm_status open_store(tm_job *job, const job_opts *opts) {
    bool paged = job->account.needs.spill > 0;
    for (uint32_t i = 0; i < tm_layout_objects(job->layout) && !paged; i++)
        paged = !tm_layout_get(job->layout, i)->resident;
    bool frozen = tm_layout_files(job->layout) > 0;
    if (!paged && !opts->commits && !frozen) return TM_OK;
    /* only commits are written: any disk will do, even one in memory */
    bool at_home = opts->n_paths == 0 && opts->commits;
    const char *path = opts->n_paths ? opts->paths[0] : opts->home;
    uint64_t had = path ? tm_free_bytes(path) : 0;
    tm_status rc = tm_store_open(&job->tiers.store, job->layout,
                                 &(tm_store_opts){.paths = at_home ? &opts->home : opts->paths,
                                                  .n_paths = at_home ? 1 : opts->n_paths,
                                                  .path_kinds = at_home ? NULL : opts->path_kinds,
                                                  .commits = opts->commits,
                                                  .name = opts->run_name,
                                                  .key = opts->key,
                                                  .of = opts->of,
                                                  .home = opts->home,
                                                  .resume = opts->resume,
                                                  .slots = opts->slots,
                                                  .allow_tmpfs = opts->allow_tmpfs || at_home,
                                                  .io = opts->io,
                                                  .spill_bytes = job->account.needs.spill,
                                                  .spill_largest = job->account.needs.spill_largest});
    return rc == TM_ENOSPC ? refuse_full(path && one_slot_fits(job, opts, path, had)) : rc;
}

/* A device whose operations the CPU computes does so with a team of its own. */
static tm_status start_team_there(void *ctx) {
    (void)ctx;
    return tm_kernels_start_team();
}

tm_exec_comm job_exec_comm(const tm_job *job) {
    return (tm_exec_comm){job->comm.ops, job->comm.ops ? comm_ops_submit : NULL};
}

void *job_shared_frames(const tm_job *job) {
    return job->tiers.window ? tm_comm_window_part(job->tiers.window, 0, NULL) : NULL;
}

tm_status job_open_tiers(tm_job *job, const job_opts *opts) {
    TM_TRY(open_store(job, opts));
    if (job->ranks.ranks > 1) TM_TRY(comm_ops_open(&job->comm.ops, job));
    (void)malloc_trim(0); /* what planning used goes back before the slab is touched */
    job->account.limits.slab_bytes = job->account.needs.slab;
    job->tiers.peak_before = tm_mem_resident_peak_bytes();
    if (job->account.needs.device)
        TM_TRY(tm_device_open(&job->tiers.device, &(tm_device_opts){.name = opts->device,
                                                                    .arena_bytes = job->account.needs.device,
                                                                    .bytes_per_second = opts->device_bps,
                                                                    .peers = opts->ranks.peers}));
    if (job->tiers.device) job->tiers.kernels = tm_device_kernels(job->tiers.device);
    if (job->tiers.device && !job->tiers.traits.own_processors)
        TM_TRY(tm_device_run(job->tiers.device, NULL, 0, start_team_there, NULL));
    TM_TRY(kv_open_pages(job));
    tm_exec_moves moves = {.ctx = job, .fn = job->kv_page ? kv_page_moves : NULL};
    return tm_exec_open(&job->tiers.exec, &(tm_exec_opts){.slab_bytes = job->account.limits.slab_bytes,
                                                          .store = job->tiers.store,
                                                          .seed = opts->order_seed,
                                                          .unregistered = opts->no_pin_memory,
                                                          .comm = job_exec_comm(job),
                                                          .moves = moves,
                                                          .shared = job_shared_frames(job),
                                                          .shared_bytes = job->account.needs.shared,
                                                          .device = job->tiers.device});
}

static tm_status import(tm_job *job, const tm_plan *plan) {
    job_phase phase;
    job_phase_begin(&phase, job, job->source ? "importing the model" : "making a random model", NULL,
                    job_weight_bytes(job));
    tm_status rc = job_run(job, plan);
    job_phase_end(&phase);
    TM_TRY(rc);
    if (job->tiers.store) tm_store_mark_committed(job->tiers.store);
    return TM_OK;
}

static tm_status move_resident(tm_job *job, tm_resident_way way) {
    return job->tiers.resident[way] ? job_run(job, job->tiers.resident[way]) : TM_OK;
}

static tm_status restore(tm_job *job) {
    TM_TRY(tm_store_restore(job->tiers.store, tm_exec_slab(job->tiers.exec)));
    return move_resident(job, TM_RESIDENT_RESTORE);
}

static tm_status hold(tm_job *job, const tm_plan *plan) {
    job_phase phase;
    if (tm_layout_files(job->layout) == 0) return TM_OK;
    TM_TRY(tm_store_load_frozen(job->tiers.store, tm_exec_slab(job->tiers.exec)));
    TM_TRY(move_resident(job, TM_RESIDENT_FROZEN));
    if (!plan) return TM_OK;
    job_phase_begin(&phase, job, "decoding the model", NULL, 0);
    tm_status rc = job_run(job, plan);
    job_phase_end(&phase);
    return rc;
}

tm_status job_fill_state(tm_job *job, const tm_plan *hold_plan, const tm_plan *import_plan) {
    TM_TRY(hold(job, hold_plan));
    return job->opts.resume ? restore(job) : import(job, import_plan);
}

tm_status job_save_resident(tm_job *job) {
    return move_resident(job, TM_RESIDENT_SAVE);
}
