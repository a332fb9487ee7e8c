/* Every call of MPI that can fail goes through here, where a test can fail it, delay it, or kill or stop this process
 * instead (TIDEMILL_FAULT=mpi_isend:3:error:once; kinds: error, delay; kill and stop are base's). */
#include "comm/remote_internal.h"

#include <string.h>
#include <time.h>

static void delay(void) {
    struct timespec t = {.tv_nsec = 200 * 1000 * 1000};
    nanosleep(&t, NULL);
}

/* 0: make the call. */
static int ask(const char *call) {
    const char *kind;
    if (!tm_fault_hit(call, &kind)) return 0;
    if (!strcmp(kind, "delay")) delay();
    return strcmp(kind, "error") == 0 ? comm_mpi->other_error : 0;
}

static tm_status failed(const char *call, int code) {
    char text[512] = "";
    if (comm_mpi->explain(code, text, sizeof text))
        return tm_fail(TM_EBUG, "%s: %s: the ranks disagree about an operation", call, text);
    return tm_fail(TM_EIO, "%s: %s; the ranks cannot go on", call, *text ? text : "failed");
}

#define CALL(name, expr)                                                                                               \
    do {                                                                                                               \
        int code_ = ask(name);                                                                                         \
        if (code_ == 0) code_ = comm_mpi->expr;                                                                        \
        return code_ == 0 ? TM_OK : failed(name, code_);                                                               \
    } while (0)

tm_status comm_mpi_init(void) {
    CALL("mpi_init", init());
}

tm_status comm_mpi_isend(const void *buf, int bytes, int to, int tag, comm_mpi_comm comm, comm_mpi_request *out) {
    CALL("mpi_isend", isend(buf, bytes, to, tag, comm, out));
}

tm_status comm_mpi_irecv(void *buf, int bytes, int from, int tag, comm_mpi_comm comm, comm_mpi_request *out) {
    CALL("mpi_irecv", irecv(buf, bytes, from, tag, comm, out));
}

tm_status comm_mpi_testsome(int n, comm_mpi_request *request, int *done, int *index, int *bytes) {
    CALL("mpi_testsome", testsome(n, request, done, index, bytes));
}

tm_status comm_mpi_test(comm_mpi_request *request, int *done) {
    CALL("mpi_test", test(request, done));
}

tm_status comm_mpi_iallreduce_f32(const void *send, void *recv, int n, comm_mpi_comm comm, comm_mpi_request *out) {
    CALL("mpi_iallreduce", iallreduce_f32(send, recv, n, comm, out));
}

tm_status comm_mpi_allgather(const void *mine, void *all, int bytes, comm_mpi_comm comm) {
    CALL("mpi_allgather", allgather(mine, all, bytes, comm));
}

tm_status comm_mpi_min(int mine, int *least) {
    CALL("mpi_allreduce", least(mine, least));
}

tm_status comm_mpi_bcast(void *buf, int bytes, int root, comm_mpi_comm comm) {
    CALL("mpi_bcast", bcast(buf, bytes, root, comm));
}

tm_status comm_mpi_split(comm_mpi_comm comm, int colour, int key, comm_mpi_comm *out) {
    CALL("mpi_comm_split", split(comm, colour, key, out));
}

tm_status comm_mpi_split_shared(comm_mpi_comm comm, int key, comm_mpi_comm *out) {
    CALL("mpi_comm_split_type", split_shared(comm, key, out));
}

tm_status comm_mpi_dup(comm_mpi_comm comm, comm_mpi_comm *out) {
    CALL("mpi_comm_dup", dup(comm, out));
}

tm_status comm_mpi_window(int64_t bytes, comm_mpi_comm comm, void **base, comm_mpi_win *out) {
    CALL("mpi_win_allocate_shared", win_allocate(bytes, comm, base, out));
}

tm_status comm_mpi_window_query(comm_mpi_win win, int rank, int64_t *bytes, void **base) {
    CALL("mpi_win_shared_query", win_query(win, rank, bytes, base));
}

tm_status comm_mpi_window_free(comm_mpi_win *win) {
    CALL("mpi_win_free", win_free(win));
}

tm_status comm_mpi_finalize(void) {
    CALL("mpi_finalize", finalize());
}
