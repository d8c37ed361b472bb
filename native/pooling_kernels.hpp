// Caffe's maximum pooling of images with their channels last: windows that start at -pad and every stride after it,
// clipped to the image.
#pragma once

#include <cstddef>
#include <cstdint>

namespace samovar::layers {

// One axis. Every window holds a pixel: pad < kernel and (outputs - 1) * stride < size + pad.
struct PoolAxis {
  std::size_t size;
  std::size_t outputs;
  std::size_t kernel;
  std::size_t stride;
  std::size_t pad;
};

// (images, rows, columns, channels), in this order in memory.
struct Pool {
  std::size_t images;
  std::size_t channels;
  PoolAxis rows;
  PoolAxis columns;
};

// The first of equal values; not-a-number if there is one. where[i] is row * kernel + column of the maximum in its
// window. `rectifies`: the maximum of max(x, 0), and -1 where there is no positive value to pass a gradient on to.
void max_pool(const float* x, float* y, std::int32_t* where, const Pool& pool, bool rectifies, int threads);

// Every pixel gets the gradients of the windows whose maximum it is, in ascending order of windows.
void max_pool_backward(const float* dy, const std::int32_t* where, float* dx, const Pool& pool, int threads);

}  // namespace samovar::layers
