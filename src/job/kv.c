/* The key-value cache of generation as state: an object for each unit that has keys and values of its own. */
#include "job/job.h"

/* Device kernels that are not the host's know no rings. */
uint32_t job_kv_positions(const tm_job *job, uint32_t unit) {
    const job_opts *o = &job->opts;
    if (job->tiers.traits.own_processors) return o->kv_capacity;
    return tm_model_kv_positions(job->model, unit, o->kv_capacity, o->kv_chunk);
}

tm_status kv_add_state(tm_job *job, uint32_t *bundle, uint32_t *objects) {
    uint32_t units = tm_model_units(job->model);
    job->kv = tm_malloc(sizeof *job->kv * units);
    if (!job->kv) return tm_nomem(sizeof *job->kv * units);
    for (uint32_t u = 0; u < units; u++) {
        const tm_unit *unit = tm_model_unit(job->model, u);
        tm_object o = {.kind = TM_KIND_SCRATCH, .unit = u, .bundle = *bundle};
        o.bytes = (uint64_t)unit->kv_bytes * job->opts.kv_rows * job_kv_positions(job, u);
        job->kv[u] = TM_NO_OBJECT;
        if (unit->kv_unit < u) job->kv[u] = job->kv[unit->kv_unit];
        if (o.bytes == 0) continue;
        job->kv[u] = tm_layout_object(job->layout, &o);
        ++*bundle, ++*objects;
    }
    return TM_OK;
}
