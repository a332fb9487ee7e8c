/* The doctor on devices: what is in the machine, the driver, our module, the library of products; each on a line of its
 * own, so that what is missing is seen beside what is there. A machine without a device lacks nothing. */
#include "tools/doctor.h"
#include "tools/tools.h"

#include "device/device.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what the bus has ---- */

static bool attribute_is(const char *device, const char *attribute, unsigned mask, unsigned wanted) {
    char path[512], line[32];
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%.200s/%s", device, attribute);
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool is = fgets(line, sizeof line, f) && (strtoul(line, NULL, 16) & mask) == wanted;
    (void)fclose(f); /* was only read */
    return is;
}

/* NVIDIA's display and 3D controllers. */
static unsigned devices_on_bus(void) {
    enum { VENDOR = 0x10de, DISPLAY = 0x030000 };
    unsigned n = 0;
    DIR *d = opendir("/sys/bus/pci/devices");
    if (!d) return 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        n += attribute_is(e->d_name, "vendor", 0xffff, VENDOR) && attribute_is(e->d_name, "class", 0xff0000, DISPLAY);
    (void)closedir(d);
    return n;
}

/* ---- driver, library ---- */

/* Of the driver's interface, 12080 for 12.8; 0: no driver. */
static int driver_version(void) {
    int (*version)(int *) = NULL;
    int v = 0;
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    void *p = library ? dlsym(library, "cuDriverGetVersion") : NULL;
    memcpy(&version, &p, sizeof p);
    return version && version(&v) == 0 ? v : 0;
}

static void check_driver(report *r, int version) {
    if (version)
        doctor_add(r, "NVIDIA driver", GOOD, NULL, "for CUDA up to %d.%d", version / 1000, version % 1000 / 10);
    else
        doctor_add(r, "NVIDIA driver", WARN,
                   "install NVIDIA's driver (apt-get install nvidia-driver), or train on the CPU",
                   "not found, though the machine has a device");
}

static void check_products(report *r) {
    static const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    for (size_t i = 0; i < TM_COUNT(files); i++) {
        if (!dlopen(files[i], RTLD_LAZY | RTLD_LOCAL)) continue;
        doctor_add(r, "cuBLASLt", GOOD, NULL, "%s", files[i]);
        return;
    }
    doctor_add(r, "cuBLASLt", WARN,
               "matrix products on a device are slow without it: install libcublas of CUDA 12 or 13", "not found");
}

/* With one device there is nobody to exchange with. */
static void check_exchange(report *r, unsigned devices) {
    if (devices < 2) return;
    if (dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL))
        doctor_add(r, "NCCL", GOOD, NULL, "libnccl.so.2");
    else
        doctor_add(r, "NCCL", WARN, "install libnccl2 of the driver's CUDA version",
                   "not found; ranks exchange through host memory");
}

/* ---- devices as our module sees them ---- */

static void check_device(report *r, const char *name, const tm_device_info *info, tm_status rc) {
    char size[32], spare[32];
    tm_device_traits traits;
    bool untested = tm_device_known(name, &traits) == TM_OK && traits.untested;
    if (rc == TM_OK)
        doctor_add(r, name, untested ? WARN : GOOD,
                   "this version was never run on such a device: compare losses with memory.device \"cpu\"",
                   "%s, %s free of %s", info->about, tm_format_size(info->free_bytes, spare, sizeof spare),
                   tm_format_size(info->memory_bytes, size, sizeof size));
    else
        doctor_add(r, name, WARN, "until that is mended, train on another device, or with memory.device \"cpu\"",
                   "%.250s", tm_error_get()->text);
}

/* Each on its own: one that fails says nothing of those after it. */
static void check_module(report *r) {
    tm_device_info info;
    static char names[16][sizeof info.name]; /* the list keeps them */
    for (unsigned i = 0; i < TM_COUNT(names); i++) {
        tm_status rc = tm_device_look("cuda", i, &info);
        bool there = *info.name != 0;
        memcpy(names[i], info.name, sizeof info.name);
        if (there)
            check_device(r, names[i], &info, rc);
        else if (i == 0) /* no driver, no module, no device at all */
            doctor_add(r, "CUDA devices", WARN, "until that is mended, train with memory.device \"cpu\"", "%.250s",
                       tm_error_get()->text);
        tm_error_clear();
        if (!there) return;
    }
}

void doctor_check_devices(report *r) {
    unsigned n = devices_on_bus();
    int version = driver_version();
    if (n == 0 && !version) {
        doctor_add(r, "devices", GOOD, NULL, "none; models are computed by the processor");
        return;
    }
    check_driver(r, version);
    if (version) {
        check_products(r);
        check_exchange(r, n);
    }
    check_module(r);
}
