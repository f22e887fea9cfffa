//! train.save_as_full_pipeline: the model with the learned word, or the trained UNet, in it, beside the saved artifacts. It is made
//! here, from what was learned and the model: gigabytes that lie on this machine already need not travel.

use std::path::Path;

use ringtune_shared::{
    embedding::FileNames,
    job::{JobKind, JobSpec, ModelLocation, ModelSpec},
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
/// A LoRA's file for diffusers.
const LORA: &str = "pytorch_lora_weights.safetensors";
/// A UNet's weights.
const UNET: &str = "diffusion_pytorch_model.safetensors";
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
    // Its errors are this command's.
    command.arg0("ringtune").arg("pipeline").args(model_options(&spec.common.model));
    command.args(learned(spec, folder));
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
        Ok(status) => Err(Error::JobEnded(format!("the pipeline could not be made ({status})"))),
        Err(source) => Err(Error::File { doing: "cannot start", path: program, source }),
    }
}

/// Says how to make the pipeline of a job that was not run on this machine.
pub(super) fn say_how(spec: &JobSpec, folder: &Path) {
    let line = making(spec, folder);
    remark(&format!("the job asks for a full pipeline; on a machine that has its model:\n  {line}"));
}

/// The line that makes the pipeline.
fn making(spec: &JobSpec, folder: &Path) -> String {
    let words = [model_options(&spec.common.model), learned(spec, folder)].concat().join(" ");
    format!("ringtune pipeline {words} -o {}", folder.join(FOLDER).display())
}

/// What goes into the pipeline, as options.
fn learned(spec: &JobSpec, folder: &Path) -> Vec<String> {
    let given = |option: &str, file: &str| [option.to_owned(), folder.join(file).display().to_string()];
    let unet = spec.trains_unet().then(|| given("--unet", UNET));
    embeddings(spec).iter().map(|file| given("--embeds", file)).chain(unet).flatten().collect()
}

/// What to do with the files of a job that learned something, as a line for a shell; of others nothing.
pub(super) fn try_it(spec: &JobSpec, folder: &Path) -> Option<String> {
    let mut words = vec!["ringtune".to_owned()];
    let pipeline = folder.join(FOLDER);
    if spec.trains_unet() && !pipeline.join(MODEL_INDEX).is_file() {
        return Some(making(spec, folder));
    }
    if spec.trains_unet() {
        let prompt = spec.prompt_to_try().unwrap_or_else(|| "a caption like yours".to_owned());
        let places = [pipeline, folder.join("picture.png")].map(|path| path.display().to_string());
        let [model, picture] = places;
        words.extend(["generate".to_owned(), "--model".to_owned(), model]);
        words.extend(["--prompt".to_owned(), prompt, "-o".to_owned(), picture]);
    } else if let Some(prompt) = spec.prompt_to_try() {
        let model = &spec.common.model;
        words.push("generate".to_owned());
        words.extend(model_options(model));
        for (option, value) in [("--variant", &model.variant), ("--tokenizer", &model.tokenizer)] {
            if !value.is_empty() {
                words.extend([option.to_owned(), value.clone()]);
            }
        }
        if let Some(prediction) = model.prediction_type {
            words.extend(["--prediction-type".to_owned(), prediction.as_str().to_owned()]);
        }
        for file in embeddings(spec) {
            words.extend(["--embeds".to_owned(), folder.join(file).display().to_string()]);
        }
        if spec.kind() == JobKind::Lora {
            words.extend(["--lora".to_owned(), folder.join(LORA).display().to_string()]);
        }
        let picture = folder.join("picture.png").display().to_string();
        words.extend(["--prompt".to_owned(), prompt, "-o".to_owned(), picture]);
    } else if spec.has_language_model() && spec.resume_option().is_some() {
        words.extend(["generate-text".to_owned(), folder.display().to_string()]);
        words.extend(["--prompt".to_owned(), "Once upon a time".to_owned()]);
    } else {
        return None;
    }
    shlex::try_join(words.iter().map(String::as_str)).ok()
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

#[cfg(test)]
mod tests {
    use ringtune_shared::job::parse_job_toml;

    use super::*;

    #[test]
    fn what_was_learned_can_be_tried_with_one_line() {
        let line = |job: &str| try_it(&parse_job_toml(job).expect("valid"), Path::new("an out"));
        let star = "kind = \"textual_inversion\"\n[model]\nbase = \"/m x\"\nprediction_type = \"v_prediction\"\n\
                    [data]\nimages = \"/i\"\n[train]\nplaceholder_token = \"<star>\"\ninitializer_token = \"star\"\n";
        let said = line(star).expect("a line");
        let words = shlex::split(&said).expect("a line for a shell");
        let expected = [
            "ringtune",
            "generate",
            "--model",
            "/m x",
            "--prediction-type",
            "v_prediction",
            "--embeds",
            "an out/learned_embeds.safetensors",
            "--prompt",
            "a photo of <star>",
            "-o",
            "an out/picture.png",
        ];
        assert_eq!(words, expected);
        let text = line("kind = \"gpt2_finetune\"\n[model]\nbase = \"/m\"\n[gpt2]\ntokens = \"/t\"\n");
        assert!(text.expect("a line").starts_with("ringtune generate-text 'an out' --prompt "));
        let drawn = "kind = \"generate\"\n[model]\nbase = \"/m\"\n[generate]\nprompts = [\"a\"]\n";
        assert_eq!(line(drawn), None);
    }
}
