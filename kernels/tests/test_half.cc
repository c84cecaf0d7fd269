// Every half survives both conversions, and floats between two halves go to the nearer, ties to the even one.
#include <cmath>
#include <initializer_list>

#include "check.h"
#include "half.h"

using edgeformer::from_half;
using edgeformer::to_any_half;
using edgeformer::to_half;

int main() {
  for (std::uint32_t half = 0; half < 0x7c00; ++half) {
    for (std::uint32_t sign : {0u, 0x8000u}) {
      const auto bits = static_cast<edgeformer::Half>(half | sign);
      CHECK(to_half(from_half(bits)) == bits, "half %04x", bits);
    }
    if (half == 0x7bff) break;
    const double low = from_half(half), high = from_half(half + 1), middle = (low + high) / 2;
    CHECK(to_half(static_cast<float>(middle)) == half + half % 2, "between %04x and the next", half);
    CHECK(to_half(std::nextafterf(middle, 0)) == half, "below the middle after %04x", half);
    CHECK(to_half(std::nextafterf(middle, 1e9)) == half + 1, "above the middle after %04x", half);
  }
  CHECK(to_any_half(65519) == 0x7bff && to_any_half(-65520) == 0xfc00 && std::isnan(from_half(to_any_half(NAN))), "no room");
  CHECK(std::isinf(from_half(0x7c00)) && to_any_half(INFINITY) == 0x7c00, "infinite");
  CHECK(from_half(0x3c00) == 1 && from_half(0xc000) == -2 && from_half(1) == 0x1p-24f, "known values");
}
