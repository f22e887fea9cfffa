//! Models and tokens from buckets.

use std::fs;

use anyhow::{Result, ensure};
use ringtune_tests::{
    Bucket, Finished, Job, Sandbox, files::differences, files::expect_same, process::finish,
};

use crate::{Ground, RESULTS, run};

async fn run_there(sandbox: &Sandbox, bucket: &Bucket, job: &Job, out: &str) -> Result<Finished> {
    sandbox.write_job("bucket.toml", job)?;
    let mut command = sandbox.ringtune(&["run", "bucket.toml", "--workers", "2", "-o", out])?;
    command.envs(bucket.variables()).env("XDG_CACHE_HOME", sandbox.path("cache"));
    let run = finish(&mut command).await?;
    ensure!(!run.stderr.contains(Bucket::SECRET), "the key was said:\n{}", run.stderr);
    Ok(run)
}

#[tokio::test]
async fn what_comes_from_a_bucket_trains_as_what_lies_in_a_folder() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let ground = Ground::lay(&sandbox).await?;
    let job = ground.job()?.set("gpt2.max_iters", 4).set("gpt2.checkpointing_steps", 0);
    sandbox.write_job("job.toml", &job)?;
    // A model with weights, and tokens, in one bucket.
    let trained = run(&sandbox, "job.toml", 1, "objects/model").await?;
    fs::rename(&ground.tokens, sandbox.path("objects/tokens"))?;
    let further = job.set("gpt2.init_from", "pretrained");
    let from = |base: &str, tokens: &str| further.clone().set("model.base", base).set("gpt2.tokens", tokens);
    let local = |name: &str| ringtune_tests::job::text(&sandbox.path("objects").join(name));
    sandbox.write_job("local.toml", &from(&local("model"), &local("tokens")))?;
    let straight = run(&sandbox, "local.toml", 1, "straight").await?;
    ensure!(!differences(&trained, &straight, &RESULTS)?.is_empty(), "four more steps changed nothing");

    let bucket = Bucket::serve(&sandbox.path("objects"), "all").await?;
    let there = from("s3://models/all/model", "s3://models/all/tokens");
    run_there(&sandbox, &bucket, &there, "there").await?.expect_code(0)?;
    expect_same(&straight, &sandbox.path("there"), &RESULTS)?;

    // What is not there is named, by the job's own key.
    for (job, said) in [
        (from("s3://models/all/none", "s3://models/all/tokens"), ["model.base", "s3://models/all/none"]),
        (from("s3://models/all/model", "s3://models/all/model"), ["gpt2.tokens", "s3://models/all/model"]),
    ] {
        run_there(&sandbox, &bucket, &job, "none").await?.expect_code(1)?.expect_said(&said)?;
    }
    Ok(())
}
