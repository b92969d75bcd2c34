// Works that record when they are dropped without a wait.
//
// Gloo's messages and its reduce_scatter have no future, and are only complete once they are waited for. If such a Work
// is dropped, its record would stay open forever. A weak reference to the Work would keep its tensor's memory.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/version.h>

#include "session.h"

namespace otel_torchdist {

// Delegates to the backend's Work, and owns it.
class WatchedWork final : public c10d::Work {
 public:
  WatchedWork(c10::intrusive_ptr<c10d::Work> actual, Session& session, uint64_t number) noexcept;
  ~WatchedWork() override;

  bool isCompleted() override { return actual_->isCompleted(); }
  bool isSuccess() const override { return actual_->isSuccess(); }
  std::exception_ptr exception() const override { return actual_->exception(); }
  int sourceRank() const override { return actual_->sourceRank(); }
  std::vector<at::Tensor> result() override { return actual_->result(); }
  void synchronize() override { actual_->synchronize(); }
  bool wait(std::chrono::milliseconds timeout) override;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
  void blockCurrentStream() override { actual_->blockCurrentStream(); }
#endif
  void abort() override { actual_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return actual_->getFuture(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override { return actual_->getFutureResult(); }
  float getDuration() const override { return actual_->getDuration(); }
  uint64_t getSequencenumber() const override { return actual_->getSequencenumber(); }

 private:
  const c10::intrusive_ptr<c10d::Work> actual_;
  Session& session_;
  const uint64_t number_;
  const uint64_t forks_;
};

}  // namespace otel_torchdist
