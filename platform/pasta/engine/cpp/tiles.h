// Linear layers by tiles of AMX: one instruction multiplies sixteen rows by sixteen steps of sixteen outputs.

#pragma once

#include <cstdint>

#include "numbers.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#define PASTA_TILES
#endif

namespace {

constexpr int64_t kBlocks = 4;      // registers of outputs that are computed together
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileSteps = 16;  // of four bytes: what a tile holds of a row

#ifdef PASTA_TILES

// Linux lets a process use tiles once it has asked (Documentation/arch/x86/xstate.rst).
bool tiles_allowed() {
  constexpr long kRequest = 0x1023, kTileData = 18;
  static const bool allowed = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return allowed;
}

// What the processor is told of its eight tiles: 0 to 3 hold sums, 4 rows, 5 to 7 and again 5 weights.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  explicit TileShapes(int64_t used) {
    for (int tile = 0; tile < 8; ++tile) {
      bytes[tile] = 64;
      rows[tile] = static_cast<uint8_t>(tile < 5 ? used : kTileSteps);
    }
  }
};

// Says what shape the tiles have, and leaves them as they were: other libraries set theirs once a thread.
class Tiles {
 public:
  ~Tiles() {
    if (rows_ != 0) load(before_);
  }
  void use(int64_t rows) {
    if (rows == rows_) return;
    if (rows_ == 0) store(before_);
    load(TileShapes(rows));
    rows_ = rows;
  }

 private:
  // Not the compiler's intrinsics: GCC 12's claim to touch eight bytes alone, and it leaves out the others' stores.
  static void load(const TileShapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
  static void store(TileShapes& shapes) { asm volatile("sttilecfg %0" : "=m"(shapes)); }

  TileShapes before_{0};
  int64_t rows_ = 0;
};

// One register of outputs: its weights, and their products with the rows in tile 4.
#define PASTA_TILE(sum, weights, register)                    \
  _tile_loadd(weights, w + (s * kBlocks + register) * kLanes, kStride);  \
  if constexpr (INTEGERS) {                                   \
    _tile_dpbusd(sum, 4, weights);                            \
  } else {                                                    \
    _tile_dpbf16ps(sum, 4, weights);                          \
  }

// Adds the products of up to sixteen rows and a multiple of sixteen steps to sums [rows, 4, 16].
template <bool INTEGERS>
void by_tiles(const int32_t* x, int64_t width, const int32_t* w, int64_t steps, void* sums) {
  constexpr int64_t kStride = kBlocks * kLanes * 4;  // bytes from a step to the next, and from a row's sums to the next's
  char* const to = static_cast<char*>(sums);
  asm volatile("" ::: "memory");  // the compiler does not know what tiles read
  _tile_loadd(0, to, kStride);
  _tile_loadd(1, to + 64, kStride);
  _tile_loadd(2, to + 128, kStride);
  _tile_loadd(3, to + 192, kStride);
  for (int64_t s = 0; s < steps; s += kTileSteps) {
    _tile_loadd(4, x + s, width * 4);
    PASTA_TILE(0, 5, 0)
    PASTA_TILE(1, 6, 1)
    PASTA_TILE(2, 7, 2)
    PASTA_TILE(3, 5, 3)
  }
  _tile_stored(0, to, kStride);
  _tile_stored(1, to + 64, kStride);
  _tile_stored(2, to + 128, kStride);
  _tile_stored(3, to + 192, kStride);
}

#undef PASTA_TILE

#else

bool tiles_allowed() { return false; }

struct Tiles {
  void use(int64_t) {}
};

template <bool INTEGERS>
void by_tiles(const int32_t*, int64_t, const int32_t*, int64_t, void*) {}

#endif

}  // namespace
