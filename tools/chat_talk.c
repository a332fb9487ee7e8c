/* A conversation on a terminal. What was said is a list of messages; each question is the whole of it by the chat
 * template, and the engine has the common beginning in its cache. */
#include "tools/chat_talk.h"
#include "session/text.h"
#include "tools/chat_line.h"
#include "tools/tools.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct message {
    const char *role;
    char *content;
} message;

typedef struct talk {
    const chat_talk_opts *opts;
    tm_engine *engine;
    message *said;
    size_t n, cap;
    tm_buf answer; /* under way */
    tm_finish finish;
    bool full;    /* the conversation's room was less than --max-new-tokens */
    tm_status rc; /* of taking it */
    bool quit;
} talk;

/* Ctrl-C: the answer ends, or the line is begun again. */
static volatile sig_atomic_t interrupted;
static void note_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

static tm_status say(talk *t, const char *role, const char *content, size_t length) {
    TM_TRY(tm_grow(&t->said, &t->cap, t->n + 1, sizeof *t->said));
    t->said[t->n] = (message){role, tm_strndup(content, length)};
    if (!t->said[t->n].content) return tm_nomem(length);
    t->n++;
    return TM_OK;
}

static void unsay(talk *t, size_t keep) {
    while (t->n > keep) tm_free(t->said[--t->n].content);
}

static bool has_system(const talk *t) {
    return t->n > 0 && strcmp(t->said[0].role, "system") == 0;
}

static tm_status begin(talk *t, const char *system) {
    unsay(t, 0);
    return system && *system ? say(t, "system", system, strlen(system)) : TM_OK;
}

static tm_status write_messages(const talk *t, tm_json_writer *w) {
    tm_jw_object(w);
    tm_jw_field_array(w, "messages");
    for (size_t i = 0; i < t->n; i++) {
        tm_jw_object(w);
        tm_jw_field_str(w, "role", t->said[i].role);
        tm_jw_field_str(w, "content", t->said[i].content);
        tm_jw_object_end(w);
    }
    tm_jw_array_end(w);
    tm_jw_object_end(w);
    return tm_jw_end(w);
}

static tm_status encode(const talk *t, tm_ids *ids) {
    tm_buf json = {0}, text = {0}, mask = {0};
    tm_json_doc *doc = NULL;
    tm_json_writer w;
    tm_status rc;
    tm_jw_init(&w, &json, 0);
    TM_GO(write_messages(t, &w));
    TM_GO(tm_json_parse(&doc, json.data, json.len, "conversation", 0, 0));
    TM_GO(tm_chat_encode(tm_engine_text(t->engine)->chat, tm_json_root(doc), true, &text, ids, &mask));
done:
    tm_json_free(doc);
    tm_buf_free(&json);
    tm_buf_free(&text);
    tm_buf_free(&mask);
    return rc;
}

/* ---- an answer -------------------------------------------------------------------------------------------------- */

static void take(void *ctx, const tm_token_event *e) {
    talk *t = ctx;
    t->finish = e->finish;
    (void)fwrite(e->text, 1, e->n_text, stdout);
    (void)fflush(stdout);
    if (t->rc == TM_OK) t->rc = tm_buf_append(&t->answer, e->text, e->n_text);
}

static tm_status run(talk *t, const tm_ids *ids) {
    uint32_t room = tm_engine_count(t->engine).positions - (uint32_t)ids->n;
    tm_request r = {.prompt = ids->id, .n_prompt = ids->n, .sampling = t->opts->sampling, .take = take, .ctx = t};
    bool busy = true;
    uint64_t number;
    t->full = room < t->opts->max_new_tokens;
    r.max_new_tokens = t->full ? room : t->opts->max_new_tokens;
    TM_TRY(tm_engine_add(t->engine, &r, &number));
    while (busy) {
        TM_TRY(tm_engine_step(t->engine, &busy));
        if (interrupted) tm_engine_cancel(t->engine, number);
        interrupted = 0;
    }
    return t->rc;
}

static const char *why_ended(const talk *t) {
    if (t->finish == TM_FINISH_CANCELLED) return " [stopped]";
    if (t->finish != TM_FINISH_LENGTH) return "";
    return t->full ? " [cut: --context]" : " [cut: --max-new-tokens]";
}

/* What was answered stays a part of the conversation, also where it was stopped. */
static tm_status answer(talk *t, const char *question) {
    tm_ids ids = {0};
    size_t before = t->n;
    tm_buf_clear(&t->answer);
    tm_status rc = say(t, "user", question, strlen(question));
    if (rc == TM_OK) rc = encode(t, &ids);
    if (rc == TM_OK && ids.n >= tm_engine_count(t->engine).positions) {
        tm_say("the conversation is longer than %u tokens: /reset begins another\n",
               tm_engine_count(t->engine).positions);
        unsay(t, before);
        tm_ids_free(&ids);
        return TM_OK;
    }
    if (rc == TM_OK) rc = run(t, &ids);
    tm_ids_free(&ids);
    printf("%s\n", rc == TM_OK ? why_ended(t) : "");
    return rc == TM_OK ? say(t, "assistant", t->answer.data ? t->answer.data : "", t->answer.len) : rc;
}

/* ---- commands --------------------------------------------------------------------------------------------------- */

static tm_status cmd_help(talk *t, const char *rest) {
    (void)t, (void)rest;
    tm_say("/reset         begin anew, with the same system message\n"
           "/system TEXT   begin anew with this system message; without TEXT: with none\n"
           "/save FILE     write the conversation as {\"messages\": [...]}\n"
           "/quit          end; so does Ctrl-D. Ctrl-C stops an answer\n");
    return TM_OK;
}

static tm_status cmd_reset(talk *t, const char *rest) {
    (void)rest;
    unsay(t, has_system(t) ? 1 : 0);
    return TM_OK;
}

static tm_status cmd_save(talk *t, const char *rest) {
    tm_buf json = {0};
    tm_json_writer w;
    tm_jw_init(&w, &json, 2);
    tm_status rc = write_messages(t, &w);
    FILE *f = rc == TM_OK && *rest ? fopen(rest, "w") : NULL;
    bool good = f && fwrite(json.data, 1, json.len, f) == json.len && fputc('\n', f) != EOF;
    if (f) good = fclose(f) == 0 && good;
    if (rc == TM_OK) tm_say(good ? "saved to %s\n" : "%s: cannot be written; /save FILE\n", rest);
    tm_buf_free(&json);
    return rc;
}

static tm_status cmd_quit(talk *t, const char *rest) {
    (void)rest;
    t->quit = true;
    return TM_OK;
}

static const struct {
    const char *name;
    tm_status (*run)(talk *t, const char *rest);
} commands[] = {
    {"/help", cmd_help}, {"/reset", cmd_reset}, {"/system", begin}, {"/save", cmd_save}, {"/quit", cmd_quit}};

static tm_status obey(talk *t, const char *line) {
    size_t n = strcspn(line, " ");
    const char *rest = line + n + strspn(line + n, " ");
    for (size_t i = 0; i < TM_COUNT(commands); i++)
        if (strlen(commands[i].name) == n && memcmp(commands[i].name, line, n) == 0) return commands[i].run(t, rest);
    tm_say("%.*s: no such command; /help lists them\n", (int)n, line);
    return TM_OK;
}

/* ---- the conversation ------------------------------------------------------------------------------------------- */

static tm_status converse(talk *t, chat_line *line) {
    while (!t->quit) {
        bool again;
        const char *text = chat_line_read(line, &again);
        if (!text && !again) break;
        interrupted = 0;
        if (!text) putchar('\n');
        if (!text || text[strspn(text, " \t")] == 0) continue;
        TM_TRY(text[0] == '/' ? obey(t, text) : answer(t, text));
    }
    return TM_OK;
}

static tm_status open_talk(talk *t) {
    TM_TRY(tm_engine_open(&t->engine, &t->opts->engine));
    if (!tm_engine_text(t->engine)->chat)
        return tm_fail(TM_EINPUT, "%s: has no chat template; `tidemill generate --prompt` continues text",
                       t->opts->engine.model);
    const struct sigaction on = {.sa_handler = note_interrupt};
    (void)sigaction(SIGINT, &on, NULL);
    tm_say(chat_line_edits() ? "/help lists commands\n"
                             : "/help lists commands; this build has no libedit: lines cannot be edited\n");
    return begin(t, t->opts->system);
}

int chat_talk(const chat_talk_opts *opts) {
    talk t = {.opts = opts};
    chat_line *line = chat_line_open("> ");
    tm_status rc = line ? open_talk(&t) : tm_nomem(sizeof line);
    if (rc == TM_OK) rc = converse(&t, line);
    chat_line_close(line);
    tm_engine_close(t.engine);
    unsay(&t, 0);
    tm_free(t.said);
    tm_buf_free(&t.answer);
    return rc == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}
