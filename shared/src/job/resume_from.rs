//! The forms of `resume_from_checkpoint`.

use crate::{
    checkpoint_names::step_of_stem,
    ids::{CONTENT_URI_PREFIX, ContentHash},
};

/// A job's starting point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeFrom {
    /// At step 1.
    Nothing,
    /// From the newest checkpoint in the output folder; at step 1 if there is none.
    Latest,
    /// From the checkpoint of this step in the output folder.
    Step(u64),
    /// From this content at the coordinator.
    Uploaded(ContentHash),
    /// From this file.
    File(String),
}

/// A text that names no checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "got {given:?}; allowed: \"latest\", a step as in \"500\" or \"checkpoint-500\", a file, or an {CONTENT_URI_PREFIX} \
     URI"
)]
pub struct NotAResume {
    given: String,
}

impl ResumeFrom {
    /// Reads the option's text. A file has a `/` in it or ends in `.safetensors`.
    ///
    /// # Errors
    /// The text is malformed.
    pub fn parse(text: &str) -> Result<Self, NotAResume> {
        let wrong = || NotAResume { given: text.chars().take(80).collect() };
        let step = || if text.starts_with(['+', '-']) { None } else { text.parse().ok() };
        match text {
            "" => Ok(Self::Nothing),
            "latest" => Ok(Self::Latest),
            uri if uri.starts_with(CONTENT_URI_PREFIX) => {
                ContentHash::from_uri(uri).map(Self::Uploaded).map_err(|_| wrong())
            }
            uri if uri.contains("://") => Err(wrong()),
            file if file.contains('/') || file.ends_with(".safetensors") => Ok(Self::File(file.to_owned())),
            _ => step_of_stem(text).or_else(step).map(Self::Step).ok_or_else(wrong),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_told_from_the_others() {
        let uri = ContentHash::of(b"x").uri();
        let file = |path: &str| Ok(ResumeFrom::File(path.to_owned()));
        assert_eq!(ResumeFrom::parse(""), Ok(ResumeFrom::Nothing));
        assert_eq!(ResumeFrom::parse("latest"), Ok(ResumeFrom::Latest));
        assert_eq!(ResumeFrom::parse("500"), Ok(ResumeFrom::Step(500)));
        assert_eq!(ResumeFrom::parse("checkpoint-500"), Ok(ResumeFrom::Step(500)));
        assert_eq!(ResumeFrom::parse(&uri), Ok(ResumeFrom::Uploaded(ContentHash::of(b"x"))));
        assert_eq!(ResumeFrom::parse("out/checkpoint-500"), file("out/checkpoint-500"));
        assert_eq!(ResumeFrom::parse("checkpoint-5.safetensors"), file("checkpoint-5.safetensors"));
        for wrong in
            ["lastest", "-5", "+5", "1.5", "artifact://sha256/0", "s3://a/b", "checkpoint-", "checkpoint-x"]
        {
            assert!(ResumeFrom::parse(wrong).is_err(), "{wrong}");
        }
    }
}
