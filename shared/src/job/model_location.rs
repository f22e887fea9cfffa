//! Model locations: the forms of `model.base`.

use std::fmt;
use std::path::PathBuf;

/// The revision of a repository where none is given: the hub's own default branch.
pub const DEFAULT_REVISION: &str = "main";

const HUB_PREFIX: &str = "hf://";
const S3_PREFIX: &str = "s3://";
/// What the names of a hub's sets of data begin with.
const DATASETS: &str = "datasets/";
/// The hub's limit.
const LONGEST_REPOSITORY: usize = 96;
const LONGEST_REVISION: usize = 200;
/// S3's limit.
const BUCKET_LENGTHS: std::ops::RangeInclusive<usize> = 3..=63;
const LONGEST_KEY: usize = 900;

/// A model's location. Its parts have been checked: none leads out of a folder or changes a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelLocation {
    /// A folder in diffusers layout, or one safetensors file in the original layout, as every worker sees it.
    Local(PathBuf),
    /// A repository of a model hub.
    Hub(HubModel),
    /// A folder in diffusers layout in a bucket.
    S3(S3Model),
}

/// A repository of a model hub, `hf://ORG/NAME@REVISION`, or `hf://datasets/ORG/NAME@REVISION`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubModel {
    /// "org/name"; of a set of data "datasets/org/name".
    pub repository: String,
    /// A branch, a tag or a commit.
    pub revision: String,
}

/// The objects of a bucket whose names begin with a prefix, `s3://BUCKET/PREFIX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Model {
    /// The bucket.
    pub bucket: String,
    /// Without a slash at either end; may be empty.
    pub prefix: String,
}

impl ModelLocation {
    /// Reads `model.base`, with `model.revision` (empty: not given).
    ///
    /// # Errors
    /// The field that is wrong ("model.base" or "model.revision"), with what was given and what is allowed.
    pub fn parse(base: &str, revision: &str) -> Result<Self, (&'static str, String)> {
        let base_error = |problem| ("model.base", problem);
        if let Some(rest) = base.strip_prefix(HUB_PREFIX) {
            return HubModel::parse(rest, revision).map(Self::Hub);
        }
        if !revision.is_empty() {
            let problem = format!("got {revision:?}; only repositories have revisions: hf://ORG/NAME");
            return Err(("model.revision", problem));
        }
        if let Some(rest) = base.strip_prefix(S3_PREFIX) {
            return S3Model::parse(rest).map(Self::S3).map_err(base_error);
        }
        if let Some(scheme) = super::text::scheme(base) {
            let given = super::text::shortened(base);
            return Err(base_error(format!(
                "got {given:?}; {scheme}:// is not supported: allowed are a folder in diffusers layout, \
                 a .safetensors file, hf://ORG/NAME or s3://BUCKET/PREFIX"
            )));
        }
        Ok(Self::Local(PathBuf::from(base)))
    }

    /// Reads `data.source`, where pictures are.
    ///
    /// # Errors
    /// What was given and what is allowed.
    pub fn parse_pictures(source: &str) -> Result<Self, String> {
        let Some(rest) = source.strip_prefix(HUB_PREFIX) else {
            let allowed = "a folder as every worker sees it, s3://BUCKET/PREFIX or hf://datasets/ORG/NAME";
            let given = super::text::shortened(source);
            return match super::text::scheme(source) {
                Some("s3") | None => Self::parse(source, "").map_err(|(_, problem)| problem),
                Some(scheme) => {
                    Err(format!("got {given:?}; {scheme}:// is not supported: allowed are {allowed}"))
                }
            };
        };
        let Some(rest) = rest.strip_prefix(DATASETS) else {
            let given = shown(HUB_PREFIX, rest);
            return Err(format!(
                "got {given:?}; allowed: hf://datasets/ORG/NAME or hf://datasets/ORG/NAME@REVISION"
            ));
        };
        let HubModel { repository, revision } = HubModel::parse(rest, "").map_err(|(_, problem)| problem)?;
        Ok(Self::Hub(HubModel { repository: format!("{DATASETS}{repository}"), revision }))
    }

    /// Whether `model.base` is a path of this machine.
    pub fn is_path(base: &str) -> bool {
        !base.starts_with(HUB_PREFIX) && !base.starts_with(S3_PREFIX)
    }
}

impl fmt::Display for ModelLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => write!(formatter, "{}", path.display()),
            Self::Hub(hub) => hub.fmt(formatter),
            Self::S3(s3) => s3.fmt(formatter),
        }
    }
}

impl HubModel {
    fn parse(rest: &str, revision: &str) -> Result<Self, (&'static str, String)> {
        let (repository, inline) = match rest.split_once('@') {
            Some((repository, inline)) => (repository, Some(inline)),
            None => (rest, None),
        };
        check_repository(repository)
            .map_err(|problem| ("model.base", format!("got {:?}; {problem}", shown(HUB_PREFIX, rest))))?;
        let (field, revision) = match (inline, revision) {
            (Some(inline), "") => ("model.base", inline),
            (None, "") => ("model.base", DEFAULT_REVISION),
            (None, given) => ("model.revision", given),
            (Some(inline), given) if inline == given => ("model.revision", given),
            (Some(inline), given) => {
                let problem = format!("got {given:?}, but model.base says {inline:?}: give one of them");
                return Err(("model.revision", problem));
            }
        };
        check_revision(revision).map_err(|problem| (field, problem))?;
        Ok(Self { repository: repository.to_owned(), revision: revision.to_owned() })
    }

    /// "org/name", if it is a set of data.
    pub fn dataset(&self) -> Option<&str> {
        self.repository.strip_prefix(DATASETS)
    }

    /// Whether `text`, a path that leads nowhere, may be meant as a repository: "org/name".
    pub fn is_repository(text: &str) -> bool {
        check_repository(text).is_ok()
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{HUB_PREFIX}{}@{}", self.repository, self.revision)
    }
}

impl S3Model {
    fn parse(rest: &str) -> Result<Self, String> {
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let given = || format!("got {:?}", shown(S3_PREFIX, rest));
        let letters = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
        let is_bucket = BUCKET_LENGTHS.contains(&bucket.len())
            && bucket.chars().all(|letter| letters(letter) || matches!(letter, '-' | '.'))
            && bucket.starts_with(letters)
            && bucket.ends_with(letters)
            && !bucket.contains("..");
        if !is_bucket {
            let allowed = "3 to 63 lower-case letters, digits, dots and hyphens";
            return Err(format!("{}; allowed as a bucket's name: {allowed}", given()));
        }
        if prefix.len() > LONGEST_KEY {
            let length = prefix.len();
            return Err(format!("{}; its prefix has {length} bytes; allowed: {LONGEST_KEY}", given()));
        }
        let is_prefix = prefix.is_empty() || prefix.split('/').all(is_plain_name);
        if !is_prefix {
            let allowed = "letters, digits and -_.+=@ between single slashes, and no . or ..";
            return Err(format!("{}; allowed as a prefix: {allowed}", given()));
        }
        Ok(Self { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl fmt::Display for S3Model {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{S3_PREFIX}{}/{}", self.bucket, self.prefix)
    }
}

/// Checks `model.variant`: the "fp16" of `diffusion_pytorch_model.fp16.safetensors`.
///
/// # Errors
/// What was given and what is allowed.
pub fn check_variant(variant: &str) -> Result<(), String> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    if variant.len() <= 32 && variant.chars().all(is_letter) {
        return Ok(());
    }
    let given = super::text::shortened(variant);
    Err(format!(
        "got {given:?}; allowed: at most 32 letters, digits, hyphens and underscores, as in \"fp16\""
    ))
}

/// Whether `name` is one part of a path that means the same in a URL, in a bucket and in a folder.
pub fn is_plain_name(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.+=@".contains(letter);
    !name.is_empty() && name.len() <= 255 && name.chars().all(is_letter) && name != "." && name != ".."
}

/// Source: huggingface_hub's `validate_repo_id`, and a slash is needed.
fn check_repository(repository: &str) -> Result<(), String> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let is_part = |part: &str| {
        !part.is_empty()
            && part.chars().all(is_letter)
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
    };
    let parts: Vec<&str> = repository.split('/').collect();
    let fits = parts.len() == 2
        && parts.iter().all(|part| is_part(part))
        && repository.len() <= LONGEST_REPOSITORY
        && !repository.contains("--")
        && !repository.contains("..")
        && !repository.ends_with(".git");
    if fits {
        return Ok(());
    }
    Err(format!(
        "allowed: hf://ORG/NAME or hf://ORG/NAME@REVISION, ORG/NAME of at most {LONGEST_REPOSITORY} letters, digits, \
         -, _ and . (no -- or .., none of - . at an end, no .git)"
    ))
}

/// Git's rules for branches and tags, without rare characters.
fn check_revision(revision: &str) -> Result<(), String> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.+".contains(letter);
    let is_part = |part: &str| {
        !part.is_empty()
            && part.chars().all(is_letter)
            && !part.starts_with(['-', '.'])
            && !part.ends_with('.')
    };
    let fits = revision.len() <= LONGEST_REVISION
        && revision.split('/').all(is_part)
        && !revision.contains("..")
        && !revision.ends_with(".lock");
    if fits {
        return Ok(());
    }
    let given = super::text::shortened(revision);
    Err(format!(
        "got the revision {given:?}; allowed: a branch, a tag or a commit, at most {LONGEST_REVISION} letters, digits \
         and -_.+/"
    ))
}

fn shown(prefix: &str, rest: &str) -> String {
    super::text::shortened(&format!("{prefix}{rest}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hub(repository: &str, revision: &str) -> ModelLocation {
        ModelLocation::Hub(HubModel { repository: repository.into(), revision: revision.into() })
    }

    fn s3(bucket: &str, prefix: &str) -> ModelLocation {
        ModelLocation::S3(S3Model { bucket: bucket.into(), prefix: prefix.into() })
    }

    #[test]
    fn every_place_is_known_by_its_beginning() {
        let cases = [
            ("/models/sd", "", ModelLocation::Local("/models/sd".into())),
            ("C:/a://b", "", ModelLocation::Local("C:/a://b".into())),
            ("hf://acme/toy-sd", "", hub("acme/toy-sd", "main")),
            ("hf://acme/toy-sd@v1.0", "", hub("acme/toy-sd", "v1.0")),
            ("hf://acme/toy-sd", "refs/pr/3", hub("acme/toy-sd", "refs/pr/3")),
            ("hf://acme/toy-sd@v1", "v1", hub("acme/toy-sd", "v1")),
            ("s3://models", "", s3("models", "")),
            ("s3://models/", "", s3("models", "")),
            ("s3://my.models/sd/v1-5/", "", s3("my.models", "sd/v1-5")),
        ];
        for (base, revision, expected) in cases {
            assert_eq!(ModelLocation::parse(base, revision), Ok(expected), "{base}");
        }
        assert_eq!(hub("a/b", "main").to_string(), "hf://a/b@main");
        assert_eq!(s3("abc", "d/e").to_string(), "s3://abc/d/e");
    }

    #[test]
    fn odd_places_are_refused_by_field() {
        let long = format!("hf://a/{}", "b".repeat(96));
        for base in [
            "hf://",
            "hf://name",
            "hf://a/b/c",
            "hf://../b",
            "hf://a/..",
            "hf://a/b c",
            "hf://a/b?x",
            "hf://a/-b",
            "hf://a/b.git",
            "hf://a/b--c",
            "hf://a/b%2f",
            "hf://a/b@",
            "hf://a/b@../x",
            "hf://a/b@x y",
            "hf://a/b@-x",
            "hf://a/b@c@d",
            "hf://a/b@x//y",
            "hf://a/b@x.lock",
            &long,
            "s3://",
            "s3://ab",
            "s3://Upper/x",
            "s3://abc/../x",
            "s3://abc//x",
            "s3://abc/x//",
            "s3://abc/./x",
            "s3://abc/a b",
            "s3://abc/a%2e",
            "s3://abc/a?b",
            "s3://-abc/x",
            "s3://user:password@host/x",
            "https://x/y",
            "gs://b/x",
        ] {
            let refused = ModelLocation::parse(base, "");
            assert_eq!(refused.as_ref().map_err(|error| error.0), Err("model.base"), "{base}: {refused:?}");
        }
        for (base, revision) in
            [("/models/sd", "main"), ("s3://abc/x", "v1"), ("hf://a/b@v1", "v2"), ("hf://a/b", "..")]
        {
            let refused = ModelLocation::parse(base, revision);
            assert_eq!(
                refused.as_ref().map_err(|error| error.0),
                Err("model.revision"),
                "{base}: {refused:?}"
            );
        }
    }

    #[test]
    fn pictures_are_in_folders_buckets_and_sets_of_data() {
        let parse = ModelLocation::parse_pictures;
        assert_eq!(parse("/sets/toys"), Ok(ModelLocation::Local("/sets/toys".into())));
        assert_eq!(parse("s3://sets/toys/"), Ok(s3("sets", "toys")));
        assert_eq!(parse("hf://datasets/acme/toys"), Ok(hub("datasets/acme/toys", "main")));
        let Ok(ModelLocation::Hub(set)) = parse("hf://datasets/acme/toys@refs/convert/parquet") else {
            panic!()
        };
        assert_eq!((set.dataset(), set.revision.as_str()), (Some("acme/toys"), "refs/convert/parquet"));
        assert_eq!(set.to_string(), "hf://datasets/acme/toys@refs/convert/parquet");
        for (wrong, problem) in [
            ("hf://acme/toys", "hf://datasets/ORG/NAME"),
            ("hf://datasets/toys", "ORG/NAME"),
            ("hf://datasets/../b", "ORG/NAME"),
            ("hf://datasets/a/b@../c", "the revision"),
            ("s3://Upper/x", "bucket's name"),
            ("https://x/y.tar", "https:// is not supported"),
            ("file:///x", "file:// is not supported"),
        ] {
            let refused = parse(wrong).unwrap_err();
            assert!(refused.contains(problem), "{wrong}: {refused}");
        }
        // A model is none.
        assert!(ModelLocation::parse("hf://datasets/acme/toys", "").is_err());
    }

    #[test]
    fn variants_are_words() {
        for good in ["", "fp16", "non_ema", "bf-16"] {
            assert_eq!(check_variant(good), Ok(()));
        }
        for wrong in ["fp16.", "../x", "a b", &"x".repeat(33), "*"] {
            assert!(check_variant(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        /// An accepted location is safe in paths and URLs, and reads back the same.
        #[test]
        fn what_is_accepted_leads_nowhere_else(rest in "[a-zA-Z0-9./@:%?# -]{0,24}", scheme in "hf|s3") {
            if let Ok(location) = ModelLocation::parse(&format!("{scheme}://{rest}"), "") {
                let text = location.to_string();
                prop_assert!(!text.contains("..") || scheme == "s3");
                prop_assert!(text.split('/').all(|part| part != ".." && part != "."));
                prop_assert!(!text.contains(['%', '?', '#', ' ']));
                prop_assert_eq!(ModelLocation::parse(&text, ""), Ok(location));
            }
        }
    }
}
