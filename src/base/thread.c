/* Threads: the one place where one is started. */
#include "base/base.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <time.h>

enum { GONE_MS = 1000 };

/* Signals are for the thread that knows what to do with them, the program's first; what a thread does wrong itself
 * stays its own. */
static void block_signals(sigset_t *before) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP};
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < TM_COUNT(own); i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

static int start(pthread_t *thread, void *(*body)(void *), void *arg) {
    sigset_t before;
    if (tm_fault_hit("thread", NULL)) return EAGAIN;
    block_signals(&before);
    int err = pthread_create(thread, NULL, body, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return err;
}

tm_status tm_thread_start(pthread_t *thread, void *(*body)(void *), void *arg, const char *what) {
    int err = start(thread, body, arg);
    if (!err) return TM_OK;
    return tm_fail_sys(TM_EIO, err, "pthread_create", "", -1,
                       "%s: no thread can be started; the limit of threads (`ulimit -u`, or pids.max of the cgroup: a "
                       "container's or a batch job's) or of memory (`ulimit -v`) has to allow more",
                       what);
}

/* ---- can there be so many? -------------------------------------------------------------------------------------- */

/* All of them at once: none ends before the last was tried. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open;
} gate;

static void *wait_at_gate(void *arg) {
    gate *g = arg;
    pthread_mutex_lock(&g->lock);
    while (!g->open) pthread_cond_wait(&g->opened, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static unsigned threads_now(void) {
    unsigned n = 0;
    DIR *d = opendir("/proc/self/task");
    if (!d) return 0;
    for (const struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* A thread that was joined counts against the limit until the kernel has put it away. */
static void wait_until_gone(unsigned before) {
    for (int ms = 0; ms < GONE_MS && threads_now() > before; ms++)
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

tm_status tm_threads_try(unsigned n, const char *what) {
    gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .opened = PTHREAD_COND_INITIALIZER};
    tm_status rc = TM_OK;
    unsigned started = 0, before = threads_now();
    if (n == 0) return TM_OK;
    pthread_t *thread = tm_malloc(n * sizeof *thread);
    if (!thread) return tm_nomem(n * sizeof *thread);
    while (started < n && rc == TM_OK) {
        rc = tm_thread_start(&thread[started], wait_at_gate, &g, what);
        started += rc == TM_OK;
    }
    pthread_mutex_lock(&g.lock);
    g.open = true;
    pthread_cond_broadcast(&g.opened);
    pthread_mutex_unlock(&g.lock);
    for (unsigned i = 0; i < started; i++) pthread_join(thread[i], NULL);
    tm_free(thread);
    wait_until_gone(before);
    return rc;
}
