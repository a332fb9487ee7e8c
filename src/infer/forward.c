/* What commands that only go forward tell a job of their tiers. */
#include "config/config.h"
#include "infer/forward_internal.h"
#include "io/file/file.h"
#include "io/run/run.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static tm_status forward_device(job_opts *o, const tm_tier_args *tiers) {
    tm_device_traits traits;
    TM_TRY(tm_device_known(tiers->device, &traits));
    if (traits.in_place) return TM_OK;
    o->device = tiers->device;
    o->device_bytes = tm_min_u64(tiers->device_budget, TM_DEVICE_UNLIMITED); /* plans reckon with signed rooms */
    if (traits.own_processors) {
        bool given = o->device_bytes > 0 && o->device_bytes < TM_DEVICE_UNLIMITED;
        tm_status rc = given ? job_device_fits(tiers->device, o->device_bytes)
                             : job_device_room(tiers->device, false, &o->device_bytes);
        if (rc != TM_OK) return job_device_fail(tiers->device, "");
        job_device_warn(tiers->device);
    }
    if (o->device_bytes > 0) return TM_OK;
    return tm_fail(TM_EINPUT, "device \"%s\" has the memory that it is given; add --device-budget", tiers->device);
}

/* ---- what killed ones left --------------------------------------------------------------------------------------- */

#define RUN_NAME "infer" /* of run directories: nothing in them is of use to anybody later */
enum { STILL_MADE_SECONDS = 60 };

static bool is_old(const char *dir) {
    struct stat st;
    return stat(dir, &st) == 0 && time(NULL) - st.st_mtime > STILL_MADE_SECONDS;
}

/* Whoever sweeps beside us may be first. */
static tm_status sweep_one(void *ctx, const char *name, bool is_dir) {
    char path[4096];
    tm_io_owner o;
    tm_io_run *run = NULL;
    if (!is_dir || strncmp(name, "run-" RUN_NAME "-", sizeof "run-" RUN_NAME) != 0) return TM_OK;
    snprintf(path, sizeof path, "%s/%s", (const char *)ctx, name);
    tm_status rc = tm_io_run_owner(path, &o);
    if (rc == TM_OK && !*o.key && !o.alive && is_old(path)) rc = tm_io_run_discard_begun(path);
    if (rc == TM_OK && *o.key && !o.alive) {
        rc = tm_io_run_reopen(&run, path, &(tm_io_claim){.key = o.key}, true, 0);
        if (rc == TM_OK) rc = tm_io_run_remove(run);
    }
    if (rc != TM_OK) tm_log(TM_LOG_DEBUG, "%s: %s", path, tm_error_get()->text);
    tm_error_clear();
    return TM_OK;
}

static tm_status use_path(job_opts *o, const char *const *path) {
    o->paths = path;
    o->n_paths = 1;
    o->run_name = RUN_NAME;
    return tm_path_is_dir(*path) ? tm_list_dir(*path, sweep_one, (void *)(uintptr_t)*path) : TM_OK;
}

tm_status forward_opts(job_opts *o, const tm_tier_args *tiers, tm_adapter_folder **adapter) {
    if (tiers->adapter && !*adapter) TM_TRY(tm_adapter_folder_open(adapter, tiers->adapter));
    if (*adapter) {
        o->adapter = tm_adapter_folder_config(*adapter);
        o->saved = *adapter;
    }
    o->host_bytes = tiers->host_budget ? tiers->host_budget : tm_mem_available_bytes() / 5 * 4;
    if (tiers->offload_path) TM_TRY(use_path(o, &tiers->offload_path));
    return tiers->device ? forward_device(o, tiers) : TM_OK;
}

void forward_only(job_opts *o) {
    static const tm_model_roles none_learns = {0};
    if (!o->adapter) o->roles = &none_learns;
    o->as_stored = !o->device;
}
