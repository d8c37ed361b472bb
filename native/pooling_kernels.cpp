#include "pooling_kernels.hpp"

#include <algorithm>
#include <vector>

#include "parallel.hpp"
#include "vectorized.hpp"

namespace samovar::layers {
namespace {

// Members of no effect behind a list, so that its last group is whole.
constexpr std::size_t kSpare = 8;

constexpr std::int32_t kNowhere = -1;  // of a maximum that passes no gradient on
constexpr std::int32_t kNoPlace = -2;

// Indices [first, last) of something along one axis.
struct Range {
  std::size_t first;
  std::size_t last;
};

// Of a window: which of its places lie in the image.
SAMOVAR_INLINE Range places(const PoolAxis& axis, std::size_t output) {
  const std::size_t start = output * axis.stride, end = axis.size + axis.pad;  // counted from the padding's beginning
  return {start < axis.pad ? axis.pad - start : 0, end - start < axis.kernel ? end - start : axis.kernel};
}

// Windows that hold an index of the image.
SAMOVAR_INLINE Range windows(const PoolAxis& axis, std::size_t index) {
  const std::size_t at = index + axis.pad, last = at / axis.stride + 1;
  return {at < axis.kernel ? 0 : (at - axis.kernel) / axis.stride + 1, last < axis.outputs ? last : axis.outputs};
}

// A pixel of a window, or a window of a pixel.
struct Member {
  std::size_t offset;
  std::int32_t place;
};

// best = max(best, value) for members in ascending order of their places.
struct Largest {
  float* best;
  std::int32_t* at;
  const float* x;
  std::size_t count;

  template <std::size_t kMembers, bool kBegins>
  SAMOVAR_INLINE void take(const Member* members) const {
    const float* from[kMembers];
    std::int32_t given[kMembers];
    for (std::size_t m = 0; m < kMembers; ++m) {
      from[m] = x + members[m].offset;
      given[m] = members[m].place;
    }
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) {
      float larger = kBegins ? from[0][i] : best[i];
      std::int32_t place = kBegins ? given[0] : at[i];
#pragma GCC unroll 9
      for (std::size_t m = kBegins; m < kMembers; ++m) {
        const float value = from[m][i];
        const bool takes = (value > larger) | (value != value);
        larger = takes ? value : larger;
        place = takes ? given[m] : place;
      }
      best[i] = larger;
      at[i] = place;
    }
  }
};

// dx = dx + dy of the windows whose maximum is here.
struct Chosen {
  float* dx;
  const float* dy;
  const std::int32_t* where;
  std::size_t count;

  template <std::size_t kMembers, bool kBegins>
  SAMOVAR_INLINE void take(const Member* members) const {
    const float* from[kMembers];
    const std::int32_t* at[kMembers];
    std::int32_t here[kMembers];
    for (std::size_t m = 0; m < kMembers; ++m) {
      from[m] = dy + members[m].offset;
      at[m] = where + members[m].offset;
      here[m] = members[m].place;
    }
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) {
      float sum = kBegins ? 0.0f : dx[i];
#pragma GCC unroll 9
      for (std::size_t m = 0; m < kMembers; ++m) {
        const float value = from[m][i];
        sum += at[m][i] == here[m] ? value : 0.0f;
      }
      dx[i] = sum;
    }
  }
};

// Members that share one loop are read in registers: up to nine (3 x 3), a group that is filled up with more of no
// effect (see list_pixels, list_windows).
template <typename Operation>
SAMOVAR_INLINE void take_all(const Operation& operation, const Member* members, std::size_t num_members) {
  if (num_members <= 1)
    operation.template take<1, true>(members);
  else if (num_members <= 2)
    operation.template take<2, true>(members);
  else if (num_members <= 4)
    operation.template take<4, true>(members);
  else
    operation.template take<9, true>(members);
  for (std::size_t m = 9; m < num_members; m += 9) operation.template take<9, false>(members + m);
}

// Lists the windows' places `down` x `along`, as offsets from the first of them. Returns their number.
SAMOVAR_INLINE std::size_t list_pixels(Member* members, const Pool& pool, Range down, Range along) {
  std::size_t num_members = 0;
  for (std::size_t r = down.first; r < down.last; ++r)
    for (std::size_t c = along.first; c < along.last; ++c) {
      const std::size_t pixel = (r - down.first) * pool.columns.size + c - along.first;
      members[num_members++] = {pixel * pool.channels, static_cast<std::int32_t>(r * pool.columns.kernel + c)};
    }
  for (std::size_t m = 0; m < kSpare; ++m) members[num_members + m] = members[num_members - 1];
  return num_members;
}

// Lists the windows `down` x `along` as offsets from the first of them, in which a pixel has its place at (row, column)
// of the first window, and earlier in later ones. Returns their number.
SAMOVAR_INLINE std::size_t list_windows(Member* members, const Pool& pool, Range down, Range along, std::size_t row,
                                        std::size_t column) {
  std::size_t num_members = 0;
  for (std::size_t r = 0; r < down.last - down.first; ++r)
    for (std::size_t c = 0; c < along.last - along.first; ++c) {
      const std::size_t place = (row - r * pool.rows.stride) * pool.columns.kernel + column - c * pool.columns.stride;
      members[num_members++] = {(r * pool.columns.outputs + c) * pool.channels, static_cast<std::int32_t>(place)};
    }
  for (std::size_t m = 0; m < kSpare; ++m) members[num_members + m] = {0, kNoPlace};
  return num_members;
}

SAMOVAR_INLINE void rectify(float* __restrict y, std::int32_t* __restrict where, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = y[i];
    const std::int32_t place = where[i];
    where[i] = value <= 0.0f ? kNowhere : place;
    y[i] = value < 0.0f ? 0.0f : value;
  }
}

// One row of windows. Neighbours that are clipped alike share a list.
SAMOVAR_VECTORIZED void max_row(const float* x, float* y, std::int32_t* where, const Pool pool, std::size_t row,
                                bool rectifies, Member* members) {
  const Range down = places(pool.rows, row);
  const std::size_t top = row * pool.rows.stride + down.first - pool.rows.pad;
  Range listed{0, 0};
  std::size_t num_members = 0;
  for (std::size_t column = 0; column < pool.columns.outputs; ++column) {
    const Range along = places(pool.columns, column);
    if (along.first != listed.first || along.last != listed.last) {
      num_members = list_pixels(members, pool, down, along);
      listed = along;
    }
    const std::size_t left = column * pool.columns.stride + along.first - pool.columns.pad;
    const float* from = x + (top * pool.columns.size + left) * pool.channels;
    const std::size_t start = column * pool.channels;
    take_all(Largest{y + start, where + start, from, pool.channels}, members, num_members);
  }
  if (rectifies) rectify(y, where, pool.columns.outputs * pool.channels);
}

// One row of pixels. Those that are a stride apart have the same places in their windows, and share a list.
SAMOVAR_VECTORIZED void max_row_backward(const float* dy, const std::int32_t* where, float* dx, const Pool pool,
                                         std::size_t row, Member* members) {
  const PoolAxis& columns = pool.columns;
  const Range down = windows(pool.rows, row);
  const std::size_t place_row = row + pool.rows.pad - down.first * pool.rows.stride;
  for (std::size_t phase = 0; phase < std::min(columns.stride, columns.size); ++phase) {
    std::size_t listed_place = 0, listed_windows = 0, num_members = 0;
    for (std::size_t column = phase; column < columns.size; column += columns.stride) {
      const Range along = windows(columns, column);
      float* to = dx + column * pool.channels;
      if (down.first >= down.last || along.first >= along.last) {  // between windows
        for (std::size_t i = 0; i < pool.channels; ++i) to[i] = 0.0f;
        continue;
      }
      const std::size_t place = column + columns.pad - along.first * columns.stride;
      if (place != listed_place || along.last - along.first != listed_windows) {
        num_members = list_windows(members, pool, down, along, place_row, place);
        listed_place = place;
        listed_windows = along.last - along.first;
      }
      const std::size_t start = (down.first * columns.outputs + along.first) * pool.channels;
      take_all(Chosen{to, dy + start, where + start, pool.channels}, members, num_members);
    }
  }
}

// Room for the members of a list.
std::vector<Member> member_room(const Pool& pool) {
  return std::vector<Member>(pool.rows.kernel * pool.columns.kernel + kSpare);
}

}  // namespace

void max_pool(const float* x, float* y, std::int32_t* where, const Pool& pool, bool rectifies, int threads) {
  const std::size_t image = pool.rows.size * pool.columns.size * pool.channels;
  const std::size_t rows = pool.rows.outputs, row = pool.columns.outputs * pool.channels;
  parallel(pool.images * rows, pool.images * image, threads, [&](std::size_t begin, std::size_t end) {
    std::vector<Member> members = member_room(pool);
    for (std::size_t i = begin; i < end; ++i)
      max_row(x + i / rows * image, y + i * row, where + i * row, pool, i % rows, rectifies,
              members.data());
  });
}

void max_pool_backward(const float* dy, const std::int32_t* where, float* dx, const Pool& pool, int threads) {
  const std::size_t outputs = pool.rows.outputs * pool.columns.outputs * pool.channels;
  const std::size_t rows = pool.rows.size, row = pool.columns.size * pool.channels;
  parallel(pool.images * rows, pool.images * rows * row, threads, [&](std::size_t begin, std::size_t end) {
    std::vector<Member> members = member_room(pool);
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t image = i / rows * outputs;
      max_row_backward(dy + image, where + image, dx + i * row, pool, i % rows, members.data());
    }
  });
}

}  // namespace samovar::layers
