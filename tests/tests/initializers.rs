//! Jobs that start from an existing embedding.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use ringtune_shared::embedding::LearnedEmbedding;
use ringtune_tests::{
    Job, Sandbox,
    files::{EMBEDDING, copy_alone, expect_same, metadata},
    job::text,
    places,
};
use safetensors::SafeTensors;

fn fixture(name: &str) -> String {
    text(&places::repository().join("tests/fixtures/embeddings").join(name))
}

/// The toy job with two vectors, two steps long, from an embedding and with a trace.
fn started_from(embedding: &str, trace: &str) -> Result<Job> {
    Ok(Job::toy()?
        .set("train.initializer_token", "")
        .set("train.initializer_embedding", embedding)
        .set("train.num_vectors", 2)
        .set("train.max_train_steps", 2)
        .set("train.checkpointing_steps", 1)
        .set("debug.trace_dir", trace))
}

/// The rows that the first step of a trace was taken at.
fn first_rows(trace: &Path) -> Result<Vec<f32>> {
    let bytes = fs::read(trace.join("step-000001.safetensors"))?;
    let tensors = SafeTensors::deserialize(&bytes)?;
    let before = tensors.tensor("embeds_before")?;
    Ok(before.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

#[tokio::test]
async fn the_first_step_is_taken_at_the_files_rows() -> Result<()> {
    let sandbox = Sandbox::new()?;
    // AUTOMATIC1111's form; then what that job itself has learned, in a form of this program.
    let jobs =
        [("first", fixture("toy-a1111.pt")), ("second", "./first/learned_embeds.safetensors".to_owned())];
    for (out, embedding) in &jobs {
        let job_file = format!("{out}.toml");
        sandbox.write_job(&job_file, &started_from(embedding, &format!("trace-{out}"))?)?;
        sandbox.finish(&["run", &job_file, "-o", out]).await?.expect_code(0)?;
        let bytes = fs::read(sandbox.folder().join(embedding))?;
        let start = LearnedEmbedding::from_bytes(&bytes)?;
        ensure!(first_rows(&sandbox.path(&format!("trace-{out}")))? == start.rows, "{out} started elsewhere");
        let learned = fs::read(sandbox.path(&format!("{out}/learned_embeds.safetensors")))?;
        ensure!(LearnedEmbedding::from_bytes(&learned)?.rows != start.rows, "{out} learned nothing");
        // By content, and not by place.
        let metadata = metadata(&learned)?;
        ensure!(metadata["ringtune.initializer_embedding"] == start.hash.uri(), "{metadata:?}");
        ensure!(metadata["ringtune"].contains(&start.hash.uri()), "{metadata:?}");
        ensure!(!metadata["ringtune"].contains("toy-a1111"), "{metadata:?}");
        let card = fs::read_to_string(sandbox.path(&format!("{out}/README.md")))?;
        ensure!(card.contains(&format!("from `{}`", start.hash.uri())), "{card}");
    }

    // A checkpoint goes on to the same bytes, from the same content wherever it lies, and from no other.
    fs::copy(&jobs[0].1, sandbox.path("moved.pt"))?;
    let (first, resumed) = (sandbox.path("first"), sandbox.path("resumed"));
    copy_alone(&first, "checkpoint-1.safetensors", &resumed)?;
    let resume = |embedding: &str| {
        let job = started_from(embedding, "trace-resumed")?.set("train.resume_from_checkpoint", "latest");
        sandbox.write_job("resume.toml", &job)
    };
    resume(&jobs[1].1)?;
    let run = sandbox.finish(&["run", "resume.toml", "-o", "resumed"]).await?.expect_code(2)?;
    run.expect_said(&["train.initializer_embedding was \"artifact://sha256/"])?;
    resume("./moved.pt")?;
    let run = sandbox.finish(&["run", "resume.toml", "-o", "resumed"]).await?.expect_code(0)?;
    run.expect_said(&["resuming after step 1"])?;
    expect_same(&first, &resumed, &[EMBEDDING, "checkpoint-2.safetensors", "README.md"])?;
    sandbox.expect_no_process().await
}

#[tokio::test]
async fn what_is_no_start_is_refused() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let missing = text(&sandbox.path("missing.pt"));
    // The command line sees all but the text encoder's width, which a worker finds before the first step.
    for (embedding, code, said) in [
        (missing.as_str(), 2, "missing.pt: No such file"),
        (&text(sandbox.folder()), 2, "it is not a file"),
        (&fixture("pickle-calls.bin"), 2, "Nothing was run"),
        (&fixture("legacy.pt"), 2, "weights_only=True"),
        (&fixture("infinite.bin"), 2, "not finite"),
        (&fixture("learned_embeds.bin"), 2, "it has 1 vector and num_vectors is 2"),
        (&fixture("a1111.pt"), 1, "its rows are 8 wide, this model's text encoder takes 64"),
    ] {
        sandbox.write_job("job.toml", &started_from(embedding, "trace")?)?;
        let run = sandbox.finish(&["run", "job.toml", "-o", "out"]).await?;
        run.expect_code(code)?.expect_said(&["train.initializer_embedding", said])?;
    }
    ensure!(!sandbox.path("trace/step-000001.safetensors").exists(), "a step was done");
    sandbox.expect_no_process().await
}
