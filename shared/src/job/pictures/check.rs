//! The checks of `[data]` and `[train]`, of options by themselves and of several together.

use super::{FolderDraft, FolderSpec, TrainSpec, limits};
use crate::{
    ids::{CONTENT_URI_PREFIX, ContentHash},
    job::{
        CommonSpec, LearningRates, LrScheduler, ModelLocation, ModelSpec, PredictionType,
        check::Check,
        section::Spec as _,
        text::{printable, scheme, shortened},
    },
    templates::Template,
};

const RATES: &str = "train.learning_rates";

/// Options by themselves.
impl Check {
    /// A folder of pictures. `instead`: the key that stands beside it.
    pub(in crate::job) fn images(
        &mut self,
        field: &str,
        given: Option<String>,
        instead: Option<&str>,
    ) -> String {
        const WANTED: &str = "a folder of images";
        if let Some(instead) = instead {
            if let Some(given) = given.filter(|given| !given.is_empty()) {
                let other = field.replace("images", instead);
                let problem = format!("got {:?} beside {other}; give one of the two", shortened(&given));
                self.refuse(field, problem);
            }
            return String::new();
        }
        let images = self.required(field, given, WANTED);
        if images.starts_with(CONTENT_URI_PREFIX) {
            if let Err(error) = ContentHash::from_uri(&images) {
                self.refuse(field, error.to_string());
            }
        } else if let Some(scheme) = scheme(&images) {
            let given = shortened(&images);
            self.refuse(field, format!("got {given:?}; {scheme}:// is not supported yet: give {WANTED}"));
        }
        images
    }

    /// A folder of pictures that may be left out.
    pub(super) fn folder_if_given(&mut self, field: &str, given: Option<String>) -> String {
        match given.filter(|given| !given.is_empty()) {
            Some(given) => self.images(field, Some(given), None),
            None => String::new(),
        }
    }

    pub(in crate::job) fn folders(
        &mut self,
        field: &str,
        given: Option<Vec<FolderDraft>>,
    ) -> Vec<FolderSpec> {
        let Some(drafts) = given else { return Vec::new() };
        if drafts.is_empty() || drafts.len() > limits::FOLDERS {
            self.refuse(field, format!("got {} folders; allowed: 1 to {}", drafts.len(), limits::FOLDERS));
        }
        let drafts = drafts.into_iter().take(limits::FOLDERS).enumerate();
        drafts.map(|(index, draft)| FolderSpec::checked(draft, self, &format!("{field}[{index}]"))).collect()
    }

    /// A place that every worker reads itself. `has_folders`: they stand beside it.
    pub(super) fn source(&mut self, field: &str, given: Option<String>, has_folders: bool) -> String {
        let source = given.unwrap_or_default();
        if source.is_empty() {
            return source;
        }
        let given = shortened(&source);
        if has_folders {
            self.refuse(field, format!("got {given:?} beside data.folders; give one of the two"));
        } else if let Err(problem) = printable(&source, limits::PATH_CHARACTERS) {
            self.refuse(field, problem);
        } else if source.starts_with(CONTENT_URI_PREFIX) {
            self.refuse(field, format!("got {given:?}, which is uploaded; give it as data.images"));
        } else if let Err(problem) = ModelLocation::parse_pictures(&source) {
            self.refuse(field, problem);
        }
        source
    }

    pub(in crate::job) fn templates(&mut self, field: &str, given: Option<Vec<String>>) -> Vec<String> {
        let templates = given.unwrap_or_default();
        if templates.len() > limits::TEMPLATES {
            self.refuse(field, format!("got {}; allowed: at most {}", templates.len(), limits::TEMPLATES));
        }
        for (index, template) in templates.iter().enumerate().take(limits::TEMPLATES) {
            let field = format!("{field}[{index}]");
            if let Err(problem) = printable(template, limits::TEMPLATE_CHARACTERS) {
                self.refuse(&field, problem);
            } else if let Err(allowed) = Template::parse(template) {
                self.refuse(&field, format!("got {template:?}; allowed: {allowed}"));
            }
        }
        templates
    }

    /// The first of the listed rates, where there are some.
    pub(super) fn first_rate(
        &mut self,
        field: &str,
        given: Option<f64>,
        rates: Option<&str>,
        default: f64,
        most: f64,
    ) -> f64 {
        let rates: Option<LearningRates> = rates.and_then(|rates| rates.parse().ok());
        rates.map_or_else(|| self.above_zero(field, given, default, most), |rates| rates.at(1))
    }

    /// A list of rates; empty counts as not given. What it replaces must not be given beside it: who wrote both expects
    /// the other one to count.
    pub(super) fn learning_rates(
        &mut self,
        field: &str,
        given: Option<String>,
        rate: Option<f64>,
        scheduler: Option<&str>,
        warmup_steps: Option<i64>,
    ) -> Option<LearningRates> {
        let text = given.filter(|text| !text.trim().is_empty())?;
        let rates: LearningRates = match text.parse() {
            Ok(rates) => rates,
            Err(problem) => {
                self.refuse(field, problem);
                return None;
            }
        };
        // A job that was written out in full has the first of the rates here.
        if let Some(rate) = rate.filter(|rate| *rate != rates.at(1)) {
            let problem = format!(
                "got {rate} together with learning_rates, which gives the rate of every step: leave one out"
            );
            self.refuse("train.learning_rate", problem);
        }
        if let Some(name) = scheduler.filter(|name| *name != LrScheduler::Constant.as_str()) {
            let problem = format!(
                "got {name:?} together with learning_rates, which is a schedule of its own: leave one out"
            );
            self.refuse("train.lr_scheduler", problem);
        }
        if let Some(steps) = warmup_steps.filter(|steps| *steps != 0) {
            let problem = format!(
                "got {steps} together with learning_rates, which has no warm-up: leave it out, and begin with small rates"
            );
            self.refuse("train.lr_warmup_steps", problem);
        }
        Some(rates)
    }
}

/// Several options together.
impl TrainSpec {
    /// `templates`: all that pictures are shown with.
    pub(in crate::job) fn check<'a>(
        &self,
        check: &mut Check,
        common: &CommonSpec,
        templates: impl Iterator<Item = &'a String>,
    ) {
        self.check_rates(check);
        self.check_validation(check);
        if self.rescale_betas_zero_snr && common.model.prediction_type == Some(PredictionType::Epsilon) {
            let problem = "got true with model.prediction_type = \"epsilon\"; only a model that predicts the \
                           velocity (v_prediction) can be trained on pure noise";
            check.refuse("train.rescale_betas_zero_snr", problem);
        }
        self.check_captions(check, templates);
        self.check_buckets(check);
        let (steps, ranks) = (self.gradient_accumulation_steps, common.cluster.world_size);
        check.microbatches("train.gradient_accumulation_steps", steps, ranks, limits::GLOBAL_MICROBATCHES);
        self.check_pipeline(check, &common.model);
    }

    /// There must be a rate for every step.
    fn check_rates(&self, check: &mut Check) {
        let Some(end) = self.learning_rates.as_ref().and_then(LearningRates::end) else { return };
        if end < self.max_train_steps {
            let problem = format!(
                "its last rate ends at step {end}, and max_train_steps is {}; leave that step out, or train for fewer",
                self.max_train_steps
            );
            check.refuse(RATES, problem);
        }
    }

    fn check_validation(&self, check: &mut Check) {
        const INTERVAL: &str = "train.validation_loss_steps";
        // A number that is wrong has been told already.
        if self.validation.validation_loss_steps > 0 || check.has_refused(INTERVAL) {
            return;
        }
        let why = format!("it goes by the validation loss: give {INTERVAL} too");
        if self.validation.select_best {
            check.refuse("train.select_best", format!("got true; {why}"));
        }
        let patience = self.validation.early_stop_patience;
        if patience > 0 {
            check.refuse("train.early_stop_patience", format!("got {patience}; {why}"));
        }
    }

    /// Options about captions need captions.
    fn check_captions<'a>(&self, check: &mut Check, templates: impl Iterator<Item = &'a String>) {
        let options = [
            ("train.caption_dropout", self.caption_dropout > 0.0),
            ("train.shuffle_tags", self.shuffle_tags),
            ("train.keep_tags", self.keep_tags > 0),
        ];
        let mut read = templates.filter_map(|text| Template::parse(text).ok());
        if !read.any(|template| template.has_caption()) {
            for (field, _) in options.into_iter().filter(|(_, is_set)| *is_set) {
                check.refuse(
                    field,
                    "is about captions, and no template has [caption]; give one in train.templates",
                );
            }
        }
    }

    /// There must be a bucket. The rules are kohya's.
    fn check_buckets(&self, check: &mut Check) {
        let Self { resolution, min_bucket_reso, max_bucket_reso, bucket_reso_steps, .. } = *self;
        if !self.enable_bucket {
            return;
        }
        let allowed = format!("train.resolution, which is {resolution}");
        if !self.bucket_no_upscale && min_bucket_reso > resolution {
            let problem = format!("got {min_bucket_reso}; allowed: at most {allowed}");
            check.refuse("train.min_bucket_reso", problem);
        }
        if !self.bucket_no_upscale && max_bucket_reso < resolution {
            let problem = format!("got {max_bucket_reso}; allowed: at least {allowed}");
            check.refuse("train.max_bucket_reso", problem);
        }
        if bucket_reso_steps > resolution {
            let problem = format!("got {bucket_reso_steps}; allowed: at most {allowed}");
            check.refuse("train.bucket_reso_steps", problem);
        }
        if self.center_crop {
            let problem = "makes squares, and enable_bucket keeps aspect ratios; give one of the two";
            check.refuse("train.center_crop", problem);
        }
    }

    /// A full pipeline is made of a model in diffusers layout, with its own tokenizer and scheduler.
    fn check_pipeline(&self, check: &mut Check, model: &ModelSpec) {
        let ModelSpec { base, variant, tokenizer, prediction_type, .. } = model;
        let is_folder = !ModelLocation::is_path(base) || !base.ends_with(".safetensors");
        let is_plain = variant.is_empty() && tokenizer.is_empty() && prediction_type.is_none();
        if self.save_as_full_pipeline && !(is_folder && is_plain) {
            let problem = "got true; allowed where model.base is not a single file, and without model.variant, model.tokenizer \
                           and model.prediction_type";
            check.refuse("train.save_as_full_pipeline", problem);
        }
    }
}
