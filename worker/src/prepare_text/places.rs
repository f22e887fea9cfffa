//! Sources of inputs and targets of files: folders, and buckets by way of folders.

use std::path::{Path, PathBuf};

use ringtune_shared::{
    ids::ContentHash,
    job::{ModelLocation, S3Model},
};
use ringtune_sources::{CacheOptions, LocalModel, ModelSources, ProgressSender};
use ringtune_text::{ENDINGS, Input};

use super::Error;

/// Target of the files.
#[derive(Clone, Debug)]
pub(super) struct Output {
    /// The folder that they are written to.
    pub(super) folder: PathBuf,
    /// The bucket that they then go to.
    pub(super) bucket: Option<S3Model>,
}

impl Output {
    /// Reads --output-dir. What goes to a bucket is made in a folder beside the cache, of a name that follows from the place.
    pub(super) fn parse(given: &str, cache: &CacheOptions) -> Result<Self, Error> {
        let Some(place) = parse("--output-dir", given)? else {
            return Ok(Self { folder: PathBuf::from(given), bucket: None });
        };
        let name: String =
            ContentHash::of(place.to_string().as_bytes()).to_string().chars().take(16).collect();
        let beside = cache.folder.parent().unwrap_or(&cache.folder);
        Ok(Self { folder: beside.join("prepare-text").join(name), bucket: Some(place) })
    }
}

/// A place in a bucket; none for a path of this machine.
fn parse(option: &'static str, given: &str) -> Result<Option<S3Model>, Error> {
    let wrong = |problem| Error::Option { option, problem };
    if given.is_empty() {
        return Err(wrong("is empty; allowed: a path, or s3://BUCKET/PREFIX".to_owned()));
    }
    if given.starts_with("s3://") {
        return match ModelLocation::parse(given, "") {
            Ok(ModelLocation::S3(place)) => Ok(Some(place)),
            Ok(_) => Err(wrong(format!("got {given:?}; allowed: s3://BUCKET/PREFIX"))),
            Err((_, problem)) => Err(wrong(problem)),
        };
    }
    // A path may have a colon, but hardly two slashes behind it.
    match given.split_once("://") {
        Some((scheme, _)) if scheme.chars().all(|letter| letter.is_ascii_alphanumeric()) => Err(wrong(
            format!("got {given:?}; {scheme}:// is not supported; allowed: a path, or s3://BUCKET/PREFIX"),
        )),
        _ => Ok(None),
    }
}

/// An input that is on this machine, and stays as long as this value lives.
#[derive(Debug)]
pub(super) struct Here {
    pub(super) input: Input,
    _held: Option<LocalModel>,
}

/// Refuses inputs that are none, before any is fetched.
pub(super) fn check_inputs(given: &[String]) -> Result<(), Error> {
    given.iter().try_for_each(|input| parse("INPUT", input).map(|_| ()))
}

/// Brings an input to this machine: a file or a folder stays where it is.
pub(super) async fn bring(
    given: &str,
    sources: &ModelSources,
    progress: &ProgressSender,
) -> Result<Here, Error> {
    let Some(place) = parse("INPUT", given)? else {
        return Ok(Here { input: Input::local(Path::new(given)), _held: None });
    };
    let is_text = |name: &str| {
        name.rsplit_once('.')
            .is_some_and(|(_, ending)| ENDINGS.iter().any(|known| ending.eq_ignore_ascii_case(known)))
    };
    // An object's name is relative to the folder above.
    let (above, name) = place.prefix.rsplit_once('/').unwrap_or(("", &place.prefix));
    if is_text(name) {
        let folder = S3Model { bucket: place.bucket.clone(), prefix: above.to_owned() };
        let only = |names: &[String]| match names.iter().find(|listed| *listed == name) {
            Some(found) => Ok(vec![found.clone()]),
            None => Err(format!("has no {name}")),
        };
        let local = sources.fetch_files(&folder, &only, progress).await?;
        let input = Input { path: local.folder.join(name), name: given.to_owned() };
        return Ok(Here { input, _held: Some(local) });
    }
    let all = |names: &[String]| {
        let texts: Vec<String> = names.iter().filter(|name| is_text(name)).cloned().collect();
        match texts.is_empty() {
            true => Err("has no file that ends in .txt, .jsonl or .parquet".to_owned()),
            false => Ok(texts),
        }
    };
    let local = sources.fetch_files(&place, &all, progress).await?;
    let input = Input { path: local.folder.clone(), name: given.to_owned() };
    Ok(Here { input, _held: Some(local) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_buckets_are_told_apart() {
        let cache = CacheOptions { folder: "/cache/ringtune/models".into(), most_bytes: 0 };
        let local = Output::parse("data", &cache).unwrap();
        assert_eq!((local.folder, local.bucket), (PathBuf::from("data"), None));
        let [one, other] =
            ["s3://texts/a/b", "s3://texts/c"].map(|given| Output::parse(given, &cache).unwrap());
        assert!(one.folder.starts_with("/cache/ringtune/prepare-text") && one.folder != other.folder);
        assert_eq!(one.bucket.unwrap().prefix, "a/b");
        for wrong in ["", "s3://X/y", "s3://texts/a b", "gs://texts/a", "https://host/x"] {
            let refused = Output::parse(wrong, &cache).unwrap_err().to_string();
            assert!(refused.contains("--output-dir") && refused.contains("allowed"), "{refused}");
            assert!(check_inputs(&["a.txt".to_owned(), wrong.to_owned()]).is_err());
        }
        assert!(check_inputs(&["./odd:name.txt".to_owned()]).is_ok());
    }
}
