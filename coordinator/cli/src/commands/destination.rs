//! Where a command saves a job's files: a folder, or a bucket.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use ringtune_shared::job::{ModelLocation, S3Model};
use ringtune_sources::{CacheOptions, Environment, ModelSources, Patience, Upload};
use tempfile::TempDir;

use crate::{
    client::{Client, SavedArtifact},
    error::Error,
};

/// A folder that exists, or a bucket that takes files.
#[derive(Debug)]
pub(super) enum Destination {
    Folder(PathBuf),
    Bucket {
        place: S3Model,
        sources: ModelSources,
        /// Has each file on its way.
        folder: TempDir,
    },
}

impl Destination {
    /// What was chosen, or a folder with the job's name.
    ///
    /// # Errors
    /// The folder cannot be made, or the bucket does not take files.
    pub(super) async fn prepare(chosen: Option<PathBuf>, job_name: &str) -> Result<Self, Error> {
        let text = chosen.as_deref().and_then(Path::to_str).filter(|text| text.starts_with("s3://"));
        let Some(text) = text else { return prepare_folder(chosen, job_name).map(Self::Folder) };
        let place = match ModelLocation::parse(text, "") {
            Ok(ModelLocation::S3(place)) => place,
            Ok(_) => {
                return Err(Error::Usage(format!("--output-dir: got {text:?}; allowed: s3://BUCKET/PREFIX")));
            }
            Err((_, problem)) => return Err(Error::Usage(format!("--output-dir: {problem}"))),
        };
        let nothing_cached = CacheOptions { folder: PathBuf::new(), most_bytes: 0 };
        let sources = ModelSources::new(Environment::of_process(), nothing_cached, Patience::default());
        sources.check_writable(&place).await?;
        let folder = tempfile::tempdir().map_err(|source| Error::File {
            doing: "cannot make a temporary folder in",
            path: std::env::temp_dir(),
            source,
        })?;
        Ok(Self::Bucket { place, sources, folder })
    }

    /// The folder; none: it is a bucket.
    pub(super) fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(folder) => Some(folder),
            Self::Bucket { .. } => None,
        }
    }

    /// Saves one file, and says where it is.
    ///
    /// # Errors
    /// It cannot be fetched, written, or put into the bucket.
    pub(super) async fn save(
        &self,
        client: &Client,
        artifact: &ringtune_proto::v1::Artifact,
    ) -> Result<SavedArtifact, Error> {
        match self {
            Self::Folder(folder) => Ok(client.download(artifact, folder).await?),
            Self::Bucket { place, sources, folder } => {
                let mut saved = client.download(artifact, folder.path()).await?;
                let file = Upload { name: artifact.name.clone(), path: saved.path.clone() };
                sources.put(place, &file).await?;
                // What stays goes with the folder.
                let _ = tokio::fs::remove_file(&saved.path).await;
                saved.path = PathBuf::from(format!("{self}/{}", artifact.name));
                Ok(saved)
            }
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => folder.display().fmt(formatter),
            Self::Bucket { place, .. } => formatter.write_str(place.to_string().trim_end_matches('/')),
        }
    }
}

/// The folder for a job's artifacts: `chosen`, or one with the job's name.
pub(super) fn output_folder(chosen: Option<PathBuf>, job_name: &str) -> PathBuf {
    chosen.unwrap_or_else(|| Path::new("ringtune-out").join(folder_name(job_name)))
}

/// Makes the folder for a job's artifacts: `chosen`, or one with the job's name.
pub(super) fn prepare_folder(chosen: Option<PathBuf>, job_name: &str) -> Result<PathBuf, Error> {
    let folder = output_folder(chosen, job_name);
    check_folder(&folder)?;
    match fs::create_dir_all(&folder) {
        Ok(()) => Ok(folder),
        Err(source) => Err(Error::File { doing: "cannot make the output folder", path: folder, source }),
    }
}

/// That it is no URL.
pub(super) fn check_folder(folder: &Path) -> Result<(), Error> {
    if folder.to_str().is_some_and(|text| text.contains("://")) {
        return Err(Error::Usage(format!(
            "--output-dir: got {:?}; this command saves in a folder of this machine. With [output] url = \"s3://BUCKET/PREFIX\" a \
             job's files go to a bucket, too, and `ringtune fetch -o s3://…` puts them there afterwards",
            folder.display().to_string()
        )));
    }
    Ok(())
}

/// A job's name as the name of a folder: nothing in it that a path could mean.
fn folder_name(job_name: &str) -> String {
    let kept: String =
        job_name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    let name = kept.trim_start_matches(['.', '-']);
    if name.is_empty() { "job".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_folder() {
        assert_eq!(folder_name("green star"), "green-star");
        assert_eq!(folder_name("../../etc"), "etc");
        assert_eq!(folder_name("a/b"), "a-b");
        assert_eq!(folder_name("…"), "job");
        assert_eq!(folder_name("v1.5_x"), "v1.5_x");
    }
}
