/* The table of operations: each code has a whole row, operands are ordered by it, and what is written wrongly stops. */
#include "kernels/kernels.h"
#include "step/op.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static tm_job *job;

static int open_job(void **state) {
    (void)state;
    job_opts o = {.model = TM_TEST_FIXTURES "/arch_llama",
                  .dtype = TM_BF16,
                  .optimizer = true,
                  .host_bytes = UINT64_MAX,
                  .allow_tmpfs = true};
    return tm_kernels_init(1, TM_ELEM_F32) == TM_OK && job_open(&job, &o) == TM_OK ? 0 : 1;
}
static int close_job(void **state) {
    (void)state;
    job_close(job);
    return 0;
}

static void each_code_has_a_row(void **state) {
    (void)state;
    assert_null(op_row_of(0));
    assert_null(op_row_of(OP_CODES));
    assert_null(op_row_of(TM_OP_COPY));
    for (uint16_t code = 1; code < OP_CODES; code++) {
        const op_row *row = op_row_of(code);
        assert_non_null(row);
        assert_true(strlen(row->word) > 0);
        assert_true((row->run != NULL) != (row->start != NULL));
        assert_int_equal(row->start != NULL, row->engine == TM_ENGINE_COMM);
        assert_int_equal(row->operand[OP_OPERANDS - 1].name, OPERAND_END);
        for (int i = 0; row->operand[i].name != OPERAND_END; i++)
            for (int j = 0; j < i; j++) assert_int_not_equal(row->operand[i].name, row->operand[j].name);
    }
}

typedef struct written {
    op_writer w;
    uint32_t step, other;
} written;

static void begin(written *x, uint64_t step_bytes) {
    tm_program *p;
    assert_int_equal(tm_program_create(&p, job->layout, "test"), TM_OK);
    assert_int_equal(op_writer_open(&x->w, job, p, &(job_shape){.micro_batches = 1, .rows = 1, .seq = 64}), TM_OK);
    x->step = tm_program_interval(p, tm_program_temp(p, &(tm_object){.kind = TM_KIND_SCRATCH, .bytes = step_bytes}), 1);
    x->other = tm_program_interval(p, tm_program_temp(p, &(tm_object){.kind = TM_KIND_SCRATCH, .bytes = 4096}), 1);
}
static void end(written *x) {
    op_writer_close(&x->w);
    tm_program_free(x->w.p);
}

static op_call call_of(const tm_op *op, void *const *operand) {
    op_call c = op_call_of(job, op);
    c.operand = operand;
    return c;
}

/* An update has its operands by name, whatever the part keeps; the objective's take turns. */
static void operands_by_name(void **state) {
    (void)state;
    char at[8];
    void *const operand[] = {at, at + 1, at + 2, at + 3, at + 4, at + 5, at + 6};
    tm_op update = op_make(job, OP_UPDATE, (op_args){.update = {.part = 0}});
    op_call c = call_of(&update, operand);
    assert_ptr_equal(op_operand(&c, OPERAND_HI), at);
    assert_ptr_equal(op_operand(&c, OPERAND_LO), at + 1);
    assert_ptr_equal(op_operand(&c, OPERAND_EXP_AVG_SQ), at + 3);
    assert_ptr_equal(op_operand(&c, OPERAND_STEP), at + 5);
    assert_null(op_operand(&c, OPERAND_TOTALS));
    tm_op objective = op_make(job, OP_OBJECTIVE, (op_args){.objective = {.micro_batches = 2}});
    c = call_of(&objective, operand);
    assert_ptr_equal(op_operand_at(&c, OPERAND_BATCH, 1), at + 3);
    assert_ptr_equal(op_operand_at(&c, OPERAND_COEFFICIENT, 0), at + 2);
    assert_ptr_equal(op_operand(&c, OPERAND_STEP), at + 6);
}

enum { RIGHT, SMALL, MISSING, TWICE, WRITTEN };

/* OP_LOSS: reports R, step U; named in the other order. */
static void write_one(int how) {
    written x;
    begin(&x, how == SMALL ? sizeof(step_frame) - 1 : sizeof(step_frame));
    op_begin(&x.w, OP_LOSS, (op_args){{0}});
    if (how != MISSING) op_use(&x.w, OPERAND_STEP, x.step, TM_USE_UPDATE);
    if (how == TWICE) op_use(&x.w, OPERAND_STEP, x.step, TM_USE_UPDATE);
    op_use(&x.w, OPERAND_REPORTS, x.other, how == WRITTEN ? TM_USE_WRITE : TM_USE_READ);
    op_end(&x.w);
    assert_int_equal(tm_program_ops(x.w.p), 1);
    end(&x);
}

static void what_is_written_wrongly_stops(void **state) {
    (void)state;
    write_one(RIGHT);
    for (int how = SMALL; how <= WRITTEN; how++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            (void)freopen("/dev/null", "w", stderr);
            signal(SIGABRT, SIG_DFL);
            write_one(how);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_code_has_a_row), cmocka_unit_test(operands_by_name),
                                       cmocka_unit_test(what_is_written_wrongly_stops)};
    return cmocka_run_group_tests(tests, open_job, close_job);
}
