//! `[generate]`: pictures to draw.

mod check;
mod limits;

use super::{Activity, facts::Facts};
use crate::{
    ids::ContentHash,
    job::{
        ContentUse, FilePlace, JobFile, MixedPrecision, PathUse, Teaches, limits::RESOLUTION, pictures,
        section::section, text::text_bytes,
    },
};

one_section!(generate: GenerateSpec, pictures::FOREIGN_KEYS);

/// The samplers' names; each is diffusers' class of that kind.
pub const SCHEDULERS: [&str; 7] = ["ddim", "pndm", "euler", "euler_a", "dpm++_2m", "dpm++_2m_karras", "lms"];

section! {
    /// Pictures to draw. Guidance, steps and size have the names and meanings of diffusers' pipelines; the defaults are
    /// those of `ringtune generate`.
    GenerateSpec from draft: GenerateDraft, generate_keys {
        /// What to draw; at least one.
        prompts: Vec<String> = strings.pictured_prompts(),
        /// What not to draw. Default empty.
        negative_prompt: String = string.line(limits::PROMPT_CHARACTERS),
        /// Learned embeddings: files as every worker sees them, or uploaded ones, `artifact://sha256/HEX#NAME`.
        embeddings: Vec<String> = strings.embeddings(),
        /// The words of the embeddings, in their order; an empty one is what the file says, or else its name. Default none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tokens: Vec<String> = strings.words_of_embeddings(embeddings.len()),
        /// LoRAs that stand beside the model's layers. Default none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        loras: Vec<DrawnLora> = tables<DrawnLoraDraft>.drawn_loras(),
        /// Pictures of each prompt. Default 1.
        count: u32 = integer.count(1, 1..=limits::COUNT),
        /// Denoising steps. Default 25.
        steps: u32 = integer.count(25, 1..=limits::STEPS),
        /// 1 or less: no guidance. Default 7.5.
        guidance_scale: f64 = number.number(7.5, limits::GUIDANCE),
        /// Pixels; 0: what the model was made for. Default 0.
        width: u32 = integer.count(0, 0..=RESOLUTION),
        /// Pixels; 0: what the model was made for. Default 0.
        height: u32 = integer.count(0, 0..=RESOLUTION),
        /// What the first noise is derived from. Default 0.
        seed: u64 = integer.count(0, 0..=i64::MAX),
        /// One of [`SCHEDULERS`]; empty: the model's own. Default empty.
        scheduler: String = string.scheduler(),
        /// Pictures that one rank draws at once. Default 1.
        batch: u32 = integer.count(1, 1..=limits::BATCH),
        /// One more picture, of all. Default false.
        sheet: bool = boolean.flag(false),
        /// What the ranks are to compute in. Default no, that is fp32.
        mixed_precision: MixedPrecision = string.choice(MixedPrecision::No),
    }
}

section! {
    /// A LoRA to draw with.
    DrawnLora from draft: DrawnLoraDraft, drawn_lora_keys {
        /// A file as every worker sees it, or an uploaded one, `artifact://sha256/HEX#NAME`.
        file: String = string.lora_file(),
        /// Its product is multiplied by it. Default 1.
        weight: f64 = number.lora_weight(),
    }
}

impl GenerateSpec {
    /// No picture.
    pub(in crate::job) fn nothing() -> Self {
        Self {
            prompts: Vec::new(),
            negative_prompt: String::new(),
            embeddings: Vec::new(),
            tokens: Vec::new(),
            loras: Vec::new(),
            count: 0,
            steps: 0,
            guidance_scale: 0.0,
            width: 0,
            height: 0,
            seed: 0,
            scheduler: String::new(),
            batch: 1,
            sheet: false,
            mixed_precision: MixedPrecision::No,
        }
    }
}

impl Facts for GenerateSpec {
    fn mixed_precision(&self) -> MixedPrecision {
        self.mixed_precision
    }

    fn activity(&self) -> Activity {
        Activity::Drawing
    }

    fn success(&self, _: u64) -> String {
        "all pictures are drawn".to_owned()
    }

    fn contents(&self) -> Vec<(ContentUse, ContentHash)> {
        let files = self.embeddings.iter().chain(self.loras.iter().map(|lora| &lora.file));
        let uploaded = |entry: &String| match FilePlace::parse(entry) {
            Ok(FilePlace::Uploaded { hash, .. }) => Some((ContentUse::Embedding, hash)),
            _ => None,
        };
        files.filter_map(uploaded).collect()
    }

    fn places(&mut self) -> Vec<(String, PathUse, &mut String)> {
        self.files().into_iter().map(|file| (file.field, PathUse::Embedding, file.place)).collect()
    }

    fn lists(&self) -> Vec<(String, usize, &'static str)> {
        vec![
            ("generate.prompts".to_owned(), text_bytes(&self.prompts), ""),
            ("generate.embeddings".to_owned(), text_bytes(&self.embeddings), ""),
            ("generate.tokens".to_owned(), text_bytes(&self.tokens), ""),
            ("generate.loras".to_owned(), self.loras.iter().map(|lora| lora.file.len()).sum(), ""),
        ]
    }

    fn files<'a>(&'a mut self) -> Vec<JobFile<'a>> {
        let embedding = |place| JobFile {
            field: "generate.embeddings".to_owned(),
            place,
            teaches: Teaches::Words,
            is_start: false,
        };
        let lora = |(index, lora): (usize, &'a mut DrawnLora)| JobFile {
            field: format!("generate.loras[{index}].file"),
            place: &mut lora.file,
            teaches: Teaches::Layers,
            is_start: false,
        };
        let loras = self.loras.iter_mut().enumerate().map(lora);
        self.embeddings.iter_mut().map(embedding).chain(loras).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobKind, JobSpec, STORED_VERSION, Work, parse_job_toml};

    const JOB: &str = "kind = \"generate\"\n[model]\nbase = \"/m\"\n[generate]\nprompts = [\"a <cat>\"]\n";

    #[test]
    fn a_generate_job_has_defaults_and_is_written_as_it_is_read() {
        let spec = parse_job_toml(JOB).unwrap();
        let Work::Generate(generate) = &spec.work else { panic!("generate") };
        assert_eq!(
            (spec.kind(), spec.common.name.as_str(), spec.total_steps()),
            (JobKind::Generate, "generate", 0)
        );
        assert_eq!(
            (generate.steps, generate.guidance_scale, generate.count, generate.batch),
            (25, 7.5, 1, 1)
        );
        let full = format!(
            "{JOB}embeddings = [\"/e/cat.safetensors\"]\ntokens = [\"<my-cat>\"]\nloras = [{{ file = \"/l/toy.safetensors\", weight = -0.5 }}]\nnegative_prompt = \"mud\"\ncount = 3\nsteps = 9\n\
             guidance_scale = 4\nwidth = 64\nheight = 96\nseed = 7\nscheduler = \"euler_a\"\nbatch = 2\nsheet = true\n\
             mixed_precision = \"bf16\"\n[cluster]\nworld_size = 2\n"
        );
        // A job without it is written as it was before there was such a key.
        let stored = serde_json::to_string(&spec).unwrap();
        assert!(!stored.contains("tokens") && !stored.contains("loras"));
        let spec = parse_job_toml(&full).unwrap();
        assert_eq!(spec.mixed_precision(), MixedPrecision::Bf16);
        let text = spec.to_toml().unwrap();
        assert!(!text.contains("[train]") && !text.contains("[data]"), "{text}");
        assert_eq!(parse_job_toml(&text).unwrap(), spec);
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(JobSpec::from_stored(STORED_VERSION, &json).unwrap(), spec);
    }

    #[test]
    fn wrong_values_and_foreign_sections_are_named() {
        let long = format!("[{}]", "\"x\",".repeat(2000));
        for (job, field) in [
            (JOB.replace("prompts = [\"a <cat>\"]", ""), "generate.prompts"),
            (JOB.replace("[\"a <cat>\"]", "[]"), "generate.prompts"),
            (JOB.replace("[\"a <cat>\"]", &long), "generate.prompts"),
            (JOB.replace("a <cat>", ""), "generate.prompts[0]"),
            (format!("{JOB}count = 0"), "generate.count"),
            (format!("{JOB}steps = 1001"), "generate.steps"),
            (format!("{JOB}guidance_scale = nan"), "generate.guidance_scale"),
            (format!("{JOB}width = 5000"), "generate.width"),
            (format!("{JOB}seed = -1"), "generate.seed"),
            (format!("{JOB}scheduler = \"heun\""), "generate.scheduler"),
            (format!("{JOB}batch = 65"), "generate.batch"),
            (format!("{JOB}stepz = 5"), "generate.stepz"),
            (format!("{JOB}embeddings = [\"artifact://sha256/12\"]"), "generate.embeddings[0]"),
            (format!("{JOB}embeddings = [\"s3://b/k\"]"), "generate.embeddings[0]"),
            (format!("{JOB}tokens = [\"<a>\"]"), "generate.tokens"),
            (format!("{JOB}embeddings = [\"/a\", \"/b\"]\ntokens = [\"\", \"a b\"]"), "generate.tokens[1]"),
            (format!("{JOB}loras = [{{ file = \"\" }}]"), "generate.loras[0].file"),
            (format!("{JOB}loras = [{{ weight = 1 }}]"), "generate.loras[0].file"),
            (format!("{JOB}loras = [{{ file = \"s3://b/k\" }}]"), "generate.loras[0].file"),
            (format!("{JOB}loras = [{{ file = \"/l\", weight = inf }}]"), "generate.loras[0].weight"),
            (format!("{JOB}[train]\nlearning_rate = 0.1"), "train"),
            (format!("{JOB}[data]\nimages = \"/i\""), "data"),
            (format!("{JOB}[debug]\ntrace_dir = \"/t\""), "debug.trace_dir"),
            (
                "kind = \"textual_inversion\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n[train]\n\
                 placeholder_token = \"<a>\"\ninitializer_token = \"b\"\n[generate]\ncount = 2\n"
                    .to_owned(),
                "generate",
            ),
        ] {
            let error = parse_job_toml(&job).unwrap_err();
            let fields: Vec<&str> = error.violations.iter().map(|one| one.field.as_str()).collect();
            assert_eq!(fields, [field], "{error}");
        }
    }
}
