/* A stand-in for libcuda.so.1 that answers from environment variables.
 *
 * FAKE_GPUS     one GPU per ';': name|major.minor|SM count|total memory in bytes
 * FAKE_CUINIT   status that cuInit returns (100: no device)
 * FAKE_SLEEP    seconds that cuInit takes
 * CUDA_VISIBLE_DEVICES  decimal indices, ending at the first invalid one, as the real driver does it
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX 16
static struct { char name[128]; int major, minor, sms; size_t memory; } gpus[MAX];
static int visible[MAX], count;

static void read_gpus(void) {
    int all = 0;
    char text[4096];
    const char *spec = getenv("FAKE_GPUS"), *mask = getenv("CUDA_VISIBLE_DEVICES");
    snprintf(text, sizeof text, "%s", spec ? spec : "");
    for (char *save, *one = strtok_r(text, ";", &save); one && all < MAX; one = strtok_r(NULL, ";", &save), all++)
        sscanf(one, "%127[^|]|%d.%d|%d|%zu", gpus[all].name, &gpus[all].major, &gpus[all].minor, &gpus[all].sms,
               &gpus[all].memory);
    count = 0;
    if (!mask) {
        for (int i = 0; i < all; i++) visible[count++] = i;
        return;
    }
    snprintf(text, sizeof text, "%s", mask);
    for (char *save, *one = strtok_r(text, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
        char *end;
        long index = strtol(one, &end, 10);
        if (end == one || index < 0 || index >= all) break;
        visible[count++] = (int)index;
    }
}

int cuInit(unsigned flags) {
    (void)flags;
    if (getenv("FAKE_SLEEP")) sleep((unsigned)atoi(getenv("FAKE_SLEEP")));
    read_gpus();
    return getenv("FAKE_CUINIT") ? atoi(getenv("FAKE_CUINIT")) : 0;
}

int cuDeviceGetCount(int *out) { *out = count; return 0; }

int cuDeviceGet(int *device, int index) {
    if (index < 0 || index >= count) return 101;
    *device = visible[index];
    return 0;
}

int cuDeviceGetName(char *out, int size, int device) { snprintf(out, (size_t)size, "%s", gpus[device].name); return 0; }

int cuDeviceTotalMem_v2(size_t *out, int device) { *out = gpus[device].memory; return 0; }

/* The numbers are CUdevice_attribute's, typed from cuda.h here and in the probe independently. */
int cuDeviceGetAttribute(int *out, int attribute, int device) {
    switch (attribute) {
        case 1: *out = 1024; return 0;                    /* MAX_THREADS_PER_BLOCK */
        case 8: *out = 49152; return 0;                   /* MAX_SHARED_MEMORY_PER_BLOCK */
        case 10: *out = 32; return 0;                     /* WARP_SIZE */
        case 13: *out = 1980000; return 0;                /* CLOCK_RATE */
        case 16: *out = gpus[device].sms; return 0;       /* MULTIPROCESSOR_COUNT */
        case 36: *out = 2619000; return 0;                /* MEMORY_CLOCK_RATE */
        case 37: *out = 5120; return 0;                   /* GLOBAL_MEMORY_BUS_WIDTH */
        case 38: *out = 52428800; return 0;               /* L2_CACHE_SIZE */
        case 39: *out = 2048; return 0;                   /* MAX_THREADS_PER_MULTIPROCESSOR */
        case 75: *out = gpus[device].major; return 0;     /* COMPUTE_CAPABILITY_MAJOR */
        case 76: *out = gpus[device].minor; return 0;     /* COMPUTE_CAPABILITY_MINOR */
        case 81: *out = 233472; return 0;                 /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
        case 82: *out = 65536; return 0;                  /* MAX_REGISTERS_PER_MULTIPROCESSOR */
        case 97: *out = 232448; return 0;                 /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
        default: return 1;                                /* INVALID_VALUE */
    }
}
