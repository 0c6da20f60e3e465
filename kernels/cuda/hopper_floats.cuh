/* What Hopper's products with operands of 4 bytes share: tiles of 32 x 32, as the copy engine lays
 * them with its 128-byte swizzle. */
#ifndef SMALLWORLD_KERNELS_CUDA_HOPPER_FLOATS_CUH
#define SMALLWORLD_KERNELS_CUDA_HOPPER_FLOATS_CUH

#include "hopper_tiles.cuh"

enum { TILE = 32, TILE_ROW = TILE * 4, TILE_BYTES = TILE * TILE_ROW };

/* Turns one over where it lies, by pieces of 4 x 4: in each step those that change places among
 * themselves. Lanes that read or write together find different banks. */
static __device__ __forceinline__ void turn_tile(uint32_t tile) {
    const int lane = threadIdx.x % 32, one = lane % 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int two = one ^ (lane / 8 + half * 4);
        float4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = 4 * two + i;
            v[i] = shared_load4(tile + row * TILE_ROW + ((one ^ (row % 8)) * 16));
        }
        __syncwarp();
        const float4 turned[4] = {{v[0].x, v[1].x, v[2].x, v[3].x},
                                  {v[0].y, v[1].y, v[2].y, v[3].y},
                                  {v[0].z, v[1].z, v[2].z, v[3].z},
                                  {v[0].w, v[1].w, v[2].w, v[3].w}};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = 4 * one + i;
            shared_store4(tile + row * TILE_ROW + ((two ^ (row % 8)) * 16), turned[i]);
        }
    }
}

/* A matrix of floats, of each step, in tiles of 32 x 32, or of so many columns, 16 or 32, and rows;
 * the copy engine can round them to tf32. */
static inline bool map_floats(backend *be, CUtensorMap *map, CUtensorMapDataType type,
                              const void *base, size_t rows, int columns, int steps,
                              int across = TILE, int down = TILE) {
    const uint64_t row = (uint64_t)columns * 4;
    const uint64_t extent[3] = {(uint64_t)columns, rows, (uint64_t)steps};
    const uint64_t stride[2] = {row, row * rows};
    const uint32_t box[3] = {(uint32_t)across, (uint32_t)down, 1};
    return make_map_of(type, be, map, base, 3, extent, stride, box,
                       across == TILE ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

#endif
