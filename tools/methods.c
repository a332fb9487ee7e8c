#include "tools/methods.h"

#include <string.h>

const tm_method tm_methods[] = {
    {"full", {"tuner_type=full"}, true},
    {"lora", {"tuner_type=lora"}, true},
    {"dora", {"tuner_type=dora"}, true},
    {"qlora", {"tuner_type=qlora"}, true},
    {"dpo", {"objective.type=dpo", "tuner_type=lora"}, false},
    {"simpo", {"objective.type=simpo", "tuner_type=lora"}, false},
    {"orpo", {"objective.type=orpo", "tuner_type=lora"}, false},
    {"kto", {"objective.type=kto", "tuner_type=lora"}, false},
    {"pretrain", {"objective.type=pretrain", "tuner_type=full"}, false},
};
const size_t tm_method_count = TM_COUNT(tm_methods);

const tm_method *tm_method_find(const char *name, size_t n) {
    for (size_t i = 0; i < tm_method_count; i++)
        if (strlen(tm_methods[i].name) == n && !memcmp(tm_methods[i].name, name, n)) return &tm_methods[i];
    return NULL;
}
