//! How many steps a number of passes over the pictures takes.

use super::{TrainSpec, limits};
use crate::job::{ClusterSpec, SpecError, Violation};

impl TrainSpec {
    /// Whether `max_train_steps` still has to follow from `num_train_epochs`.
    pub(in crate::job) fn needs_image_count(&self) -> bool {
        self.max_train_steps == 0
    }

    /// Replaces `num_train_epochs` by the `max_train_steps` that so many passes take with `images` images; does
    /// nothing where `max_train_steps` is known: it counts more, as in diffusers' script.
    ///
    /// A pass shows each image `repeats` times, in batches of `train_batch_size` which the `world_size` ranks
    /// share; `gradient_accumulation_steps` of them are one step, the last of a pass having fewer.
    /// Source: diffusers, examples/textual_inversion/textual_inversion.py (num_update_steps_per_epoch).
    ///
    /// # Errors
    /// No image, or more steps than a job may have.
    pub fn count_steps(&mut self, images: u64, cluster: &ClusterSpec) -> Result<(), SpecError> {
        if !self.needs_image_count() {
            return Ok(());
        }
        let passes = self.num_train_epochs.unwrap_or(0);
        let samples = images.saturating_mul(u64::from(self.repeats));
        let batches = samples.div_ceil(u64::from(self.train_batch_size));
        let batches_of_a_rank = batches.div_ceil(u64::from(cluster.world_size));
        let steps_of_a_pass = batches_of_a_rank.div_ceil(u64::from(self.gradient_accumulation_steps));
        let steps = passes.saturating_mul(steps_of_a_pass);
        if steps == 0 || steps > limits::STEPS.unsigned_abs() {
            let problem = format!(
                "got {passes}, that is {steps} steps with {images} images, repeated {} times each; allowed: 1 to {} steps",
                self.repeats,
                limits::STEPS
            );
            return Err(SpecError { violations: vec![Violation::new("train.num_train_epochs", problem)] });
        }
        self.max_train_steps = steps;
        self.num_train_epochs = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::job::{parse_job_toml, tests::job_with as job};

    /// The script's own numbers: accelerate's dataloader of a process has ceil(batches / processes) batches.
    #[test]
    fn passes_become_the_scripts_steps() {
        for (train, cluster, images, steps) in [
            ("num_train_epochs = 1\ntrain_batch_size = 1", "", 5, 500),
            ("num_train_epochs = 3\ntrain_batch_size = 16", "", 5, 3 * 32),
            ("num_train_epochs = 2\nrepeats = 1\ntrain_batch_size = 2", "world_size = 2", 5, 4),
            (
                "num_train_epochs = 10\nrepeats = 7\ntrain_batch_size = 4\ngradient_accumulation_steps = 3",
                "world_size = 2",
                6,
                // 42 samples, 11 batches, 6 for a rank, 2 steps.
                20,
            ),
        ] {
            let mut spec = job(train, cluster);
            assert!(spec.needs_image_count());
            spec.count_steps(images).unwrap();
            assert_eq!(
                (
                    spec.textual_inversion().unwrap().train.max_train_steps,
                    spec.textual_inversion().unwrap().train.num_train_epochs
                ),
                (steps, None)
            );
            assert!(!spec.needs_image_count());
        }
    }

    #[test]
    fn given_steps_count_more_and_an_open_number_is_written_as_it_was_given() {
        let mut spec = job("num_train_epochs = 2\nmax_train_steps = 7", "");
        spec.count_steps(5).unwrap();
        assert_eq!(
            (
                spec.textual_inversion().unwrap().train.max_train_steps,
                spec.textual_inversion().unwrap().train.num_train_epochs
            ),
            (7, Some(2))
        );
        let open = job("num_train_epochs = 2", "");
        let text = open.to_toml().unwrap();
        assert!(!text.contains("max_train_steps"), "{text}");
        assert_eq!(parse_job_toml(&text).unwrap(), open);
        assert_eq!(job("", "").textual_inversion().unwrap().train.max_train_steps, 5000);
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let mut spec = job("num_train_epochs = 10_000_000", "");
        let before = spec.clone();
        let error = spec.count_steps(5).unwrap_err();
        assert_eq!(error.violations[0].field, "train.num_train_epochs");
        assert_eq!(spec, before);
        assert!(job("num_train_epochs = 1", "").count_steps(0).is_err());
        for line in ["num_train_epochs = 0", "repeats = 0", "repeats = 1_000_001", "max_train_steps = 0"] {
            let text = job("", "").to_toml().unwrap();
            let kept: Vec<&str> =
                text.lines().filter(|old| !old.starts_with(line.split(' ').next().unwrap())).collect();
            let wrong = kept.join("\n").replace("[train]", &format!("[train]\n{line}"));
            let error = parse_job_toml(&wrong).unwrap_err();
            assert!(error.to_string().contains(line.split(' ').next().unwrap()), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_number_panics(images in any::<u64>(), passes in 1i64..=10_000_000, repeats in 1i64..=1_000_000) {
            let mut spec = job(&format!("num_train_epochs = {passes}\nrepeats = {repeats}"), "");
            let resolved = spec.count_steps(images);
            prop_assert_eq!(resolved.is_ok(), (1..=10_000_000).contains(&spec.textual_inversion().unwrap().train.max_train_steps));
        }
    }
}
