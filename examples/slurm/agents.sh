# Sourced by train.sbatch and torchrun.sbatch: an agent on each node, in a step of its own.
#
# When the tasks of a step have ended, Slurm kills all other processes of the step. An agent that a rank has started would
# go with them, before it has reported why a rank failed, and with the last seconds of spans. In a step of its own it
# sees how the ranks end, and ends after them.
export OTEL_PYTHON_TORCHDIST_ENABLED=true
export OTEL_PYTHON_TORCHDIST_READER=none
export OTEL_SERVICE_NAME=${OTEL_SERVICE_NAME:-$SLURM_JOB_NAME}
# A Collector that all nodes can reach:
#   export OTEL_EXPORTER_OTLP_ENDPOINT=http://otel-collector:4317
# The network between the nodes. Agents find each other on it too:
#   export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0

start_agents() {
    # SIGTERM from Slurm is for the ranks: the agent stays to see how they end.
    srun --overlap --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --kill-on-bad-exit=0 --output="agent-%j-%N.log" \
        bash -c 'trap "" TERM; exec otel-torchdist agent --wait 3600 --keep 5' &
    agents=$!
}

# The agents exit by themselves: immediately, after a last scrape, or 5 s after ranks have failed.
wait_for_agents() {
    for _ in {1..20}; do
        kill -0 "$agents" 2>/dev/null || return
        sleep 1
    done
}
