/* Every call of MPI that can fail goes through here, where a test can fail it, delay it, or kill or stop this process
 * instead (TIDEMILL_FAULT=mpi_isend:3:error:once; kinds: error, delay; kill and stop are base's). */
#include "comm/remote_internal.h"

#include <string.h>
#include <time.h>

static void delay(void) {
    struct timespec t = {.tv_nsec = 200 * 1000 * 1000};
    nanosleep(&t, NULL);
}

/* MPI_SUCCESS: make the call. */
static int ask(const char *call) {
    const char *kind;
    if (!tm_fault_hit(call, &kind)) return MPI_SUCCESS;
    if (!strcmp(kind, "delay")) delay();
    return strcmp(kind, "error") == 0 ? MPI_ERR_OTHER : MPI_SUCCESS;
}

static tm_status failed(const char *call, int code) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0, class = MPI_ERR_OTHER;
    MPI_Error_string(code, text, &n);
    MPI_Error_class(code, &class);
    if (class == MPI_ERR_TRUNCATE) return tm_fail(TM_EBUG, "%s: %s: the ranks disagree about an operation", call, text);
    return tm_fail(TM_EIO, "%s: %s; the ranks cannot go on", call, *text ? text : "failed");
}

#define CALL(name, expr)                                                                                               \
    do {                                                                                                               \
        int code_ = ask(name);                                                                                         \
        if (code_ == MPI_SUCCESS) code_ = (expr);                                                                      \
        if (code_ != MPI_SUCCESS) return failed(name, code_);                                                          \
        return TM_OK;                                                                                                  \
    } while (0)

tm_status comm_mpi_init(void) {
    int provided;
    CALL("mpi_init", MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided));
}

tm_status comm_mpi_isend(const void *buf, int bytes, int to, int tag, MPI_Comm comm, MPI_Request *out) {
    CALL("mpi_isend", MPI_Isend(buf, bytes, MPI_BYTE, to, tag, comm, out));
}

tm_status comm_mpi_irecv(void *buf, int bytes, int from, int tag, MPI_Comm comm, MPI_Request *out) {
    CALL("mpi_irecv", MPI_Irecv(buf, bytes, MPI_BYTE, from, tag, comm, out));
}

static int test_some(int n, MPI_Request *request, int *done, int *index, MPI_Status *status) {
    int code = MPI_Testsome(n, request, done, index, status);
    for (int i = 0; code == MPI_ERR_IN_STATUS && i < *done; i++) /* which one, and why */
        if (status[i].MPI_ERROR != MPI_SUCCESS && status[i].MPI_ERROR != MPI_ERR_PENDING) code = status[i].MPI_ERROR;
    if (*done == MPI_UNDEFINED) *done = -1;
    return code;
}

tm_status comm_mpi_testsome(int n, MPI_Request *request, int *done, int *index, MPI_Status *status) {
    CALL("mpi_testsome", test_some(n, request, done, index, status));
}

tm_status comm_mpi_test(MPI_Request *request, int *done) {
    CALL("mpi_test", MPI_Test(request, done, MPI_STATUS_IGNORE));
}

tm_status comm_mpi_iallreduce_f32(const void *send, void *recv, int n, MPI_Comm comm, MPI_Request *out) {
    CALL("mpi_iallreduce", MPI_Iallreduce(send == recv ? MPI_IN_PLACE : send, recv, n, MPI_FLOAT, MPI_SUM, comm, out));
}

tm_status comm_mpi_allgather(const void *mine, void *all, int bytes, MPI_Comm comm) {
    CALL("mpi_allgather", MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, comm));
}

tm_status comm_mpi_min(int mine, int *least) {
    CALL("mpi_allreduce", MPI_Allreduce(&mine, least, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD));
}

tm_status comm_mpi_bcast(void *buf, int bytes, int root, MPI_Comm comm) {
    CALL("mpi_bcast", MPI_Bcast(buf, bytes, MPI_BYTE, root, comm));
}

tm_status comm_mpi_split(MPI_Comm comm, int colour, int key, MPI_Comm *out) {
    CALL("mpi_comm_split", MPI_Comm_split(comm, colour, key, out));
}

tm_status comm_mpi_split_shared(MPI_Comm comm, int key, MPI_Comm *out) {
    CALL("mpi_comm_split_type", MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, out));
}

static int duplicate(MPI_Comm comm, MPI_Comm *out) {
    int code = MPI_Comm_dup(comm, out);
    return code == MPI_SUCCESS ? MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN) : code;
}

tm_status comm_mpi_dup(MPI_Comm comm, MPI_Comm *out) {
    CALL("mpi_comm_dup", duplicate(comm, out));
}

tm_status comm_mpi_window(MPI_Aint bytes, MPI_Comm comm, void *base, MPI_Win *out) {
    CALL("mpi_win_allocate_shared", MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, comm, base, out));
}

tm_status comm_mpi_window_query(MPI_Win window, int rank, MPI_Aint *bytes, void *base) {
    int unit;
    CALL("mpi_win_shared_query", MPI_Win_shared_query(window, rank, bytes, &unit, base));
}

tm_status comm_mpi_window_free(MPI_Win *window) {
    CALL("mpi_win_free", MPI_Win_free(window));
}

tm_status comm_mpi_finalize(void) {
    CALL("mpi_finalize", MPI_Finalize());
}
