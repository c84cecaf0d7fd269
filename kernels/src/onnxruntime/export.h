// How the library shows a function of its own to other programs; it hides all others.
#pragma once

#if defined(_WIN32)
#define EDGEFORMER_EXPORT extern "C" __declspec(dllexport)
#else
#define EDGEFORMER_EXPORT extern "C" __attribute__((visibility("default")))
#endif
