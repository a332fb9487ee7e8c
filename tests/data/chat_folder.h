/* A fixture's chat template, for the tests of this folder. */
#ifndef TIDEMILL_TESTS_CHAT_FOLDER_H
#define TIDEMILL_TESTS_CHAT_FOLDER_H

#include "golden_lines.h"
#include "text/chat/chat.h"

/* DIR's template, with its tokens. */
static inline tm_chat *open_chat(const char *dir, const tm_tokenizer *t) {
    tm_buf jinja = {0}, config = {0};
    tm_chat *chat = NULL;
    assert_true(read_file(dir, "chat_template.jinja", &jinja));
    assert_true(read_file(dir, "tokenizer_config.json", &config));
    tm_chat_opts opts = {.tokenizer_config = config.data, .tokenizer_config_len = config.len};
    OK(tm_chat_open(&chat, t, jinja.data, jinja.len, "chat_template.jinja", &opts));
    tm_buf_free(&jinja);
    tm_buf_free(&config);
    return chat;
}

#endif
