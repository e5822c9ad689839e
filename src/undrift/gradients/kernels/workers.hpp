// Clients on cores, and the memory of each.

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <pthread.h>
#include <thread>

namespace {

// Workers that wait for the next call; each takes the next client until none is left. A client's
// gradient is made by one worker from start to end, so its bits do not depend on how many there are.
class Workers {
 public:
  template <class F>
  static void share(long jobs, int threads, F&& job) {
    std::atomic<long> next{0};
    auto work = [&] {
      for (long i; (i = next.fetch_add(1)) < jobs;) job(i);
    };
    const int others = (int)(threads < jobs ? threads : jobs) - 1;
    Workers* workers = others > 0 ? mine() : nullptr;
    // Whoever comes while they are busy works alone.
    if (!workers || !workers->busy_.try_lock()) return work();
    workers->call(others, work);
    workers->busy_.unlock();
  }

 private:
  static Workers* mine() {
    static std::once_flag once;
    std::call_once(once, [] {
      current() = new Workers;
      // A forked child has none of the threads.
      pthread_atfork(nullptr, nullptr, [] { current() = new (std::nothrow) Workers; });
    });
    return current();
  }
  static Workers*& current() {
    static Workers* workers = nullptr;
    return workers;
  }

  template <class F>
  void call(int others, F& work) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      while ((int)threads_ < others && start()) ++threads_;
      if (others > (int)threads_) others = (int)threads_;
      task_ = [](void* f) { (*(F*)f)(); };
      what_ = &work;
      wanted_ = others;
      running_.store(others);
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    work();
    {
      // No client is left; who has not begun need not.
      std::lock_guard<std::mutex> lock(mutex_);
      running_.fetch_sub(wanted_);
      wanted_ = 0;
    }
    for (int turns = 0; running_.load() > 0; ++turns)
      if (turns > 1000) std::this_thread::yield();
  }

  bool start() {
    try {
      std::thread(&Workers::serve, this, generation_.load()).detach();
      return true;
    } catch (...) {
      return false;
    }
  }

  void serve(long seen) {
    for (;;) {
      for (int turns = 0; turns < 8000 && generation_.load() == seen; ++turns) pause();
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      seen = generation_.load();
      if (wanted_ == 0) continue;
      --wanted_;
      auto task = task_;
      void* what = what_;
      lock.unlock();
      task(what);
      running_.fetch_sub(1);
    }
  }

  static INLINE void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }

  std::mutex busy_, mutex_;
  std::condition_variable wake_;
  std::atomic<long> generation_{0};
  std::atomic<int> running_{0};
  int wanted_ = 0, threads_ = 0;
  void (*task_)(void*) = nullptr;
  void* what_ = nullptr;
};

// A thread's memory, kept for the next call; zero when it is new, and so borders stay zero.
class Room {
 public:
  char* of(std::size_t size) {
    if (size != size_) {
      std::free(at_);
      at_ = (char*)std::aligned_alloc(64, (size + 63) / 64 * 64);
      size_ = at_ ? size : 0;
      if (at_) std::memset(at_, 0, size);
    }
    return at_;
  }
  ~Room() { std::free(at_); }

 private:
  char* at_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace
