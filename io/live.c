/* What this process would leave behind if it stopped now. */
#include "io/io_internal.h"

#include <fcntl.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static io_live *head;

void io_live_add(io_live *l) {
    pthread_mutex_lock(&lock);
    l->prev = NULL;
    TM_ASSERT(l->path && l != head);
    l->next = head;
    if (head) head->prev = l;
    head = l;
    pthread_mutex_unlock(&lock);
}

void io_live_remove(io_live *l) {
    pthread_mutex_lock(&lock);
    if (l->prev) l->prev->next = l->next;
    TM_ASSERT(!l->next || l->next->prev == l);
    if (l->next) l->next->prev = l->prev;
    if (head == l) head = l->next;
    l->prev = l->next = NULL;
    pthread_mutex_unlock(&lock);
}

/* Best effort: there is nobody left to tell. */
void tm_io_cleanup_at_exit(void) {
    pthread_mutex_lock(&lock);
    for (io_live *l = head; l; l = l->next) {
        if (l->remove)
            l->remove(l);
        else
            io_sys_table->unlinkat(AT_FDCWD, l->path, 0);
    }
    pthread_mutex_unlock(&lock);
}
