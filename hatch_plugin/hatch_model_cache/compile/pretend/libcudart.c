/* Answers of CUDA's runtime to torch's own C++ code, which asks past Python which kernels attention may use.
 * Loaded for all before torch, so that torch's libraries bind these functions instead of libcudart's.
 * The target comes as macros: NAME, MAJOR, MINOR, SM_COUNT, WARP_SIZE, MEMORY, SHARED. */
#include <stddef.h>
#include <string.h>

/* cudaDeviceProp of CUDA 13 (driver_types.h) up to what is answered; torch gives a zeroed one. */
struct properties {
    char name[256], uuid[16], luid[8];
    unsigned int luid_mask;
    size_t memory, shared_memory_per_block;
    int registers_per_block, warp_size;
    size_t pitch;
    int threads_per_block, block[3], grid[3];
    size_t constant_memory;
    int major, minor;
    size_t texture_alignment, texture_pitch_alignment;
    int sm_count;
};

int cudaGetDeviceCount(int *count) { return *count = 1, 0; }
int cudaGetDevice(int *device) { return *device = 0; }
int cudaSetDevice(int device) { return 0; }
/* autograd notes the current stream of what it records: the default one, once this is answered */
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = *greatest = 0; }

int cudaGetDeviceProperties(struct properties *answer, int device) {
    strncpy(answer->name, NAME, sizeof answer->name - 1);
    answer->memory = MEMORY;
    answer->shared_memory_per_block = SHARED;
    answer->warp_size = WARP_SIZE;
    answer->major = MAJOR;
    answer->minor = MINOR;
    answer->sm_count = SM_COUNT;
    return 0;
}
