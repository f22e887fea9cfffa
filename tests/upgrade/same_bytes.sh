#!/usr/bin/env bash
# Runs the same jobs with an earlier commit's programs and with this build's, and compares every byte that they leave.
#
#   same_bytes.sh COMMIT [INSTRUCTION_SET]
#
# INSTRUCTION_SET: both builds' workers use no better one (compute.instruction_set), such as "avx2".
# For changes that move no bit. release.sh builds the commit, once. The jobs are of all kinds and both precisions, with
# one worker and several. Jobs that resume do so from checkpoints of both builds. What tells times is left out:
# metrics.csv's seconds, job.log, TensorBoard's files, and where the job's files came from. So are the kernels' revision
# and the hash of what they compute, which files name: new kernels change both, and move no bit of the jobs that do not use them.
set -euo pipefail

clone="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
fixtures="$clone/tests/fixtures"
(($# == 1 || $# == 2)) || { printf 'usage: %s COMMIT [INSTRUCTION_SET]\n' "$0" >&2; exit 2; }
before="$("$clone/tests/upgrade/release.sh" "$1")"
now="$clone/target/release"
folder="$(mktemp -d "${TMPDIR:-/tmp}/same-bytes.XXXXXX")"
trap 'rm -rf -- "$folder"' EXIT
cd "$folder"
if (($# == 2)); then
    for build in "$before" "$now"; do
        limited="$folder/programs-$(basename "$build")"
        mkdir "$limited"
        cp "$build"/ringtune "$build"/ringtune-coordinator "$limited"
        printf '#!/usr/bin/env bash\nRINGTUNE__COMPUTE__INSTRUCTION_SET=%s exec -a "$0" %q "$@"\n' "$2" "$build/ringtune-worker" >"$limited/ringtune-worker"
        chmod +x "$limited/ringtune-worker"
    done
    before="$folder/programs-$(basename "$before")" now="$folder/programs-$(basename "$now")"
fi

# 1. A small language model's configuration, its tokenizer, and tokens.
mkdir gpt2
cp "$fixtures"/bpe-tokenizer/{vocab.json,merges.txt} gpt2/
printf '%s' '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new", "vocab_size": 557,
    "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 3}' >gpt2/config.json
mkdir texts
for page in "$clone"/docs/*.md; do
    cp "$page" "texts/$(basename "$page" .md).txt"
done
"$before/ringtune" prepare-text --tokenizer gpt2 -o tokens --val-fraction 0.2 texts >prepare.log 2>&1 ||
    { cat prepare.log >&2; exit 1; }

# 2. The jobs.
picture_job() { # NAME PRECISION WORKERS STEPS, then lines of [train]
    cat >"$1.toml" <<EOF
kind = "textual_inversion"
name = "$1"
[model]
base = "$fixtures/toy-sd"
[data]
images = "$fixtures/concepts/green-star"
[train]
placeholder_token = "<star>"
initializer_token = "star"
resolution = 64
train_batch_size = 2
max_train_steps = $4
learning_rate = 0.01
lr_warmup_steps = 2
checkpointing_steps = 5
seed = 7
mixed_precision = "$2"
$(printf '%s\n' "${@:5}")
[cluster]
world_size = $3
min_world_size = 1
EOF
}
language_job() { # NAME PRECISION WORKERS STEPS, then lines of [gpt2]
    cat >"$1.toml" <<EOF
kind = "gpt2_finetune"
name = "$1"
[model]
base = "$folder/gpt2"
[gpt2]
tokens = "$folder/tokens"
init_from = "scratch"
block_size = 64
batch_size = 4
max_iters = $4
learning_rate = 1e-3
warmup_iters = 3
eval_interval = 5
eval_iters = 3
checkpointing_steps = 5
compare_interval = 5
mixed_precision = "$2"
$(printf '%s\n' "${@:5}")
[cluster]
world_size = $3
min_world_size = 1
EOF
}
picture_job ti-fp32 no 1 10 'num_vectors = 2' 'save_steps = 4'
picture_job ti-bf16-ring bf16 3 10 'gradient_accumulation_steps = 2'
picture_job ti-options no 2 10 'num_vectors = 3' 'lr_scheduler = "cosine"' 'enable_bucket = true' 'min_bucket_reso = 32' 'bucket_reso_steps = 8' \
    'max_bucket_reso = 96' 'max_grad_norm = 0.1' 'snr_gamma = 5' 'noise_offset = 0.1' 'validation_loss_steps = 3' \
    'validation_loss_samples = 8' 'select_best = true' 'validation_prompt = "a photo of a <star>"' \
    'validation_steps = 5' 'num_validation_images = 1' 'save_as_full_pipeline = true'
picture_job ti-resume bf16 3 15 'gradient_accumulation_steps = 2' 'resume_from_checkpoint = "CHECKPOINT"'
language_job gpt2-fp32 no 1 10
language_job gpt2-bf16-ring bf16 3 10 'gradient_accumulation_steps = 2' 'dropout = 0.1'
language_job gpt2-sharded no 2 10 'shard_optimizer = true' 'lr_decay_iters = 20'
language_job gpt2-fast bf16 2 10 'exchange = "fast"' 'decay_lr = false'
language_job gpt2-resume no 2 15 'lr_decay_iters = 20' 'resume_from_checkpoint = "CHECKPOINT"'
cat >pictures.toml <<EOF
kind = "generate"
[model]
base = "$fixtures/toy-sd"
[generate]
prompts = ["a photo of a <star>", "a red ring"]
embeddings = ["before/ti-fp32/learned_embeds.safetensors"]
count = 2
steps = 5
[cluster]
world_size = 2
EOF
cat >texts.toml <<EOF
kind = "generate_text"
[model]
base = "$folder/before/gpt2-fp32"
[generate_text]
prompts = ["The ring", "A worker"]
num_samples = 2
max_new_tokens = 30
mixed_precision = "no"
[cluster]
world_size = 2
EOF

# 3. Each runs with both builds, those that resume with both builds' checkpoints and one worker.
run() { # BUILD'S FOLDER, OUTPUT FOLDER, JOB FILE, WORKERS
    "$1/ringtune" run "$3" --workers "$4" -o "$2" >"$2.log" 2>&1 ||
        { printf '%s failed:\n' "$2" >&2; tail -n 20 "$2.log" >&2; exit 1; }
}
mkdir before now now-from-before
differing=0
compare() { # OUTPUT FOLDER OF BEFORE, OF NOW; "numbers": of files that name both builds' kernels their numbers alone
    local difference=same
    rm -rf compared
    mkdir compared
    cp -r "$1" compared/before
    cp -r "$2" compared/now
    for side in compared/*; do
        # The columns of metrics.csv that tell no time.
        [[ ! -f "$side/metrics.csv" ]] || cut -d, -f1-3 "$side/metrics.csv" >"$side/metrics-without-times.csv"
        # Of the same length, as a safetensors header tells its own.
        find "$side" -type f -exec env LC_ALL=C sed -i -E 's|/kernels-[0-9]{2}/[0-9a-f]{16}|/kernels-00/0000000000000000|g' {} +
        if [[ "${3:-}" == numbers ]]; then
            rm -f "$side"/README.md
            find "$side" -name '*.safetensors' | while read -r file; do
                header="$(od -An -tu8 -N8 "$file" | tr -d ' ')"
                tail -c "+$((header + 9))" "$file" >"$file.numbers"
                rm "$file"
            done
        fi
    done
    diff -rq -x metrics.csv -x job.log -x job.toml -x job-sources.json -x 'events.out.*' compared/* >difference.txt || difference=DIFFERENT
    printf '%-32s %4d files  %s\n' "$2" "$(find "$2" -type f | wc -l)" "$difference"
    [[ "$difference" == same ]] || { cat difference.txt; differing=1; }
}
for job in ti-fp32 ti-bf16-ring ti-options gpt2-fp32 gpt2-bf16-ring gpt2-sharded gpt2-fast pictures texts; do
    workers="$(sed -nE 's/^world_size = //p' "$job.toml")"
    run "$before" "before/$job" "$job.toml" "$workers"
    run "$now" "now/$job" "$job.toml" "$workers"
    compare "before/$job" "now/$job"
done
for pair in ti-resume:ti-bf16-ring gpt2-resume:gpt2-sharded; do
    job="${pair%:*}" from="${pair#*:}"
    for build in before now now-from-before; do
        programs="$now"
        [[ "$build" != before ]] || programs="$before"
        checkpoint="$(find "${build#now-from-}/$from" -name '*5.safetensors' -path '*checkpoint*' | sort | head -n 1)"
        sed "s|CHECKPOINT|$folder/$checkpoint|" "$job.toml" >"$job-of-$build.toml"
        run "$programs" "$build/$job" "$job-of-$build.toml" 1
    done
    compare "before/$job" "now/$job"
    compare "before/$job" "now-from-before/$job" numbers
done
((differing == 0)) || { printf 'not the same bytes as commit %s\n' "$1" >&2; exit 1; }
printf 'the same bytes as commit %s\n' "$1"
