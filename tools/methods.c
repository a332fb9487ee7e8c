#include "tools/methods.h"

#include <string.h>

#define PAIRS "a prompt with a chosen and a rejected answer"

const tm_method tm_methods[] = {
    {"full", "all parameters learn", {"tuner_type=full"}, "a conversation, or a prompt with its answer", true},
    {"lora",
     "an adapter learns beside the frozen model",
     {"tuner_type=lora"},
     "a conversation, or a prompt with its answer",
     true},
    {"dora",
     "an adapter whose rows' lengths learn apart (DoRA)",
     {"tuner_type=dora"},
     "a conversation, or a prompt with its answer",
     true},
    {"qlora",
     "an adapter beside the model in 4 bits",
     {"tuner_type=qlora"},
     "a conversation, or a prompt with its answer",
     true},
    {"dpo", "preferences, by an adapter", {"objective.type=dpo", "tuner_type=lora"}, PAIRS, false},
    {"simpo",
     "preferences without a reference, by an adapter",
     {"objective.type=simpo", "tuner_type=lora"},
     PAIRS,
     false},
    {"orpo",
     "answers and preferences at once, by an adapter",
     {"objective.type=orpo", "tuner_type=lora"},
     PAIRS,
     false},
    {"kto",
     "answers that are wanted or not, by an adapter",
     {"objective.type=kto", "tuner_type=lora"},
     "an answer that is wanted or not",
     false},
    {"pretrain",
     "all of a text is learned by all parameters",
     {"objective.type=pretrain", "tuner_type=full"},
     "plain text",
     false},
};
const size_t tm_method_count = TM_COUNT(tm_methods);

const tm_method *tm_method_find(const char *name, size_t n) {
    for (size_t i = 0; i < tm_method_count; i++)
        if (strlen(tm_methods[i].name) == n && !memcmp(tm_methods[i].name, name, n)) return &tm_methods[i];
    return NULL;
}
