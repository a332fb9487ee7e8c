/* A job's device, where it is not the host's memory: whether it is there, how much of its memory may be asked for. */
#include "job/job.h"

#include <string.h>

/* Of a device's memory, where nothing says how much may be taken: for a display, or a neighbour that grows. */
enum { RESERVE_MIB = 256 };

bool job_device_apart(const char *device, tm_device_traits *traits) {
    tm_status rc = tm_device_known(device, traits);
    tm_error_clear();
    return rc == TM_OK && traits->own_processors;
}

bool job_device_updates(const tm_device_traits *traits, const char *name, tm_dtype dtype) {
    const char *list = traits->optimizers, *at = list;
    size_t len = strlen(name);
    if (traits->own_processors && dtype == TM_F16) return false; /* a skipped step makes weights anew on the host */
    if (!strcmp(list, "*")) return true;
    while ((at = strstr(at, name)) != NULL) {
        if ((at == list || at[-1] == ' ') && (at[len] == ' ' || !at[len])) return true;
        at += len;
    }
    return false;
}

/* What a device's kernels lack is said before anything is planned or imported. */
static tm_status check_kernels(const tm_job *job, const char *device) {
    uint32_t packed = job->columns & TM_COLUMN_BEGIN ? 1U << TM_KERNEL_DOCUMENTS : 0;
    uint32_t missing = (tm_model_needs(job->model) | packed) & job->tiers.traits.lacks, f = 0;
    if (!missing) return TM_OK;
    while (!(missing >> f & 1)) f++;
    return tm_fail(
        TM_EUNSUPPORTED,
        "device \"%s\" cannot compute a %s in this version: its kernels lack %s; set memory.device to \"cpu\" "
        "or \"cpu-arena\"",
        device, tm_model_get_config(job->model)->model_type, tm_kernel_feature_name((tm_kernel_feature)f));
}

tm_status job_set_device(tm_job *job, const job_opts *opts) {
    const char *device = opts->device ? opts->device : "cpu";
    TM_TRY(tm_device_known(device, &job->tiers.traits));
    TM_TRY(check_kernels(job, device));
    tm_model_set_sizes(job->model, &job->tiers.traits.sizes);
    bool updates = opts->device_bytes && job->optimizer && job->update->passes == 1 &&
                   job_device_updates(&job->tiers.traits, job->update->name, job->dtype);
    job->tiers.update_tier = updates ? TM_TIER_EITHER : TM_TIER_HOST;
    return TM_OK;
}

void job_device_warn(const char *device) {
    tm_device_traits traits;
    if (job_device_apart(device, &traits) && traits.untested)
        tm_log(
            TM_LOG_WARN,
            "device \"%s\" is untested: this version was never run on one of its kind; compare the first results with "
            "device \"cpu\"",
            device);
}

tm_status job_device_room(const char *device, bool peers, uint64_t *bytes) {
    tm_device_traits traits;
    tm_device_info info;
    char a[32], b[32], c[32];
    TM_TRY(tm_device_known(device, &traits));
    TM_TRY(tm_device_look_for(device, &info));
    uint64_t besides = traits.fixed_bytes + (peers ? traits.peers_bytes : 0) + RESERVE_MIB * TM_MIB;
    *bytes = (info.free_bytes - tm_min_u64(info.free_bytes, besides)) / traits.alignment * traits.alignment;
    if (*bytes > 0) return TM_OK;
    return tm_fail(TM_EBUDGET,
                   "%s of its %s are free, and driver and libraries take up to %s; end what else runs there, or use "
                   "\"cpu\"",
                   tm_format_size(info.free_bytes, a, sizeof a), tm_format_size(info.memory_bytes, b, sizeof b),
                   tm_format_size(besides, c, sizeof c));
}

tm_status job_device_fits(const char *device, uint64_t wanted) {
    uint64_t room;
    char a[32], b[32];
    TM_TRY(job_device_room(device, false, &room));
    room += RESERVE_MIB * TM_MIB; /* who names a number needs none */
    if (wanted <= room) return TM_OK;
    return tm_fail(TM_EBUDGET, "%s are asked for and %s are free beside driver and libraries; give at most %llu bytes",
                   tm_format_size(wanted, a, sizeof a), tm_format_size(room, b, sizeof b), (unsigned long long)room);
}

tm_status job_device_fail(const char *device, const char *more) {
    tm_error why = *tm_error_get();
    tm_error_clear();
    return tm_fail(why.code, "device \"%s\": %s%s", device, why.text, more);
}
