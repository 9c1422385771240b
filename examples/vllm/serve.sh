#!/bin/sh
# Serves the bundled model in vLLM on a CPU, with the checkpoint tier and deferred decode:
#   examples/vllm/serve.sh
# Entries lie in $SPILL and outlive the server: ask, stop it, start it again, ask again, and look at hit_tokens in /metrics.
set -eu
cd "$(dirname "$0")/../.."

PORT=${PORT:-8000}
SPILL=${SPILL:-$PWD/build/vllm-spill}
VENV=${VLLM_VENV:-$PWD/.venv-vllm}

make vllm "VLLM_VENV=$VENV"
mkdir -p "$SPILL"

# Qwen3.5 imports torchvision even for text; the tests have a stand-in for it
export PYTHONPATH="$PWD/tests/vllm/stub${PYTHONPATH:+:$PYTHONPATH}"
export VLLM_CPU_KVCACHE_SPACE="${VLLM_CPU_KVCACHE_SPACE:-1}" HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1

# a block has 384 tokens, so what is asked is longer than one
cat <<EOF
Once it listens, ask:

  curl -s http://127.0.0.1:$PORT/v1/completions -H 'Content-Type: application/json' -d "{\"model\": \"tiny-gdn\", \\
    \"max_tokens\": 32, \"temperature\": 0, \"prompt\": \"\$(head -c 6000 LICENSE | tr -dc 'a-zA-Z .,\n' | tr '\n' ' ')\"}"

and see what was kept and restored:

  curl -s http://127.0.0.1:$PORT/metrics | grep '^vllm:holdover_events_total'

EOF

# what `vllm serve` runs; that command asks for the version of a package that vLLM for CPUs is not called
exec "$VENV/bin/python" -m vllm.entrypoints.openai.api_server --model "$PWD/assets/models/tiny-gdn" \
  --served-model-name tiny-gdn \
  --host 127.0.0.1 --port "$PORT" --dtype bfloat16 --max-model-len 4096 --max-num-seqs 4 --enforce-eager \
  --enable-prefix-caching \
  --kv-transfer-config '{"kv_connector": "HoldoverConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}' \
  --additional-config "{\"holdover\": {\"spill_dir\": \"$SPILL\", \"decode\": {\"interval\": 8}}}"
