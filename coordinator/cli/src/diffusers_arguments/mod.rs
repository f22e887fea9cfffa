//! A command line of diffusers' `textual_inversion.py`, as a job file.
//!
//! Source: the options of `examples/textual_inversion/textual_inversion.py` and of `accelerate launch`. Most have
//! their name in the job file; the others are either without effect on the result here, which is said, or refused.

use std::collections::BTreeMap;

use ringtune_shared::{job::HubModel, suggest};

/// What kind of value an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Text,
    Number,
    /// Nothing: it is true where it stands.
    Nothing,
}

use Takes::{Nothing, Number, Text};

/// Options that a job file has: name there and here.
const KNOWN: &[(&str, Takes, &str, &str)] = &[
    ("pretrained_model_name_or_path", Text, "model", "base"),
    ("revision", Text, "model", "revision"),
    ("variant", Text, "model", "variant"),
    ("tokenizer_name", Text, "model", "tokenizer"),
    ("train_data_dir", Text, "data", "images"),
    ("placeholder_token", Text, "train", "placeholder_token"),
    ("initializer_token", Text, "train", "initializer_token"),
    ("learnable_property", Text, "train", "learnable_property"),
    ("num_vectors", Number, "train", "num_vectors"),
    ("seed", Number, "train", "seed"),
    ("resolution", Number, "train", "resolution"),
    ("center_crop", Nothing, "train", "center_crop"),
    ("train_batch_size", Number, "train", "train_batch_size"),
    ("max_train_steps", Number, "train", "max_train_steps"),
    ("gradient_accumulation_steps", Number, "train", "gradient_accumulation_steps"),
    ("learning_rate", Number, "train", "learning_rate"),
    ("scale_lr", Nothing, "train", "scale_lr"),
    ("lr_scheduler", Text, "train", "lr_scheduler"),
    ("lr_warmup_steps", Number, "train", "lr_warmup_steps"),
    ("lr_num_cycles", Number, "train", "lr_num_cycles"),
    ("adam_beta1", Number, "train", "adam_beta1"),
    ("adam_beta2", Number, "train", "adam_beta2"),
    ("adam_weight_decay", Number, "train", "adam_weight_decay"),
    ("adam_epsilon", Number, "train", "adam_epsilon"),
    ("mixed_precision", Text, "train", "mixed_precision"),
    ("save_steps", Number, "train", "save_steps"),
    ("num_train_epochs", Number, "train", "num_train_epochs"),
    ("repeats", Number, "train", "repeats"),
    ("checkpointing_steps", Number, "train", "checkpointing_steps"),
    ("checkpoints_total_limit", Number, "train", "checkpoints_total_limit"),
    ("resume_from_checkpoint", Text, "train", "resume_from_checkpoint"),
    ("save_as_full_pipeline", Nothing, "train", "save_as_full_pipeline"),
    ("validation_prompt", Text, "train", "validation_prompt"),
    ("num_validation_images", Number, "train", "num_validation_images"),
    ("validation_steps", Number, "train", "validation_steps"),
];

/// Options that change nothing about the result here, and why.
const WITHOUT_EFFECT: &[(&str, Takes, &str)] = &[
    ("gradient_checkpointing", Nothing, "a step needs a third less memory than there, without recomputation"),
    ("dataloader_num_workers", Number, "latents are computed once, before the first step"),
    ("allow_tf32", Nothing, "it is about GPUs"),
    ("enable_xformers_memory_efficient_attention", Nothing, "it is about GPUs"),
    ("local_rank", Number, "the coordinator gives out the ranks"),
    ("logging_dir", Text, "TensorBoard's file of events lies in the output folder"),
];

/// Options without which the result would be another one, and what to do instead.
const REFUSED: &[(&str, Takes, &str)] = &[
    ("no_safe_serialization", Nothing, "pickle files are never written: leave it out"),
    ("push_to_hub", Nothing, "upload the output folder yourself: leave it out"),
    ("hub_token", Text, "nothing is uploaded: leave it out"),
    ("hub_model_id", Text, "nothing is uploaded: leave it out"),
    ("validation_epochs", Number, "deprecated there: give --validation_steps, which counts optimizer steps"),
];

/// The script's default.
const SCRIPTS_MAX_TRAIN_STEPS: &str = "5000";

/// A command line that was understood.
#[derive(Debug, PartialEq, Eq)]
pub struct Translated {
    /// The job file, in TOML.
    pub job: String,
    /// `--output_dir`.
    pub output_dir: Option<String>,
    /// What was left out, and why, a line each.
    pub remarks: Vec<String>,
}

/// A command line that cannot be translated.
#[derive(Debug, PartialEq, Eq)]
pub struct Untranslatable {
    /// Everything that is wrong with it, a line each.
    pub problems: Vec<String>,
    /// What could be read of the job, in TOML: what is wrong with that is to be told at the same time.
    pub rest: String,
    /// Keys of the job whose options were refused: nothing is known of them.
    pub unknown: Vec<String>,
}

impl From<&str> for Untranslatable {
    fn from(problem: &str) -> Self {
        Self { problems: vec![problem.to_owned()], rest: String::new(), unknown: Vec::new() }
    }
}

/// Reads `line`: with or without the launcher and the script's name in front, quoted as for a shell.
///
/// `is_there`: whether a path leads somewhere. The script takes a repository's name where no folder is.
///
/// # Errors
/// Everything that cannot be translated, a line each.
pub fn translate(line: &str, is_there: fn(&str) -> bool) -> Result<Translated, Untranslatable> {
    // The splitter would make an empty word of a line's continuation.
    let line = line.replace("\\\r\n", "").replace("\\\n", "");
    let words = shlex::split(&line).ok_or("a quotation mark is not closed, or a backslash is last")?;
    let script = words.iter().position(|word| word.ends_with(".py"));
    let (launcher, options) = match script {
        Some(at) => (&words[..at], &words[at + 1..]),
        None => (&words[..0], &words[..]),
    };
    let mut reader = Reader {
        is_there,
        values: BTreeMap::new(),
        output_dir: None,
        remarks: Vec::new(),
        problems: Vec::new(),
        refused: Vec::new(),
    };
    reader.launcher(launcher);
    reader.options(options);
    reader.finish()
}

/// Values by section and key, in TOML.
struct Reader {
    is_there: fn(&str) -> bool,
    values: BTreeMap<(&'static str, &'static str), String>,
    output_dir: Option<String>,
    remarks: Vec<String>,
    problems: Vec<String>,
    /// The keys that these are about.
    refused: Vec<String>,
}

impl Reader {
    /// Of a launcher only the number of processes and the precision matter.
    fn launcher(&mut self, words: &[String]) {
        let value_of = |names: &[&str]| {
            words.iter().enumerate().find_map(|(at, word)| match word.split_once('=') {
                Some((name, value)) if names.contains(&name) => Some(value.to_owned()),
                None if names.contains(&word.as_str()) => words.get(at + 1).cloned(),
                _ => None,
            })
        };
        let processes = ["--num_processes", "--num-processes", "-n", "-np"];
        if let Some(count) = value_of(&processes) {
            self.set("num_processes", Number, ("cluster", "world_size"), &count);
        }
        if let Some(precision) = value_of(&["--mixed_precision", "--mixed-precision"]) {
            self.set("mixed_precision", Text, ("train", "mixed_precision"), &precision);
        }
    }

    fn options(&mut self, words: &[String]) {
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let Some(option) = word.strip_prefix("--") else {
                self.problems.push(format!("{word:?} is not an option: options begin with --"));
                continue;
            };
            let (name, inline) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option, None),
            };
            // argparse takes both.
            let name = name.replace('-', "_");
            let Some(takes) = takes(&name) else {
                self.problems.push(unknown(&name));
                continue;
            };
            let value = match (takes, inline) {
                (Nothing, None) => String::new(),
                (Nothing, Some(value)) => {
                    self.problems.push(format!("--{name} takes no value, and was given {value:?}"));
                    continue;
                }
                (_, Some(value)) => value,
                (_, None) => match words.as_slice().first().filter(|next| !next.starts_with("--")) {
                    Some(value) => {
                        words.next();
                        value.clone()
                    }
                    None => {
                        self.refused.extend(key_of(&name));
                        self.problems.push(format!("--{name} needs a value"));
                        continue;
                    }
                },
            };
            self.option(&name, &value);
        }
    }

    fn option(&mut self, name: &str, value: &str) {
        if name == "output_dir" {
            self.output_dir = Some(value.to_owned());
        } else if name == "report_to" {
            self.report_to(value);
        } else if name == "pretrained_model_name_or_path" {
            let is_repository = HubModel::is_repository(value) && !(self.is_there)(value);
            let base = if is_repository { format!("hf://{value}") } else { value.to_owned() };
            self.set("pretrained_model_name_or_path", Text, ("model", "base"), &base);
        } else if let Some((name, takes, section, key)) = KNOWN.iter().find(|known| known.0 == name) {
            self.set(name, *takes, (section, key), value);
        } else if let Some((_, _, why)) = WITHOUT_EFFECT.iter().find(|known| known.0 == name) {
            self.remarks.push(format!("--{name} is left out: {why}"));
        } else if let Some((_, _, instead)) = REFUSED.iter().find(|known| known.0 == name) {
            self.problems.push(format!("--{name}: {instead}"));
        }
    }

    /// The other trackers are services to log in to; they change nothing about the result.
    fn report_to(&mut self, value: &str) {
        match value {
            "tensorboard" | "none" => self.set("report_to", Text, ("train", "report_to"), value),
            other => {
                self.set("report_to", Text, ("train", "report_to"), "tensorboard");
                self.remarks.push(format!(
                    "--report_to is left out: there is no {other} here; the job leaves TensorBoard's events"
                ));
            }
        }
    }

    fn set(&mut self, name: &str, takes: Takes, place: (&'static str, &'static str), value: &str) {
        if value.contains('$') {
            self.refused.push(format!("{}.{}", place.0, place.1));
            self.problems.push(format!(
                "--{name}: {value:?} has a variable in it, which only a shell fills in; write its value, or put the \
                 command line between double quotes"
            ));
            return;
        }
        let written = match takes {
            Nothing => Some("true".to_owned()),
            Text => serde_json::to_string(value).ok(),
            Number => number(value),
        };
        match written {
            Some(written) => drop(self.values.insert(place, written)),
            None => {
                self.refused.push(format!("{}.{}", place.0, place.1));
                self.problems.push(format!("--{name}: {value:?} is not a number"));
            }
        }
    }

    fn finish(mut self) -> Result<Translated, Untranslatable> {
        self.let_steps_count_more_than_passes();
        let mut job = "kind = \"textual_inversion\"\n".to_owned();
        for section in ["model", "data", "train", "cluster"] {
            let values = self.values.iter().filter(|((of, _), _)| *of == section);
            let lines: Vec<String> = values.map(|((_, key), value)| format!("{key} = {value}\n")).collect();
            if !lines.is_empty() {
                job.push_str(&format!("[{section}]\n{}", lines.concat()));
            }
        }
        match self.problems.is_empty() {
            true => Ok(Translated { job, output_dir: self.output_dir, remarks: self.remarks }),
            false => Err(Untranslatable { problems: self.problems, rest: job, unknown: self.refused }),
        }
    }
}

impl Reader {
    /// The script's `max_train_steps` has a default, so that its `num_train_epochs` never counts.
    fn let_steps_count_more_than_passes(&mut self) {
        let steps = ("train", "max_train_steps");
        if self.values.contains_key(&("train", "num_train_epochs")) && !self.values.contains_key(&steps) {
            self.values.insert(steps, SCRIPTS_MAX_TRAIN_STEPS.to_owned());
            self.remarks.push(format!(
                "--num_train_epochs: as in the script, --max_train_steps takes precedence, and is {SCRIPTS_MAX_TRAIN_STEPS} \
                 if it is not given; for passes over the pictures, take max_train_steps out of the job file"
            ));
        }
    }
}

/// The job's key that an option stands for.
fn key_of(name: &str) -> Option<String> {
    let known = KNOWN.iter().find(|(known, ..)| *known == name);
    known.map(|(_, _, section, key)| format!("{section}.{key}"))
}

fn takes(name: &str) -> Option<Takes> {
    let known = KNOWN.iter().map(|(name, takes, _, _)| (*name, *takes));
    let others = WITHOUT_EFFECT.iter().chain(REFUSED).map(|(name, takes, _)| (*name, *takes));
    known
        .chain(others)
        .chain([("output_dir", Text), ("report_to", Text)])
        .find(|(known, _)| *known == name)
        .map(|(_, takes)| takes)
}

fn unknown(name: &str) -> String {
    let names = KNOWN.iter().map(|known| known.0);
    match suggest::nearest(name, names) {
        Some(near) => format!("--{name} is not an option of textual_inversion.py; did you mean --{near}?"),
        None => format!("--{name} is not an option of textual_inversion.py"),
    }
}

/// The number as TOML has it; whether it is allowed is the job's to say.
fn number(text: &str) -> Option<String> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.to_string());
    }
    text.parse::<f64>().ok().filter(|value| value.is_finite()).map(|value| format!("{value:?}"))
}

#[cfg(test)]
mod tests;
