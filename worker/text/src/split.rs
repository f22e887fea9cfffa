//! Splits documents into training and validation, in random order.
//!
//! Source: Hugging Face `datasets`, `Dataset.train_test_split` with `shuffle=True`, as nanoGPT's
//! `data/openwebtext/prepare.py` calls it; "test" there is validation here.

use crate::{Error, numpy};

/// Options of a split. The defaults are nanoGPT's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitOptions {
    /// The share of the documents that is for validation, between 0 and 1, rounded up to whole documents.
    pub val_fraction: f64,
    /// Seed of the order.
    pub seed: u64,
}

impl Default for SplitOptions {
    fn default() -> Self {
        Self { val_fraction: 0.0005, seed: 2357 }
    }
}

/// All documents in the order of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    order: Vec<u32>,
    validation: usize,
}

impl SplitOptions {
    /// Refuses a share that is none, before anything is read.
    ///
    /// # Errors
    /// What was given and what is allowed.
    pub fn check(&self) -> Result<(), Error> {
        if self.val_fraction > 0.0 && self.val_fraction < 1.0 {
            return Ok(());
        }
        let problem =
            format!("is {}; allowed: a number above 0 and below 1, as in 0.0005", self.val_fraction);
        Err(Error::option("--val-fraction", problem))
    }

    /// Number of validation documents among `documents`: rounded up, so at least one.
    ///
    /// # Errors
    /// There are fewer than two documents, or none is left to train on.
    pub fn validation(&self, documents: u32) -> Result<u32, Error> {
        self.check()?;
        if documents < 2 {
            let problem = format!(
                "{documents} documents; allowed: 2 or more, one to train on and one to validate with"
            );
            return Err(Error::Documents(problem));
        }
        // No more than `documents`: the share is below 1.
        let validation = (self.val_fraction * f64::from(documents)).ceil() as u32;
        if validation >= documents {
            let problem = format!(
                "is {}: all {documents} documents would be for validation, and none is left to train on",
                self.val_fraction
            );
            return Err(Error::option("--val-fraction", problem));
        }
        Ok(validation)
    }
}

impl Split {
    /// Splits `documents` documents.
    ///
    /// # Errors
    /// As [`SplitOptions::validation`].
    pub fn new(options: &SplitOptions, documents: u32) -> Result<Self, Error> {
        let validation = options.validation(documents)? as usize;
        Ok(Self { order: numpy::permutation(options.seed, documents), validation })
    }

    /// Numbers of the documents of `val.bin`, in their order.
    pub fn validation(&self) -> &[u32] {
        self.order.get(..self.validation).unwrap_or_default()
    }

    /// Numbers of the documents of `train.bin`, in their order.
    pub fn training(&self) -> &[u32] {
        self.order.get(self.validation..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validation(val_fraction: f64, documents: u32) -> Result<u32, Error> {
        SplitOptions { val_fraction, seed: 0 }.validation(documents)
    }

    #[test]
    fn the_share_is_rounded_up() {
        // nanoGPT's readme of the data: 8,009,762 documents to train on, 4,007 to validate with.
        assert_eq!(validation(0.0005, 8_013_769).unwrap(), 4007);
        for (share, documents, expected) in
            [(0.0005, 2, 1), (0.0005, 10_000, 5), (0.5, 5, 3), (0.1, 10, 1), (0.3, 10, 3), (1e-300, 7, 1)]
        {
            assert_eq!(validation(share, documents).unwrap(), expected, "{share} of {documents}");
        }
    }

    #[test]
    fn what_cannot_be_split_is_refused_by_name() {
        for share in [0.0, 1.0, -0.1, 1.5, f64::NAN, f64::INFINITY] {
            let refused = validation(share, 10).unwrap_err().to_string();
            assert!(refused.contains("--val-fraction") && refused.contains("above 0"), "{refused}");
        }
        assert!(validation(0.9, 2).unwrap_err().to_string().contains("none is left to train on"));
        for documents in [0, 1] {
            assert!(validation(0.5, documents).unwrap_err().to_string().contains("2 or more"));
        }
    }

    #[test]
    fn every_document_is_in_one_part() {
        let split = Split::new(&SplitOptions { val_fraction: 0.3, seed: 2357 }, 10).unwrap();
        // As `default_rng(2357).permutation(10)`.
        assert_eq!(split.validation(), [8, 3, 0]);
        assert_eq!(split.training(), [9, 5, 6, 2, 7, 4, 1]);
    }
}
