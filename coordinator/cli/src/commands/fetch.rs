//! Saving a job's artifacts.

use std::{fmt, path::Path};

use ringtune_proto::{convert::spec_from_wire, v1};
use ringtune_shared::files::check_saved_name;
use uuid::Uuid;

use super::{destination::Destination, follow::job_id, pipeline, plural, reach::client_of, resolve};
use crate::{
    arguments::FetchArguments,
    checkpoints::{others_warning, set_metrics_aside},
    client::{Client, SavedArtifact},
    error::Error,
    objects::ArtifactObject,
    output::{Output, remark, size_text},
};

/// `ringtune fetch`.
pub(super) async fn fetch(arguments: FetchArguments) -> Result<(), Error> {
    let output = Output::of_work(arguments.job.ask.output.output);
    let client = client_of(&arguments.job.ask.coordinator).await?;
    let id = resolve::job(&client, &arguments.job.job).await?;
    let job = client.get_job(id).await?;
    let place = Destination::prepare(arguments.output_dir, &job.name).await?;
    save(&client, &job, &place, &arguments.name, output).await?;
    Ok(output.complete()?)
}

/// Saves a job's artifacts (those of `names`, or all), and says where and what can be made of them.
pub(super) async fn save(
    client: &Client,
    job: &v1::Job,
    place: &Destination,
    names: &[String],
    output: Output,
) -> Result<(), Error> {
    // A job of a coordinator that knows more than this command cannot be read; its files are saved all the same.
    let spec = job.spec.clone().and_then(|spec| spec_from_wire(spec).ok());
    let known = spec.as_ref().zip(place.folder());
    if let Some(warning) = known.and_then(|(spec, folder)| others_warning(folder, spec)) {
        remark(&format!("warning: {warning}"));
    }
    let saved = save_artifacts(client, job_id(job)?, place, names, output).await?;
    match saved.len() {
        0 => remark("the job has no artifacts yet"),
        _ => remark(&saved_text(&saved, place)),
    }
    if let Some((spec, folder)) = known
        && spec.wants_full_pipeline()
        && names.is_empty()
    {
        pipeline::say_how(spec, folder);
    }
    Ok(())
}

/// Saves a job's artifacts (those of `names`, or all) and prints where they are.
pub(super) async fn save_artifacts(
    client: &Client,
    job: Uuid,
    place: &Destination,
    names: &[String],
    output: Output,
) -> Result<Vec<SavedArtifact>, Error> {
    let artifacts = client.list_artifacts(job).await?;
    if let Some(missing) = names.iter().find(|name| artifacts.iter().all(|artifact| artifact.name != **name))
    {
        let known: Vec<&str> = artifacts.iter().map(|artifact| artifact.name.as_str()).collect();
        return Err(Error::Usage(format!(
            "the job has no artifact {missing:?}; it has: {}",
            known.join(", ")
        )));
    }
    let mut saved = Vec::with_capacity(artifacts.len());
    for artifact in artifacts.iter().filter(|artifact| names.is_empty() || names.contains(&artifact.name)) {
        // Of a job of an earlier release, which took any name.
        if let Err(error) = check_saved_name(&artifact.name) {
            remark(&format!("{error}: the file is left out; its content is {}", artifact.uri));
            continue;
        }
        let file = place.save(client, artifact).await?;
        output.data(&file.path.display().to_string(), &ArtifactObject::new(&artifact.job_id, &file))?;
        saved.push(file);
    }
    Ok(saved)
}

/// Saves all that a job has in a folder that may have what it went on from. `first_step`: the first one of a job that goes on
/// from a checkpoint.
pub(super) async fn save_job(
    client: &Client,
    job: Uuid,
    first_step: Option<u64>,
    folder: &Path,
    output: Output,
) -> Result<Vec<SavedArtifact>, Error> {
    if let Some(first) = first_step {
        set_metrics_aside(folder, first).map_err(|source| Error::File {
            doing: "cannot rename metrics.csv in",
            path: folder.to_owned(),
            source,
        })?;
    }
    save_artifacts(client, job, &Destination::Folder(folder.to_owned()), &[], output).await
}

/// "saved 12 files (3.4 MiB) in out".
pub(super) fn saved_text(saved: &[SavedArtifact], place: impl fmt::Display) -> String {
    let count = u32::try_from(saved.len()).unwrap_or(u32::MAX);
    let bytes = saved.iter().map(|file| file.size).sum::<u64>();
    let size = size_text(i64::try_from(bytes).unwrap_or(i64::MAX));
    format!("saved {count} {} ({size}) in {place}", plural(count, "file"))
}
