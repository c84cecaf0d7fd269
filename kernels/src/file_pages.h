// Memory that is mapped from a file.
#pragma once

#include <cstddef>

namespace edgeformer {

// Tells the system that memory which was read will hardly be read again. Whole pages of it that are mapped from a file
// leave this process, and are read from the file if they are wanted once more. Other memory, and other systems than
// Linux, are left as they are.
void release_file_pages(const void* memory, std::size_t bytes);

}  // namespace edgeformer
