//! The job file: read, checked, and its paths made absolute.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Component, Path, PathBuf},
    str::FromStr,
};

use ringtune_proto::{
    convert::{queue_from_wire, spec_from_wire},
    v1,
};
use ringtune_shared::{
    files::TOKENS_WITHOUT_MANIFEST,
    ids::CONTENT_URI_PREFIX,
    job::{
        self, HubModel, JobRequest, JobSpec, ModelLocation, QueueSpec, Requested, Setting, SpecError,
        SweepRequest, check_labels,
    },
};

use crate::diffusers_arguments::{self, Translated, Untranslatable};

/// A job file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JobFileError {
    /// It cannot be read.
    #[error("cannot read the job file {}: {source}", path.display())]
    Unreadable {
        /// The job file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A command line of another program's script that is not a job.
    #[error("--from-diffusers-args:{0}")]
    Untranslatable(
        /// What follows the option's name.
        String,
    ),
    /// A command line of another program's script whose job is not allowed.
    #[error("--from-diffusers-args: the job of this command line is not valid:\n{0}")]
    InvalidCommandLine(SpecError),
    /// Labels of the command line that the job cannot have beside its own.
    #[error("--label: {0}")]
    Labels(SpecError),
    /// It names folders or files that are not on this machine.
    #[error("{}", .0.join("\n"))]
    Missing(
        /// Each with its field.
        Vec<String>,
    ),
    /// A job of the coordinator that cannot be asked for again.
    #[error("--again: job {job}:\n{source}")]
    Again {
        /// Its id.
        job: String,
        /// What is wrong with it, or with the settings.
        source: SpecError,
    },
    /// It says something that is not allowed.
    #[error("{}", list_violations(path, source))]
    Invalid {
        /// The job file.
        path: PathBuf,
        /// Everything that is wrong with it.
        source: SpecError,
    },
}

fn list_violations(path: &Path, error: &SpecError) -> String {
    let count = error.violations.len();
    let mut text = match count {
        1 => format!("the job file {} has a mistake:", path.display()),
        _ => format!("the job file {} has {count} mistakes:", path.display()),
    };
    for violation in &error.violations {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {violation}");
    }
    text
}

/// Where a job's images are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageSource {
    /// A folder of this machine, to be uploaded.
    Folder(PathBuf),
    /// At the coordinator already.
    Uploaded,
}

/// A label on the command line, `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// Checked, as is the value.
    pub key: String,
    /// May be empty.
    pub value: String,
}

impl FromStr for Label {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let (key, value) = given.split_once('=').ok_or("allowed: KEY=VALUE, as in project=dicoo")?;
        job::check_label(key, value).map_err(|violation| violation.problem)?;
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

/// What a job file asks for.
#[derive(Debug)]
pub enum Asked {
    /// One job.
    Job(Box<JobFile>),
    /// Several.
    Sweep(SweepFile),
}

/// The jobs of a file with `[sweep]`.
#[derive(Debug)]
pub struct SweepFile {
    /// In their order.
    pub points: Vec<PointFile>,
    /// After each round the worse half ends.
    pub halving: bool,
}

/// One job of a sweep.
#[derive(Debug)]
pub struct PointFile {
    /// What is its own: values by their options' full names.
    pub settings: BTreeMap<String, String>,
    /// The job.
    pub file: JobFile,
}

impl Asked {
    /// Its jobs.
    pub fn jobs_mut(&mut self) -> Vec<&mut JobFile> {
        match self {
            Self::Job(file) => vec![file],
            Self::Sweep(sweep) => sweep.points.iter_mut().map(|point| &mut point.file).collect(),
        }
    }
}

/// A job as its file describes it.
#[derive(Debug, Clone)]
pub struct JobFile {
    /// The job with every default filled in, and its paths absolute.
    pub spec: JobSpec,
    /// Whose it is, and how urgent.
    pub queue: QueueSpec,
    /// What its relative paths were relative to.
    pub folder: PathBuf,
}

impl JobFile {
    /// Reads a job file, puts `settings` into it and checks the whole; all mistakes are reported at once. Relative
    /// paths are relative to the file, also those of settings.
    pub fn read(path: &Path, settings: &[Setting]) -> Result<Self, JobFileError> {
        let (text, folder) = open(path)?;
        job::parse_job_request(&text, settings)
            .and_then(|request| Self::resolve(request, &folder))
            .map_err(|source| JobFileError::Invalid { path: path.to_owned(), source })
    }

    /// As [`Self::read`], of a file that may ask for several jobs.
    pub fn read_all(path: &Path, settings: &[Setting]) -> Result<Asked, JobFileError> {
        let (text, folder) = open(path)?;
        let invalid = |source| JobFileError::Invalid { path: path.to_owned(), source };
        match job::parse_job_file(&text, settings).map_err(invalid)? {
            Requested::Job(request) => {
                Ok(Asked::Job(Box::new(Self::resolve(*request, &folder).map_err(invalid)?)))
            }
            Requested::Sweep(SweepRequest { points, halving }) => {
                let points = points.into_iter().map(|point| {
                    let file = Self::resolve(point.request, &folder)?;
                    Ok(PointFile { settings: point.settings, file })
                });
                let points = points.collect::<Result<_, _>>().map_err(invalid)?;
                Ok(Asked::Sweep(SweepFile { points, halving }))
            }
        }
    }

    /// The job that a command line of another program's script stands for, with `settings` put into it, its paths relative to
    /// the current folder; and what the command line says beside it.
    pub fn from_diffusers(line: &str, settings: &[Setting]) -> Result<(Self, Translated), JobFileError> {
        let translated = diffusers_arguments::translate(line, names_in).map_err(all_problems)?;
        let folder = current_folder()?;
        let file = job::parse_job_request(&translated.job, settings)
            .and_then(|request| Self::resolve(request, &folder))
            .map_err(|error| JobFileError::InvalidCommandLine(without_lines(error)))?;
        Ok((file, translated))
    }

    /// The job of a coordinator again, with `settings` put into it, whose paths are relative to the current folder.
    pub fn of_job(job: &v1::Job, settings: &[Setting]) -> Result<Self, JobFileError> {
        let failed = |source| JobFileError::Again { job: job.job_id.clone(), source };
        let folder = current_folder()?;
        let spec = spec_from_wire(job.spec.clone().unwrap_or_default()).map_err(failed)?;
        let queue = queue_from_wire(job.queue.clone()).map_err(failed)?;
        let text = JobRequest { spec, queue }.to_toml().unwrap_or_default();
        job::parse_job_request(&text, settings)
            .and_then(|request| Self::resolve(request, &folder))
            .map_err(|source| failed(without_lines(source)))
    }

    /// Looks whether the folders and files are there that ranks read from where they are: for jobs of which all ranks are
    /// on this machine. Pictures and embeddings, which are uploaded, are looked at when they are read.
    ///
    /// # Errors
    /// All that are not there.
    pub fn check_places(&self) -> Result<(), JobFileError> {
        let missing = self.missing_places().map(|(field, path)| match self.repository(field, &path) {
            Some(repository) => format!(
                "{field}: {}: there is no such folder or file; for the hub's model write hf://{repository}",
                path.display()
            ),
            None => format!(
                "{field}: {}: there is no such folder or file; a relative path is taken from the job file's folder",
                path.display()
            ),
        });
        let bare = self.spec.locations().into_iter().filter_map(|(field, location)| match location {
            ModelLocation::Local(path) if lacks_manifest(&path) => {
                Some(format!("{field}: {} {TOKENS_WITHOUT_MANIFEST}", path.display()))
            }
            ModelLocation::Local(_) | ModelLocation::Hub(_) | ModelLocation::S3(_) => None,
        });
        let missing: Vec<String> = missing.chain(bare).collect();
        if missing.is_empty() { Ok(()) } else { Err(JobFileError::Missing(missing)) }
    }

    /// Of a job whose ranks are elsewhere, where its paths may lead somewhere: a model that is more likely a hub's.
    pub fn hub_warning(&self) -> Option<String> {
        self.missing_places().find_map(|(field, path)| {
            let repository = self.repository(field, &path)?;
            Some(format!(
                "{field}: {} is a folder of the workers, and there is none here; for the hub's model write hf://{repository}",
                path.display()
            ))
        })
    }

    fn missing_places(&self) -> impl Iterator<Item = (&'static str, PathBuf)> {
        self.spec.locations().into_iter().filter_map(|(field, location)| match location {
            ModelLocation::Local(path) if !path.exists() => Some((field, path)),
            ModelLocation::Local(_) | ModelLocation::Hub(_) | ModelLocation::S3(_) => None,
        })
    }

    /// `org/name`, where a model's path that leads nowhere was written so.
    fn repository<'a>(&self, field: &str, path: &'a Path) -> Option<&'a str> {
        let written = path.strip_prefix(&self.folder).ok()?.to_str()?;
        (field == "model.base" && HubModel::is_repository(written)).then_some(written)
    }

    /// Where its images are, by their fields, in the order of [`JobSpec::image_sources`].
    pub fn images(&self) -> Vec<(String, ImageSource)> {
        let source = |place: &str| {
            if place.starts_with(CONTENT_URI_PREFIX) {
                ImageSource::Uploaded
            } else {
                ImageSource::Folder(PathBuf::from(place))
            }
        };
        let mut spec = self.spec.clone();
        spec.image_sources().into_iter().map(|(field, place)| (field, source(place))).collect()
    }

    /// Puts labels of the command line over those of the file.
    pub fn add_labels(&mut self, labels: &[Label]) -> Result<(), JobFileError> {
        self.queue.labels.extend(labels.iter().map(|label| (label.key.clone(), label.value.clone())));
        let violations = check_labels("queue.labels", &self.queue.labels);
        if violations.is_empty() { Ok(()) } else { Err(JobFileError::Labels(SpecError { violations })) }
    }

    /// Makes the paths of the job absolute; they are relative to `folder`.
    fn resolve(request: JobRequest, folder: &Path) -> Result<Self, SpecError> {
        let JobRequest { mut spec, queue } = request;
        spec.resolve_paths(folder)?;
        spec.change_paths(without_parents);
        Ok(Self { spec, queue, folder: folder.to_owned() })
    }
}

/// The text of a job file, and the folder that it is in.
fn open(path: &Path) -> Result<(String, PathBuf), JobFileError> {
    let unreadable = |source| JobFileError::Unreadable { path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(unreadable)?;
    let absolute = std::path::absolute(path).map_err(unreadable)?;
    Ok((text, absolute.parent().unwrap_or(Path::new("/")).to_owned()))
}

fn current_folder() -> Result<PathBuf, JobFileError> {
    std::env::current_dir().map_err(|source| JobFileError::Unreadable { path: PathBuf::from("."), source })
}

/// The names in a folder; none for a file, or for a folder that may not be read.
fn names_in(path: &str) -> Option<Vec<String>> {
    fs::metadata(path).ok()?;
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    Some(entries.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// Everything that is wrong with a command line of a script: its options, and the job that the others make.
fn all_problems(found: Untranslatable) -> JobFileError {
    let Untranslatable { script, mut problems, rest, unknown } = found;
    if let Err(error) = job::parse_job_request(&rest, &[]).map_err(without_lines) {
        let others =
            error.violations.into_iter().filter(|one| !rest.is_empty() && !unknown.contains(&one.field));
        problems.extend(others.map(|one| one.to_string()));
    }
    let text = match problems.as_slice() {
        [one] => format!(" {one}"),
        several => format!("\n{}", several.join("\n")),
    };
    JobFileError::Untranslatable(if script.is_empty() { text } else { format!(" {script}:{text}") })
}

/// Whether it is a folder of tokens that nothing says the tokenizer of.
fn lacks_manifest(folder: &Path) -> bool {
    folder.join("train.bin").is_file() && !folder.join("meta.json").exists()
}

/// A path without `..`, which a worker refuses where it does not let jobs read everything: up to the last one it is the
/// folder that it means on this machine. None: there is no `..` in it, or no such folder here.
fn without_parents(path: &str) -> Option<String> {
    let parts: Vec<Component<'_>> = Path::new(path).components().collect();
    let last = parts.iter().rposition(|part| *part == Component::ParentDir)?;
    let (before, rest) = parts.split_at(last + 1);
    let meant = fs::canonicalize(before.iter().collect::<PathBuf>()).ok()?;
    meant.join(rest.iter().collect::<PathBuf>()).into_os_string().into_string().ok()
}

/// Lines of a file that nobody wrote help nobody.
fn without_lines(mut error: SpecError) -> SpecError {
    error.violations.iter_mut().for_each(|violation| violation.line = None);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_folders_are_looked_up_where_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let real = folder.path().canonicalize().expect("its path");
        fs::create_dir_all(real.join("a/b")).expect("folders");
        std::os::unix::fs::symlink(real.join("a/b"), real.join("link")).expect("a link");
        let meant = |path: &str| without_parents(&real.join(path).display().to_string());
        let is = |path: &str| Some(real.join(path).display().to_string());
        assert_eq!(meant("a/../model"), is("model"));
        // Where the link leads, and not where its name stands.
        assert_eq!(meant("link/../model/x"), is("a/model/x"));
        assert_eq!((meant("a/b"), meant("nowhere/../model")), (None, None));
    }

    const JOB: &str = r#"
        kind = "textual_inversion"
        name = "star"
        [model]
        base = "./toy-sd"
        [data]
        images = "pictures"
        [train]
        placeholder_token = "<star>"
        initializer_token = "star"
        [debug]
        trace_dir = "trace"
    "#;

    #[test]
    fn paths_are_relative_to_the_job_file() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("job.toml");
        fs::write(&path, JOB).expect("written");
        let job = JobFile::read(&path, &[]).expect("valid");
        let within = |name: &str| folder.path().join(name).display().to_string();
        assert_eq!(job.spec.common.model.base, within("toy-sd"));
        assert_eq!(job.spec.common.debug.trace_dir, within("trace"));
        let pictures = ImageSource::Folder(folder.path().join("pictures"));
        assert_eq!(job.images(), [("data.images".to_owned(), pictures)]);
    }

    #[test]
    fn what_ranks_read_here_has_to_be_here() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("job.toml");
        let read = |text: &str| {
            fs::write(&path, text).expect("written");
            JobFile::read(&path, &[]).expect("valid").check_places().map_err(|error| error.to_string())
        };
        let problem = read(&JOB.replace("./toy-sd", "acme/toy-sd")).expect_err("no model");
        assert!(problem.ends_with("for the hub's model write hf://acme/toy-sd"), "{problem}");
        let problem = read(JOB).expect_err("no model");
        let model = folder.path().join("toy-sd");
        let says = format!("model.base: {}: there is no such folder or file; a relative", model.display());
        assert!(problem.starts_with(&says), "{problem}");
        assert_eq!(read(&JOB.replace("./toy-sd", "hf://a/b")), Ok(()));
        fs::create_dir(&model).expect("made");
        assert_eq!(read(JOB), Ok(()));
        // All that is missing at once.
        let both =
            "kind = \"gpt2_finetune\"\nname = \"a\"\n[model]\nbase = \"gpt2\"\n[gpt2]\ntokens = \"tokens\"\n";
        let problem = read(both).expect_err("nothing is there");
        assert!(problem.starts_with("model.base: ") && problem.contains("\ngpt2.tokens: "), "{problem}");
        // nanoGPT's own files do not say whose tokens they are.
        for name in ["gpt2", "tokens"] {
            fs::create_dir(folder.path().join(name)).expect("made");
        }
        fs::write(folder.path().join("tokens/train.bin"), [0, 0]).expect("written");
        let problem = read(both).expect_err("no manifest");
        assert!(problem.starts_with("gpt2.tokens: ") && problem.contains("prepare-text"), "{problem}");
        fs::write(folder.path().join("tokens/meta.json"), "{}").expect("written");
        assert_eq!(read(both), Ok(()));
    }

    #[test]
    fn uploaded_images_keep_their_address() {
        let uri = format!("artifact://sha256/{}", "0".repeat(64));
        let request = job::parse_job_request(&JOB.replace("pictures", &uri), &[]).expect("valid");
        let job = JobFile::resolve(request, Path::new("/jobs")).expect("resolved");
        assert_eq!(job.images(), [("data.images".to_owned(), ImageSource::Uploaded)]);
        assert_eq!(job.spec.textual_inversion().unwrap().data.images, uri);
    }

    #[test]
    fn labels_of_the_command_line_count_more_than_those_of_the_file() {
        let text = format!("{JOB}\n[queue]\nlabels = {{ a = \"1\", b = \"2\" }}\n");
        let request = job::parse_job_request(&text, &[]).expect("valid");
        let mut job = JobFile::resolve(request, Path::new("/jobs")).expect("resolved");
        let label = |text: &str| text.parse::<Label>();
        job.add_labels(&[label("b=x=y").expect("a label"), label("c/d=").expect("a label")]).expect("added");
        let labels: Vec<(&str, &str)> =
            job.queue.labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(labels, [("a", "1"), ("b", "x=y"), ("c/d", "")]);
        for (wrong, part) in [("a", "KEY=VALUE"), ("A=b", "a-z"), ("=b", "1 to 63"), ("a=\n", "printable")] {
            let problem = label(wrong).expect_err("refused");
            assert!(problem.contains(part), "{problem}");
        }
        let many: Vec<Label> = (0..30).map(|n| label(&format!("n{n}=")).expect("a label")).collect();
        let error = job.add_labels(&many).expect_err("too many").to_string();
        assert_eq!(error, "--label: queue.labels: 33 labels; allowed: at most 32");
    }

    #[test]
    fn every_mistake_is_listed_with_its_field() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("job.toml");
        fs::write(
            &path,
            format!("{JOB}\n[train.x]\n").replace("[debug]", "num_vectors = 0\nrezolution = 64\n[debug]"),
        )
        .expect("written");
        let text = JobFile::read(&path, &[]).expect_err("invalid").to_string();
        for part in ["train.num_vectors", "train.rezolution", "job.toml"] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
}
