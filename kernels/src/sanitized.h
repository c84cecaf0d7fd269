// Whether a sanitizer watches reads and writes of memory. It knows the ends of arrays of the allocator's alone.
#pragma once

namespace edgeformer {

#if defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace edgeformer
