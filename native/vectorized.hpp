// SAMOVAR_VECTORIZED: a function compiled once per vector width, which is chosen when the library is loaded. For
// element-wise operations alone: their bits do not depend on it. What it calls must be SAMOVAR_INLINE to be compiled
// with it.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(SAMOVAR_SANITIZE)
#define SAMOVAR_VECTORIZED __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define SAMOVAR_VECTORIZED
#endif

#if defined(__GNUC__) && !defined(SAMOVAR_SANITIZE)
#define SAMOVAR_INLINE inline __attribute__((always_inline))
#else
#define SAMOVAR_INLINE inline
#endif
