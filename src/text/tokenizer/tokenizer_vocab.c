/* Vocabulary: a hash table of names over one buffer, about 25 bytes a token beside its text. */
#include "text/tokenizer/tokenizer_internal.h"

tm_status tm_ids_push(tm_ids *ids, int32_t id) {
    TM_TRY(tm_grow(&ids->id, &ids->cap, ids->n + 1, sizeof *ids->id));
    ids->id[ids->n++] = id;
    return TM_OK;
}

void tm_ids_free(tm_ids *ids) {
    tm_free(ids->id);
    *ids = (tm_ids){0};
}

static uint32_t *find_slot(const tk_vocab *v, const char *name, size_t len) {
    size_t mask = v->slots - 1, i = tm_hash64(name, len, v->seed) & mask;
    for (;; i = (i + 1) & mask) {
        if (v->slot[i] == 0) return &v->slot[i];
        const tk_entry *e = &v->entry[v->slot[i] - 1];
        if (e->len == len && memcmp(v->text.data + e->offset, name, len) == 0) return &v->slot[i];
    }
}

static tm_status grow_slots(tk_vocab *v) {
    size_t slots = v->slots == 0 ? 64 : v->slots * 2;
    uint32_t *slot = tm_calloc(slots, sizeof *slot);
    if (slot == NULL) return tm_nomem(slots * sizeof *slot);
    if (v->slots == 0) v->seed = tm_now_ns() ^ (uint64_t)(uintptr_t)v; /* so that no file can choose its collisions */
    tm_free(v->slot);
    v->slot = slot;
    v->slots = slots;
    for (size_t i = 0; i < v->n; i++)
        *find_slot(v, v->text.data + v->entry[i].offset, v->entry[i].len) = (uint32_t)i + 1;
    return TM_OK;
}

static tm_status name_id(tk_vocab *v, int32_t id, size_t entry) {
    size_t old = v->ids_cap;
    TM_TRY(tm_grow(&v->by_id, &v->ids_cap, (size_t)id + 1, sizeof *v->by_id));
    for (size_t i = old; i < v->ids_cap; i++) v->by_id[i] = -1;
    v->by_id[id] = (int32_t)entry;
    if ((size_t)id >= v->ids) v->ids = (size_t)id + 1;
    return TM_OK;
}

tm_status tk_vocab_put(tk_vocab *v, const char *name, size_t len, int32_t id) {
    if (id < 0 || id >= TK_MAX_ID) return tm_fail(TM_EINPUT, "token id %d is out of range", id);
    if (v->text.len + len > INT32_MAX) return tm_fail(TM_EINPUT, "the vocabulary has more than 2 GiB of text");
    if ((v->n + 1) * 3 > v->slots * 2) TM_TRY(grow_slots(v));
    uint32_t *slot = find_slot(v, name, len);
    if (*slot != 0) {
        v->entry[*slot - 1].id = id;
        return name_id(v, id, *slot - 1);
    }
    TM_TRY(tm_grow(&v->entry, &v->cap, v->n + 1, sizeof *v->entry));
    v->entry[v->n] = (tk_entry){(uint32_t)v->text.len, (uint32_t)len, id};
    TM_TRY(tm_buf_append(&v->text, name, len));
    TM_TRY(name_id(v, id, v->n));
    *slot = (uint32_t)++v->n;
    return TM_OK;
}

int32_t tk_vocab_find(const tk_vocab *v, const char *name, size_t len) {
    if (v->n == 0) return -1;
    uint32_t slot = *find_slot(v, name, len);
    return slot == 0 ? -1 : v->entry[slot - 1].id;
}

const char *tk_vocab_name(const tk_vocab *v, int32_t id, size_t *len) {
    if (id < 0 || (size_t)id >= v->ids || v->by_id[id] < 0) return NULL;
    const tk_entry *e = &v->entry[v->by_id[id]];
    *len = e->len;
    return v->text.data + e->offset;
}

void tk_vocab_free(tk_vocab *v) {
    tm_buf_free(&v->text);
    tm_free(v->entry);
    tm_free(v->slot);
    tm_free(v->by_id);
    *v = (tk_vocab){0};
}
