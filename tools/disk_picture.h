/* A heat map of block size and queue depth, as SVG or as an HTML page around it. */
#ifndef TIDEMILL_DISK_PICTURE_H
#define TIDEMILL_DISK_PICTURE_H

#include "tools/disk_load.h"

typedef struct disk_cell {
    uint64_t block, depth;
    disk_load_result result;
    double undisturbed; /* rounds a second of busy cores before it; 0: there are none */
} disk_cell;
typedef struct disk_grid {
    unsigned n_blocks, n_depths;
    disk_cell cell[256]; /* block by block */
} disk_grid;
static inline double disk_cell_bps(const disk_cell *c) {
    return c->result.read_bps + c->result.write_bps;
}
TM_MUST_USE tm_status disk_picture_write(const char *file, const disk_grid *g, const char *what, const char *engine);

#endif
