/* One rank of a machine with GPUs. */
#include "train/plan_internal.h"

tm_status plan_imagine(const planning *g) {
    return tm_fail(TM_EUNSUPPORTED, "%s: machines with GPUs are not planned for yet", g->machine.name);
}
