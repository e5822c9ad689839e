// Clients on cores, and the memory of each.

// Threads are those of POSIX, because the standard library's headers of threads alone take half a
// second to compile.

#include <atomic>
#include <cstdlib>
#include <new>
#include <pthread.h>
#include <sched.h>

namespace {

class Lock {
 public:
  explicit Lock(pthread_mutex_t& mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
  ~Lock() { pthread_mutex_unlock(&mutex_); }
  Lock(const Lock&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

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
    if (!workers || pthread_mutex_trylock(&workers->busy_)) return work();
    workers->call(others, work);
    pthread_mutex_unlock(&workers->busy_);
  }

 private:
  static Workers* mine() {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, [] {
      current() = new (std::nothrow) Workers;
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
      Lock lock(mutex_);
      while ((int)threads_ < others && start()) ++threads_;
      if (others > (int)threads_) others = (int)threads_;
      task_ = [](void* f) { (*(F*)f)(); };
      what_ = &work;
      wanted_ = others;
      running_.store(others);
      generation_.fetch_add(1);
    }
    pthread_cond_broadcast(&wake_);
    work();
    {
      // No client is left; who has not begun need not.
      Lock lock(mutex_);
      running_.fetch_sub(wanted_);
      wanted_ = 0;
    }
    for (int turns = 0; running_.load() > 0; ++turns)
      if (turns > 1000) sched_yield();
  }

  bool start() {
    pthread_t thread;
    auto begin = [](void* workers) -> void* {
      ((Workers*)workers)->serve();
      return nullptr;
    };
    return !pthread_create(&thread, nullptr, begin, this) && !pthread_detach(thread);
  }

  void serve() {
    long seen = -1;  // of the generations, so that a new worker looks for work at once
    for (;;) {
      for (int turns = 0; turns < 8000 && generation_.load() == seen; ++turns) pause();
      void (*task)(void*);
      void* what;
      {
        Lock lock(mutex_);
        while (generation_.load() == seen) pthread_cond_wait(&wake_, &mutex_);
        seen = generation_.load();
        if (wanted_ == 0) continue;
        --wanted_;
        task = task_;
        what = what_;
      }
      task(what);
      running_.fetch_sub(1);
    }
  }

  static INLINE void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }

  pthread_mutex_t busy_ = PTHREAD_MUTEX_INITIALIZER, mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t wake_ = PTHREAD_COND_INITIALIZER;
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
