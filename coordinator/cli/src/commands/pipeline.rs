//! train.save_as_full_pipeline: the model with the learned word in it, beside the saved artifacts. It is made here,
//! from the embeddings and the model: gigabytes that lie on this machine already need not travel.

use std::path::Path;

use ringtune_shared::{
    embedding::FileNames,
    job::{JobSpec, ModelLocation, ModelSpec},
};
use serde::Serialize;
use tokio::process::Command;

use crate::{
    cluster::{WORKER, find_program},
    error::Error,
    interrupt::Interrupts,
    output::{Output, remark},
};

/// The folder's name among a job's artifacts.
const FOLDER: &str = "pipeline";
/// What a folder in diffusers layout has.
const MODEL_INDEX: &str = "model_index.json";

/// A pipeline as a line of JSON.
#[derive(Serialize)]
struct PipelineObject {
    r#type: &'static str,
    path: String,
}

/// Refuses, before anything starts, a job whose pipeline could not be made in `folder`.
pub(super) fn check(spec: &JobSpec, folder: &Path) -> Result<(), Error> {
    const FIELD: &str = "train.save_as_full_pipeline";
    if !spec.wants_full_pipeline() {
        return Ok(());
    }
    // What a hub or a bucket has, a worker finds out before the first step.
    let base = local_path(&spec.common.model.base);
    if ModelLocation::is_path(&spec.common.model.base) && !base.join(MODEL_INDEX).is_file() {
        return Err(Error::Usage(format!(
            "{FIELD}: {} has no {MODEL_INDEX}; a pipeline is made from a folder in diffusers layout on this machine",
            base.display()
        )));
    }
    let target = folder.join(FOLDER);
    if target.exists() && !target.join(MODEL_INDEX).is_file() {
        return Err(Error::Usage(format!(
            "{FIELD}: {} is there and is not a pipeline: move it away, or give another -o",
            target.display()
        )));
    }
    Ok(())
}

/// Makes the pipeline of a job whose artifacts are in `folder`, and prints where it is. It has been read back then.
pub(super) async fn make(
    spec: &JobSpec,
    folder: &Path,
    output: Output,
    interrupts: &Interrupts,
) -> Result<(), Error> {
    let program = find_program(WORKER)?;
    let target = folder.join(FOLDER);
    let mut command = Command::new(&program);
    command.arg("pipeline").args(model_options(&spec.common.model));
    for file in embeddings(spec) {
        command.arg("--embeds").arg(folder.join(file));
    }
    command.arg("-o").arg(&target);
    let running = command.stdin(std::process::Stdio::null()).kill_on_drop(true).status();
    let ended = tokio::select! {
        ended = running => ended,
        () = interrupts.first() => return Err(Error::Interrupted("stopped before the pipeline was made".to_owned())),
    };
    match ended {
        Ok(status) if status.success() => {
            let path = target.display().to_string();
            Ok(output.data(&path, &PipelineObject { r#type: "pipeline", path: path.clone() })?)
        }
        Ok(status) => {
            Err(Error::JobEnded(format!("the pipeline could not be made (ringtune-worker: {status})")))
        }
        Err(source) => Err(Error::File { doing: "cannot start", path: program, source }),
    }
}

/// Says how to make the pipeline of a job that was not run on this machine.
pub(super) fn say_how(spec: &JobSpec, folder: &Path) {
    let embeds: String =
        embeddings(spec).iter().map(|file| format!(" --embeds {}", folder.join(file).display())).collect();
    remark(&format!(
        "the job asks for a full pipeline; on a machine that has its model:\n  ringtune pipeline {}{embeds} -o {}",
        model_options(&spec.common.model).join(" "),
        folder.join(FOLDER).display()
    ));
}

/// The files of the embeddings that go into it.
fn embeddings(spec: &JobSpec) -> Vec<String> {
    let tokens = spec.learned_tokens();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    FileNames::list(&tokens).iter().map(FileNames::diffusers).collect()
}

fn model_options(model: &ModelSpec) -> Vec<String> {
    let mut options = vec!["--model".to_owned(), local_path(&model.base).display().to_string()];
    if !model.revision.is_empty() {
        options.extend(["--revision".to_owned(), model.revision.clone()]);
    }
    options
}

/// A path as it is; hubs and buckets unchanged.
fn local_path(base: &str) -> &Path {
    Path::new(base.strip_prefix("file://").unwrap_or(base))
}
