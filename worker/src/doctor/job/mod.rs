//! `doctor JOB.toml`: what a job would do, without doing it.
//!
//! Nothing is decided here: the job file is read by the same code as in `ringtune run`, and everything that a worker
//! checks is checked by a rank's own preparation ([`crate::kinds::rehearse`]).

mod pictures;
mod problem;
mod report;
mod sheet;
#[cfg(test)]
mod tests;
mod text;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use ringtune_security::Trust;
use ringtune_shared::job::{
    Activity, ImageUse, JobSpec, MixedPrecision, Setting, SpecError, parse_job_toml_with,
};

use tempfile::TempDir;

use ringtune_sources::{ModelSources, Patience, hub_endpoint};
use ringtune_traces::Tracer;

use crate::kinds::{As, Found, rehearse};
use crate::settings::{ComputeSettings, LATENT_MEMORY_BYTES, Settings};
use crate::{
    access::{Access, Roots, Rules},
    base_model::Fingerprints,
    capabilities::default_threads,
    contents::{ArtifactClient, ContentCache},
    data::{Target, images::ListedImage},
    engine::{Precision, StartEngine, Threads},
    http::Metrics,
    latents::LatentCache,
    node::Node,
    rank::Context,
    ring::{RingOptions, Rings},
};

use pictures::FolderReport;
use problem::Problem;
pub(super) use report::JobReport;
pub(super) use text::render;

/// Nobody listens there: what a dry run needs lies on this machine, unless a coordinator is given.
const NO_COORDINATOR: &str = "http://127.0.0.1:1";
/// For the dry run's own files, which are removed with it.
const CACHE_BYTES: u64 = 64 << 30;

/// Flags of a dry run.
#[derive(Args, Clone, Debug)]
pub struct JobArguments {
    /// Show what this job would train or draw, without doing it
    #[arg(value_name = "JOB.toml")]
    pub job: Option<PathBuf>,
    /// With a job: another value for a key of the job file, as of `ringtune run` (may be repeated)
    #[arg(long, value_name = "KEY=VALUE", requires = "job")]
    pub set: Vec<Setting>,
    /// With a job: write a sheet of its pictures as the model will see them, to this .png file or folder
    #[arg(short, long = "out", value_name = "PATH", requires = "job")]
    pub out: Option<PathBuf>,
    /// With a job: compute nothing, so that neither time nor memory is measured
    #[arg(long, requires = "job")]
    pub no_compute: bool,
    /// With a job: compute threads, where the job leaves them open [default: one a physical core]
    #[arg(long, value_name = "N", requires = "job", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
}

/// Looks at a job from all sides.
pub(super) async fn examine(
    file: &Path,
    arguments: &JobArguments,
    there: There<'_>,
    start: StartEngine,
) -> JobReport {
    let mut report = JobReport { job_file: file.to_owned(), ..JobReport::default() };
    // 1. The job file.
    let mut spec = match read(file, &arguments.set) {
        Ok(spec) => spec,
        Err(problems) => {
            report.problems = problems;
            return report;
        }
    };
    report.name = spec.common.name.clone();
    let resume_option = spec.resume_option().unwrap_or_default();
    if let Some(resume_from) = spec.resume_from_mut().filter(|place| !place.is_empty()) {
        // It is compared with what it goes on from when it is uploaded; everything else is as in a job of its own.
        resume_from.clear();
        report.warnings.push(format!("{resume_option}: not looked at in a dry run"));
    }
    report.warnings.extend(spec.warning());
    // 2. The folders: everything that is wrong with them at once, and what nobody refuses but may not be meant.
    let uses = spec.image_uses();
    let has_source = spec.locations().iter().any(|(field, _)| *field == "data.source");
    if uses.is_empty() && !has_source && arguments.out.is_some() {
        let what = match spec.activity() {
            Activity::Training => "learns from words",
            Activity::Drawing => "draws",
            Activity::Writing => "makes texts",
        };
        report.warnings.push(format!("--out: there is no sheet of a job that {what}"));
    }
    let source = |((field, place), used): ((String, &mut String), &ImageUse)| pictures::Source {
        field,
        place: place.clone(),
        captions: used.captions.clone(),
    };
    let sources: Vec<_> = spec.image_sources().into_iter().zip(&uses).map(source).collect();
    report.folders = match tokio::task::spawn_blocking(move || pictures::inspect(&sources)).await {
        Ok(folders) => folders,
        Err(error) => {
            report.problems.push(Problem::of_text(&error.to_string()));
            return report;
        }
    };
    let warnings = say_what_is_drawn(&mut report.folders, &uses, &mut spec);
    report.warnings.extend(warnings);
    report.problems.extend(report.folders.iter().flat_map(FolderReport::problems));
    if there.coordinator.is_none() && spec_needs_coordinator(&report) {
        return report;
    }
    let shown = |(folder, used): (&FolderReport, &ImageUse)| folder.used as u64 * u64::from(used.repeats);
    let found = report.folders.iter().zip(&uses).map(shown).sum();
    if let Err(error) = spec.count_steps(found) {
        report.problems.extend(error.violations.iter().map(Problem::of_violation));
        return report;
    }
    // 3. All that a worker would check, on this machine.
    let rehearsed = async {
        let machine = Machine::set_up(&spec, arguments, there, start).await?;
        machine.rehearse(&spec).await
    };
    match Box::pin(rehearsed).await {
        Ok(mut found) => {
            report.warnings.append(&mut found.warnings);
            let pictures = std::mem::take(&mut found.pictures);
            report.found = found;
            if let Some(out) = arguments.out.as_ref().filter(|_| !pictures.is_empty()) {
                write_sheet(&mut report, pictures, out).await;
            }
        }
        Err(error) => {
            let problem = Problem::of_text(&error);
            // A broken picture has been named already, with all others.
            if !report.problems.iter().any(|known| problem.problem.contains(&known.problem)) {
                report.problems.push(problem);
            }
        }
    }
    report
}

/// Pictures that are drawn before the job begins are missing in no folder; where there is none yet, the dry run goes without.
fn say_what_is_drawn(folders: &mut [FolderReport], uses: &[ImageUse], spec: &mut JobSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    for (folder, used) in folders.iter_mut().zip(uses) {
        let Some(wanted) = used.drawn.filter(|wanted| !folder.uploaded && folder.used < *wanted as usize)
        else {
            continue;
        };
        let FolderReport { field, used: there, .. } = &*folder;
        let mut warning = format!(
            "{field}: {there} of {wanted} pictures are there; the others are drawn before the job begins"
        );
        if *there == 0 && folder.broken.is_empty() {
            warning += ", and this dry run goes without: with them a step has twice as many samples";
            folder.unusable = None;
            spec.forget_class();
        }
        warnings.push(warning);
    }
    warnings
}

/// As `ringtune run` reads it.
fn read(file: &Path, settings: &[Setting]) -> Result<JobSpec, Vec<Problem>> {
    let unreadable = |error: io::Error| vec![Problem::of_text(&format!("{}: {error}", file.display()))];
    let text = std::fs::read_to_string(file).map_err(unreadable)?;
    let absolute = std::path::absolute(file).map_err(unreadable)?;
    let refused = |error: SpecError| error.violations.iter().map(Problem::of_violation).collect::<Vec<_>>();
    let mut spec = parse_job_toml_with(&text, settings).map_err(refused)?;
    spec.resolve_paths(absolute.parent().unwrap_or(Path::new("/"))).map_err(refused)?;
    Ok(spec)
}

/// Pictures that are uploaded already can be looked at only where they are.
fn spec_needs_coordinator(report: &JobReport) -> bool {
    report.folders.iter().any(|folder| folder.uploaded)
}

/// The worker that is played, and its coordinator.
#[derive(Clone, Copy)]
pub(super) struct There<'a> {
    pub(super) settings: &'a Settings,
    pub(super) coordinator: Option<&'a str>,
    /// Whom the worker believes, in a secured cluster.
    pub(super) trust: Option<&'a Trust>,
}

/// An engine, and folders that last as long as this. Its errors are texts for people.
struct Machine {
    context: Context,
    with: As,
    _folder: TempDir,
}

impl Machine {
    async fn set_up(
        spec: &JobSpec,
        arguments: &JobArguments,
        there: There<'_>,
        start: StartEngine,
    ) -> Result<Self, String> {
        let There { settings, coordinator, trust } = there;
        let say = |error: &dyn std::error::Error| error.to_string();
        let node = Node::detect();
        let wanted = arguments
            .threads
            .map_or(spec.common.cluster.threads_per_rank as usize, |threads| threads as usize);
        let threads = if wanted == 0 { default_threads(&node, &ComputeSettings::default()) } else { wanted };
        let bf16 = spec.mixed_precision() == MixedPrecision::Bf16;
        let precision = if bf16 && node.cpu.has_bf16() { Precision::Bf16 } else { Precision::Fp32 };
        let engine = tokio::task::spawn_blocking(move || start(Threads::anywhere(threads)))
            .await
            .map_err(|error| say(&error))?
            .map_err(|error| say(&error))?;
        let folder = tempfile::tempdir().map_err(|error| say(&error))?;
        let metrics = Arc::new(Metrics::new().map_err(|error| say(&error))?);
        let environment = settings.cloud.environment();
        let Rules { models, data, hubs, buckets, outputs, .. } = settings.access_rules(&environment);
        let cache = settings.model_cache.options(&environment, &settings.storage.state_dir);
        // What is named by path here is uploaded when the job is submitted, but for what ranks read where it is: the model,
        // and in some jobs data.
        let reads_data = spec.locations().iter().any(|(field, _)| *field != "model.base");
        let data = if reads_data { data } else { Roots::Everything };
        let rules = Rules { models, data, hubs, buckets, outputs, ..Rules::everything() };
        let hub = hub_endpoint(&environment).unwrap_or_default();
        let context = Context {
            engine: engine.clone(),
            artifacts: ArtifactClient::new(coordinator.unwrap_or(NO_COORDINATOR), trust)
                .map_err(|error| say(&error))?,
            cache: ContentCache::open(folder.path().join("cache"), CACHE_BYTES)
                .map_err(|error| say(&error))?,
            latents: LatentCache::open(folder.path().join("latents"), 0).map_err(|error| say(&error))?,
            latent_memory_bytes: LATENT_MEMORY_BYTES,
            access: Access::new(rules, &hub, folder.path().join("views")),
            models: ModelSources::new(environment, cache, Patience::default()),
            fingerprints: Arc::new(Fingerprints::default()),
            rings: Rings::new(RingOptions::default(), Arc::clone(&metrics)),
            metrics,
            tracer: Tracer::off(),
            work_folder: folder.path().join("work"),
            hung: tokio_util::sync::CancellationToken::new(),
            recovery_interval: None,
            allow_trace_dir: true,
            about: String::new(),
        };
        let with = As { precision, threads, compute: !arguments.no_compute };
        Ok(Self { context, with, _folder: folder })
    }

    /// Errors have the files' own paths.
    async fn rehearse(self, spec: &JobSpec) -> Result<Found, String> {
        let rehearsed = rehearse(spec, self.with, &self.context).await;
        rehearsed.map_err(|error| self.context.access.shown(error.to_string()))
    }
}

async fn write_sheet(report: &mut JobReport, pictures: Vec<Vec<(ListedImage, Target)>>, out: &Path) {
    let is_file = out.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("png"));
    let file = if is_file { out.to_owned() } else { out.join("contact-sheet.png") };
    let written = tokio::task::spawn_blocking(move || sheet::write(&pictures, file)).await;
    match written.map_err(|error| error.to_string()).and_then(|written| written) {
        Ok(sheet) => report.sheet = Some(sheet),
        Err(error) => report.problems.push(Problem::of_text(&format!("--out: {error}"))),
    }
}
