/* Frames that the ranks of a node share: at the same addresses whatever else a rank has to do, proved to be written by
 * communication operations alone and after their readers, and paid for by share. */
#include "offload/exec/exec.h"
#include "offload/offload_internal.h"
#include "offload/plan/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { PARTS = 9, PAGE = TM_FRAME_ALIGN, OP_GATHER = 1, OP_USE, OP_OWN };

static uint64_t part_bytes(uint32_t part) {
    return (uint64_t)PAGE * (1 + part * 5 % 4) - part;
}

/* One rank's step: each part is gathered while the one before is used, and `tiles` of its own state are worked on in
 * between. `wrong`: what a rank must not do, in the middle. */
typedef enum wrong { NOTHING, COMPUTE_WRITES, GATHER_UPDATES, NO_PLACE } wrong;

typedef struct rank {
    tm_layout *layout;
    tm_program *program;
} rank;

static void own_tiles(rank *r, uint32_t tiles, uint32_t part) {
    for (uint32_t t = 0; t < tiles; t++) {
        uint32_t v = tm_program_interval(r->program, (part + t) % tm_layout_objects(r->layout), 1);
        tm_program_op(r->program, &(tm_op){.code = OP_OWN, .arg = {part, t}});
        tm_program_use(r->program, v, TM_USE_UPDATE);
    }
}

static uint32_t gather(rank *r, uint32_t part, tm_use_access access) {
    const tm_object o = {.kind = TM_KIND_SCRATCH, .bytes = part_bytes(part), .tier = TM_TIER_SHARED};
    uint32_t v = tm_program_interval(r->program, tm_program_temp(r->program, &o), 1);
    tm_program_op(r->program, &(tm_op){.code = OP_GATHER, .engine = TM_ENGINE_COMM, .arg = {part}});
    tm_program_use(r->program, v, TM_USE_WRITE);
    if (access == TM_USE_WRITE) return v;
    tm_program_op(r->program, &(tm_op){.code = OP_GATHER, .engine = TM_ENGINE_COMM, .arg = {part}});
    tm_program_use(r->program, v, access);
    return v;
}

static rank make(uint32_t tiles, wrong how) {
    rank r;
    assert_int_equal(tm_layout_create(&r.layout), TM_OK);
    for (uint32_t t = 0; t < 3 + tiles; t++)
        tm_layout_object(r.layout,
                         &(tm_object){.kind = TM_KIND_EXP_AVG, .bundle = t, .bytes = 3 * PAGE, .pageable = true});
    assert_int_equal(tm_program_create(&r.program, r.layout, "step"), TM_OK);
    uint32_t now = gather(&r, 0, TM_USE_WRITE), next = 0;
    for (uint32_t p = 0; p < PARTS; p++) {
        bool middle = p == PARTS / 2;
        if (p + 1 < PARTS) next = gather(&r, p + 1, middle && how == GATHER_UPDATES ? TM_USE_UPDATE : TM_USE_WRITE);
        own_tiles(&r, tiles + p % 2, p);
        for (int use = 0; use < 2; use++) {
            tm_program_op(r.program, &(tm_op){.code = OP_USE, .arg = {p}});
            tm_program_use(r.program, now, middle && how == COMPUTE_WRITES ? TM_USE_UPDATE : TM_USE_READ);
        }
        now = next;
    }
    if (how != NO_PLACE) tm_program_share(r.program);
    return r;
}

static void drop(rank *r) {
    tm_program_free(r->program);
    tm_layout_free(r->layout);
}

static tm_plan *compile(rank *r, uint64_t slab, uint32_t shared_by) {
    tm_plan *plan;
    tm_plan_opts o = {.slab_bytes = slab, .choose_residency = true, .cache = slab > 64 * PAGE, .shared_by = shared_by};
    assert_int_equal(tm_plan_compile(&plan, r->layout, r->program, &o, NULL), TM_OK);
    return plan;
}

static uint64_t minimum(rank *r, uint32_t shared_by) {
    uint64_t bytes;
    tm_plan_opts o = {.shared_by = shared_by};
    assert_int_equal(tm_plan_minimum(r->layout, r->program, &o, &bytes), TM_OK);
    return bytes;
}

static void gathered_at(const tm_plan *plan, uint64_t at[PARTS]) {
    for (uint32_t i = 0; i < plan->n_op; i++)
        if (plan->op[i].op.code == OP_GATHER) at[plan->op[i].op.arg[0]] = plan->operand[plan->op[i].first_operand];
}

/* Ranks with other tiles, budgets and residency: one address a part. Two parts are there at a time, and no more than
 * that is taken. */
static void ranks_agree_on_addresses(void **state) {
    (void)state;
    rank one = make(1, NOTHING), many = make(17, NOTHING);
    tm_plan *a = compile(&one, minimum(&one, 2), 2), *b = compile(&many, 1000 * PAGE, 2);
    uint64_t at[PARTS], there[PARTS], all = 0;
    gathered_at(a, at);
    gathered_at(b, there);
    assert_memory_equal(at, there, sizeof at);
    assert_true(tm_plan_shared_hash(a) == tm_plan_shared_hash(b));
    assert_int_equal(tm_plan_verify(a), TM_OK);
    assert_int_equal(tm_plan_verify(b), TM_OK);
    for (uint32_t p = 0; p + 1 < PARTS; p++) {
        uint64_t end = at[p] + part_bytes(p), next_end = at[p + 1] + part_bytes(p + 1);
        assert_true(address_is_shared(at[p]) && (end <= at[p + 1] || next_end <= at[p]));
        all += part_bytes(p);
    }
    assert_int_equal(tm_plan_get_info(a)->shared_bytes, 7 * PAGE); /* the two largest that meet */
    assert_true(all > 2 * 7 * PAGE);
    b->operand[0] += PAGE; /* of the first gather */
    b->touch[0].address += PAGE;
    assert_true(tm_plan_shared_hash(a) != tm_plan_shared_hash(b));
    tm_plan_free(a);
    tm_plan_free(b);
    drop(&one);
    drop(&many);
}

static void a_budget_pays_for_its_share(void **state) {
    (void)state;
    rank r = make(2, NOTHING);
    tm_plan *plan = compile(&r, 1000 * PAGE, 4);
    const tm_plan_info *info = tm_plan_get_info(plan);
    uint64_t shared = info->shared_bytes, least = minimum(&r, 4);
    assert_int_equal(info->share_bytes, tm_round_up((shared + 3) / 4, PAGE));
    assert_int_equal(minimum(&r, 1) - shared, least - info->share_bytes); /* alone it pays for all */
    tm_plan_free(plan);
    plan = compile(&r, least, 4);
    assert_int_equal(tm_plan_get_info(plan)->slab_bytes + tm_plan_get_info(plan)->share_bytes, least);
    tm_plan_free(plan);
    uint64_t asked = 0;
    tm_plan_opts o = {.slab_bytes = least - 1, .choose_residency = true, .shared_by = 4};
    assert_int_equal(tm_plan_compile(&plan, r.layout, r.program, &o, &asked), TM_EBUDGET);
    assert_int_equal(asked, least);
    tm_error_clear();
    drop(&r);
}

/* A frame that nobody gave an address is not put where this rank alone has room. */
static void each_has_a_place(void **state) {
    (void)state;
    rank r = make(2, NO_PLACE);
    tm_plan *plan = NULL;
    tm_plan_opts o = {.slab_bytes = 1000 * PAGE, .choose_residency = true, .cache = true, .shared_by = 2};
    assert_int_equal(tm_plan_compile(&plan, r.layout, r.program, &o, NULL), TM_EBUG);
    assert_non_null(strstr(tm_error_get()->text, "outside of what ranks share"));
    tm_error_clear();
    drop(&r);
}

static void only_gathers_may_write(void **state) {
    (void)state;
    for (wrong how = NOTHING; how <= GATHER_UPDATES; how++) {
        rank r = make(2, how);
        tm_plan *plan = NULL;
        tm_plan_opts o = {.slab_bytes = 1000 * PAGE, .choose_residency = true, .cache = true, .shared_by = 2};
        tm_status rc = tm_plan_compile(&plan, r.layout, r.program, &o, NULL); /* sanitizer builds prove it here */
        if (rc == TM_OK) rc = tm_plan_verify(plan);
        assert_int_equal(rc, how == NOTHING ? TM_OK : TM_EBUG);
        if (how != NOTHING) assert_non_null(strstr(tm_error_get()->text, "other ranks may be reading"));
        tm_error_clear();
        if (plan) tm_plan_free(plan);
        drop(&r);
    }
}

static bool lies_on(const tm_plan *plan, uint32_t a, uint32_t b) {
    for (uint32_t i = plan->first_touch[a]; i < plan->first_touch[a + 1]; i++)
        for (uint32_t k = plan->first_touch[b]; k < plan->first_touch[b + 1]; k++) {
            const struct plan_touch *x = &plan->touch[i], *y = &plan->touch[k];
            if (address_is_shared(x->address) && x->address < y->address + y->bytes &&
                y->address < x->address + x->bytes)
                return true;
        }
    return false;
}

/* This rank's half of the proof: without the edge from one who reads to the gather that overwrites, it fails. */
static void gathers_wait_for_readers(void **state) {
    (void)state;
    rank r = make(2, NOTHING);
    tm_plan *plan = compile(&r, 1000 * PAGE, 2);
    uint32_t rejected = 0;
    for (uint32_t i = 0; i < plan->n_op; i++) {
        tm_plan_op *o = &plan->op[i];
        for (uint32_t s = 0; o->op.code == OP_USE && s < o->n_succ; s++) {
            uint32_t *edge = &plan->succ[o->first_succ + s], *last = &plan->succ[o->first_succ + o->n_succ - 1];
            uint32_t to = *edge;
            if (plan->op[to].op.code != OP_GATHER || !lies_on(plan, i, to)) continue;
            *edge = *last;
            *last = to;
            o->n_succ--;
            assert_int_equal(tm_plan_verify(plan), TM_EBUG);
            tm_error_clear();
            o->n_succ++;
            rejected++;
        }
    }
    assert_int_equal(tm_plan_verify(plan), TM_OK);
    assert_true(rejected >= PARTS - 3);
    tm_plan_free(plan);
    drop(&r);
}

/* ---- run ----------------------------------------------------------------------------------------------------- */

typedef struct machine {
    tm_exec *exec;
    char *shared;
    uint32_t gathers, uses;
} machine;

static tm_status arrive(void *ctx, const tm_op *op, void *const *operand, void *token) {
    machine *m = ctx;
    assert_in_range((uint64_t)((char *)operand[0] - m->shared), 0, 16 * PAGE);
    memset(operand[0], (int)op->arg[0] + 1, part_bytes(op->arg[0]));
    m->gathers++;
    tm_exec_comm_done(m->exec, token, TM_OK);
    return TM_OK;
}

static tm_status handle(void *ctx, const tm_op *op, void *const *operand) {
    machine *m = ctx;
    if (op->code != OP_USE) return TM_OK;
    const unsigned char *x = operand[0];
    for (uint64_t i = 0; i < part_bytes(op->arg[0]); i++) assert_int_equal(x[i], op->arg[0] + 1);
    m->uses++;
    return TM_OK;
}

static void what_was_gathered_is_read(void **state) {
    (void)state;
    rank r = make(2, NOTHING);
    tm_plan *plan = compile(&r, 1000 * PAGE, 2);
    uint64_t bytes = tm_plan_get_info(plan)->shared_bytes;
    for (uint64_t seed = 0; seed < 20; seed++) {
        machine m = {.shared = test_malloc(bytes)};
        tm_exec_opts o = {
            .slab_bytes = 1000 * PAGE, .seed = seed, .comm = {&m, arrive}, .shared = m.shared, .shared_bytes = bytes};
        assert_int_equal(tm_exec_open(&m.exec, &o), TM_OK);
        assert_int_equal(tm_exec_run(m.exec, plan, handle, &m), TM_OK);
        assert_int_equal(m.gathers, PARTS);
        assert_int_equal(m.uses, 2 * PARTS);
        tm_exec_close(m.exec);
        test_free(m.shared);
    }
    tm_plan_free(plan);
    drop(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_agree_on_addresses), cmocka_unit_test(a_budget_pays_for_its_share),
        cmocka_unit_test(each_has_a_place),         cmocka_unit_test(only_gathers_may_write),
        cmocka_unit_test(gathers_wait_for_readers), cmocka_unit_test(what_was_gathered_is_read),
    };
    return cmocka_run_group_tests_name("frames that ranks share", tests, NULL, NULL);
}
