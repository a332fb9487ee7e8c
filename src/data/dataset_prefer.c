/* Rows of a prompt and a completion: their ids, what is cut of them, and the scan's part of them.
 *
 * The ids are those of prompt and answer together. The completion begins where they differ first from those of the prompt
 * alone (of a conversation: with the generation prompt), and of a pair where either does, as in TRL; all that follows is
 * the completion's. */
#include "data/dataset_internal.h"

#include <inttypes.h>
#include <string.h>

/* ---- encoding --------------------------------------------------------------------------------------------------- */

enum { ALONE = DATA_PROMPT };

tm_status data_prefer_check(const tm_dataset_opts *o) {
    if (o->rows == TM_ROWS_PLAIN) return TM_OK;
    if (o->labels.train_on_inputs || o->labels.mask_history)
        return tm_fail(TM_EINPUT, "of preferences the answers are learned, so that data.train_on_inputs and "
                                  "data.mask_history change nothing; leave them out");
    if (o->format == TM_DATA_TEXT)
        return tm_fail(TM_EINPUT, "data.format text has no answers to prefer; leave it out, or see docs/USING.md for "
                                  "the forms of preferences");
    return TM_OK;
}

static tm_status encode_text(data_encoder *e, int answer, tm_ids *out) {
    const tm_buf *prompt = &e->prefer.part[DATA_PROMPT], *said = &e->prefer.part[answer];
    int32_t eos = e->opts->eos_id;
    size_t before = out->n;
    tm_buf_clear(&e->text);
    if (prompt->len) TM_TRY(tm_buf_append(&e->text, prompt->data, prompt->len));
    if (answer != ALONE) TM_TRY(tm_buf_append(&e->text, said->data, said->len));
    TM_TRY(tm_tokenizer_encode(e->opts->tokenizer, e->text.data ? e->text.data : "", e->text.len, true, out));
    bool ends = out->n > before && out->id[out->n - 1] == eos;
    return answer == ALONE || eos < 0 || ends ? TM_OK : tm_ids_push(out, eos);
}

static tm_status encode_chat(data_encoder *e, int answer, tm_ids *out) {
    const data_prefer *p = &e->prefer;
    const tm_chat_labels how = {.generation_prompt = answer == ALONE, .thinking = e->opts->labels.thinking};
    tm_json_doc *doc = NULL;
    if (!e->opts->chat)
        return tm_fail(TM_EINPUT, "a conversation, but the model has no chat template; use prompt, chosen and rejected "
                                  "as text");
    tm_buf_clear(&e->json);
    TM_TRY(tm_buf_printf(&e->json, "{\"messages\":["));
    TM_TRY(tm_buf_append(&e->json, p->part[DATA_PROMPT].data, p->part[DATA_PROMPT].len));
    if (answer != ALONE) TM_TRY(tm_buf_append(&e->json, ",", 1));
    if (answer != ALONE) TM_TRY(tm_buf_append(&e->json, p->part[answer].data, p->part[answer].len));
    TM_TRY(tm_buf_append(&e->json, "]", 1));
    if (p->beside.len) TM_TRY(tm_buf_append(&e->json, p->beside.data, p->beside.len));
    TM_TRY(tm_buf_append(&e->json, "}", 1));
    TM_TRY(tm_json_parse(&doc, e->json.data, e->json.len, "messages", 0, 0));
    tm_status rc = tm_chat_encode_labels(e->opts->chat, tm_json_root(doc), &how, NULL, out, NULL);
    tm_json_free(doc);
    return rc;
}

static size_t common(const tm_ids *prompt, const int32_t *ids, size_t n) {
    size_t i = 0;
    while (i < n && i < prompt->n && ids[i] == prompt->id[i]) i++;
    return i;
}

static tm_status find_completions(data_encoder *e) {
    size_t begin = 0, least = SIZE_MAX;
    for (unsigned i = 0; i < e->prefer.n_answers; i++) {
        data_answer *a = &e->answer[i];
        a->prompt = common(&e->prompt, e->ids.id + begin, a->n);
        if (a->prompt < least) least = a->prompt;
        begin += a->n;
    }
    for (unsigned i = 0; i < e->prefer.n_answers; i++) {
        data_answer *a = &e->answer[i];
        if (e->opts->rows == TM_ROWS_PAIRS) a->prompt = least;
        if (a->prompt == a->n) return tm_fail(TM_EINPUT, "the answer adds no token to its prompt");
    }
    return TM_OK;
}

tm_status data_prefer_encode(data_encoder *e, const tm_json *line) {
    TM_TRY(data_prefer_read(&e->prefer, line, e->opts->rows));
    tm_status (*encode)(data_encoder *, int, tm_ids *) = e->prefer.chat ? encode_chat : encode_text;
    e->prompt.n = 0;
    TM_TRY(encode(e, ALONE, &e->prompt));
    for (unsigned i = 0; i < e->prefer.n_answers; i++) {
        size_t before = e->ids.n;
        TM_TRY(encode(e, DATA_CHOSEN + (int)i, &e->ids));
        e->answer[i].n = e->ids.n - before;
    }
    return find_completions(e);
}

/* ---- cutting ---------------------------------------------------------------------------------------------------- */

data_cut data_cut_row(uint32_t prompt, uint32_t completion, uint32_t seq_len) {
    uint64_t over = seq_len && (uint64_t)prompt + completion > seq_len ? (uint64_t)prompt + completion - seq_len : 0;
    uint32_t first = (uint32_t)tm_min_u64(over, prompt ? prompt - 1 : 0);
    return (data_cut){prompt - first, completion - (uint32_t)(over - first)};
}

/* The rows of a pair keep as much of their prompt as the longer completion leaves. */
static data_cut cut_beside(uint32_t prompt, uint32_t completion, uint32_t longest, uint32_t seq_len) {
    data_cut cut = data_cut_row(prompt, longest, seq_len);
    if (completion < cut.completion) cut.completion = completion;
    return cut;
}

/* ---- the scan: lines -------------------------------------------------------------------------------------------- */

static uint32_t labels_in(data_cut cut) {
    return cut.completion - (cut.prompt == 0);
}

static tm_status store_row(data_scan *s, const int32_t *ids, data_cut cut, bool desirable, bool whole) {
    tm_dataset *ds = s->ds;
    data_row row = {.n_tokens = cut.prompt + cut.completion, .prompt = cut.prompt, .desirable = desirable};
    size_t id_bytes = row.n_tokens * sizeof *ids;
    row.n_labels = whole ? row.n_tokens - 1 : labels_in(cut);
    tm_buf_clear(&s->encoder->learn);
    TM_TRY(tm_buf_reserve(&s->encoder->learn, row.n_tokens));
    memset(s->encoder->learn.data, 0, row.n_tokens);
    memset(s->encoder->learn.data + cut.prompt, 1, cut.completion);
    TM_TRY(data_pack_bits(&s->bits, s->encoder->learn.data, row.n_tokens));
    TM_TRY(data_store_append(&ds->store, ids, row.n_tokens, &s->bits, &row.place));
    ds->fingerprint = tm_hash64(ids, id_bytes, ds->fingerprint);
    ds->fingerprint = tm_hash64((uint32_t[]){row.prompt, row.n_labels, desirable}, 12, ds->fingerprint);
    data_count_row(ds, row.n_tokens, &row);
    return data_store_add(&ds->store, row);
}

/* `n` rows are one sample. */
static tm_status store_sample(data_scan *s, uint64_t number, const int32_t *ids, const data_answer *answer,
                              unsigned n) {
    tm_dataset *ds = s->ds;
    uint32_t longest = 0;
    data_cut cut[2];
    bool keep, learned = true;
    size_t most = 0, begin = 0;
    for (unsigned i = 0; i < n; i++) most = answer[i].n > most ? answer[i].n : most;
    TM_TRY(data_fit(s, number, most, &keep));
    if (!keep) return TM_OK;
    for (unsigned i = 0; i < n; i++) longest = (uint32_t)tm_max_u64(longest, answer[i].n - answer[i].prompt);
    for (unsigned i = 0; i < n; i++) {
        uint32_t prompt = (uint32_t)answer[i].prompt, completion = (uint32_t)(answer[i].n - answer[i].prompt);
        cut[i] = cut_beside(prompt, completion, longest, ds->seq_len);
        learned &= labels_in(cut[i]) > 0;
    }
    if (!learned) {
        ds->counts.no_labels++;
        return TM_OK;
    }
    for (unsigned i = 0; i < n; i++) {
        const int32_t *from = ids + begin + (answer[i].prompt - cut[i].prompt);
        TM_TRY(data_check_ids(s, number, from, cut[i].prompt + cut[i].completion));
        TM_TRY(store_row(s, from, cut[i], answer[i].desirable, ds->labels_of_prompt && i == 0));
        begin += answer[i].n;
    }
    ds->counts.samples++;
    ds->counts.desirable += answer[0].desirable;
    return TM_OK;
}

static bool are_identical(const data_encoder *e) {
    const data_answer *a = e->answer;
    return e->prefer.n_answers == 2 && a[0].n == a[1].n &&
           memcmp(e->ids.id, e->ids.id + a[0].n, a[0].n * sizeof *e->ids.id) == 0;
}

tm_status data_prefer_store(data_scan *s, uint64_t number) {
    data_encoder *e = s->encoder;
    unsigned n = e->prefer.n_answers;
    bool pair = s->ds->kind == TM_ROWS_PAIRS;
    for (unsigned i = 0; i < n; i++) e->answer[i].desirable = !pair && e->prefer.desirable[i];
    s->ds->counts.identical += are_identical(e);
    if (pair) return store_sample(s, number, e->ids.id, e->answer, n);
    size_t begin = 0;
    uint64_t first = s->ds->store.n_rows;
    for (unsigned i = 0; i < n; i++) {
        TM_TRY(store_sample(s, number, e->ids.id + begin, &e->answer[i], 1));
        begin += e->answer[i].n;
    }
    if (s->ds->store.n_rows == first + 2) data_store_at(&s->ds->store, first + 1)->second = 1;
    return TM_OK;
}

/* ---- the scan: rows of ids -------------------------------------------------------------------------------------- */

/* Tokens before the first label, and all of them. */
static tm_status measure(data_scan *s, uint64_t row, data_view *v, data_answer *out) {
    TM_TRY(data_rows_get(s->ds, row, v));
    out->n = data_row_length(v, s->ds->rows.seq);
    for (out->prompt = 0; out->prompt < out->n && v->labels[out->prompt] == TM_LABEL_IGNORE;) out->prompt++;
    return TM_OK;
}

/* What messages call a row of a sample. */
static void name_role(data_scan *s, unsigned role) {
    static const char *const names[][2] = {{": chosen row ", ": rejected row "}, {": row ", ": kl row "}};
    s->at = names[s->ds->kind == TM_ROWS_LABELLED][role];
}

static void enter_fingerprint(tm_dataset *ds, const data_view *v, const data_row *row) {
    size_t n = row->n_tokens;
    ds->fingerprint = tm_hash64(v->ids, n * sizeof *v->ids, ds->fingerprint);
    ds->fingerprint = tm_hash64(v->labels, n * sizeof *v->labels, ds->fingerprint);
    ds->fingerprint = tm_hash64(v->mask, n, ds->fingerprint);
    ds->fingerprint = tm_hash64((uint32_t[]){row->n_labels, row->desirable}, 8, ds->fingerprint);
}

/* The view is of what the cut leaves. */
static tm_status add_row(data_scan *s, uint64_t number, const data_view *v, data_cut cut, bool desirable) {
    tm_dataset *ds = s->ds;
    data_row row = {.n_tokens = cut.prompt + cut.completion, .prompt = cut.prompt, .desirable = desirable};
    uint32_t of_completion = 0;
    TM_TRY(data_check_ids(s, number, v->ids, row.n_tokens));
    TM_TRY(data_check_labels(s, number, v->labels, row.n_tokens));
    for (uint32_t i = 0; i < row.n_tokens; i++) row.place += v->mask[i] != 0;
    for (uint32_t i = 1; i < row.n_tokens; i++) row.n_labels += data_view_label(v, i) != TM_LABEL_IGNORE;
    for (uint32_t i = 1; i < row.n_tokens; i++) of_completion += data_view_is_completion(v, i);
    if (!of_completion)
        return tm_fail(TM_EINPUT, "%s%s%" PRIu64 ": no label to learn; a row needs a completion", s->name, s->at,
                       number);
    enter_fingerprint(ds, v, &row);
    return data_store_add(&ds->store, row);
}

/* The mismatched row of another is not counted. */
static void count_role(tm_dataset *ds, unsigned role) {
    const data_row *row = data_store_get(&ds->store, ds->store.n_rows - 1);
    data_row of_length = {.n_tokens = row->n_tokens};
    bool other = ds->kind == TM_ROWS_LABELLED && role;
    data_count_row(ds, other ? 0 : row->place, other ? &of_length : row);
}

static tm_status scan_role(data_scan *s, uint64_t row, const data_answer *a, uint32_t longest, bool desirable) {
    tm_dataset *ds = s->ds;
    uint32_t prompt = (uint32_t)a->prompt, completion = (uint32_t)(a->n - a->prompt);
    data_cut cut = cut_beside(prompt, completion, longest, ds->seq_len);
    data_view v;
    TM_TRY(data_rows_get(ds, row, &v));
    data_view_skip(&v, prompt - cut.prompt);
    v.whole = ds->labels_of_prompt && row % 2 == 0;
    name_role(s, row % 2);
    TM_TRY(add_row(s, row / 2, &v, cut, desirable));
    count_role(ds, row % 2);
    return TM_OK;
}

/* Row and row + 1 are a pair, or a row and its mismatched one, which is cut by itself. */
tm_status data_prefer_rows(data_scan *s, uint64_t row) {
    tm_dataset *ds = s->ds;
    data_view v;
    data_answer a[2];
    uint32_t longest[2];
    bool keep, desirable = false;
    ds->counts.lines++;
    for (unsigned i = 0; i < 2; i++) {
        TM_TRY(measure(s, row + i, &v, &a[i]));
        longest[i] = (uint32_t)(a[i].n - a[i].prompt);
    }
    name_role(s, a[1].n > a[0].n);
    TM_TRY(data_fit(s, row / 2, a[1].n > a[0].n ? a[1].n : a[0].n, &keep));
    if (!keep) return data_rows_cannot_drop(s, row / 2);
    if (ds->kind == TM_ROWS_LABELLED) TM_TRY(ds->rows.get_desirable(ds->rows.ctx, row / 2, &desirable));
    if (ds->kind == TM_ROWS_PAIRS) longest[0] = longest[1] = longest[longest[1] > longest[0]];
    for (unsigned i = 0; i < 2; i++) TM_TRY(scan_role(s, row + i, &a[i], longest[i], desirable));
    ds->counts.samples++;
    ds->counts.desirable += desirable;
    return TM_OK;
}
