/* The examples of offload/plan/plan.h and offload/sim/sim.h. */
#include "offload/exec/exec.h"
#include "offload/plan/plan.h"
#include "offload/sim/sim.h"

enum { MY_OP };
tm_status plan_example(uint32_t unit, uint32_t stage, tm_plan_opts opts, tm_plan *plan, uint64_t minimum, tm_exec *exec,
                       tm_op_fn my_handler, void *ctx) {
    //@ offload/plan/plan.h tm_layout *layout;
    return TM_OK;
}

tm_status sim_example(const tm_plan *plan, tm_machine m, tm_cost_fn my_cost, void *job) {
    //@ offload/sim/sim.h tm_sim_result r;
    return TM_OK;
}

tm_status trace_example(const tm_plan *plan, tm_sim_result r, const tm_span *measured, double seconds_since_start,
                        tm_op_name_fn name_of, void *job) {
    //@ offload/sim/sim.h tm_trace *t;
    return TM_OK;
}
