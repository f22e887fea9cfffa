//! Access rules of jobs as pure decisions, without disk or network.

use std::{
    fmt,
    path::{Component, Path, PathBuf},
};

use ringtune_shared::job::{HubModel, JobSpec, ModelLocation, PathUse, S3Model};

use super::hubs::{Hubs, write_list};

/// A job names something that jobs may not reach on this worker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Refused {
    /// `section.key` of the job.
    pub field: String,
    /// The given value, the allowed ones, and the setting to change.
    pub problem: String,
}

/// Folders below which jobs may reach what they name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// All folders of this machine.
    Everything,
    /// These, absolute and without `.` or `..`; none: nothing.
    Below(Vec<PathBuf>),
}

/// How far a path may lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach<'a> {
    /// Unconfined.
    Anywhere,
    /// Confined to `root`, symlinks included.
    Below {
        /// The folder.
        root: &'a Path,
        /// The rest of the path: plain names only; empty: the folder itself.
        rest: PathBuf,
    },
}

/// Buckets that jobs may have models, tokens and pictures fetched from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Buckets {
    /// Every bucket that this worker's credentials open.
    Everything,
    /// These, from their prefixes on; none: nothing.
    Within(Vec<S3Model>),
}

/// Everything that jobs may reach on a worker, besides uploads to its coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Models and tokenizers.
    pub models: Roots,
    /// Pictures and their captions, and tokens.
    pub data: Roots,
    /// Learned embeddings.
    pub embeddings: Roots,
    /// Traces, which are written.
    pub traces: Roots,
    /// Models and pictures of `hf://`.
    pub hubs: Hubs,
    /// Models, tokens and pictures of `s3://`.
    pub buckets: Buckets,
    /// Jobs' own files, which are written.
    pub outputs: Buckets,
}

/// The path without `.` and doubled separators; none where it is relative or has a `..`, which may lead anywhere.
pub(super) fn plain(path: &Path) -> Option<PathBuf> {
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    (path.is_absolute() && path.components().all(is_plain)).then(|| path.components().collect())
}

impl Roots {
    /// Confined to these folders. `/` is everything; relative paths and those with `..` are skipped.
    pub fn of(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let roots: Vec<PathBuf> = folders.into_iter().filter_map(|folder| plain(&folder)).collect();
        if roots.iter().any(|root| root == Path::new("/")) { Self::Everything } else { Self::Below(roots) }
    }

    /// How far a path may lead; None: out of reach. Of nested folders the outermost counts, as symlinks may lead further
    /// there.
    pub fn find(&self, path: &Path) -> Option<Reach<'_>> {
        let Self::Below(roots) = self else { return Some(Reach::Anywhere) };
        let path = plain(path)?;
        let holding = roots.iter().filter(|root| path.starts_with(root));
        let root = holding.min_by_key(|root| root.as_os_str().len())?;
        Some(Reach::Below { root, rest: path.strip_prefix(root).ok()?.to_owned() })
    }
}

impl fmt::Display for Roots {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => formatter.write_str("everything"),
            Self::Below(roots) => write_list(formatter, roots.iter().map(|root| root.display())),
        }
    }
}

impl Buckets {
    /// Whether a model is in one of them, at its prefix or below it.
    pub fn allow(&self, model: &S3Model) -> bool {
        let Self::Within(buckets) = self else { return true };
        let holds = |one: &S3Model| {
            let rest = model.prefix.strip_prefix(one.prefix.as_str());
            one.bucket == model.bucket
                && rest.is_some_and(|rest| one.prefix.is_empty() || rest.is_empty() || rest.starts_with('/'))
        };
        buckets.iter().any(holds)
    }
}

impl fmt::Display for Buckets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything => formatter.write_str("everything"),
            Self::Within(buckets) => write_list(formatter, buckets.iter()),
        }
    }
}

impl Rules {
    /// Jobs may reach whatever the worker's own user may.
    pub fn everything() -> Self {
        let all = || Roots::Everything;
        Self {
            models: all(),
            data: all(),
            embeddings: all(),
            traces: all(),
            hubs: Hubs::Everything,
            buckets: Buckets::Everything,
            outputs: Buckets::Everything,
        }
    }

    /// Whether a whole job stays within reach. `hub`: where `hf://` leads here, as a URL. `traces`: it may write its trace
    /// by the switch of that.
    ///
    /// # Errors
    /// The first of its fields that leads further.
    pub fn check(&self, spec: &JobSpec, hub: &str, traces: bool) -> Result<(), Refused> {
        for (field, location) in spec.locations() {
            self.fetch(field, &location, hub)?;
        }
        if let Some(place) = spec.common.output.place() {
            self.write(&place)?;
        }
        let mut paths = spec.paths();
        paths.retain(|path| path.used != PathUse::Trace || traces);
        paths.iter().try_for_each(|path| self.path(path.used, &path.field, &path.path).map(|_| ()))
    }

    /// How far a path of a job may lead.
    ///
    /// # Errors
    /// It is out of reach.
    pub fn path(&self, used: PathUse, field: &str, given: &str) -> Result<Reach<'_>, Refused> {
        let (roots, setting, purpose) = match used {
            PathUse::Model => (&self.models, "access.model_roots", "models"),
            PathUse::Pictures => (&self.data, "access.data_roots", "pictures"),
            PathUse::Tokens => (&self.data, "access.data_roots", "tokens"),
            PathUse::Embedding => (&self.embeddings, "access.embedding_roots", "embeddings and LoRAs"),
            PathUse::Trace => (&self.traces, "access.trace_roots", "traces"),
            PathUse::Checkpoint => {
                let problem =
                    format!("{given:?} is a path; a worker takes checkpoints from its coordinator only");
                return Err(Refused { field: field.to_owned(), problem });
            }
        };
        let path = local_path(used, given);
        roots.find(path).ok_or_else(|| {
            let reason = match plain(path) {
                Some(_) => "is out of the reach of jobs on this worker",
                None if path.is_absolute() => "has a \"..\" in it, which may lead out of the reach of jobs on this worker",
                None => "is not an absolute path",
            };
            let problem = format!(
                "{given:?} {reason}; allowed for {purpose} is: {roots} ({setting}); whoever runs the worker can add a \
                 folder there, or \"/\" for everything"
            );
            Refused { field: field.to_owned(), problem }
        })
    }

    /// Whether what a field names may be fetched, if it has to be.
    ///
    /// # Errors
    /// It may not.
    pub fn fetch(&self, field: &str, location: &ModelLocation, hub: &str) -> Result<(), Refused> {
        let problem = match location {
            ModelLocation::Hub(model) if !self.hubs.allow(hub) => self.hub_problem(model, hub),
            ModelLocation::S3(model) if !self.buckets.allow(model) => format!(
                "{:?} is out of the reach of jobs on this worker; allowed is: {} (access.buckets); whoever runs the \
                 worker can add s3://BUCKET or s3://BUCKET/PREFIX there, or \"*\" for everything",
                model.to_string(),
                self.buckets
            ),
            ModelLocation::Local(_) | ModelLocation::Hub(_) | ModelLocation::S3(_) => return Ok(()),
        };
        Err(Refused { field: field.to_owned(), problem })
    }

    /// Whether a job's files may be put there.
    fn write(&self, place: &S3Model) -> Result<(), Refused> {
        if self.outputs.allow(place) {
            return Ok(());
        }
        let problem = format!(
            "{:?} is out of the reach of jobs on this worker; allowed is: {} (access.output_buckets); whoever runs the worker \
             can add s3://BUCKET or s3://BUCKET/PREFIX there, or \"*\" for everything",
            place.to_string(),
            self.outputs
        );
        Err(Refused { field: "output.url".to_owned(), problem })
    }

    fn hub_problem(&self, model: &HubModel, hub: &str) -> String {
        format!(
            "{:?} would be fetched from {hub}, which is out of the reach of jobs on this worker; allowed is: {} \
             (access.hubs); whoever runs the worker can add the hub there, or \"*\" for everything",
            model.to_string(),
            self.hubs
        )
    }
}

/// The path in a field: pictures may also be given as a `file://` URL.
pub(super) fn local_path(used: PathUse, given: &str) -> &Path {
    let path = given.strip_prefix("file://").filter(|_| used == PathUse::Pictures);
    Path::new(path.unwrap_or(given))
}
