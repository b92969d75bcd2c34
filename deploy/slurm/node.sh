#!/bin/bash
# Runs on each node of train.sbatch: an agent, torchrun, and a diagnosis if torchrun fails.
#
# When a step's tasks have ended, Slurm kills its remaining processes, so an agent started by a rank would lose its last
# spans. This script waits for its agent instead. The tapes have their own directory, which is removed after the step. The
# agent runs as long as torchrun does, because restarted ranks take time to come back.
set -uo pipefail

# Steps of one job may run at the same time.
step=$SLURM_JOB_ID-${SLURM_STEP_ID:-0}
node=$SLURM_NODEID
if ((${SLURM_STEP_ID:-0} != 0)); then
    node=$SLURM_STEP_ID-$SLURM_NODEID
fi
tapes=/dev/shm/torchdist-$step-$SLURM_NODEID
export OTEL_PYTHON_TORCHDIST_TAPE_DIR=$tapes
export OTEL_PYTHON_TORCHDIST_ENABLED=true
export OTEL_PYTHON_TORCHDIST_READER=none
target=${TORCHDIST_TARGETS:+$TORCHDIST_TARGETS/slurm-$step-$SLURM_NODEID.json}

# Publishes the address of the agent's metrics to Prometheus, as soon as the agent has written it.
publish() {
    local found
    until found=$(compgen -G "$tapes/prometheus/*.json"); do
        sleep 1
    done
    cp "${found%%$'\n'*}" "$target.new" && mv "$target.new" "$target"
}

# Slurm sends SIGTERM to all processes of a step. The agent ignores it, to see how the ranks end. The first SIGHUP tells
# the agent that torchrun has ended; a second SIGHUP ends the agent.
(
    trap '' TERM
    exec otel-torchdist agent --wait 604800 --stay --keep 15
) >"$TORCHDIST_RESULTS/agent-$node.log" 2>&1 &
agent=$!

if [[ -n $target ]]; then
    publish &
    publisher=$!
fi

# After SIGTERM, this script continues when torchrun has ended.
trap : TERM
torchrun \
    --nnodes="$SLURM_NNODES" \
    --nproc-per-node="${NPROC_PER_NODE:-gpu}" \
    --rdzv-id="$step" \
    --rdzv-backend=c10d \
    --rdzv-endpoint="$RENDEZVOUS" \
    "$@"
code=$?

# Runs here because the tapes still exist: on many clusters, /dev/shm is removed with the job.
if ((code != 0)); then
    otel-torchdist diagnose >"$TORCHDIST_RESULTS/diagnose-$node.txt" 2>&1
fi

# The agent now exits by itself: immediately, after a last scrape, or 15 s after ranks have failed.
kill -HUP "$agent" 2>/dev/null
for _ in {1..20}; do
    kill -0 "$agent" 2>/dev/null || break
    sleep 1
done
kill -HUP "$agent" 2>/dev/null
wait "$agent"

if [[ -n $target ]]; then
    kill "$publisher" 2>/dev/null
    rm -f "$target" "$target.new"
fi
rm -rf "$tapes"
exit "$code"
