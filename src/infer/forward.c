/* What commands that only go forward tell a job of their tiers. */
#include "config/config.h"
#include "infer/forward_internal.h"

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

tm_status forward_opts(job_opts *o, const tm_tier_args *tiers, tm_adapter_folder **adapter) {
    if (tiers->adapter && !*adapter) TM_TRY(tm_adapter_folder_open(adapter, tiers->adapter));
    if (*adapter) {
        o->adapter = tm_adapter_folder_config(*adapter);
        o->saved = *adapter;
    }
    o->host_bytes = tiers->host_budget ? tiers->host_budget : tm_mem_available_bytes() / 5 * 4;
    if (tiers->offload_path) {
        o->paths = &tiers->offload_path;
        o->n_paths = 1;
    }
    return tiers->device ? forward_device(o, tiers) : TM_OK;
}

void forward_only(job_opts *o) {
    static const tm_model_roles none_learns = {0};
    if (!o->adapter) o->roles = &none_learns;
    o->as_stored = !o->device;
}
