/* tidemill plan: the plan of a training step without training, and what is told about it. */
#include "train/trainer_internal.h"

static void report(trainer *t, const pass_opts *way, tm_plan_report *out) {
    const tm_plan_info *info = tm_plan_get_info(t->plan);
    bool disk_bound;
    out->fits = true;
    out->host_peak_bytes = t->job->fixed_bytes + info->slab_bytes;
    out->disk_bytes = job_disk_bytes(t->job, info, t->cfg->memory.slots);
    for (int k = 0; k < TM_KINDS; k++) {
        out->read_bytes_per_step += info->read_bytes[k];
        out->write_bytes_per_step += info->write_bytes[k];
    }
    out->resident_bytes = info->resident_bytes;
    out->window_bytes = info->window_bytes;
    out->seconds_per_step = job_estimate(t->job, info, way, &disk_bound);
    out->bottleneck = disk_bound ? "disk" : "compute";
    out->update = pass_update_name(way);
    out->activations = pass_activations_name(t->job, way);
    out->order = way->stage_wise ? "stage" : "unit";
    out->operations = info->ops;
}

static tm_status plan_only(trainer *t, tm_plan_report *out) {
    job_opts o = trainer_job_options(t);
    o.config_only = o.plan_only = true;
    TM_TRY(job_open(&t->job, &o));
    pass_opts way[TRAINER_MAX_WAYS];
    job_shape shape = trainer_step_shape(t);
    uint32_t n = trainer_ways(t, &shape, way), chosen;
    out->parameters = tm_model_parameters(t->job->model);
    out->host_budget_bytes = o.host_bytes;
    out->micro_batches = shape.micro_batches;
    out->rows = shape.rows;
    out->seq = shape.seq;
    TM_TRY(job_start(t->job, &o, "training step", way, n, &t->plan, &chosen, &out->minimum_host_bytes, NULL, NULL));
    report(t, &way[chosen], out);
    return TM_OK;
}

tm_status tm_plan_run(const tm_train_args *args, tm_plan_report *out) {
    trainer t = {.args = args};
    tm_status rc;
    *out = (tm_plan_report){.bottleneck = "", .update = "", .activations = "", .order = ""};
    TM_GO(trainer_load_config(&t, true));
    TM_GO(trainer_prepare(&t, true));
    TM_GO(plan_only(&t, out));
done:
    trainer_close(&t);
    return rc;
}
