#!/bin/sh
# The native core without Python under the sanitizers: address and undefined behaviour, then threads.
#
#   tools/sanitize.sh [SECONDS [SEED]]     each of the two runs lasts SECONDS (default 10)
#
# No suppressions. A finding, a wrong value or a wait that never ends exits other than 0.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-10}
seed=${2:-1}
build=build/sanitize
mkdir -p "$build"

# A thread sanitizer finds its memory only where addresses are not spread too widely.
fixed=
if setarch -R true 2>/dev/null; then fixed="setarch -R"; fi

run() {
  name=$1
  shift
  "${CXX:-g++}" -std=c++17 -O1 -g -Wall -Wextra -Werror -ffp-contract=off -fno-omit-frame-pointer -DSAMOVAR_SANITIZE \
    "$@" -Inative native/stress*.cpp native/program.cpp native/progress.cpp native/window.cpp native/owner.cpp \
    native/center.cpp native/center_board.cpp native/center_file.cpp native/center_queue.cpp \
    native/*kernels.cpp native/parallel.cpp -o "$build/stress-$name" -pthread -rdynamic -ldl
  echo "$name: $seconds s"
  $fixed "$build/stress-$name" "$seconds" "$seed"
}

export ASAN_OPTIONS=detect_leaks=1
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
run address-undefined -fsanitize=address,undefined -fno-sanitize-recover=all
run thread -fsanitize=thread
