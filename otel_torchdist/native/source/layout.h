// Written by `python -m otel_torchdist.native.header` from tape/layout.py, which explains it. Do not edit.
#pragma once

#include <cstdint>

namespace otel_torchdist::layout {

constexpr int VERSION = 7;
constexpr int REFUGE_SLOTS = 64;
constexpr int RECORD_SIZE = 128;
constexpr int RING_OFFSET = 12288;
constexpr int RECORD_WORDS = 16;
constexpr int RING_WORD = 1536;
constexpr int REFUGE_WORD = 512;
constexpr int PAYLOAD_WORD = 2;
constexpr int PAYLOAD_WORDS = 8;
constexpr int HEAD_WORDS = 3;
constexpr int TAIL_WORDS = 5;
constexpr int LABEL_OFFSET = 20;
constexpr int WORDS_WORD = 10;
constexpr int WORDS = 6;
constexpr int CHECK_MODULUS = 4093;
constexpr int64_t CRC_MODULUS = 4294967291;
constexpr int64_t MAX_DURATION_NS = 281474976710655;
constexpr int BLAME_SHIFT = 24;
constexpr int LIVE_RUN_ID_HIGH = 128;
constexpr int LIVE_RUN_ID_LOW = 129;
constexpr int LIVE_RUN_ID_STATE = 130;
constexpr int LIVE_NEXT_NUMBER = 131;
constexpr int LIVE_STEP = 132;
constexpr int LIVE_HEARTBEAT_US = 133;
constexpr int LIVE_CLOCK_OFFSET_US = 134;
constexpr int LIVE_RECORDS_DROPPED = 135;
constexpr int LIVE_OVERHEAD_NS = 136;
constexpr int LIVE_OVERHEAD_CALLS = 137;
constexpr int LIVE_STATE = 138;
constexpr int LIVE_FAILURE = 139;
constexpr int LIVE_REQUEST = 140;
constexpr int LIVE_ANSWER = 141;
constexpr int LIVE_NAMES_DROPPED = 142;
constexpr int LIVE_EXPECTED_UNTIL_US = 143;
constexpr int LIVE_EXPORTED_BY_RANK = 144;
constexpr int LIVE_PROFILE_REQUEST = 145;
constexpr int LIVE_PROFILE_ANSWER = 146;
constexpr int LIVE_RESCUE = 147;
constexpr int LIVE_ASKED = 148;
constexpr int LIVE_RPC_WORKER = 149;
constexpr int LIVE_RPC_THREADS = 150;
constexpr int LIVE_SWITCHED_OFF_US = 151;
constexpr int LIVE_RECORDING_LEVEL = 152;
constexpr int LIVE_BACKWARD_THREAD = 156;
constexpr int LIVE_BACKWARD_US = 157;
constexpr int LIVE_FUTURE_THREAD = 158;
constexpr int LIVE_FUTURE_US = 159;
constexpr int WORD_RETURNED = 0;
constexpr int WORD_WAIT_ENTERED = 1;
constexpr int WORD_WAIT_RETURNED = 2;
constexpr int WORD_STARTED = 3;
constexpr int WORD_COMPLETED = 4;
constexpr int WORD_FAILURE = 5;
constexpr int KIND_OPERATION = 1;
constexpr int KIND_STEP = 2;
constexpr int KIND_LATE_COMPLETION = 3;
constexpr int KIND_RENDEZVOUS = 4;
constexpr int KIND_ACTIVITY = 5;
constexpr int KIND_SPLITS = 6;
constexpr int KIND_NUMERICS = 7;
constexpr int HOW_CALL = 3;
constexpr int HOW_WAIT = 5;
constexpr int HOW_POLL = 6;
constexpr int HOW_EVENT = 7;
constexpr int HOW_CALLBACK = 13;
constexpr int HOW_WATCHDOG = 11;
constexpr int HOW_UNTRACKED = 9;
constexpr int HOW_ABANDONED = 10;
constexpr int HOW_FAILED = 12;
constexpr int BLAME_UNKNOWN = 0;
constexpr int BLAME_TIMEOUT = 1;
constexpr int BLAME_CONNECTION = 2;
constexpr int BLAME_TAKEN = 3;

struct Payload {
  uint64_t entered_ns;
  int64_t step;
  uint64_t sequence;
  uint64_t message_bytes;
  uint32_t group;
  uint32_t signature;
  uint32_t call_site;
  uint32_t label;
  int32_t peer;
  int32_t tag;
  uint32_t thread;
  uint8_t kind;
  uint8_t flags;
  uint8_t phase;
  uint8_t caller;
};

}  // namespace otel_torchdist::layout
