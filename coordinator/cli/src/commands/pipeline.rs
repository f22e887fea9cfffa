//! train.save_as_full_pipeline: the checkpoint with the learned word in it, beside the saved artifacts. It is made here,
//! from the embedding and the checkpoint's folder: gigabytes that lie on this machine already need not travel.

use std::path::{Path, PathBuf};

use ringtune_shared::spec::JobSpec;
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
/// The embedding that goes into it.
const EMBEDDING: &str = "learned_embeds.safetensors";
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
    if !spec.train.save_as_full_pipeline {
        return Ok(());
    }
    if !spec.concepts.is_empty() {
        return Err(Error::Usage(format!(
            "{FIELD}: not with [[concepts]] yet; leave it out, and give `ringtune pipeline` an --embeds for each of them"
        )));
    }
    let base = model_folder(spec);
    if !base.join(MODEL_INDEX).is_file() {
        return Err(Error::Usage(format!(
            "{FIELD}: {} has no {MODEL_INDEX}; a pipeline is made from a folder in diffusers layout on this machine",
            base.display()
        )));
    }
    let target = folder.join(FOLDER);
    if target.exists() && !target.join(MODEL_INDEX).is_file() {
        return Err(Error::Usage(format!(
            "{FIELD}: {} is there and is no pipeline: move it away, or give another -o",
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
    command.arg("pipeline").arg("--model").arg(model_folder(spec));
    command.arg("--embeds").arg(folder.join(EMBEDDING)).arg("-o").arg(&target);
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
pub(super) fn say_how(base: &str, folder: &Path) {
    remark(&format!(
        "the job asks for a full pipeline; on a machine with its model folder:\n  \
         ringtune pipeline --model {base} --embeds {} -o {}",
        folder.join(EMBEDDING).display(),
        folder.join(FOLDER).display()
    ));
}

fn model_folder(spec: &JobSpec) -> PathBuf {
    PathBuf::from(spec.model.base.strip_prefix("file://").unwrap_or(&spec.model.base))
}
