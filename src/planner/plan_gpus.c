/* GPUs of a hardware file, as the front end of `train` sees a device: traits of its kind (device.h), bytes of an arena,
 * rates. Nothing of it has to be here. README.md says how each figure is found. */
#include "comm/comm.h"
#include "planner/plan_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char KIND[] = "cuda"; /* of every GPU of a hardware file */
/* Of a GPU's memory: its context and libraries. */
static const uint64_t DRIVER_BYTES = 1 << 30;

bool plan_device_updates(const tm_config *c) {
    tm_device_traits gpu;
    bool known = tm_device_known(KIND, &gpu) == TM_OK;
    tm_error_clear();
    return known && job_device_updates(&gpu, c->optimizer->name, c->precision);
}

/* Where the configuration names the CPU, that is what is asked about; where it names nothing, GPUs are used. */
static void leave_out_gpus(planning *g) {
    const tm_config *c = g->s->cfg;
    if (g->machine.gpus == 0 || !c->memory.device_given || strncmp(c->memory.device, "cpu", 3) != 0) return;
    tm_log(TM_LOG_WARN, "\"memory.device\": \"%s\": the GPUs of %s are left out; leave the key out to plan on them",
           c->memory.device, g->machine.name);
    g->machine.gpus = 0;
}

/* A budget is of the arena; the file's memory is all that the device has, the driver's part included. At least one
 * page: less would be no arena, and what is too small is refused like any other. */
static uint64_t arena_of(const planning *g, const tm_device_traits *traits) {
    const tm_config *c = g->s->cfg;
    uint64_t bytes = g->machine.gpu_bytes - tm_min_u64(g->machine.gpu_bytes, DRIVER_BYTES);
    if (c->memory.device_given && c->memory.device_bytes) bytes = tm_min_u64(bytes, c->memory.device_bytes);
    return tm_max_u64(bytes / traits->alignment, 1) * traits->alignment;
}

static tm_status check_gpus(const planning *g) {
    const tm_config *c = g->s->cfg;
    bool asked = c->memory.device_given && strncmp(c->memory.device, "cpu", 3) != 0;
    if (!g->hardware || g->machine.gpus > 0 || !asked) return TM_OK;
    return tm_fail(TM_EINPUT,
                   "\"memory.device\": \"%s\": %s has no GPU; plan for another machine, or leave the key out",
                   c->memory.device, g->machine.name);
}

tm_status plan_take_gpus(planning *g) {
    session *s = g->s;
    tm_config *c = s->cfg;
    tm_device_traits traits;
    TM_TRY(check_gpus(g));
    leave_out_gpus(g);
    if (g->machine.gpus == 0) return TM_OK;
    TM_TRY(tm_device_known(KIND, &traits));
    session_imagine_device(s, KIND, arena_of(g, &traits));
    if (!s->comm || c->strategy_given || c->zero_stage > 0) return TM_OK;
    c->strategy = TM_STRATEGY_ZERO3; /* what several GPUs are for */
    c->zero_stage = 3;
    return TM_OK;
}

static void describe_placement(const tm_job *job, const tm_plan_info *info, char *to, size_t cap) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < tm_layout_objects(job->layout); i++) all += tm_layout_get(job->layout, i)->frame_bytes;
    if (info->device_resident_bytes == 0)
        snprintf(to, cap, "state on the host");
    else if (info->device_resident_bytes >= all)
        snprintf(to, cap, "all state on the device");
    else
        snprintf(to, cap, "%.0f%% of the state on the device", /* neither none nor all of it */
                 fmin(99, fmax(1, 100.0 * (double)info->device_resident_bytes / (double)all)));
}

uint64_t plan_driver_bytes(const planning *g) {
    return g->machine.gpus > 0 ? DRIVER_BYTES : 0;
}

void plan_describe_gpus(const planning *g) {
    tm_plan_report *out = g->out;
    if (g->machine.gpus > 0)
        describe_placement(g->job, tm_plan_get_info(g->plans.step), out->placement, sizeof out->placement);
}

tm_status plan_refuse_gpu(const planning *g, uint64_t least, tm_plan_change smaller) {
    char want[32], have[32], fixed[32], text[320];
    uint64_t may = g->s->cfg->memory.device_bytes + DRIVER_BYTES;
    bool budget = least + DRIVER_BYTES <= g->machine.gpu_bytes;
    snprintf(text, sizeof text, "%s: a device needs at least %s and may use %s, %s of that for its driver",
             g->machine.name, tm_format_size(least + DRIVER_BYTES, want, sizeof want),
             tm_format_size(may, have, sizeof have), tm_format_size(DRIVER_BYTES, fixed, sizeof fixed));
    return plan_refuse(g, "device", budget ? (tm_plan_change){"memory.device_budget", least} : smaller, text);
}
