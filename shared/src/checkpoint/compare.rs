//! Whether a checkpoint belongs to a job.

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

use super::{About, Numerics};
use crate::job::JobSpec;

/// Options of all kinds that decide no bit: sections as a whole, or keys of one. Whatever neither this list nor the
/// kind's own names is taken to decide something.
const WITHOUT_EFFECT: &[&str] = &[
    "name",
    // Compared by content.
    "model.base",
    "model.revision",
    "model.variant",
    "model.tokenizer",
    "debug",
    "output",
    // The kind says what the number of ranks decides.
    "cluster.world_size",
    "cluster.min_world_size",
    // Compared as decided.
    "cluster.threads_per_rank",
    "cluster.constraints",
    "cluster.topology",
];

/// Something that decides the bits and is not the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The option, by its full name.
    pub option: String,
    /// The checkpoint's value; none: the option was not there.
    pub before: Option<Value>,
    /// The job's.
    pub now: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: &Option<Value>| match value {
            None => "not there".to_owned(),
            Some(value) => {
                let text = value.to_string();
                let end = if text.chars().count() > 80 { "…" } else { "" };
                text.chars().take(80).chain(end.chars()).collect()
            }
        };
        write!(formatter, "{} was {}, now it is {}", self.option, text(&self.before), text(&self.now))
    }
}

/// The options that decide the learned bits of a job besides its model and data, by name.
///
/// `step`: the one whose state it is. A run may become longer where no step up to it depends on how many there are: a
/// learning rate may, and so does a validation that was due only because `step` was the last. Of its orders those count that
/// were carried out by then.
pub fn deciding_options(spec: &JobSpec, step: u64) -> BTreeMap<String, Value> {
    let mut options = BTreeMap::new();
    let mut carried_out = spec.clone();
    carried_out.common.orders = spec.common.orders.up_to(step);
    if spec.steps().is_none_or(|steps| !steps.is_judged_as_the_last(step)) {
        carried_out.common.orders.stop_after = None;
    }
    // A spec is plain data: it is always written as an object.
    if let Ok(Value::Object(sections)) = serde_json::to_value(&carried_out) {
        for (section, value) in sections {
            match value {
                Value::Object(keys) => {
                    options.extend(keys.into_iter().map(|(key, value)| (format!("{section}.{key}"), value)));
                }
                Value::Array(tables) => {
                    let tables = tables.into_iter().map(without_places).collect();
                    options.insert(section, Value::Array(tables));
                }
                plain => drop(options.insert(section, plain)),
            }
        }
    }
    options.retain(|option, _| decides(spec, option));
    spec.work.facts().add_deciding(&spec.common.cluster, &mut options);
    if let Some(steps) = spec.steps().filter(|steps| !steps.total_decides(step)) {
        options.remove(steps.option);
    }
    options
}

/// By an option's full name.
fn decides(spec: &JobSpec, option: &str) -> bool {
    let section = option.split_once('.').map_or("", |(section, _)| section);
    !WITHOUT_EFFECT.iter().any(|known| *known == option || *known == section)
        && spec.work.facts().decides(option)
}

/// A table of a list without the keys that say where something is: contents, captions among them, are compared.
fn without_places(table: Value) -> Value {
    match table {
        Value::Object(mut keys) => {
            keys.remove("images");
            keys.remove("folders");
            keys.remove("caption_column");
            Value::Object(keys)
        }
        plain => plain,
    }
}

impl About {
    /// The deciding options in which the checkpoint's job and `spec` differ.
    pub fn differences(&self, spec: &JobSpec) -> Vec<Difference> {
        let mut now = deciding_options(spec, self.step);
        let steps = spec.steps().map(|steps| steps.option);
        // Whether the number of steps has decided anything so far, the checkpoint says.
        if let Some(steps) = spec.steps() {
            match self.options.contains_key(steps.option) {
                true => now.insert(steps.option.to_owned(), Value::from(steps.total)),
                false => now.remove(steps.option),
            };
        }
        let names: std::collections::BTreeSet<&String> = self.options.keys().chain(now.keys()).collect();
        names
            .into_iter()
            // A checkpoint of an earlier version may have written one down that decides nothing.
            .filter(|option| decides(spec, option))
            .filter(|option| self.options.get(*option) != now.get(*option))
            // Not known before the images are counted.
            .filter(|option| !spec.needs_image_count() || Some(option.as_str()) != steps)
            .map(|option| Difference {
                option: option.clone(),
                before: self.options.get(option).cloned(),
                now: now.get(option).cloned(),
            })
            .collect()
    }

    /// What speaks against going on with `spec` from here, as far as the spec tells.
    ///
    /// # Errors
    /// Everything, in words: the options that differ, or that the job has fewer steps.
    pub fn check(&self, spec: &JobSpec) -> Result<(), String> {
        let differences: Vec<String> = self.differences(spec).iter().map(ToString::to_string).collect();
        if !differences.is_empty() {
            return Err(format!("the checkpoint is of another job: {}", differences.join("; ")));
        }
        let (done, total) = (self.step, spec.total_steps());
        // After the last step only the results are to be written again.
        if !spec.needs_image_count() && done > total {
            return Err(format!(
                "the checkpoint is after step {done} and {} is {total}: take an earlier one",
                spec.steps().map_or("the number of steps", |steps| steps.option)
            ));
        }
        Ok(())
    }

    /// What a user should know where the numerics are others than the checkpoint's.
    ///
    /// # Errors
    /// Another precision, in words: that is another job.
    pub fn check_numerics(&self, now: &Numerics) -> Result<Option<String>, String> {
        let before = &self.numerics;
        if before.precision != now.precision {
            return Err(format!(
                "the checkpoint was computed in {:?} (mixed_precision, as the workers had it), this job computes \
                 in {:?}",
                before.precision, now.precision
            ));
        }
        if before == now {
            return Ok(None);
        }
        Ok(Some(format!(
            "NOT BIT-EXACT: the checkpoint was computed on {} with {} threads a rank, this job goes on on {} with {}; \
             its result will differ slightly from that of a run without a stop",
            before.class, before.threads_per_rank, now.class, now.threads_per_rank
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::file::tests::example, *};
    use crate::job::{pictures::FolderSpec, tests::job_with as spec};

    fn about(spec: &JobSpec, step: u64) -> About {
        About { step, options: deciding_options(spec, step), ..example() }
    }

    #[test]
    fn what_decides_nothing_may_differ() {
        let one = spec("", "world_size = 4\nmin_world_size = 2");
        let mut other = spec(
            "save_steps = 1\ncheckpointing_steps = 3\ncheckpoints_total_limit = 2\nresume_from_checkpoint = \"latest\"\n\
             max_train_steps = 9000\ngradient_accumulation_steps = 2\nsave_as_full_pipeline = true\n\
             validation_prompt = \"a <a>\"\nnum_validation_images = 2\nvalidation_steps = 3\nreport_to = \"none\"",
            "world_size = 2",
        );
        other.common.name = "other".to_owned();
        other.common.model.base = "/elsewhere".to_owned();
        other.common.model.tokenizer = "/elsewhere".to_owned();
        other.textual_inversion_mut().unwrap().data.images = "/elsewhere".to_owned();
        other.common.debug.trace_dir = "/t".to_owned();
        other.common.output.url = "s3://results/a".to_owned();
        assert_eq!(about(&one, 7).differences(&other), []);
        assert_eq!(about(&one, 7).check(&other), Ok(()));
        let mut older = about(&one, 7);
        older.options.insert("train.validation_steps".to_owned(), Value::from(100));
        assert_eq!(older.differences(&other), []);
    }

    #[test]
    fn places_of_pictures_decide_nothing() {
        let folders = |images: &str| FolderSpec {
            images: images.to_owned(),
            repeats: 2,
            caption_column: String::new(),
        };
        let mut one = spec("", "");
        (
            one.textual_inversion_mut().unwrap().data.images,
            one.textual_inversion_mut().unwrap().data.folders,
        ) = (String::new(), vec![folders("/a"), folders("/b")]);
        let mut other = one.clone();
        other.textual_inversion_mut().unwrap().data.folders[1] = folders("/elsewhere");
        other.textual_inversion_mut().unwrap().data.caption_column = "words".to_owned();
        assert_eq!(about(&one, 7).differences(&other), []);
        one.textual_inversion_mut().unwrap().train.shuffle_tags = true;
        assert!(about(&one, 7).check(&other).unwrap_err().contains("train.shuffle_tags was true"));
    }

    #[test]
    fn passes_count_once_they_are_steps() {
        let cosine = |steps: &str| spec(&format!("lr_scheduler = \"cosine\"\nrepeats = 2\n{steps}"), "");
        let before = about(&cosine("max_train_steps = 100"), 7);
        let mut passes = cosine("num_train_epochs = 50\ntrain_batch_size = 16");
        assert_eq!(before.check(&passes), Ok(()));
        passes.count_steps(16).unwrap();
        assert_eq!(before.check(&passes), Ok(()));
        passes.textual_inversion_mut().unwrap().train.max_train_steps = 99;
        assert!(before.check(&passes).unwrap_err().contains("train.max_train_steps was 100, now it is 99"));
    }

    #[test]
    fn what_decides_something_is_named_with_both_values() {
        let one = spec("lr_scheduler = \"cosine\"\nmax_train_steps = 100", "world_size = 2");
        let other = spec(
            "lr_scheduler = \"cosine\"\nmax_train_steps = 200\nseed = 3\nsnr_gamma = 5.0\ntemplates = [\"a {}\"]",
            "world_size = 3",
        );
        let problem = about(&one, 7).check(&other).unwrap_err();
        for part in [
            "train.max_train_steps was 100, now it is 200",
            "train.seed was 0, now it is 3",
            "train.snr_gamma was 0.0, now it is 5.0",
            "train.templates was [], now it is [\"a {}\"]",
            "cluster.world_size x train.gradient_accumulation_steps was 2, now it is 3",
        ] {
            assert!(problem.contains(part), "{part:?} is missing in {problem:?}");
        }
        let mut newer = about(&one, 7);
        newer.options.insert("train.new".to_owned(), Value::from(1));
        assert!(newer.check(&one).unwrap_err().contains("train.new was 1, now it is not there"));
    }

    #[test]
    fn a_run_may_end_again_but_not_before_its_checkpoint() {
        let job = spec("max_train_steps = 9", "");
        for step in [8, 9] {
            assert_eq!(about(&job, step).check(&job), Ok(()));
        }
        assert!(about(&job, 10).check(&job).unwrap_err().contains("take an earlier one"));
    }

    #[test]
    fn a_validation_that_was_the_last_steps_own_keeps_a_run_from_becoming_longer() {
        let of = |total: u64, more: &str| {
            spec(&format!("max_train_steps = {total}\nvalidation_loss_steps = 4\n{more}"), "")
        };
        let (nine, longer) = (of(9, "select_best = true"), of(20, "select_best = true"));
        let refused = about(&nine, 9).check(&longer).unwrap_err();
        assert!(refused.contains("train.max_train_steps was 9, now it is 20"), "{refused}");
        assert_eq!(about(&nine, 9).check(&nine), Ok(()));
        // Before it, where it would have been due anyway, and where nothing is chosen by it.
        assert_eq!(about(&nine, 8).check(&longer), Ok(()));
        assert_eq!(about(&of(8, "select_best = true"), 8).check(&longer), Ok(()));
        assert_eq!(about(&of(9, ""), 9).check(&of(20, "")), Ok(()));
    }

    #[test]
    fn another_class_is_told_and_another_precision_refused() {
        let before = example();
        assert_eq!(before.check_numerics(&before.numerics), Ok(None));
        let threads = Numerics { threads_per_rank: 3, ..before.numerics.clone() };
        assert!(before.check_numerics(&threads).unwrap().unwrap().contains("NOT BIT-EXACT"));
        let precision = Numerics { precision: "bf16".to_owned(), ..before.numerics.clone() };
        assert!(before.check_numerics(&precision).unwrap_err().contains("bf16"));
    }
}
