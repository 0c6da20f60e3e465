/* The CPU backend is compiled once for each level of the processor's instructions, and backend_cpu
 * takes the highest that the processor has: `portable` runs everywhere; of x86-64, `v3` has AVX2
 * and `v4` AVX-512. SMALLWORLD_CPU=portable, v3 or v4 asks for another one. */
#ifndef SMALLWORLD_KERNELS_CPU_LEVELS_H
#define SMALLWORLD_KERNELS_CPU_LEVELS_H

#include "ops.h"

/* A name of one level: cpu_v3_fprop. */
#define CPU_OF(level, name)   CPU_JOIN(level, name)
#define CPU_JOIN(level, name) cpu_##level##_##name

backend *CPU_OF(portable, backend)(precision precision, int threads);
backend *CPU_OF(v3, backend)(precision precision, int threads);
backend *CPU_OF(v4, backend)(precision precision, int threads);

#endif
