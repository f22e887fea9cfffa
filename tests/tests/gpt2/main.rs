//! Jobs of the kind `gpt2_finetune` on real programs: the same bytes for any number of workers, whatever dies.

mod buckets;
mod deaths;
mod orders;
mod reference;
mod refusals;
mod results;
mod shakespeare;

use std::{fs, path::PathBuf};

use anyhow::Result;
use ringtune_tests::{Job, Sandbox, job::text, places};

/// What depends on the job alone.
const RESULTS: [&str; 3] = ["model.safetensors", "config.json", "README.md"];
/// Tokens of the vocabulary of the tests' tokenizer.
const VOCABULARY: usize = 557;

/// A model to begin with, its tokenizer, and tokens: made in a sandbox.
struct Ground {
    base: PathBuf,
    tokens: PathBuf,
}

impl Ground {
    async fn lay(sandbox: &Sandbox) -> Result<Self> {
        let base = sandbox.path("base");
        fs::create_dir_all(&base)?;
        let tokenizer = places::repository().join("tests/fixtures/bpe-tokenizer");
        for name in ["vocab.json", "merges.txt"] {
            fs::copy(tokenizer.join(name), base.join(name))?;
        }
        let config = serde_json::json!({
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCABULARY,
            "n_positions": 48, "n_ctx": 48, "n_layer": 2, "n_head": 2, "n_embd": 32,
            "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "tie_word_embeddings": true,
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        });
        fs::write(base.join("config.json"), serde_json::to_vec_pretty(&config)?)?;
        let documents: String = (0..200).map(document).collect();
        fs::write(sandbox.path("documents.jsonl"), documents)?;
        let (tokenizer, tokens) = (text(&tokenizer), sandbox.path("tokens"));
        let arguments = ["prepare-text", "documents.jsonl", "-o", &text(&tokens), "--tokenizer", &tokenizer];
        sandbox.finish(&[&arguments[..], &["--val-fraction", "0.1"]].concat()).await?.expect_code(0)?;
        Ok(Self { base, tokens })
    }

    /// A job whose global batch of four microbatches any number of workers up to four can share.
    fn job(&self) -> Result<Job> {
        let job: toml::Table = toml::from_str(
            r#"
            kind = "gpt2_finetune"
            name = "toy"
            [model]
            [gpt2]
            init_from = "scratch"
            block_size = 32
            batch_size = 2
            max_iters = 12
            warmup_iters = 3
            learning_rate = 1e-2
            eval_interval = 4
            eval_iters = 3
            checkpointing_steps = 4
            compare_interval = 2
            mixed_precision = "no"
            seed = 7
            [cluster]
            world_size = 4
            min_world_size = 1
            threads_per_rank = 1
            "#,
        )?;
        Ok(Job::of(job).set("model.base", text(&self.base)).set("gpt2.tokens", text(&self.tokens)))
    }
}

/// A line of a file of documents that is like the others and like none of them.
fn document(number: u32) -> String {
    let words = ["the star", " is green", " and the", " cat", " sees it", ". Then", " all", " went home"];
    let words: String = (0..40)
        .map(|word: u32| words[(number.wrapping_mul(7).wrapping_add(word * word) % 8) as usize])
        .collect();
    format!("{}\n", serde_json::json!({ "text": format!("{number}: {words}") }))
}

/// Runs a job file on that many workers; gives the folder of what it left.
async fn run(sandbox: &Sandbox, job: &str, workers: u32, out: &str) -> Result<PathBuf> {
    let workers = workers.to_string();
    let run = sandbox.finish(&["run", job, "--workers", &workers, "-o", out]).await?;
    run.expect_code(0)?;
    Ok(sandbox.path(out))
}
