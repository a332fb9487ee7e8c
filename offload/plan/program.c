/* Layout and program: what there is, and what a pass does with it. */
#include "offload/offload_internal.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
static const tm_kind_traits kinds[TM_KINDS] = {
    /*                       name          colour   slots  committed optimizer */
    [TM_KIND_WEIGHT_HI]  = {"weight_hi",  "#3b6fb6", 2, true,  false},
    [TM_KIND_WEIGHT_LO]  = {"weight_lo",  "#8fbbe8", 2, true,  true},
    [TM_KIND_EXP_AVG]    = {"exp_avg",    "#d9822b", 2, true,  true},
    [TM_KIND_EXP_AVG_SQ] = {"exp_avg_sq", "#f4bf7a", 2, true,  true},
    [TM_KIND_GRAD]       = {"grad",       "#3f9b5f", 1, false, true},
    [TM_KIND_ACTIVATION] = {"activation", "#c8504b", 1, false, false},
    [TM_KIND_FROZEN]     = {"frozen",     "#6aa9a4", 1, false, false},
    [TM_KIND_SCRATCH]    = {"scratch",    "#8d6e9e", 1, false, false},
    [TM_KIND_KV_CACHE]   = {"kv_cache",   "#a89a3f", 1, false, false},
};
/* clang-format on */

const tm_kind_traits *tm_kind_get(tm_kind kind) {
    TM_ASSERT(kind < TM_KINDS);
    return &kinds[kind];
}

const char *tm_kind_name(tm_kind kind) {
    return kind < TM_KINDS ? kinds[kind].name : "?";
}

uint64_t tm_kinds_sum(const uint64_t by_kind[TM_KINDS]) {
    uint64_t all = 0;
    for (int k = 0; k < TM_KINDS; k++) all += by_kind[k];
    return all;
}

/* Whole I/O units, also for what is never paged: frames then meet at page boundaries. */
static uint64_t frame_bytes(const tm_object *o) {
    return tm_round_up(o->bytes, TM_FRAME_ALIGN);
}

tm_status tm_layout_create(tm_layout **out) {
    *out = tm_calloc(1, sizeof **out);
    return *out ? TM_OK : tm_nomem(sizeof **out);
}

void tm_layout_free(tm_layout *l) {
    if (!l) return;
    for (uint32_t i = 0; i < l->n_files; i++) tm_free(l->file[i].path);
    TM_FREE_ALL(l->object, l->home, l->file, l);
}

uint32_t tm_layout_object(tm_layout *l, const tm_object *o) {
    TM_ASSERT(o->bytes > 0 && o->kind < TM_KINDS);
    if (tm_grow(&l->object, &l->cap, l->n + 1, sizeof *o) != TM_OK) return TM_NONE;
    tm_object *n = &l->object[l->n];
    *n = *o;
    n->state = true;
    n->resident = false;
    n->frame_bytes = frame_bytes(o);
    return l->n++;
}

uint32_t tm_layout_objects(const tm_layout *l) {
    return l->n;
}
const tm_object *tm_layout_get(const tm_layout *l, uint32_t id) {
    return &l->object[id];
}

/* ---- files that state is read from ----------------------------------------------------------------------------- */

tm_status tm_layout_file(tm_layout *l, const char *path, uint32_t *file) {
    for (*file = 0; *file < l->n_files; ++*file)
        if (strcmp(l->file[*file].path, path) == 0) return TM_OK;
    TM_TRY(tm_grow(&l->file, &l->cap_files, (size_t)l->n_files + 1, sizeof *l->file));
    l->file[l->n_files] = (layout_file){.path = tm_strdup(path)};
    if (!l->file[l->n_files].path) return tm_nomem(strlen(path) + 1);
    l->n_files++;
    return TM_OK;
}

uint64_t *tm_layout_file_bytes(tm_layout *l, uint32_t file) {
    TM_ASSERT(file < l->n_files);
    return &l->file[file].bytes;
}

tm_status tm_layout_home(tm_layout *l, uint32_t id, uint32_t file, uint64_t offset) {
    TM_ASSERT(id < l->n && file < l->n_files && offset % TM_FRAME_ALIGN == 0);
    TM_ASSERT(l->object[id].kind == TM_KIND_FROZEN && (l->n_homes == 0 || l->home[l->n_homes - 1].object < id));
    TM_TRY(tm_grow(&l->home, &l->cap_homes, (size_t)l->n_homes + 1, sizeof *l->home));
    l->home[l->n_homes++] = (object_home){.object = id, .file = file, .offset = offset};
    return TM_OK;
}

uint32_t tm_layout_files(const tm_layout *l) {
    return l->n_files;
}

const char *tm_layout_file_path(const tm_layout *l, uint32_t file) {
    TM_ASSERT(file < l->n_files);
    return l->file[file].path;
}

const object_home *layout_home(const tm_layout *l, uint32_t id) {
    uint32_t low = 0, high = l->n_homes; /* added in the order of ids */
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (l->home[middle].object < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < l->n_homes && l->home[low].object == id ? &l->home[low] : NULL;
}

/* ---- programs -------------------------------------------------------------------------------------------------- */

tm_status tm_program_create(tm_program **out, const tm_layout *layout, const char *name) {
    tm_program *p = tm_calloc(1, sizeof *p);
    if (!p) return tm_nomem(sizeof *p);
    p->layout = layout;
    snprintf(p->name, sizeof p->name, "%s", name);
    *out = p;
    return TM_OK;
}

void tm_program_free(tm_program *p) {
    if (!p) return;
    TM_FREE_ALL(p->temp, p->interval, p->record, p->op, p->use, p->device_address, p);
}

/* Room for one more element behind `n`; a failure is the program's. */
static bool program_grow(tm_program *p, void *array, size_t *cap, uint32_t n, size_t element_bytes) {
    tm_status rc = tm_grow(array, cap, (size_t)n + 1, element_bytes);
    if (p->status == TM_OK) p->status = rc;
    return rc == TM_OK;
}

const tm_object *program_object(const tm_program *p, uint32_t id) {
    return id & TM_TEMP_BIT ? &p->temp[id & ~TM_TEMP_BIT] : &p->layout->object[id];
}

uint32_t tm_program_temp(tm_program *p, const tm_object *o) {
    if (!program_grow(p, &p->temp, &p->cap_temp, p->n_temp, sizeof *o)) return TM_TEMP_BIT;
    tm_object *n = &p->temp[p->n_temp];
    *n = *o;
    n->state = false;
    n->frame_bytes = frame_bytes(o);
    return TM_TEMP_BIT | p->n_temp++;
}

uint32_t tm_program_interval(tm_program *p, uint32_t first, uint32_t count) {
    TM_ASSERT(count >= 1 && (count == 1 || !(first & TM_TEMP_BIT)));
    if (p->status != TM_OK) return 0;
    if (!program_grow(p, &p->interval, &p->cap_interval, p->n_interval, sizeof *p->interval)) return 0;
    p->interval[p->n_interval] = (prog_interval){.first = first,
                                                 .count = count,
                                                 .first_op = TM_NONE,
                                                 .last_op = TM_NONE,
                                                 .record = p->n_record,
                                                 .tier = program_object(p, first)->tier};
    for (uint32_t i = 0; i < count; i++) {
        if (!program_grow(p, &p->record, &p->cap_record, p->n_record, sizeof *p->record)) return 0;
        p->record[p->n_record++] = (interval_object){0};
    }
    return p->n_interval++;
}

void tm_program_op(tm_program *p, const tm_op *op) {
    TM_ASSERT(op->engine < TM_ENGINES);
    if (p->status == TM_OK) p->status = tm_stop_check();
    if (p->status != TM_OK) return;
    if (!program_grow(p, &p->op, &p->cap_op, p->n_op, sizeof *p->op)) return;
    p->op[p->n_op++] = (prog_op){.op = *op, .first_use = p->n_use};
}

void tm_program_use_range(tm_program *p, uint32_t interval, uint32_t object, uint32_t count, tm_use_access access) {
    if (p->status != TM_OK) return;
    TM_ASSERT(p->n_op > 0 && interval < p->n_interval);
    prog_interval *v = &p->interval[interval];
    TM_ASSERT(object >= v->first && object + count <= v->first + v->count);
    if (!program_grow(p, &p->use, &p->cap_use, p->n_use, sizeof *p->use)) return;
    p->use[p->n_use++] = (prog_use){.interval = interval, .object = object, .count = count, .access = access};
    p->op[p->n_op - 1].n_uses++;
    if (v->first_op == TM_NONE) v->first_op = p->n_op - 1;
    v->last_op = p->n_op - 1;
    for (uint32_t i = 0; i < count; i++) {
        interval_object *r = &p->record[v->record + (object - v->first) + i];
        if (!r->first_access) r->first_access = (uint8_t)access;
        if (!(access & TM_USE_WRITE)) continue;
        const tm_object *o = program_object(p, object + i);
        bool fills = p->op[p->n_op - 1].op.code == TM_OP_COPY; /* its place in an arena */
        TM_ASSERT(o->kind != TM_KIND_FROZEN || !o->pageable || fills);
        r->dirty = true;
    }
}

void tm_program_use(tm_program *p, uint32_t interval, tm_use_access access) {
    if (p->status != TM_OK) return;
    tm_program_use_range(p, interval, p->interval[interval].first, p->interval[interval].count, access);
}

uint64_t tm_program_use_bytes(const tm_program *p, uint32_t interval, uint32_t object, uint32_t count) {
    if (p->status != TM_OK) return UINT64_MAX;
    TM_ASSERT(interval < p->n_interval);
    const prog_interval *v = &p->interval[interval];
    uint32_t first = count ? object : v->first, n = count ? count : v->count;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; i++) bytes += program_object(p, first + i)->bytes;
    return bytes;
}

uint32_t tm_program_ops(const tm_program *p) {
    return p->n_op;
}

const tm_op *tm_program_get(const tm_program *p, uint32_t i) {
    TM_ASSERT(i < p->n_op);
    return &p->op[i].op;
}

static uint64_t most_transfers(const tm_program *p) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_record; i++)
        n += (p->record[i].first_access & TM_USE_READ) != 0 ? p->record[i].dirty + 1u : p->record[i].dirty;
    return n;
}

uint64_t tm_program_plan_ops(const tm_program *p) {
    return p->n_op + most_transfers(p);
}

/* Every interval is filled and written back, and operations wait for twice as many others as they touch objects: who
 * had the object before, and who had the bytes. The executor keeps a checksum of each page that is spilled. */
uint64_t tm_program_plan_bytes(const tm_program *p) {
    uint64_t touches = 0, disk = most_transfers(p), pages = 0;
    for (uint32_t i = 0; i < p->n_temp; i++)
        if (p->temp[i].pageable) pages += (p->temp[i].frame_bytes + TM_PAGE_BYTES - 1) / TM_PAGE_BYTES;
    for (uint32_t i = 0; i < p->n_use; i++) touches += p->use[i].count;
    return pages * sizeof(uint64_t) + plan_memory_bytes(&(plan_size){.ops = p->n_op + disk,
                                                                     .edges = 2 * (touches + disk),
                                                                     .operands = p->n_use,
                                                                     .touches = touches + disk,
                                                                     .temps = p->n_temp});
}
