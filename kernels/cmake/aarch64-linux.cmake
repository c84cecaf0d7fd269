# Cross-builds for 64-bit ARM with clang: -DCMAKE_TOOLCHAIN_FILE=kernels/cmake/aarch64-linux.cmake. It needs a C++ library for
# ARM (Debian: g++-aarch64-linux-gnu). Programs are static, so that qemu-aarch64 (Debian: qemu-user) runs them.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
