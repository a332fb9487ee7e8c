/* What the files of ops*.c share: operands, and the halves of a step that need other ranks. */
#ifndef TIDEMILL_OPS_INTERNAL_H
#define TIDEMILL_OPS_INTERNAL_H

#include "comm/comm.h"
#include "step/step.h"

/* Operands come in the order in which build*.c wrote the uses. */
typedef struct operands {
    void *const *at;
} operands;
static inline void *next_operand(operands *o) {
    return *o->at++;
}

/* ops_comm.c: a tm_exec_comm. */
typedef struct comm_ops comm_ops;
tm_status comm_ops_open(comm_ops **out, tm_job *job);
void comm_ops_close(comm_ops *c); /* nothing is under way; NULL is fine */
tm_status comm_ops_submit(void *ctx, const tm_op *op, void *const *operand, void *token);

/* ops_update.c */
tm_status ops_update(tm_job *job, const tm_op *op, operands o);
tm_status ops_sums(tm_job *job, const tm_op *op, operands o);
tm_status ops_turn(tm_job *job, const tm_op *op, operands o);
tm_status ops_pack_sums(tm_job *job, const tm_op *op, operands o);

/* ops_ranks.c */
enum { REPORT_LOSS, REPORT_FLAGS, REPORT_PEAK, REPORT_HEAD };
uint64_t job_report_doubles(const tm_job *job, uint32_t rank, bool norm);
tm_status ops_report(tm_job *job, const tm_op *op, operands o);
tm_status ops_stash(tm_job *job, const tm_op *op, operands o);
void ops_read_reports(tm_job *job, const double *reports, bool norm, double *square); /* norm: square of it */

#endif
