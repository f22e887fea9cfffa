//! What a bug report needs, in one file and without secrets.

mod archive;
mod gather;
mod local;
mod remote;
mod scrub;

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use http::Uri;
use uuid::Uuid;

use crate::{client::Client, credentials::Found, error::Error};
use gather::Gather;
pub use scrub::{REMOVED, scrub};

/// What is to be collected, and where to.
#[derive(Debug)]
pub struct BundleRequest {
    /// The file, which must not exist.
    pub target: PathBuf,
    /// Jobs that are shown in full, beside the newest that failed or run.
    pub jobs: Vec<Uuid>,
    /// How far back logs go.
    pub since: Duration,
    /// Whether logs are collected at all.
    pub logs: bool,
    /// The folder of the daemons' settings files.
    pub settings: PathBuf,
    /// More settings files.
    pub configs: Vec<PathBuf>,
    /// Where the coordinator serves pages, if not at the usual place.
    pub http: Option<Uri>,
    /// The coordinator that doctor is to try, if there is one.
    pub url: Option<String>,
}

/// A coordinator that is asked.
#[derive(Debug)]
pub struct Coordinator {
    /// Who asks.
    pub client: Client,
    /// Where it is.
    pub url: Uri,
    /// As whom it is asked; none: it asks nobody.
    pub found: Option<Found>,
}

/// What came of it.
#[derive(Debug)]
pub struct Made {
    /// Bytes of the file.
    pub size: u64,
    /// What could not be had, and why.
    pub missing: Vec<String>,
}

/// Collects all that is wanted. `coordinator`: why none is asked, where none is.
///
/// # Errors
/// The file cannot be written.
pub async fn make(wanted: &BundleRequest, coordinator: Result<Coordinator, String>) -> Result<Made, Error> {
    let now = SystemTime::now();
    let name = wanted.target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = name.split('.').next().filter(|folder| !folder.is_empty()).unwrap_or("ringtune-debug");
    let mut gather = Gather::begin(&wanted.target, folder, now).await?;
    local::gather(&mut gather, wanted).await;
    gather.stage("the cluster");
    match &coordinator {
        Ok(coordinator) => remote::gather(&mut gather, wanted, coordinator).await,
        Err(reason) => gather.miss("what the coordinator knows", reason).await,
    }
    gather.stage("metrics");
    remote::metrics(&mut gather, wanted, coordinator.as_ref().ok()).await;
    let when = humantime::format_rfc3339_seconds(now).to_string();
    let (size, missing) = gather.finish(|written, missing| readme(&when, wanted, written, missing)).await?;
    Ok(Made { size, missing })
}

fn readme(when: &str, wanted: &BundleRequest, written: &[String], missing: &[String]) -> String {
    let logs = match wanted.logs {
        true => format!("Logs go back {}.", humantime::format_duration(wanted.since)),
        false => "Logs were left out.".to_owned(),
    };
    let list = |lines: &[String]| match lines.is_empty() {
        true => "  nothing\n".to_owned(),
        false => lines.iter().map(|line| format!("  {line}\n")).collect(),
    };
    format!(
        "Made by `ringtune debug bundle` of Ringtune {} at {when}. {logs}\n\n\
         Tokens, private keys, passwords and the keys of clouds and hubs were replaced by {REMOVED}. Names of people, \
         machines, paths, prompts and addresses are in it: look through it before you give it away.\n\n\
         What is in it:\n{}\nWhat could not be had:\n{}",
        ringtune_shared::version::VERSION,
        list(written),
        list(missing),
    )
}
