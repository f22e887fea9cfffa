//! Jobs as they are stored: what was decided when they were accepted, read without today's checks and defaults.
//!
//! A limit that is tightened, or a default that changes, says nothing about a job that was accepted before. So what is
//! stored is the whole [`JobSpec`] with every default filled in, and the version of its form. A field that comes later
//! gets a serde default here and now, with the value that jobs had before there was such a field; a field that goes or
//! changes its meaning makes a new version, with a function that brings the older one forward.

use serde_json::{Map, Value};

use super::{
    ClusterSpec, CommonSpec, DebugSpec, JobSpec, ModelSpec, OrdersSpec, OutputSpec, Work,
    kinds::generate::GenerateSpec,
};
use crate::ids::ContentHash;

/// The version of the form that [`JobSpec::to_stored`] writes.
pub const STORED_VERSION: i64 = 1;

/// Fills gaps in the text of jobs that were stored before a version was stored with them: the defaults of the
/// last release that wrote such texts. Never changed.
const DEFAULTS_0: &str = r#"{
    "model": {"revision": "", "variant": ""},
    "train": {
        "learnable_property": "object", "num_vectors": 1, "resolution": 512, "train_batch_size": 16,
        "gradient_accumulation_steps": 1, "learning_rate": 1e-4, "scale_lr": false, "lr_scheduler": "constant",
        "lr_warmup_steps": 500, "seed": 0, "mixed_precision": "no", "center_crop": false, "templates": [],
        "save_steps": 500, "adam_beta1": 0.9, "adam_beta2": 0.999, "adam_weight_decay": 0.01, "adam_epsilon": 1e-8,
        "lr_num_cycles": 1, "max_grad_norm": 0.0, "snr_gamma": 0.0, "noise_offset": 0.0, "repeats": 100,
        "checkpointing_steps": 500, "checkpoints_total_limit": 0, "resume_from_checkpoint": "",
        "save_as_full_pipeline": false, "validation_loss_steps": 0, "validation_loss_samples": 32,
        "select_best": false, "early_stop_patience": 0, "validation_prompt": "", "num_validation_images": 4,
        "validation_steps": 100, "report_to": "tensorboard", "caption_dropout": 0.0, "shuffle_tags": false,
        "keep_tags": 0, "enable_bucket": false, "min_bucket_reso": 256, "max_bucket_reso": 1024,
        "bucket_reso_steps": 64, "bucket_no_upscale": false
    },
    "cluster": {"world_size": 1, "threads_per_rank": 0},
    "debug": {"trace_dir": ""}
}"#;

/// A stored job that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StoredSpecError {
    /// A later version wrote it.
    #[error("it has the form {found}, this version knows up to {STORED_VERSION}")]
    Newer {
        /// As stored.
        found: i64,
    },
    /// It is not what was written.
    #[error("it is damaged: {0}")]
    Form(#[from] serde_json::Error),
}

impl JobSpec {
    /// The hash of the job as it is stored: two builds that read the same message have the same one only if both know
    /// everything that is in it.
    ///
    /// # Errors
    /// None for any spec.
    pub fn hash(&self) -> Result<ContentHash, StoredSpecError> {
        Ok(ContentHash::of(self.to_stored()?.as_bytes()))
    }

    /// The job as it is stored, in the form [`STORED_VERSION`].
    ///
    /// # Errors
    /// None for any spec.
    pub fn to_stored(&self) -> Result<String, StoredSpecError> {
        Ok(serde_json::to_string(self)?)
    }

    /// Reads what [`JobSpec::to_stored`] of this version or an earlier one wrote; version 0 had none beside it.
    ///
    /// # Errors
    /// A later version's, or damaged.
    pub fn from_stored(version: i64, text: &str) -> Result<Self, StoredSpecError> {
        if !(0..=STORED_VERSION).contains(&version) {
            return Err(StoredSpecError::Newer { found: version });
        }
        let stored: Map<String, Value> = serde_json::from_str(text)?;
        Ok(match version {
            0 => Self::read(stored.clone()).or_else(|_| Self::read(complete_version_0(stored)?))?,
            _ => Self::read(stored)?,
        })
    }

    /// Placeholder of an unreadable stored spec. It is never run.
    pub fn unreadable() -> Self {
        let model = ModelSpec {
            base: String::new(),
            revision: String::new(),
            variant: String::new(),
            prediction_type: None,
            tokenizer: String::new(),
        };
        let cluster = ClusterSpec { world_size: 1, min_world_size: 1, ..ClusterSpec::default() };
        let debug = DebugSpec { trace_dir: String::new() };
        let output = OutputSpec::default();
        let orders = OrdersSpec::default();
        let common = CommonSpec { name: "(unreadable)".to_owned(), model, cluster, debug, output, orders };
        Self { common, work: Work::Generate(GenerateSpec::nothing()) }
    }
}

/// A job that was written before some of today's options were there.
fn complete_version_0(mut job: Map<String, Value>) -> Result<Map<String, Value>, serde_json::Error> {
    let defaults: Map<String, Value> = serde_json::from_str(DEFAULTS_0)?;
    for (section, defaults) in defaults {
        if let (Some(Value::Object(given)), Value::Object(defaults)) = (job.get_mut(&section), defaults) {
            for (key, value) in defaults {
                given.entry(key).or_insert(value);
            }
        }
    }
    if let Some(Value::Object(cluster)) = job.get_mut("cluster")
        && let Some(world_size) = cluster.get("world_size").cloned()
    {
        cluster.entry("min_world_size").or_insert(world_size);
    }
    Ok(job)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{LearningRates, parse_job_toml, tests::job_with};

    /// As version 0.1.0 stored a job with nothing but its needs given.
    const SMALLEST_0: &str = r#"{"kind":"textual_inversion","name":"textual_inversion","model":{"base":"/m","revision":"","variant":""},"data":{"images":"/i"},"train":{"placeholder_token":"<a>","initializer_token":"b","learnable_property":"object","num_vectors":1,"resolution":512,"train_batch_size":16,"gradient_accumulation_steps":1,"max_train_steps":5000,"learning_rate":0.0001,"scale_lr":false,"lr_scheduler":"constant","lr_warmup_steps":500,"seed":0,"mixed_precision":"no","center_crop":false,"templates":[],"save_steps":500,"adam_beta1":0.9,"adam_beta2":0.999,"adam_weight_decay":0.01,"adam_epsilon":1e-8,"lr_num_cycles":1,"max_grad_norm":0.0,"snr_gamma":0.0,"noise_offset":0.0,"repeats":100,"checkpointing_steps":500,"checkpoints_total_limit":0,"resume_from_checkpoint":"","save_as_full_pipeline":false,"validation_loss_steps":0,"validation_loss_samples":32,"select_best":false,"early_stop_patience":0,"validation_prompt":"","num_validation_images":4,"validation_steps":100,"report_to":"tensorboard","caption_dropout":0.0,"shuffle_tags":false,"keep_tags":0,"enable_bucket":false,"min_bucket_reso":256,"max_bucket_reso":1024,"bucket_reso_steps":64,"bucket_no_upscale":false},"cluster":{"world_size":1,"min_world_size":1,"threads_per_rank":0},"debug":{"trace_dir":""}}"#;

    #[test]
    fn what_a_release_stored_is_read_as_it_was() {
        let spec = JobSpec::from_stored(0, SMALLEST_0).unwrap();
        assert_eq!(spec, job_with("", ""));
        // The form is what other versions read: whoever changes it makes a new version.
        assert_eq!((spec.to_stored().unwrap().as_str(), STORED_VERSION), (SMALLEST_0, 1));
    }

    #[test]
    fn jobs_of_every_kind_are_read_back() {
        let drawing = "kind = \"generate\"\n[model]\nbase = \"/m\"\n[generate]\nprompts = [\"a\"]\n";
        let concepts = "kind = \"textual_inversion\"\n[model]\nbase = \"/m\"\nprediction_type = \"epsilon\"\n\
             [train]\nlearning_rates = \"0.1:5, 1e-3\"\n[[concepts]]\nplaceholder_token = \"<a>\"\n\
             initializer_token = \"b\"\nimages = \"/i\"\n";
        let words = "kind = \"gpt2_finetune\"\n[model]\nbase = \"/m\"\n[gpt2]\ntokens = \"/t\"\n";
        let texts = "kind = \"generate_text\"\n[model]\nbase = \"/m\"\n[generate_text]\nprompts = [\"a\"]\n";
        for job in [drawing, concepts, words, texts] {
            let spec = parse_job_toml(job).unwrap();
            assert_eq!(JobSpec::from_stored(STORED_VERSION, &spec.to_stored().unwrap()).unwrap(), spec);
            // A job shows no key that its kind refuses.
            let shown = spec.to_toml().unwrap();
            assert_eq!(parse_job_toml(&shown).unwrap(), spec, "{shown}");
            let has = |key: &str| shown.contains(key);
            let of_pictures = ![words, texts].contains(&job);
            assert_eq!((has("variant"), has("trace_dir")), (of_pictures, of_pictures), "{shown}");
        }
    }

    #[test]
    fn a_limit_of_today_says_nothing_about_a_stored_job() {
        let mut spec = job_with("max_train_steps = 10", "");
        spec.textual_inversion_mut().unwrap().word.num_vectors = 1_000_000;
        spec.textual_inversion_mut().unwrap().train.templates = vec![String::new()];
        spec.textual_inversion_mut().unwrap().word.placeholder_token = "no longer allowed".to_owned();
        spec.textual_inversion_mut().unwrap().train.learning_rates =
            serde_json::from_str::<LearningRates>("\"5000.0:99999999\"").ok();
        let text = spec.to_stored().unwrap();
        assert!(JobSpec::from_draft(spec.to_draft()).is_err(), "today's checks do not refuse it");
        for version in [0, STORED_VERSION] {
            assert_eq!(JobSpec::from_stored(version, &text).unwrap(), spec);
        }
    }

    #[test]
    fn what_an_older_text_lacks_has_the_value_of_its_time() {
        let older = SMALLEST_0.replace("\"noise_offset\":0.0,", "").replace("\"min_world_size\":1,", "");
        let older = older.replace("\"world_size\":1", "\"world_size\":3");
        let spec = JobSpec::from_stored(0, &older).unwrap();
        assert_eq!(
            (spec.common.cluster.min_world_size, spec.textual_inversion().unwrap().train.noise_offset),
            (3, 0.0)
        );
        // From version 1 on every field is there.
        assert!(matches!(JobSpec::from_stored(1, &older), Err(StoredSpecError::Form(_))));
    }

    #[test]
    fn a_newer_or_damaged_text_is_an_error() {
        assert!(matches!(JobSpec::from_stored(2, SMALLEST_0), Err(StoredSpecError::Newer { found: 2 })));
        for version in [0, 1] {
            for text in ["", "{}", "[]", &SMALLEST_0[..600], &SMALLEST_0.replace("\"seed\":0", "\"seed\":-1")]
            {
                assert!(
                    matches!(JobSpec::from_stored(version, text), Err(StoredSpecError::Form(_))),
                    "{text}"
                );
            }
        }
    }
}
