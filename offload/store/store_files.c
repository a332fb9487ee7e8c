/* Files that are not ours: what is frozen is read where it lies, and nothing is ever written there. The last object of
 * a file may end between two pages: it is read through the page cache, the others past it.
 *
 * Checksums of its pages are of what was read first. A read checks all pages of the object where the file's size or time of modification
 * are others than when all of them were last checked, else one page in eight, in turn: hashing 27 GB a step took a sixth of a core. */
#include "offload/store/store_internal.h"

typedef struct store_file {
    tm_io_file pages; /* direct, where the file system can */
    tm_io_file rest;  /* through the page cache */
} store_file;

tm_status store_open_files(tm_store *s) {
    uint32_t n = tm_layout_files(s->layout);
    if (n == 0) return TM_OK;
    s->in_place = tm_calloc(n, sizeof *s->in_place);
    if (!s->in_place) return tm_nomem(n * sizeof *s->in_place);
    for (uint32_t i = 0; i < n; i++) {
        TM_TRY(tm_io_file_in_place(tm_layout_file_path(s->layout, i), true, &s->in_place[i].pages));
        TM_TRY(tm_io_file_in_place(tm_layout_file_path(s->layout, i), false, &s->in_place[i].rest));
    }
    return TM_OK;
}

void store_close_files(tm_store *s) {
    for (uint32_t i = 0; s->in_place && i < tm_layout_files(s->layout); i++) {
        tm_io_file_leave(&s->in_place[i].pages);
        tm_io_file_leave(&s->in_place[i].rest);
    }
    tm_free(s->in_place);
    s->in_place = NULL;
}

void store_aim_home(const tm_store *s, const object_home *home, tm_io_req *req) {
    const tm_object *o = &s->layout->object[home->object];
    const store_file *f = &s->in_place[home->file];
    req->file = o->bytes % TM_FRAME_ALIGN ? f->rest : f->pages;
    req->offset = home->offset;
    req->len = o->bytes;
}
