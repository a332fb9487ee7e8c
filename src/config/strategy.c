/* The table of strategies, and a strategy by each of its names. */
#include "config/config_internal.h"

#include <string.h>

#define ROW(id, ...) [TM_STRATEGY_##id] = {__VA_ARGS__},
const tm_strategy_row tm_strategy_rows[TM_STRATEGY_COUNT] = {TM_STRATEGIES(ROW)};

tm_strategy strategy_of_word(const char *word) {
    size_t n = strlen(word);
    for (unsigned i = 0; i < TM_STRATEGY_COUNT; i++) {
        const char *also = tm_strategy_rows[i].also;
        if (!strcmp(tm_strategy_rows[i].name, word)) return (tm_strategy)i;
        if (strlen(also) == n + 1 && !strncmp(also, word, n)) return (tm_strategy)i;
    }
    return TM_STRATEGY_COUNT;
}

tm_strategy strategy_of_stage(uint32_t stage) {
    unsigned i = 0;
    while (i < TM_STRATEGY_COUNT && tm_strategy_rows[i].stage != stage) i++;
    return (tm_strategy)i;
}

tm_strategy strategy_of_sharding(const char *sharding) {
    for (unsigned i = 0; i < TM_STRATEGY_COUNT; i++) {
        const char *of = tm_strategy_rows[i].sharding;
        if (of && !strcmp(of, sharding)) return (tm_strategy)i;
    }
    return TM_STRATEGY_COUNT;
}
