/* What the files of ops*.c share: their rows, what operands take, and the halves of a step that need other ranks. */
#ifndef TIDEMILL_OPS_INTERNAL_H
#define TIDEMILL_OPS_INTERNAL_H

#include "comm/comm.h"
#include "step/op.h"

/* By code; the rows of other files are empty. */
extern const op_row ops_model_rows[OP_CODES], ops_update_rows[OP_CODES], ops_state_rows[OP_CODES],
    ops_rank_rows[OP_CODES], ops_comm_rows[OP_CODES];

enum { NORM_BLOCKS = TM_TILE_ELEMENTS / TM_NORM_BLOCK /* of a tile */ };

/* ops.c */
uint64_t operand_step_bytes(const op_call *c);
uint64_t operand_sum_bytes(const op_call *c); /* of the part that the arguments begin with */
/* Of NORM and REPORT: of the i-th part that has partial sums. */
uint64_t operand_partial_bytes(const op_call *c);
/* Update B has no way back: what was updated before is a step ahead of what is left. */
tm_status ops_diverged(const op_call *c, const char *what);

/* ops_update.c */
tm_kind operand_kind(const op_call *c);     /* of an operand of state: as its name says */
uint32_t operand_is_kept(const op_call *c); /* the part has such state */
uint64_t operand_means_bytes(const op_call *c);
uint64_t operand_pieces_bytes(const op_call *c);

/* ops_state.c */
double amount_full_tile(const op_call *c); /* bytes of fp32 values, read and written */

/* ops_comm.c: a tm_exec_comm. */
typedef struct comm_ops comm_ops;
tm_status comm_ops_open(comm_ops **out, tm_job *job);
void comm_ops_close(comm_ops *c); /* nothing is under way; NULL is fine */
tm_status comm_ops_submit(void *ctx, const tm_op *op, void *const *operand, void *token);

/* ops_ranks.c */
enum {
    REPORT_LOSS,
    REPORT_FLAGS,
    REPORT_PEAK,
    REPORT_SUM,
    REPORT_SHARED = REPORT_SUM + TM_OBJECTIVE_SUMS,
    REPORT_HEAD = REPORT_SHARED + TM_OBJECTIVE_SHARED
};
uint64_t job_report_doubles(const tm_job *job, uint32_t rank, bool norm);
uint64_t operand_reports_bytes(const op_call *c);
uint64_t operand_whole_bytes(const op_call *c);                     /* a part's compute weights */
uint64_t operand_second_bytes(const op_call *c);                    /* hpZ: this rank's share of them */
void ops_read_reports(const op_call *c, bool norm, double *square); /* norm: square of it */
void ops_read_shared(const op_call *c, double shared[TM_OBJECTIVE_SHARED]);

#endif
