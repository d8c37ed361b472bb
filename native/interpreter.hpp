// The interpreter is let go while native code runs.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace samovar {

// Up to version 3.13, Python ends a thread that comes back while the interpreter ends, by unwinding its stack. That
// must not pass a C++ destructor: it would end the whole process by SIGABRT. Such a thread stays here until the
// process has ended, as it does in later versions.
class WithoutInterpreter {
 public:
  WithoutInterpreter() : state_(PyEval_SaveThread()) {}
  WithoutInterpreter(const WithoutInterpreter&) = delete;
  WithoutInterpreter& operator=(const WithoutInterpreter&) = delete;

  ~WithoutInterpreter() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

 private:
  PyThreadState* state_;
};

using WithoutGil = nanobind::call_guard<WithoutInterpreter>;

}  // namespace samovar
