//! `FILE[:WEIGHT]`: a LoRA on the command line, and how strongly it counts.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

/// A LoRA's file, and the number that its product is multiplied by.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightedFile {
    /// Its path.
    pub path: PathBuf,
    /// Finite; 1 unless something else was said.
    pub weight: f64,
}

/// What stands behind the last colon is neither a weight nor a part of a file's name.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{given:?}: {weight:?} is no weight; allowed: FILE or FILE:WEIGHT, such as toy.safetensors:0.8")]
pub struct WeightError {
    given: String,
    weight: String,
}

impl FromStr for WeightedFile {
    type Err = WeightError;

    /// A file's name may have a colon in it: what is there under the whole text is a file.
    fn from_str(given: &str) -> Result<Self, WeightError> {
        let (path, weight) = match given.rsplit_once(':') {
            Some((path, weight)) if !Path::new(given).exists() => {
                let parsed = weight.parse::<f64>().ok().filter(|weight| weight.is_finite());
                let wrong = || WeightError { given: given.to_owned(), weight: weight.to_owned() };
                (path, parsed.ok_or_else(wrong)?)
            }
            _ => (given, 1.0),
        };
        Ok(Self { path: path.into(), weight })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_stands_behind_the_last_colon_unless_a_file_is_called_so() {
        let folder = tempfile::tempdir().unwrap();
        let with_colon = folder.path().join("style:2").display().to_string();
        std::fs::write(&with_colon, b"").unwrap();
        for (given, path, weight) in [
            ("a.safetensors", "a.safetensors", 1.0),
            ("a.safetensors:-0.25", "a.safetensors", -0.25),
            (&with_colon, &with_colon, 1.0),
            (&format!("{with_colon}:0.5"), &with_colon, 0.5),
        ] {
            let expected = WeightedFile { path: path.into(), weight };
            assert_eq!(given.parse::<WeightedFile>(), Ok(expected), "{given}");
        }
        for given in ["a.safetensors:strong", "a.safetensors:", "a.safetensors:inf", "a.safetensors:NaN"] {
            assert!(given.parse::<WeightedFile>().is_err(), "{given}");
        }
    }
}
