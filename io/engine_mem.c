/* mem: files whose bytes are in memory, for tests without a disk. A page is there once it was written; a table with
 * open addressing finds it by descriptor and number. Descriptors must stay open as long as the engine. */
#include "io/io_internal.h"

#include <errno.h>
#include <string.h>

enum { PAGE = 4096 };

typedef struct page {
    int fd;
    uint64_t number;
    char *bytes; /* NULL: no page here */
} page;

typedef struct mem_ctx {
    io_queue started, settled;
    page *table;
    size_t cap, used; /* cap: a power of two */
} mem_ctx;

static tm_status mem_open(io_layer *l) {
    l->ctx = tm_calloc(1, sizeof(mem_ctx));
    return l->ctx ? TM_OK : tm_nomem(sizeof(mem_ctx));
}

static void mem_close(io_layer *l) {
    mem_ctx *c = l->ctx;
    for (size_t i = 0; i < c->cap; i++) tm_free(c->table[i].bytes);
    tm_free(c->table);
    tm_free(c);
}

static page *find_page(const mem_ctx *c, int fd, uint64_t number) {
    TM_ASSERT(c->used < c->cap && (c->cap & (c->cap - 1)) == 0);
    uint64_t key[2] = {(uint64_t)fd, number};
    size_t i = tm_hash64(key, sizeof key, 0) & (c->cap - 1);
    while (c->table[i].bytes && (c->table[i].fd != fd || c->table[i].number != number)) i = (i + 1) & (c->cap - 1);
    return &c->table[i];
}

static bool grow_table(mem_ctx *c) {
    mem_ctx bigger = {.cap = c->cap ? 2 * c->cap : 256};
    bigger.table = tm_calloc(bigger.cap, sizeof *bigger.table);
    if (!bigger.table) return false;
    for (size_t i = 0; i < c->cap; i++)
        if (c->table[i].bytes) *find_page(&bigger, c->table[i].fd, c->table[i].number) = c->table[i];
    tm_free(c->table);
    c->table = bigger.table;
    c->cap = bigger.cap;
    return true;
}

static char *page_to_write(mem_ctx *c, int fd, uint64_t number) {
    if (c->used >= c->cap / 2 && !grow_table(c)) return NULL;
    page *p = find_page(c, fd, number);
    if (p->bytes) return p->bytes;
    char *bytes = tm_calloc(1, PAGE);
    if (!bytes) return NULL;
    *p = (page){.fd = fd, .number = number, .bytes = bytes};
    c->used++;
    return bytes;
}

static bool move_in_page(mem_ctx *c, const io_piece *p, uint64_t offset, char *buf, size_t n) {
    TM_ASSERT(n > 0 && n <= PAGE - offset % PAGE);
    int fd = p->req->file.fd;
    if (p->req->op == TM_IO_WRITE) {
        char *bytes = page_to_write(c, fd, offset / PAGE);
        if (bytes) memcpy(bytes + offset % PAGE, buf, n);
        return bytes != NULL;
    }
    const char *bytes = c->cap ? find_page(c, fd, offset / PAGE)->bytes : NULL;
    if (bytes) {
        memcpy(buf, bytes + offset % PAGE, n);
    } else {
        memset(buf, 0, n);
    }
    return true;
}

/* A read that begins at or beyond the end of the file, or reaches over it, falls short as pread does. */
static uint32_t within_file(const io_piece *p) {
    struct stat st;
    if (p->req->op != TM_IO_READ || io_sys_table->fstat(p->req->file.fd, &st) != 0 || !S_ISREG(st.st_mode)) return p->n;
    uint64_t size = (uint64_t)st.st_size;
    return p->offset >= size ? 0 : (uint32_t)tm_min_u64(p->n, size - p->offset);
}

static int execute_in_memory(mem_ctx *c, const io_piece *p) {
    if (p->req->op == TM_IO_SYNC) return 0;
    uint32_t all = within_file(p);
    for (uint32_t at = 0; at < all;) {
        uint64_t offset = p->offset + at;
        uint32_t n = (uint32_t)tm_min_u64(all - at, PAGE - offset % PAGE);
        if (!move_in_page(c, p, offset, p->buf + at, n)) return -ENOMEM;
        at += n;
    }
    return (int)all;
}

static void mem_start(io_layer *l, io_piece *p) {
    mem_ctx *c = l->ctx;
    io_queue_push(&c->started, p);
}

static void mem_flush(io_layer *l) {
    mem_ctx *c = l->ctx;
    for (io_piece *p; (p = io_queue_pop(&c->started));) {
        p->res = execute_in_memory(c, p);
        io_queue_push(&c->settled, p);
    }
}

static tm_status mem_reap(io_layer *l, bool block, io_queue *settled) {
    mem_ctx *c = l->ctx;
    mem_flush(l);
    if (block && !c->settled.head) io_sleep(l->io);
    io_queue_move(settled, &c->settled);
    return TM_OK;
}

const io_engine io_engine_mem = {
    .name = "mem", .open = mem_open, .close = mem_close, .start = mem_start, .flush = mem_flush, .reap = mem_reap};
