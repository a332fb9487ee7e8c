/* Which stages of a unit run again in backward: a unit of any number of stages. */
#include "step/build_internal.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STAGES = 130, SLOT_A = 2, SLOT_B, SLOT_UNREAD };

static tm_slot_use use_of(uint8_t slot, tm_access access) {
    return (tm_slot_use){.slot = slot, .access = (uint8_t)access};
}

/* As a block of many experts: the first stage writes A, each of the others reads A and adds to B, but the last, which
 * writes a slot that backward does not read. Backward reads B (the last but one stage) and nothing else. */
static void many_stages(void **state) {
    (void)state;
    tm_stage *stage = calloc(STAGES, sizeof *stage);
    bool again[STAGES + 1];
    memset(again, 2, sizeof again);
    stage[0] = (tm_stage){.n_forward = 1, .forward = {use_of(SLOT_A, TM_WRITE)}};
    for (uint32_t s = 1; s + 1 < STAGES; s++)
        stage[s] = (tm_stage){.n_forward = 2, .forward = {use_of(SLOT_A, TM_READ), use_of(SLOT_B, TM_UPDATE)}};
    stage[STAGES - 1] = (tm_stage){.n_forward = 1, .forward = {use_of(SLOT_UNREAD, TM_WRITE)}};
    stage[STAGES - 2].n_backward = 1;
    stage[STAGES - 2].backward[0] = use_of(SLOT_B, TM_READ);
    const tm_unit u = {.kind = TM_UNIT_BLOCK, .n_stages = STAGES, .stage = stage};
    stages_to_recompute(&u, again);
    for (uint32_t s = 0; s < STAGES; s++) assert_int_equal(again[s], s + 1 < STAGES);
    stage[STAGES - 2].n_backward = 0;
    stages_to_recompute(&u, again);
    for (uint32_t s = 0; s < STAGES; s++) assert_false(again[s]);
    free(stage);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_stages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
