// Threads that share the work of a kernel.
//
// Between two layers lie fewer microseconds than a sleeping thread takes to wake, so OpenMP's threads are slow where
// they sleep (OMP_WAIT_POLICY=PASSIVE). Where they spin they keep others from the cores, those that they wait for too.
// Here a thread that waits looks a few times, then gives its core to others between looks, and sleeps when there has
// been nothing to do for a while. Work is taken piece by piece: who has no core just then is not waited for.

#pragma once

#include <ATen/Parallel.h>
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

// OpenMP's, which torch has loaded; a torch that is built without it has none.
extern "C" __attribute__((weak)) void omp_set_num_threads(int);

namespace {

constexpr int64_t kInline = 1 << 15;  // work below this is not worth another thread
constexpr int64_t kPieces = 4;        // for each thread
constexpr int kLooks = 500;           // before a thread that waits gives its core away
constexpr auto kPatience = std::chrono::milliseconds(3);  // before it sleeps: longer than a step's work in Python

class Team {
 public:
  // The process's own; a child of its has another, since threads do not outlive a fork.
  static Team& ours() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { current() = new Team; });
    static_cast<void>(registered);
    return *current();
  }

  // Calls run(begin, end) for pieces of 0 to `tasks`, in this thread and up to `helpers` others as they come, until all
  // are done. `run` must not throw.
  template <class Run>
  void share(int64_t tasks, int helpers, const Run& run) {
    std::unique_lock only(sharing_, std::defer_lock);
    for (int looks = 0; !only.try_lock(); ++looks) pass_time(looks);  // they help another engine
    while (started_ < helpers && start(started_)) ++started_;
    run_ = &run;
    call_ = [](const void* run, int64_t begin, int64_t end) { (*static_cast<const Run*>(run))(begin, end); };
    tasks_ = tasks;
    piece_ = std::max<int64_t>(tasks / ((helpers + 1) * kPieces), 1);
    helpers_ = helpers;
    next_ = 0;
    open_ = true;
    ++rounds_;
    if (asleep_ > 0) rounds_.notify_all();
    work();
    open_ = false;
    // Who has come before this has a piece, or will find none.
    for (int looks = 0; inside_ > 0; ++looks) pass_time(looks);
  }

 private:
  static void pass_time(int looks) {
    if (looks < kLooks) {
      _mm_pause();
    } else {
      sched_yield();
    }
  }

  static Team*& current() {
    static Team* team = new Team;  // never deleted: its threads outlive whatever ends the process
    return team;
  }

  // Whether there is a thread of this number now: where the system has none left, the others do the work.
  bool start(int number) {
    sigset_t all, before;  // signals are for the program's own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool has_begun = true;
    try {
      std::thread([this, number, seen = rounds_.load()]() mutable {
        for (;; seen = await(seen)) help(number);
      }).detach();
    } catch (const std::system_error&) {
      has_begun = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return has_begun;
  }

  void help(int number) {
    ++inside_;  // and only then: what is open now stays until this thread has left
    if (open_ && number < helpers_) work();
    --inside_;
  }

  void work() {
    for (int64_t begin; (begin = next_.fetch_add(piece_)) < tasks_;) {
      call_(run_, begin, std::min(begin + piece_, tasks_));
    }
  }

  // Waits for a round other than `seen`; returns it.
  int await(int seen) {
    for (int looks = 0; looks < kLooks; ++looks, _mm_pause()) {
      if (const int now = rounds_; now != seen) return now;
    }
    for (const auto until = std::chrono::steady_clock::now() + kPatience; std::chrono::steady_clock::now() < until;) {
      sched_yield();
      if (const int now = rounds_; now != seen) return now;
    }
    ++asleep_;
    rounds_.wait(seen);
    --asleep_;
    return rounds_;
  }

  std::mutex sharing_;
  int started_ = 0;
  const void* run_ = nullptr;
  void (*call_)(const void*, int64_t, int64_t) = nullptr;
  int64_t tasks_ = 0, piece_ = 1;
  int helpers_ = 0;
  // Each in a cache line of its own.
  alignas(64) std::atomic<int64_t> next_ = 0;
  alignas(64) std::atomic<int> inside_ = 0;
  alignas(64) std::atomic<bool> open_ = false;
  alignas(64) std::atomic<int> rounds_ = 0;
  alignas(64) std::atomic<int> asleep_ = 0;
};

// How many threads this thread's kernels have while torch's own operators have but this one; 0 where both have as many.
thread_local int claimed = 0;

// Begins or ends that. OpenMP's threads spin for milliseconds after an operator, on cores that those here need; where
// they sleep instead, they take as long to wake as an operator of a step takes.
void claim_threads(bool begins) {
  if (omp_set_num_threads == nullptr) return;
  if (begins && claimed == 0) {
    claimed = at::get_num_threads();
    omp_set_num_threads(1);
  } else if (!begins && claimed > 0) {
    omp_set_num_threads(std::exchange(claimed, 0));
  }
}

// Calls run(begin, end) for all of 0 to `tasks`, which are so much work together, by as many threads as torch has, or
// had before they were claimed.
template <class Run>
void parallel(int64_t tasks, int64_t work, const Run& run) {
  const int threads = work < kInline ? 1 : claimed > 0 ? claimed : at::get_num_threads();
  threads == 1 ? run(int64_t{0}, tasks) : Team::ours().share(tasks, threads - 1, run);
}

}  // namespace
