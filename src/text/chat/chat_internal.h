/* What the chat template interpreter's files share: source -> tokens (chat_lex.c) -> tree (chat_parse.c) -> run
 * (chat_exec.c for statements, chat_eval.c for expressions, chat_call.c for filters, tests and functions) over values
 * (chat_value.c). Names follow Jinja's own.
 *
 * A run keeps one error (`rc`): after the first one every function returns at once, so that expressions need no status
 * at each operator. Everything a run makes lies in its arena and goes with it. */
#ifndef TIDEMILL_CHAT_INTERNAL_H
#define TIDEMILL_CHAT_INTERNAL_H

#include "text/chat/chat.h"

#include <string.h>

enum {
    CJ_MAX_TEMPLATE = 1 << 18, /* bytes of source: its tree takes some sixty times that */
    CJ_MAX_NESTING = 128,      /* of the parser: a parenthesis costs 3, a block 1 */
    CJ_MAX_NODE_DEPTH = 256,   /* of an expression's tree */
    CJ_MAX_DEPTH = 1000,       /* of a run, macros included */
    CJ_MAX_ARGS = 16
};

/* What one run may do and hold: so much whatever it says, and more for every byte of the conversation that it has
 * looked at (as parsed: its nodes and texts). With the copies of its output that callers make it holds less than 64 MiB
 * + 8 * conversation. */
enum {
    CJ_BASE_STEPS = 2 * 1000 * 1000,
    CJ_BYTES_A_STEP = 2, /* of the conversation, for each step more */
    CJ_BASE_BYTES = 36 << 20,
    CJ_BYTES_A_BYTE = 8
};

/* ---- arena ------------------------------------------------------------------------------------------------------ */

typedef struct cj_chunk {
    struct cj_chunk *next;
    size_t used, cap;
} cj_chunk;
typedef struct cj_arena {
    cj_chunk *chunk;
    size_t total;
} cj_arena;
void *cj_arena_alloc(cj_arena *a, size_t n); /* zeroed; NULL: recorded */
void cj_arena_free(cj_arena *a);

/* ---- tokens ----------------------------------------------------------------------------------------------------- */

typedef enum cj_token_type {
    CJ_T_DATA,     /* text between tags, white space control applied */
    CJ_T_VARIABLE, /* {{ */
    CJ_T_VARIABLE_END,
    CJ_T_BLOCK, /* {% */
    CJ_T_BLOCK_END,
    CJ_T_NAME,
    CJ_T_STRING,
    CJ_T_INT,
    CJ_T_FLOAT,
    CJ_T_OP, /* op: one or two characters */
    CJ_T_END
} cj_token_type;
typedef struct cj_token {
    cj_token_type type;
    uint32_t line;
    const char *text; /* NUL-terminated copy in the template's arena */
    size_t len;
    int64_t integer;
    double number;
} cj_token;
typedef struct cj_lexer {
    const char *name; /* of the template, for messages */
    char *source;
    size_t len, pos;
    uint32_t line;
    bool verbatim; /* a template that is no conversation's: white space stays, a newline at the end too */
    cj_arena *arena;
    cj_token *token;
    size_t n, cap;
} cj_lexer;
tm_status cj_lex(cj_lexer *l, const char *text, size_t len) TM_MUST_USE;

/* ---- tree ------------------------------------------------------------------------------------------------------- */

typedef struct cj_str cj_str;
typedef enum cj_kind {
    /* expressions */
    CJ_CONST_STR,
    CJ_CONST_INT,
    CJ_CONST_FLOAT,
    CJ_CONST_BOOL,
    CJ_CONST_NONE,
    CJ_NAME,    /* text */
    CJ_GETATTR, /* a.text */
    CJ_GETITEM, /* a[b] */
    CJ_SLICE,   /* a[b:c:d] */
    CJ_CALL,    /* a(list) */
    CJ_FILTER,  /* a|text(list) */
    CJ_TEST,    /* a is text(list) */
    CJ_NOT,
    CJ_NEG,
    CJ_POS,
    CJ_BINARY, /* a op b; text is the operator */
    CJ_AND,
    CJ_OR,
    CJ_COMPARE, /* a, then list of CJ_OPERAND: text op, a */
    CJ_OPERAND,
    CJ_COND, /* a if b else c */
    CJ_LIST, /* list */
    CJ_DICT, /* list of CJ_PAIR: a key, b value */
    CJ_PAIR,
    CJ_ARG, /* a; text its keyword or NULL; integer 1: *a, 2: **a */
    /* statements */
    CJ_DATA,   /* str */
    CJ_OUTPUT, /* a */
    CJ_IF,     /* list of CJ_BRANCH: a condition (NULL: else), list body */
    CJ_BRANCH,
    CJ_FOR,        /* targets, a iterable, b filter or NULL, list body, other: else-body */
    CJ_SET,        /* targets (CJ_NAME or CJ_GETATTR), a value; or list body where a is NULL */
    CJ_MACRO,      /* text name, targets: CJ_ARG with text and default a; list body */
    CJ_GENERATION, /* list body */
    CJ_BREAK,
    CJ_CONTINUE
} cj_kind;
typedef struct cj_node cj_node;
struct cj_node {
    cj_kind kind;
    uint32_t line;
    uint32_t depth; /* of the tree below */
    bool boolean;
    const char *text;
    const cj_str *str;
    int64_t integer;
    double number;
    cj_node *a, *b, *c, *d;
    cj_node *list, *targets, *other, *next;
};
tm_status cj_parse(cj_lexer *l, cj_node **body, bool *has_generation) TM_MUST_USE;

/* ---- values ----------------------------------------------------------------------------------------------------- */

/* Bytes [begin, end) of a string that come from a message; may be empty. `owner` is twice the message's number (from
 * 1), plus one if the assistant wrote it. */
typedef struct cj_mark {
    size_t begin, end;
    uint32_t owner;
} cj_mark;
struct cj_str {
    const char *p;
    size_t n;
    const cj_mark *mark; /* ascending, but for a container's, which follow those inside it */
    size_t marks;
};
typedef enum cj_type {
    CJ_UNDEFINED,
    CJ_NONE,
    CJ_BOOL,
    CJ_INT,
    CJ_FLOAT,
    CJ_STRING,
    CJ_ARRAY,
    CJ_MAPPING,
    CJ_NAMESPACE,
    CJ_LOOP,
    CJ_FUNCTION, /* a global */
    CJ_METHOD,   /* of a value */
    CJ_MACRO_VALUE
} cj_type;
typedef struct cj_value cj_value;
typedef struct cj_list {
    cj_value *v;
    size_t n;
    const tm_json *json; /* not NULL: not yet made from this array */
    uint32_t owner;
    bool messages; /* the conversation itself */
} cj_list;
typedef struct cj_dict {
    struct cj_entry *e;
    size_t n, cap;
    const tm_json *json;
    uint32_t owner;
    bool message; /* a message itself, not something in it */
} cj_dict;
typedef struct cj_loop {
    const cj_list *list;
    size_t i;
} cj_loop;
typedef struct cj_method cj_method;
struct cj_value {
    cj_type type;
    union {
        bool boolean;
        int64_t integer;
        double number;
        const cj_str *str;
        cj_list *list;
        cj_dict *dict;
        const cj_loop *loop;
        const cj_method *method;
        const char *name; /* of an undefined value or a function */
        const cj_node *macro;
    };
};
struct cj_method {
    cj_value self;
    const char *name;
};
typedef struct cj_entry {
    const cj_str *key;
    cj_value v;
} cj_entry;

typedef struct cj_out {
    tm_buf text;
    cj_mark *mark;
    size_t marks, cap;
} cj_out;
typedef struct cj_binding {
    const char *name;
    cj_value v;
} cj_binding;
typedef enum cj_flow { CJ_NORMAL, CJ_BREAKING, CJ_CONTINUING } cj_flow;
typedef struct cj_run {
    const char *name; /* of the template */
    tm_status rc;
    cj_arena arena;
    uint64_t steps, held; /* held: by texts that are being put together */
    uint64_t seen;        /* bytes of the conversation that were made values */
    uint64_t most_bytes;  /* tm_chat's */
    uint32_t line, depth;
    bool strict; /* what is not there is not printed but refused */
    int64_t now;
    cj_binding *bind;
    size_t binds, binds_cap;
    size_t frame;   /* first binding of the innermost scope */
    size_t floor;   /* first binding that a macro's body sees, beside the globals */
    size_t globals; /* bindings of the outermost scope */
    cj_out *out;
    cj_flow flow;
    unsigned in_generation, in_macro;
    tm_chat_spans *generated; /* ranges of generation blocks */
} cj_run;

void *cj_alloc(cj_run *x, size_t n); /* NULL: x->rc is set */
bool cj_step(cj_run *x, uint64_t n); /* counts work; false: stop */
/* Records the failure with template name and line; returns undefined. */
cj_value cj_error(cj_run *x, tm_status code, const char *format, ...) TM_PRINTF(3, 4);

cj_value cj_undefined(const char *name);
cj_value cj_bool(bool b);
cj_value cj_int(int64_t i);
cj_value cj_string(cj_run *x, const char *p, size_t n); /* p must live as long as the run */
cj_value cj_copy_string(cj_run *x, const char *p, size_t n);
cj_value cj_substr(cj_run *x, const cj_str *s, size_t begin, size_t end);
cj_value cj_from_json(cj_run *x, const tm_json *node, uint32_t owner);
cj_value cj_new_list(cj_run *x, size_t n); /* n undefined values */
cj_value cj_new_dict(cj_run *x, cj_type type);
bool cj_fill_list(cj_run *x, cj_list *l); /* makes a lazy one real */
bool cj_fill_dict(cj_run *x, cj_dict *d);
bool cj_dict_set(cj_run *x, cj_dict *d, const cj_str *key, cj_value v);
const cj_value *cj_dict_get(cj_run *x, cj_dict *d, const char *key, size_t len);

bool cj_truth(cj_run *x, cj_value v);
bool cj_equal(cj_run *x, cj_value a, cj_value b);
/* -1, 0, 1; an error where Python has no order. */
int cj_compare(cj_run *x, cj_value a, cj_value b);
bool cj_contains(cj_run *x, cj_value container, cj_value item);
bool cj_is_number(cj_value v, double *number, int64_t *integer, bool *is_integer);
const char *cj_type_name(cj_value v);
/* str(v): what {{ v }} prints. Never NULL unless x->rc is set. */
const cj_str *cj_to_str(cj_run *x, cj_value v);
/* The elements of anything a `for` takes. NULL: x->rc is set. */
const cj_list *cj_items(cj_run *x, cj_value v);
/* json.dumps(ensure_ascii=False); indent -1: one line; separators NULL: the usual ones. */
cj_value cj_to_json(cj_run *x, cj_value v, int indent, bool sort, const cj_str *item, const cj_str *key);
size_t cj_length(cj_run *x, cj_value v);
bool cj_py_space(uint32_t code); /* str.isspace */

bool cj_out_put(cj_run *x, cj_out *out, const cj_str *s);
const cj_str *cj_out_take(cj_run *x, cj_out *out); /* its text as a string; frees the buffers */
void cj_out_free(cj_out *out);

/* ---- running ---------------------------------------------------------------------------------------------------- */

typedef struct cj_args {
    cj_value v[CJ_MAX_ARGS];
    const char *keyword[CJ_MAX_ARGS]; /* NULL: positional */
    size_t n;
} cj_args;
/* Argument `i` or keyword `name`; NULL: not given. */
const cj_value *cj_arg(const cj_args *a, size_t i, const char *name);

cj_value cj_eval(cj_run *x, const cj_node *node);
cj_value cj_defined(cj_run *x, cj_value v);         /* v; of a strict run that it is there */
cj_value cj_add(cj_run *x, cj_value a, cj_value b); /* a + b */
void cj_exec(cj_run *x, const cj_node *list);
cj_value cj_call_macro(cj_run *x, const cj_node *macro, const cj_args *args);
bool cj_bind(cj_run *x, const char *name, cj_value v); /* sets it in the innermost scope */
bool cj_lookup(const cj_run *x, const char *name, cj_value *v);

cj_value cj_getattr(cj_run *x, cj_value v, const char *name);
cj_value cj_filter(cj_run *x, const char *name, cj_value v, const cj_args *args);
bool cj_test(cj_run *x, const char *name, cj_value v, const cj_args *args);
cj_value cj_call(cj_run *x, cj_value f, const cj_args *args);
bool cj_has_method(cj_value v, const char *name);
bool cj_known_filter(const char *name);
bool cj_known_test(const char *name);
bool cj_known_global(const char *name);

enum { CJ_BOS, CJ_EOS, CJ_UNK, CJ_PAD, CJ_SPECIALS };
struct tm_chat {
    const tm_tokenizer *tokenizer;
    char *name;
    cj_arena arena; /* the template's tree */
    cj_node *body;
    bool has_generation;
    char *special[CJ_SPECIALS]; /* bos_token, eos_token, unk_token, pad_token; NULL: not given */
    int64_t now;
    uint64_t most_bytes; /* that a run may take, whatever the conversation; 0: not bounded so */
    /* what was learned of the template (chat_spans.c) */
    tm_buf prompt;     /* the generation prompt, where it could be told */
    tm_buf closing[2]; /* without one: what closes the turn of a user, of a tool */
    char *end[2];      /* special tokens that end turns, beside eos_token */
    size_t n_ends;
    bool no_end;     /* the last turn ends without a special token */
    tm_buf end_text; /* then: the text that it ends with instead, "<|im_end|>" where that is no token */
    /* of the last turn: those in reasoning_content, those between <think> and </think> */
    bool shows_reasoning, shows_think;
};
static inline const char *cj_eos(const tm_chat *c) {
    return c->special[CJ_EOS];
}

/* ---- a conversation ---------------------------------------------------------------------------------------------- */

typedef struct cj_wish {
    tm_chat_thinking thinking;
    bool generation_prompt;
} cj_wish;
/* As tm_chat_render; `turns` (may be NULL) are those of all authors, *mark_end (may be NULL) is where the last marked
 * byte ends. */
tm_status cj_render(const tm_chat *c, const tm_json *conversation, const cj_wish *wish, tm_buf *text,
                    tm_chat_spans *turns, size_t *mark_end) TM_MUST_USE;
/* chat_spans.c: what the template prints around turns, by a few short conversations; the turns of an output. */
tm_status cj_learn_turns(tm_chat *c) TM_MUST_USE;
tm_status cj_turns(const tm_chat *c, const tm_json *messages, const cj_out *out, const tm_chat_spans *blocks,
                   tm_chat_spans *turns) TM_MUST_USE;
/* chat_labels.c: sets `learned` of each turn of the rendered text. */
tm_status cj_learned(const tm_chat *c, const tm_json *messages, const tm_chat_labels *how, const char *text,
                     tm_chat_spans *turns) TM_MUST_USE;

#endif
