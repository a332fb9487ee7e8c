/* The profile: what was measured on the machines of one user. A save reads the file again, puts the new entries over
 * the old ones, leaves out the oldest of many and replaces the file by rename. */
#include "device/device.h"
#include "io/file/file.h"
#include "offload/machine/machine_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct tm_profile {
    char *backend;
    profile_entries e;
};

const char *tm_profile_path(void) {
    static _Thread_local char path[4096];
    const char *given = getenv("TIDEMILL_PROFILE"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    path[0] = 0;
    if (given && *given)
        snprintf(path, sizeof path, "%s", given);
    else if (cache && *cache == '/')
        snprintf(path, sizeof path, "%s/tidemill/profile.json", cache);
    else if (home && *home)
        snprintf(path, sizeof path, "%s/.cache/tidemill/profile.json", home);
    return path;
}

bool profile_existing_parent(const char *path, char *existing, size_t cap) {
    int n = snprintf(existing, cap, "%s", *path ? path : ".");
    if (n < 0 || (size_t)n >= cap) return false;
    while (!tm_path_exists(existing)) {
        char *slash = strrchr(existing, '/');
        if (slash == existing)
            existing[1] = 0;
        else if (slash)
            *slash = 0;
        else
            snprintf(existing, cap, ".");
        if (!strcmp(existing, "/") || !strcmp(existing, ".")) return tm_path_exists(existing);
    }
    return true;
}

/* The file system's id tells apart what is mounted under one device number at different times. */
bool profile_disk_key(const char *path, char *key, size_t cap) {
    char existing[4096], host[64] = "";
    struct stat st;
    struct statfs fs;
    uint64_t id = 0;
    if (!profile_existing_parent(path, existing, sizeof existing)) return false;
    if (stat(existing, &st) != 0 || statfs(existing, &fs) != 0) return false;
    (void)gethostname(host, sizeof host - 1);
    memcpy(&id, &fs.f_fsid, sizeof id < sizeof fs.f_fsid ? sizeof id : sizeof fs.f_fsid);
    int n = snprintf(key, cap, "%s %u:%u %016" PRIx64, host, major(st.st_dev), minor(st.st_dev), id);
    return n > 0 && (size_t)n < cap;
}

tm_status tm_profile_put_disk(const char *path, const tm_disk *disk) {
    char key[PROFILE_DISK_CAP];
    profile_entries e = {0};
    profile_entry *to;
    tm_status rc;
    if (!profile_disk_key(path, key, sizeof key))
        return tm_fail(TM_EINPUT, "%s: cannot find out which disk this is on", path);
    TM_GO(profile_load(&e, NULL));
    TM_GO(profile_put(&e, NULL, key, &to));
    to->disk = *disk;
    TM_GO(profile_store(&e));
done:
    profile_entries_free(&e);
    return rc;
}

bool tm_profile_get_disk(const char *path, tm_disk *out) {
    char key[PROFILE_DISK_CAP];
    profile_entries e;
    if (!profile_disk_key(path, key, sizeof key)) return false;
    if (profile_load(&e, "") != TM_OK) { /* of no back-end */
        tm_error_clear();
        return false;
    }
    const profile_entry *found = profile_find(&e, NULL, key);
    if (found) *out = found->disk;
    profile_entries_free(&e);
    return found != NULL;
}

/* A rate far from the measured one is another disk's, or a mistake. */
static const double LEAST_TRAINING = 0.2, MOST_TRAINING = 1.5;

tm_status tm_profile_teach_disk(const char *path, uint64_t read_bytes, uint64_t write_bytes, double seconds) {
    tm_disk disk;
    if (!(seconds > 0) || !tm_profile_get_disk(path, &disk)) return TM_OK;
    double now = fmin(fmax(tm_disk_seconds(&disk, read_bytes, write_bytes) / seconds, LEAST_TRAINING), MOST_TRAINING);
    disk.in_training = disk.in_training > 0 ? (disk.in_training + now) / 2 : now;
    return tm_profile_put_disk(path, &disk);
}

tm_status tm_profile_open(tm_profile **out, const char *backend) {
    tm_status rc;
    tm_profile *p = tm_calloc(1, sizeof *p);
    if (!p) return tm_nomem(sizeof *p);
    p->backend = tm_strdup(backend);
    TM_GO(p->backend ? TM_OK : tm_nomem(strlen(backend)));
    TM_GO(profile_load(&p->e, backend));
    *out = p;
    return TM_OK;
done:
    tm_profile_close(p);
    return rc;
}

tm_status tm_profile_open_device(tm_profile **out, const char *device) {
    char text[192], backend[224];
    TM_TRY(tm_device_describe(device, text, sizeof text));
    snprintf(backend, sizeof backend, "device %s", text);
    return tm_profile_open(out, backend);
}

bool tm_profile_get(const tm_profile *p, const char *key, double *seconds) {
    const profile_entry *e = profile_find(&p->e, p->backend, key);
    if (e) *seconds = e->seconds;
    return e != NULL;
}

tm_status tm_profile_put(tm_profile *p, const char *key, double seconds) {
    profile_entry *e;
    if (!(seconds >= 0 && isfinite(seconds)))
        return tm_fail(TM_EBUG, "profile: \"%s\" is said to take %g seconds", key, seconds);
    TM_TRY(profile_put(&p->e, p->backend, key, &e));
    e->seconds = seconds;
    e->changed = true;
    return TM_OK;
}

/* Kept as other times are. */
static const char *const link_key[] = {"1 GiB to the device", "1 GiB from the device"};

bool tm_profile_get_link(const tm_profile *p, double *in_bps, double *out_bps) {
    double in, out;
    if (!tm_profile_get(p, link_key[0], &in) || !tm_profile_get(p, link_key[1], &out) || in <= 0 || out <= 0)
        return false;
    *in_bps = (double)TM_GIB / in;
    *out_bps = (double)TM_GIB / out;
    return true;
}

tm_status tm_profile_put_link(tm_profile *p, double in_bps, double out_bps) {
    TM_TRY(tm_profile_put(p, link_key[0], (double)TM_GIB / in_bps));
    return tm_profile_put(p, link_key[1], (double)TM_GIB / out_bps);
}

tm_status tm_profile_save(tm_profile *p) {
    profile_entries now = {0};
    profile_entry *to;
    tm_status rc = TM_OK;
    bool any = false;
    for (uint32_t i = 0; i < p->e.n; i++) any |= p->e.item[i].changed;
    if (!any) return TM_OK;
    TM_GO(profile_load(&now, NULL));
    for (uint32_t i = 0; i < p->e.n; i++) {
        if (!p->e.item[i].changed) continue;
        TM_GO(profile_put(&now, p->e.item[i].backend, p->e.item[i].key, &to));
        to->seconds = p->e.item[i].seconds;
    }
    TM_GO(profile_store(&now));
    for (uint32_t i = 0; i < p->e.n; i++) p->e.item[i].changed = false;
done:
    profile_entries_free(&now);
    return rc;
}

void tm_profile_close(tm_profile *p) {
    if (!p) return;
    profile_entries_free(&p->e);
    tm_free(p->backend);
    tm_free(p);
}
