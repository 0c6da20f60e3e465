/* What Hopper's products with operands of 4 bytes share: tiles of 32 x 32, as the copy engine lays
 * them with its 128-byte swizzle. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_FLOAT_TILES_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_FLOAT_TILES_CUH

#include "products/hopper/hopper.cuh"

enum { TILE = 32, TILE_ROW = TILE * 4, TILE_BYTES = TILE * TILE_ROW };

/* Transposes tiles in place, in pieces of 4 x 4. Each lane has two pieces that change places with
 * those of other lanes of the warp. Lanes that read or write together find different banks. */
struct turning {
    uint32_t from[4], to[4];    /* lines of its first piece, before and after */
    int from_second, to_second; /* how far the second one's are from there */

    __device__ turning() {
        const int lane = threadIdx.x % 32, one = lane % 8, two = one ^ lane / 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = 4 * two + i, turned = 4 * one + i;
            from[i] = kept(row * TILE_ROW + (one ^ row % 8) * 16);
            to[i] = kept(turned * TILE_ROW + (two ^ turned % 8) * 16);
        }
        from_second = two & 4 ? -16 * TILE_ROW : 16 * TILE_ROW;
        to_second = (two ^ 4 * one) & 4 ? -64 : 64;
    }

    __device__ void turn(uint32_t tile) const {
        float4 v[2][4];
#pragma unroll
        for (int piece = 0; piece < 2; piece++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[piece][i] = shared_load4(tile + from[i] + piece * from_second);
            }
        }
        __syncwarp();
#pragma unroll
        for (int piece = 0; piece < 2; piece++) {
            const float4 *u = v[piece], turned[4] = {{u[0].x, u[1].x, u[2].x, u[3].x},
                                                     {u[0].y, u[1].y, u[2].y, u[3].y},
                                                     {u[0].z, u[1].z, u[2].z, u[3].z},
                                                     {u[0].w, u[1].w, u[2].w, u[3].w}};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                shared_store4(tile + to[i] + piece * to_second, turned[i]);
            }
        }
    }
};

static __device__ inline void load_four(float *to, uint32_t from) {
    const float4 v = shared_load4(from);
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

/* A matrix of floats for each step, in tiles of 32 x 32, or of `across` columns, 16 or 32, and
 * `down` rows; the copy engine can round them to tf32. */
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
