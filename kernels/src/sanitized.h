// Whether a sanitizer watches reads and writes of memory. It knows the ends of arrays of the allocator's alone.
#pragma once

namespace edgeformer {

#if defined(__has_feature)
inline constexpr bool kThreadsAreWatched = __has_feature(thread_sanitizer);
inline constexpr bool kSanitized = kThreadsAreWatched || __has_feature(address_sanitizer);
#elif defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadsAreWatched = true, kSanitized = true;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr bool kThreadsAreWatched = false, kSanitized = true;
#else
inline constexpr bool kThreadsAreWatched = false, kSanitized = false;
#endif

}  // namespace edgeformer
