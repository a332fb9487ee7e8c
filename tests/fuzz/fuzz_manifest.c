/* Any bytes as the manifest of a commit, under a checksum that is right (a file that anybody may have written, not one
 * that a disk damaged). What must hold: within the limits, or refused with a message; of one that opens, every object
 * and page that it names can be asked for, and none beyond. */
#include "fuzz.h"

#include "offload/store/manifest_internal.h"

#include <string.h>
#include <xxhash.h>

static void use(const tm_commit *c) {
    uint64_t sums[64];
    for (unsigned i = 0; i < c->named_paths; i++) CHECK(strlen(commit_path(c, i)) < c->paths.len);
    CHECK(tm_json_root(c->info) != NULL && tm_commit_info(c) == tm_json_root(c->info));
    for (uint32_t i = 0; i < c->n_objects; i++) {
        manifest_object m;
        if (manifest_read_object(c, i, &m) != TM_OK) {
            tm_error_clear();
            continue;
        }
        CHECK(m.path < c->named_paths && m.slot < c->slots && m.bytes <= TM_GIB);
    }
    for (uint64_t at = 0; at < c->n_pages; at += 64)
        CHECK(manifest_read_pages(c, at, tm_min_u64(64, c->n_pages - at), sums) == TM_OK);
    CHECK(manifest_read_pages(c, c->n_pages, 1, sums) != TM_OK);
    CHECK(manifest_read_pages(c, UINT64_MAX, 1, sums) != TM_OK);
    CHECK(manifest_read_pages(c, 1, UINT64_MAX, sums) != TM_OK);
    tm_error_clear();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {MANIFEST_NAME, NULL};
    static char file[(64 << 10) + HASH_BYTES];
    XXH128_canonical_t sum;
    tm_commit *c;
    if (size > sizeof file - HASH_BYTES) return 0;
    memcpy(file, data, size);
    XXH128_canonicalFromHash(&sum, XXH3_128bits(data, size));
    memcpy(file + size, sum.digest, HASH_BYTES);
    fuzz_begin(size);
    fuzz_file(MANIFEST_NAME, file, size + HASH_BYTES);
    if (tm_commit_look(&c, fuzz_folder(names)) == TM_OK)
        use(c);
    else
        CHECK(tm_error_get()->text[0] != 0);
    tm_error_clear();
    tm_commit_close(c);
    fuzz_end();
    return 0;
}
