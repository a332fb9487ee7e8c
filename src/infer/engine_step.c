/* A step: cancelled sequences end, slots are given, a pass is made up and run, its logits become tokens. */
#include "infer/engine_internal.h"

#include <math.h>
#include <string.h>

/* ---- events ----------------------------------------------------------------------------------------------------- */

static tm_token_event event_of(const engine_sequence *s) {
    return (tm_token_event){.request = s->of->number, .answer = s->answer, .id = -1, .text = ""};
}

static void tell(const engine_sequence *s, const tm_token_event *t) {
    if (s->of->r.take) s->of->r.take(s->of->r.ctx, t);
}

void engine_end(tm_engine *e, engine_sequence *s, tm_token_event *t) {
    TM_ASSERT(t->finish != TM_GOES_ON);
    if (s->slot != UINT32_MAX) e->slot[s->slot].by = NULL;
    tell(s, t);
    engine_free_sequence(s);
}

static void cancel(tm_engine *e, engine_sequence *s) {
    tm_token_event t = event_of(s);
    t.finish = TM_FINISH_CANCELLED;
    engine_end(e, s, &t);
}

/* ---- who is there ----------------------------------------------------------------------------------------------- */

static void end_cancelled(tm_engine *e, bool all) {
    engine_sequence **at = &e->first, *last = NULL;
    for (uint32_t i = 0; i < e->opts.sequences; i++)
        if (e->slot[i].by && (all || e->slot[i].by->cancelled)) cancel(e, e->slot[i].by);
    while (*at) {
        engine_sequence *s = *at;
        if (all || s->cancelled) {
            *at = s->next;
            cancel(e, s);
        } else {
            last = s;
            at = &s->next;
        }
    }
    e->last = last;
}

static void give_slots(tm_engine *e) {
    while (e->first) {
        engine_sequence *s = e->first;
        uint32_t slot = engine_choose_slot(e, s);
        if (slot == UINT32_MAX) return;
        e->first = s->next;
        if (!e->first) e->last = NULL;
        s->next = NULL;
        s->slot = slot;
        e->slot[slot].by = s;
    }
}

static bool in_prompt(const engine_sequence *s) {
    return s->computed < s->of->r.n_prompt;
}

/* ---- the pass over prompts -------------------------------------------------------------------------------------- */

/* Rows are as long as the longest; all of it has its place in the pass and in the cache. `from`: the new row's first
 * position. */
static bool joins(const tm_engine *e, size_t from, uint32_t seq) {
    const engine_pass *p = &e->pass;
    if (p->n == 0) return true;
    if ((uint64_t)(p->n + 1) * seq > e->chunk || from + seq > e->opts.positions) return false;
    for (uint32_t r = 0; r < p->n; r++)
        if (p->row[r].of->computed + seq > e->opts.positions) return false;
    return true;
}

static void want(engine_pass *p, pass_row *row, uint32_t token_row, int32_t label) {
    kept_logits *k = &p->kept[p->n_wanted];
    const tm_request *r = &row->of->of->r;
    k->label = label;
    k->all = NULL;
    k->most_top = r->top;
    p->wanted[p->n_wanted++] = token_row;
    row->n_wanted++;
}

/* Position i says what token i + 1 is likely to be. */
static void want_of_prompt(engine_pass *p, uint32_t at) {
    pass_row *row = &p->row[at];
    const engine_sequence *s = row->of;
    const tm_request *r = &s->of->r;
    row->first_wanted = p->n_wanted;
    for (uint32_t i = 0; i < row->n; i++) {
        size_t next = s->computed + i + 1;
        bool scored = r->score_from > 0 && s->answer == 0 && next >= r->score_from && next < r->n_prompt;
        bool answered = next == r->n_prompt && r->max_new_tokens > 0;
        if (scored || answered) want(p, row, at * p->seq + i, scored ? r->prompt[next] : -1);
    }
}

static bool is_in_pass(const engine_sequence *s, bool decode, uint32_t adapter) {
    return s && in_prompt(s) != decode && s->of->r.adapter == adapter;
}

/* The adapter that is in place goes on for some passes; then it is the next one's turn. */
static uint32_t choose_adapter(const tm_engine *e, bool decode) {
    enum { PASSES = 16 };
    uint32_t n = e->adapters.n + 1, first = e->adapters.now + (e->adapters.passes >= PASSES);
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0; i < e->opts.sequences; i++)
            if (is_in_pass(e->slot[i].by, decode, (first + k) % n)) return (first + k) % n;
    return e->adapters.now;
}

static void clear_pass(tm_engine *e, bool decode) {
    engine_pass *p = &e->pass;
    *p = (engine_pass){.decode = decode, .row = p->row, .wanted = p->wanted, .kept = p->kept};
    p->adapter = choose_adapter(e, decode);
}

static void make_prompts_pass(tm_engine *e) {
    engine_pass *p = &e->pass;
    clear_pass(e, false);
    for (uint32_t i = 0; i < e->opts.sequences; i++) e->slot[i].lent = false;
    for (uint32_t i = 0; i < e->opts.sequences; i++) {
        engine_sequence *s = e->slot[i].by;
        engine_start start = {.from = UINT32_MAX};
        if (!is_in_pass(s, false, p->adapter) || (!s->begun && !engine_look(e, s, &start))) continue;
        size_t computed = s->begun ? s->computed : start.computed;
        uint32_t n = (uint32_t)tm_min_u64(s->of->r.n_prompt - computed, e->chunk), seq = n > p->seq ? n : p->seq;
        if (!joins(e, computed, seq)) continue;
        if (!s->begun) engine_begin(e, s, &start);
        p->row[p->n++] = (pass_row){.of = s, .n = n};
        p->seq = seq;
    }
    for (uint32_t r = 0; r < p->n; r++) want_of_prompt(p, r);
}

static void make_answers_pass(tm_engine *e) {
    engine_pass *p = &e->pass;
    clear_pass(e, true);
    p->seq = 1;
    for (uint32_t i = 0; i < e->opts.sequences; i++) {
        engine_sequence *s = e->slot[i].by;
        if (!is_in_pass(s, true, p->adapter)) continue;
        p->row[p->n] = (pass_row){.of = s, .n = 1, .first_wanted = p->n_wanted};
        want(p, &p->row[p->n], p->n, -1);
        p->n++;
    }
}

/* Whose next token is drawn needs all logits. */
static void give_logits(tm_engine *e) {
    engine_pass *p = &e->pass;
    for (uint32_t r = 0; r < p->n; r++) {
        const engine_sequence *s = p->row[r].of;
        bool answers = p->decode || s->computed + p->row[r].n == s->of->r.n_prompt;
        if (!answers || s->of->r.max_new_tokens == 0) continue;
        p->kept[p->row[r].first_wanted + p->row[r].n_wanted - 1].all = e->logits + (size_t)s->slot * e->vocab;
    }
}

/* ---- what comes of it ------------------------------------------------------------------------------------------- */

/* Logits become log-probabilities. */
static void put_logprobs(kept_logits *k, float logit, tm_token_event *t) {
    float lse = tm_head_state_lse(&k->state);
    t->logprob = logit - lse;
    for (uint32_t i = 0; i < k->n_top; i++) k->top[i].logprob -= lse;
    t->top = k->top;
    t->n_top = k->n_top;
    t->greedy = t->id == k->best;
}

static void tell_of_prompt(engine_sequence *s, size_t index, kept_logits *k) {
    tm_token_event t = event_of(s);
    t.of_prompt = true;
    t.index = index;
    t.id = k->label;
    put_logprobs(k, k->state.label, &t);
    tell(s, &t);
}

static bool is_end(const tm_engine *e, const engine_sequence *s, int32_t id) {
    for (uint32_t i = 0; i < e->text.n_eos && !s->of->r.ignore_eos; i++)
        if (e->text.eos[i] == id) return true;
    return false;
}

/* The end token has no text. */
static tm_status put_text(engine_sequence *s, bool end, tm_token_event *t) {
    text_piece piece;
    bool full = s->n_ids >= s->of->r.max_new_tokens;
    TM_TRY(answer_text_add(&s->text, s->ids, s->n_ids - end, end || full, &piece));
    t->text = piece.at;
    t->n_text = piece.n;
    t->finish = end || piece.stopped ? TM_FINISH_STOP : full ? TM_FINISH_LENGTH : TM_GOES_ON;
    return TM_OK;
}

static tm_status answer(tm_engine *e, engine_sequence *s, kept_logits *k) {
    const tm_request *r = &s->of->r;
    tm_token_event t = event_of(s);
    tm_sampling how = r->sampling;
    const sample_history h = {.prompt = r->prompt, .n_prompt = r->n_prompt, .answer = s->ids, .n_answer = s->n_ids};
    how.seed += s->answer;
    t.index = s->n_ids;
    t.id = k->best;
    bool plain = how.temperature <= 0 && how.presence_penalty == 0 && how.frequency_penalty == 0 &&
                 (how.repetition_penalty == 0 || how.repetition_penalty == 1);
    float logit = k->state.max;
    if (!plain) {
        t.id = sample_token(&how, &h, k->all, &e->sample);
        logit = k->all[t.id];
    }
    put_logprobs(k, logit, &t);
    s->ids[s->n_ids++] = t.id;
    e->counts.answer_tokens++;
    TM_TRY(put_text(s, is_end(e, s, t.id), &t));
    if (t.finish == TM_GOES_ON)
        tell(s, &t);
    else
        engine_end(e, s, &t);
    return TM_OK;
}

static tm_status after_prompt(tm_engine *e, pass_row *row) {
    engine_sequence *s = row->of;
    const tm_request *r = &s->of->r;
    size_t first = s->computed;
    uint32_t scored = row->n_wanted;
    s->computed += row->n;
    s->from = UINT32_MAX;
    engine_hold(e, s->slot, s->of, s->computed);
    e->counts.prompt_tokens += row->n;
    bool answers = !in_prompt(s) && r->max_new_tokens > 0;
    if (answers) scored--;
    for (uint32_t i = 0; i < scored; i++) {
        kept_logits *k = &e->pass.kept[row->first_wanted + i];
        size_t at = first > r->score_from - 1 ? first : r->score_from - 1;
        tell_of_prompt(s, at + 1 + i, k);
    }
    if (answers) return answer(e, s, &e->pass.kept[row->first_wanted + scored]);
    if (in_prompt(s)) return TM_OK;
    tm_token_event t = event_of(s);
    t.finish = TM_FINISH_LENGTH;
    engine_end(e, s, &t);
    return TM_OK;
}

static tm_status take_pass(tm_engine *e) {
    engine_pass *p = &e->pass;
    for (uint32_t r = 0; r < p->n; r++)
        TM_TRY(p->decode ? answer(e, p->row[r].of, &p->kept[p->row[r].first_wanted]) : after_prompt(e, &p->row[r]));
    return TM_OK;
}

/* ---- the step --------------------------------------------------------------------------------------------------- */

static void count(tm_engine *e, uint32_t *prompts, uint32_t *answers) {
    *prompts = *answers = 0;
    for (uint32_t i = 0; i < e->opts.sequences; i++)
        if (e->slot[i].by) ++*(in_prompt(e->slot[i].by) ? prompts : answers);
}

static tm_status one_pass(tm_engine *e) {
    uint32_t prompts, answers;
    uint64_t began = tm_now_ns();
    count(e, &prompts, &answers);
    if (prompts + answers == 0) return TM_OK;
    bool decode = prompts == 0 || (answers > 0 && !e->prompts_next);
    e->prompts_next = decode;
    if (decode)
        make_answers_pass(e);
    else
        make_prompts_pass(e);
    give_logits(e);
    TM_TRY(engine_run_pass(e));
    *(decode ? &e->counts.decode_seconds : &e->counts.prefill_seconds) += (double)(tm_now_ns() - began) * 1e-9;
    return take_pass(e);
}

tm_status tm_engine_step(tm_engine *e, bool *busy) {
    *busy = false;
    if (e->failed != TM_OK) return tm_fail(e->failed, "the engine has failed before");
    end_cancelled(e, false);
    give_slots(e);
    tm_status rc = one_pass(e);
    if (rc != TM_OK) {
        e->failed = rc;
        end_cancelled(e, true);
        return rc;
    }
    uint32_t prompts, answers;
    count(e, &prompts, &answers);
    *busy = prompts + answers > 0 || e->first;
    return TM_OK;
}
