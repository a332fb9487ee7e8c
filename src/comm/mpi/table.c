/* MPI, behind the table of mpi_internal.h: nothing but the calls. Links MPI and nothing of tidemill. */
#include "comm/mpi_internal.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

/* Handles: pointers in Open MPI, ints in MPICH and its kin. */
#define COMM(h) ((MPI_Comm)(intptr_t)(h))
#define REQUEST(h) ((MPI_Request)(intptr_t)(h))
#define WIN(h) ((MPI_Win)(intptr_t)(h))
#define HANDLE(type, h) ((type)(void *)(intptr_t)(h))

static void library(char *text, size_t cap) {
    char name[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int n = 0;
    if (MPI_Get_library_version(name, &n) != MPI_SUCCESS) n = 0;
    name[strcspn(name, ",\n")] = 0;
    snprintf(text, cap, "%s", name);
}

static int init(void) {
    int provided, code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    return code == MPI_SUCCESS ? MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN) : code;
}

static bool is_up(void) {
    int is_there = 0, is_over = 0;
    MPI_Initialized(&is_there);
    MPI_Finalized(&is_over);
    return is_there && !is_over;
}

static void world_size(int *size, int *rank) {
    MPI_Comm_size(MPI_COMM_WORLD, size);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
}

static int finalize(void) {
    return MPI_Finalize();
}

static void end(int status) {
    MPI_Abort(MPI_COMM_WORLD, status);
}

static bool explain(int code, char *text, size_t cap) {
    char words[MPI_MAX_ERROR_STRING] = "";
    int n = 0, class = MPI_ERR_OTHER;
    MPI_Error_string(code, words, &n);
    MPI_Error_class(code, &class);
    snprintf(text, cap, "%s", words);
    return class == MPI_ERR_TRUNCATE;
}

static int isend(const void *buf, int bytes, int to, int tag, comm_mpi_comm comm, comm_mpi_request *out) {
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Isend(buf, bytes, MPI_BYTE, to, tag, COMM(comm), &request);
    *out = HANDLE(comm_mpi_request, request);
    return code;
}

static int irecv(void *buf, int bytes, int from, int tag, comm_mpi_comm comm, comm_mpi_request *out) {
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Irecv(buf, bytes, MPI_BYTE, from == COMM_MPI_ANY ? MPI_ANY_SOURCE : from, tag, COMM(comm), &request);
    *out = HANDLE(comm_mpi_request, request);
    return code;
}

static int test(comm_mpi_request *h, int *done) {
    MPI_Request request = REQUEST(*h);
    int code = MPI_Test(&request, done, MPI_STATUS_IGNORE);
    *h = HANDLE(comm_mpi_request, request);
    return code;
}

static int testsome(int n, comm_mpi_request *h, int *done, int *index, int *bytes) {
    MPI_Request request[COMM_MPI_BATCH];
    MPI_Status status[COMM_MPI_BATCH];
    for (int i = 0; i < n; i++) request[i] = REQUEST(h[i]);
    int code = MPI_Testsome(n, request, done, index, status);
    for (int i = 0; i < n; i++) h[i] = HANDLE(comm_mpi_request, request[i]);
    for (int i = 0; code == MPI_ERR_IN_STATUS && i < *done; i++) /* which one, and why */
        if (status[i].MPI_ERROR != MPI_SUCCESS && status[i].MPI_ERROR != MPI_ERR_PENDING) code = status[i].MPI_ERROR;
    if (*done == MPI_UNDEFINED) *done = -1;
    for (int i = 0; code == MPI_SUCCESS && i < *done; i++) MPI_Get_count(&status[i], MPI_BYTE, &bytes[i]);
    return code;
}

static int cancel(comm_mpi_request *h) {
    MPI_Request request = REQUEST(*h);
    int code = MPI_Cancel(&request);
    *h = HANDLE(comm_mpi_request, request);
    return code;
}

static void progress(comm_mpi_comm comm) {
    int there;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, COMM(comm), &there, MPI_STATUS_IGNORE);
}

static int iallreduce_f32(const void *send, void *recv, int n, comm_mpi_comm comm, comm_mpi_request *out) {
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Iallreduce(send == recv ? MPI_IN_PLACE : send, recv, n, MPI_FLOAT, MPI_SUM, COMM(comm), &request);
    *out = HANDLE(comm_mpi_request, request);
    return code;
}

static int allgather(const void *mine, void *all, int bytes, comm_mpi_comm comm) {
    return MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, COMM(comm));
}

static int least(int mine, int *out) {
    return MPI_Allreduce(&mine, out, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
}

static int bcast(void *buf, int bytes, int root, comm_mpi_comm comm) {
    return MPI_Bcast(buf, bytes, MPI_BYTE, root, COMM(comm));
}

static int made(int code, MPI_Comm comm, comm_mpi_comm *out) {
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    *out = HANDLE(comm_mpi_comm, comm);
    return code;
}

static int split(comm_mpi_comm comm, int colour, int key, comm_mpi_comm *out) {
    MPI_Comm new = MPI_COMM_NULL;
    int code = MPI_Comm_split(COMM(comm), colour, key, &new);
    return made(code, new, out);
}

static int split_shared(comm_mpi_comm comm, int key, comm_mpi_comm *out) {
    MPI_Comm new = MPI_COMM_NULL;
    int code = MPI_Comm_split_type(COMM(comm), MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &new);
    return made(code, new, out);
}

static int dup(comm_mpi_comm comm, comm_mpi_comm *out) {
    MPI_Comm new = MPI_COMM_NULL;
    int code = MPI_Comm_dup(COMM(comm), &new);
    return made(code, new, out);
}

static void free_comm(comm_mpi_comm h) {
    MPI_Comm comm = COMM(h);
    MPI_Comm_free(&comm);
}

/* ---- memory shared on a node ---- */

static int win_allocate(int64_t bytes, comm_mpi_comm comm, void **base, comm_mpi_win *out) {
    MPI_Win win = MPI_WIN_NULL;
    int code = MPI_Win_allocate_shared((MPI_Aint)bytes, 1, MPI_INFO_NULL, COMM(comm), base, &win);
    *out = HANDLE(comm_mpi_win, win);
    return code;
}

static int win_query(comm_mpi_win win, int rank, int64_t *bytes, void **base) {
    int unit;
    MPI_Aint n = 0;
    int code = MPI_Win_shared_query(WIN(win), rank, &n, &unit, base);
    *bytes = n;
    return code;
}

static int win_free(comm_mpi_win *h) {
    MPI_Win win = WIN(*h);
    int code = MPI_Win_free(&win);
    *h = HANDLE(comm_mpi_win, win);
    return code;
}

extern const comm_mpi_table tm_comm_mpi;
__attribute__((visibility("default"))) const comm_mpi_table tm_comm_mpi = {
    .version = COMM_MPI_VERSION,
    .bytes = sizeof(comm_mpi_table),
    .world = HANDLE(comm_mpi_comm, MPI_COMM_WORLD),
    .no_request = HANDLE(comm_mpi_request, MPI_REQUEST_NULL),
    .no_win = HANDLE(comm_mpi_win, MPI_WIN_NULL),
    .other_error = MPI_ERR_OTHER,
    .library = library,
    .init = init,
    .is_up = is_up,
    .world_size = world_size,
    .finalize = finalize,
    .abort = end,
    .explain = explain,
    .isend = isend,
    .irecv = irecv,
    .test = test,
    .testsome = testsome,
    .cancel = cancel,
    .progress = progress,
    .iallreduce_f32 = iallreduce_f32,
    .allgather = allgather,
    .least = least,
    .bcast = bcast,
    .split = split,
    .split_shared = split_shared,
    .dup = dup,
    .free = free_comm,
    .win_allocate = win_allocate,
    .win_query = win_query,
    .win_free = win_free,
};
