/* Of wgrad on Hopper by warps that each make a run of dW's tiles, in their order. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_WGRAD_RUNS_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_WGRAD_RUNS_CUH

#include "products/hopper/float_tiles.cuh"

typedef struct run_arguments {
    const int *start, *column; /* of the layout's rows; of each block */
    const uint16_t *row;       /* of every RUN_BLOCKS-th block */
    int tiles;                 /* of dW */
    int columns, steps;
    int log_down, log_across; /* tiles of a block */
} run_arguments;

static inline run_arguments runs_of(const device_layout *device, int steps, int columns) {
    const layout *l = &device->host;
    const int log_across = log2_of(l->in_block / TILE), log_down = log_across + log2_of(l->gates);
    return {l->row_start, l->row_column, device->run_row, l->blocks << (log_across + log_down),
            columns,      steps,         log_down,        log_across};
}

/* A warp's tiles, of which lanes look up 32 at a time: rows and columns in tiles, and where in dW. */
struct tile_walker {
    const run_arguments &p;
    int next, end, window;
    int row, column, place;

    __device__ tile_walker(const run_arguments &p_, int share, int shares)
        : p(p_), next((int)((long long)p.tiles * share / shares)),
          end((int)((long long)p.tiles * (share + 1) / shares)), window(next) {
        look_up();
    }

    /* The node that has a block. */
    __device__ int node_of(int block) const {
        int node = __ldg(p.row + block / RUN_BLOCKS);
        while (__ldg(p.start + node + 1) <= block) node++;
        return node;
    }

    /* A node's tiles in the order of their rows. */
    __device__ void look_up() {
        const int q = window + threadIdx.x % 32;
        row = column = place = -1;
        if (q >= end) return;
        const int log_tiles = p.log_down + p.log_across;
        const int node = node_of(q >> log_tiles), first = __ldg(p.start + node);
        const int across = (__ldg(p.start + node + 1) - first) << p.log_across;
        const int in = q - (first << log_tiles), r = p.log_down ? in / across : 0;
        const int along = in - r * across, block = first + (along >> p.log_across);
        const int c = along & ((1 << p.log_across) - 1);
        row = (node << p.log_down) + r;
        column = (__ldg(p.column + block) << p.log_across) + c;
        place = (((block << p.log_down) + r) << p.log_across) + c;
    }

    /* Before the next `ahead` tiles are asked for. */
    __device__ void reach(int ahead) {
        if (next + ahead - window <= 32) return;
        window = next;
        look_up();
    }

    __device__ int of_next(int value, int after = 0) const {
        return __shfl_sync(~0u, value, next + after - window);
    }
};

/* The barriers of a warp's own ring of `count` stages. */
static __device__ inline void create_ring(uint32_t full, int count) {
    if (threadIdx.x % 32 == 0) {
        for (int s = 0; s < count; s++) barrier_init(full + s * 8, 1);
        barrier_init_done();
    }
    __syncwarp();
}

/* A tile of dW from shared memory. */
static __device__ inline void store_tile(const CUtensorMap *dw_map, const run_arguments &p,
                                         uint32_t from, int place) {
    tensor_store(dw_map, from, (place & ((1 << p.log_across) - 1)) * TILE,
                 (place >> p.log_across) * TILE);
}

#endif
