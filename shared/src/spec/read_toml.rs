//! Job files: TOML, with the line of everything that is wrong.

mod generate;
mod queue;

use std::borrow::Borrow;
use std::collections::HashMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::{Appended, Setting};
use super::{
    ClusterDraft, ConceptDraft, DataDraft, DebugDraft, FolderDraft, JobDraft, JobRequest, JobSpec,
    ModelDraft, QueueDraft, QueueSpec, SpecError, TrainDraft, Violation, foreign_keys,
};
use crate::suggest;

/// A job file may have this many bytes: enough for all templates at their limits.
const LARGEST_FILE: usize = 4 << 20;

/// Reads a job file and fills in the defaults.
///
/// Errors name all unknown keys, wrong types and impossible values at once, each with its line.
pub fn parse_job_toml(text: &str) -> Result<JobSpec, SpecError> {
    parse_job_toml_with(text, &[])
}

/// As [`parse_job_toml`], after each of `settings` has been put into the file, in their order. Errors in one of them
/// name it instead of a line.
pub fn parse_job_toml_with(text: &str, settings: &[Setting]) -> Result<JobSpec, SpecError> {
    parse_job_request(text, settings).map(|request| request.spec)
}

/// As [`parse_job_toml_with`], with what the file says of the queue.
pub fn parse_job_request(text: &str, settings: &[Setting]) -> Result<JobRequest, SpecError> {
    if text.len() > LARGEST_FILE {
        let problem = format!("the job file has {} bytes; allowed: at most {LARGEST_FILE}", text.len());
        return Err(SpecError { violations: vec![Violation::new("", problem)] });
    }
    // The file by itself first: what is appended must neither hide nor move its mistakes.
    let alone = parse_document(text)?;
    let appended = Appended::new(text, &alone, settings);
    let mut document = parse_document(&appended.text)?;
    appended.put_in_place(&mut document).map_err(|violation| SpecError { violations: vec![violation] })?;

    let mut reader = Reader { text: &appended.text, violations: Vec::new(), lines: HashMap::new() };
    let (draft, queue) = reader.job(&document);
    let Reader { mut violations, lines, .. } = reader;
    let (spec, queue) = match (JobSpec::from_draft(draft), QueueSpec::from_draft(queue)) {
        (Ok(spec), Ok(queue)) if violations.is_empty() => return Ok(JobRequest { spec, queue }),
        (spec, queue) => (spec.err(), queue.err()),
    };
    for mut violation in spec.into_iter().chain(queue).flat_map(|error| error.violations) {
        // A field whose type is wrong came here as missing: one complaint is enough.
        if violations.iter().any(|earlier| earlier.field == violation.field) {
            continue;
        }
        // What is missing in one of several tables is shown at its head.
        let table = violation.field.starts_with("concepts[").then(|| violation.field.split('.').next());
        let line = lines.get(&violation.field).or_else(|| lines.get(table.flatten()?));
        violation.line = line.copied();
        violations.push(violation);
    }
    violations.sort_by_key(|violation| violation.line.unwrap_or(usize::MAX));
    violations.iter_mut().for_each(|violation| appended.name_origin(violation));
    Err(SpecError { violations })
}

fn parse_document(text: &str) -> Result<DeTable<'_>, SpecError> {
    DeTable::parse(text).map(Spanned::into_inner).map_err(|error| {
        let line = error.span().map(|span| line_of(text, span));
        let problem = format!("not valid TOML: {}", error.message());
        SpecError { violations: vec![Violation { field: String::new(), problem, line }] }
    })
}

/// The line, from 1, on which a span of bytes begins.
fn line_of(text: &str, span: Range<usize>) -> usize {
    1 + text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count()
}

struct Reader<'text> {
    text: &'text str,
    violations: Vec<Violation>,
    /// Where each known field stands, by its full name.
    lines: HashMap<String, usize>,
}

/// The known keys of one table are taken one by one; what is left over is unknown.
struct Section<'document> {
    name: String,
    table: Option<&'document DeTable<'document>>,
    known: Vec<&'static str>,
}

/// Every key of a job file with its section, for "belongs to".
const SECTION_OF_KEY: &[(&str, &str)] = &[
    ("base", "model"),
    ("revision", "model"),
    ("variant", "model"),
    ("prediction_type", "model"),
    ("tokenizer", "model"),
    ("images", "data"),
    ("folders", "data"),
    ("placeholder_token", "train"),
    ("initializer_token", "train"),
    ("initializer_embedding", "train"),
    ("learnable_property", "train"),
    ("num_vectors", "train"),
    ("resolution", "train"),
    ("train_batch_size", "train"),
    ("gradient_accumulation_steps", "train"),
    ("max_train_steps", "train"),
    ("learning_rate", "train"),
    ("learning_rates", "train"),
    ("scale_lr", "train"),
    ("lr_scheduler", "train"),
    ("lr_warmup_steps", "train"),
    ("seed", "train"),
    ("mixed_precision", "train"),
    ("center_crop", "train"),
    ("templates", "train"),
    ("save_steps", "train"),
    ("adam_beta1", "train"),
    ("adam_beta2", "train"),
    ("adam_weight_decay", "train"),
    ("adam_epsilon", "train"),
    ("lr_num_cycles", "train"),
    ("max_grad_norm", "train"),
    ("snr_gamma", "train"),
    ("noise_offset", "train"),
    ("rescale_betas_zero_snr", "train"),
    ("num_train_epochs", "train"),
    ("repeats", "train"),
    ("checkpointing_steps", "train"),
    ("checkpoints_total_limit", "train"),
    ("resume_from_checkpoint", "train"),
    ("save_as_full_pipeline", "train"),
    ("validation_loss_steps", "train"),
    ("validation_loss_samples", "train"),
    ("select_best", "train"),
    ("early_stop_patience", "train"),
    ("validation_prompt", "train"),
    ("num_validation_images", "train"),
    ("validation_steps", "train"),
    ("report_to", "train"),
    ("caption_dropout", "train"),
    ("shuffle_tags", "train"),
    ("keep_tags", "train"),
    ("enable_bucket", "train"),
    ("min_bucket_reso", "train"),
    ("max_bucket_reso", "train"),
    ("bucket_reso_steps", "train"),
    ("bucket_no_upscale", "train"),
    ("world_size", "cluster"),
    ("min_world_size", "cluster"),
    ("threads_per_rank", "cluster"),
    ("trace_dir", "debug"),
    ("owner", "queue"),
    ("priority", "queue"),
    ("labels", "queue"),
];

impl<'text> Reader<'text> {
    fn job(&mut self, document: &DeTable<'_>) -> (JobDraft, QueueDraft) {
        let mut top = Section { name: String::new(), table: Some(document), known: Vec::new() };
        let kind = self.string(&mut top, "kind");
        let name = self.string(&mut top, "name");

        let mut section = self.section(&mut top, "model");
        let model = ModelDraft {
            base: self.string(&mut section, "base"),
            revision: self.string(&mut section, "revision"),
            variant: self.string(&mut section, "variant"),
            prediction_type: self.string(&mut section, "prediction_type"),
            tokenizer: self.string(&mut section, "tokenizer"),
        };
        self.refuse_unknown(section);

        let mut section = self.section(&mut top, "data");
        let data =
            DataDraft { images: self.string(&mut section, "images"), folders: self.folders(&mut section) };
        self.refuse_unknown(section);

        let mut section = self.section(&mut top, "train");
        let train = self.train(&mut section);
        self.refuse_unknown(section);

        let mut section = self.section(&mut top, "generate");
        let generate = self.generate(&mut section);
        self.refuse_unknown(section);

        let mut section = self.section(&mut top, "cluster");
        let cluster = ClusterDraft {
            world_size: self.integer(&mut section, "world_size"),
            min_world_size: self.integer(&mut section, "min_world_size"),
            threads_per_rank: self.integer(&mut section, "threads_per_rank"),
        };
        self.refuse_unknown(section);

        let mut section = self.section(&mut top, "debug");
        let debug = DebugDraft { trace_dir: self.string(&mut section, "trace_dir") };
        self.refuse_unknown(section);

        let mut section = self.section(&mut top, "queue");
        let queue = self.queue(&mut section);
        self.refuse_unknown(section);

        let concepts = self.concepts(&mut top);

        self.refuse_unknown(top);
        (JobDraft { kind, name, model, data, train, generate, cluster, debug, concepts }, queue)
    }

    fn concepts(&mut self, top: &mut Section<'_>) -> Vec<ConceptDraft> {
        const KEY: &str = "concepts";
        let tables = self.take(top, KEY).and_then(|value| {
            self.expect(KEY, value, "tables, each under [[concepts]]", value.get_ref().as_array())
        });
        let mut concepts = Vec::new();
        for (index, entry) in tables.into_iter().flat_map(|tables| tables.iter()).enumerate() {
            let mut section = self.entry(KEY, index, entry, "a table under [[concepts]]");
            concepts.push(ConceptDraft {
                placeholder_token: self.string(&mut section, "placeholder_token"),
                initializer_token: self.string(&mut section, "initializer_token"),
                initializer_embedding: self.string(&mut section, "initializer_embedding"),
                images: self.string(&mut section, "images"),
                folders: self.folders(&mut section),
                num_vectors: self.integer(&mut section, "num_vectors"),
                learnable_property: self.string(&mut section, "learnable_property"),
                templates: self.strings(&mut section, "templates"),
            });
            self.refuse_unknown(section);
        }
        concepts
    }

    fn folders(&mut self, section: &mut Section<'_>) -> Option<Vec<FolderDraft>> {
        let value = self.take(section, "folders")?;
        let field = section.full_name("folders");
        let wanted = "a list of tables such as { images = \"./a\", repeats = 2 }";
        let entries = self.expect(&field, value, wanted, value.get_ref().as_array())?;
        let mut folders = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let mut section = self.entry(&field, index, entry, "a table");
            folders.push(FolderDraft {
                images: self.string(&mut section, "images"),
                repeats: self.integer(&mut section, "repeats"),
            });
            self.refuse_unknown(section);
        }
        Some(folders)
    }

    /// Table `index` of the list `field`.
    fn entry<'a>(
        &mut self,
        field: &str,
        index: usize,
        entry: &'a Spanned<DeValue<'a>>,
        wanted: &str,
    ) -> Section<'a> {
        let name = format!("{field}[{index}]");
        self.lines.insert(name.clone(), line_of(self.text, entry.span()));
        let table = self.expect(&name, entry, wanted, entry.get_ref().as_table());
        Section { name, table, known: Vec::new() }
    }

    fn train(&mut self, section: &mut Section<'_>) -> TrainDraft {
        TrainDraft {
            placeholder_token: self.string(section, "placeholder_token"),
            initializer_token: self.string(section, "initializer_token"),
            initializer_embedding: self.string(section, "initializer_embedding"),
            learnable_property: self.string(section, "learnable_property"),
            num_vectors: self.integer(section, "num_vectors"),
            resolution: self.integer(section, "resolution"),
            train_batch_size: self.integer(section, "train_batch_size"),
            gradient_accumulation_steps: self.integer(section, "gradient_accumulation_steps"),
            max_train_steps: self.integer(section, "max_train_steps"),
            learning_rate: self.number(section, "learning_rate"),
            learning_rates: self.string(section, "learning_rates"),
            scale_lr: self.boolean(section, "scale_lr"),
            lr_scheduler: self.string(section, "lr_scheduler"),
            lr_warmup_steps: self.integer(section, "lr_warmup_steps"),
            seed: self.integer(section, "seed"),
            mixed_precision: self.string(section, "mixed_precision"),
            center_crop: self.boolean(section, "center_crop"),
            templates: self.strings(section, "templates"),
            save_steps: self.integer(section, "save_steps"),
            adam_beta1: self.number(section, "adam_beta1"),
            adam_beta2: self.number(section, "adam_beta2"),
            adam_weight_decay: self.number(section, "adam_weight_decay"),
            adam_epsilon: self.number(section, "adam_epsilon"),
            lr_num_cycles: self.integer(section, "lr_num_cycles"),
            max_grad_norm: self.number(section, "max_grad_norm"),
            snr_gamma: self.number(section, "snr_gamma"),
            noise_offset: self.number(section, "noise_offset"),
            rescale_betas_zero_snr: self.boolean(section, "rescale_betas_zero_snr"),
            num_train_epochs: self.integer(section, "num_train_epochs"),
            repeats: self.integer(section, "repeats"),
            checkpointing_steps: self.integer(section, "checkpointing_steps"),
            checkpoints_total_limit: self.integer(section, "checkpoints_total_limit"),
            resume_from_checkpoint: self.text_or_integer(section, "resume_from_checkpoint"),
            save_as_full_pipeline: self.boolean(section, "save_as_full_pipeline"),
            validation_loss_steps: self.integer(section, "validation_loss_steps"),
            validation_loss_samples: self.integer(section, "validation_loss_samples"),
            select_best: self.boolean(section, "select_best"),
            early_stop_patience: self.integer(section, "early_stop_patience"),
            validation_prompt: self.string(section, "validation_prompt"),
            num_validation_images: self.integer(section, "num_validation_images"),
            validation_steps: self.integer(section, "validation_steps"),
            report_to: self.string(section, "report_to"),
            caption_dropout: self.number(section, "caption_dropout"),
            shuffle_tags: self.boolean(section, "shuffle_tags"),
            keep_tags: self.integer(section, "keep_tags"),
            enable_bucket: self.boolean(section, "enable_bucket"),
            min_bucket_reso: self.integer(section, "min_bucket_reso"),
            max_bucket_reso: self.integer(section, "max_bucket_reso"),
            bucket_reso_steps: self.integer(section, "bucket_reso_steps"),
            bucket_no_upscale: self.boolean(section, "bucket_no_upscale"),
        }
    }

    fn section<'document>(&mut self, top: &mut Section<'document>, name: &'static str) -> Section<'document> {
        let table = self
            .take(top, name)
            .and_then(|value| self.expect(name, value, "a table", value.get_ref().as_table()));
        Section { name: name.to_owned(), table, known: Vec::new() }
    }

    fn string(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<String> {
        let value = self.take(section, key)?;
        self.expect(&section.full_name(key), value, "a text in quotes", value.get_ref().as_str())
            .map(str::to_owned)
    }

    /// For names that may be numbers.
    fn text_or_integer(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<String> {
        let value = self.take(section, key)?;
        let text = match value.get_ref() {
            DeValue::Integer(integer) if integer.radix() == 10 => Some(integer.as_str().to_owned()),
            other => other.as_str().map(str::to_owned),
        };
        self.expect(&section.full_name(key), value, "a text in quotes or a whole number", text)
    }

    fn boolean(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<bool> {
        let value = self.take(section, key)?;
        self.expect(&section.full_name(key), value, "true or false", value.get_ref().as_bool())
    }

    fn integer(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<i64> {
        let value = self.take(section, key)?;
        let number = value
            .get_ref()
            .as_integer()
            .and_then(|integer| i64::from_str_radix(integer.as_str(), integer.radix()).ok());
        self.expect(&section.full_name(key), value, "a whole number of at most 63 bits", number)
    }

    fn number(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<f64> {
        let value = self.take(section, key)?;
        let number = match value.get_ref() {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse().ok(),
            _ => None,
        };
        self.expect(&section.full_name(key), value, "a number", number)
    }

    fn strings(&mut self, section: &mut Section<'_>, key: &'static str) -> Option<Vec<String>> {
        let value = self.take(section, key)?;
        let field = section.full_name(key);
        let entries = self.expect(&field, value, "a list of texts in quotes", value.get_ref().as_array())?;
        let mut strings = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let field = format!("{field}[{index}]");
            self.lines.insert(field.clone(), line_of(self.text, entry.span()));
            let string = self.expect(&field, entry, "a text in quotes", entry.get_ref().as_str())?;
            strings.push(string.to_owned());
        }
        Some(strings)
    }

    fn take<'document>(
        &mut self,
        section: &mut Section<'document>,
        key: &'static str,
    ) -> Option<&'document Spanned<DeValue<'document>>> {
        section.known.push(key);
        let value = section.table?.get(key)?;
        self.lines.insert(section.full_name(key), line_of(self.text, value.span()));
        Some(value)
    }

    /// The converted value; or, where it could not be converted, a violation.
    fn expect<T>(
        &mut self,
        field: &str,
        value: &Spanned<DeValue<'_>>,
        wanted: &str,
        converted: Option<T>,
    ) -> Option<T> {
        if converted.is_none() {
            let given: String = self.text.get(value.span()).unwrap_or_default().chars().take(80).collect();
            let kind = value.get_ref().type_str();
            self.violations.push(Violation {
                field: field.to_owned(),
                problem: format!("got {given} ({kind}); allowed: {wanted}"),
                line: Some(line_of(self.text, value.span())),
            });
        }
        converted
    }

    fn refuse_unknown(&mut self, section: Section<'_>) {
        let Some(table) = section.table else { return };
        for (key, _) in table.iter() {
            let name: &str = key.get_ref().borrow();
            if section.known.contains(&name) {
                continue;
            }
            let shown: String = name.chars().take(100).collect();
            let in_generate = generate::KEYS.iter().map(|key| (*key, "generate"));
            let elsewhere =
                SECTION_OF_KEY.iter().copied().chain(in_generate).find(|(known, _)| *known == name);
            let problem = if let Some(advice) = foreign_keys::advice(name) {
                format!("not an option here: {advice}")
            } else if let Some(word) = suggest::nearest(name, section.known.iter().copied()) {
                format!("unknown key; did you mean {word:?}?")
            } else if let Some((_, home)) = elsewhere {
                format!("unknown key here; it belongs to [{home}]")
            } else {
                format!("unknown key; allowed: {}", section.known.join(", "))
            };
            self.violations.push(Violation {
                field: section.full_name(&shown),
                problem,
                line: Some(line_of(self.text, key.span())),
            });
        }
    }
}

impl Section<'_> {
    fn full_name(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }
}
