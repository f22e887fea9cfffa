//! A picture's infotext: the text that AUTOMATIC1111 keeps in a PNG's `parameters` chunk, which its
//! "PNG Info" and many other tools read.
//!
//! Source of the form: AUTOMATIC1111 stable-diffusion-webui, `create_infotext` and `parse_generation_parameters`: the
//! prompt, then "Negative prompt: …" if there is one, then one line of "Key: value" with commas between, where a value
//! with a comma, colon or line break is a JSON string.

use std::fmt::Write as _;

use ringtune_shared::{ids::ContentHash, version::VERSION};

use super::KnownLora;
use crate::engine::SamplerKind;

/// Digits of hashes, as AUTOMATIC1111 shortens them.
const MODEL_DIGITS: usize = 10;
const EMBEDDING_DIGITS: usize = 12;

/// Parameters of a picture, or of a sheet.
#[derive(Clone, Debug)]
pub struct Infotext<'a> {
    /// As it was given.
    pub prompt: &'a str,
    /// May be empty.
    pub negative_prompt: &'a str,
    /// Denoising steps.
    pub steps: u32,
    /// The sampler.
    pub sampler: SamplerKind,
    /// Guidance scale.
    pub guidance: f64,
    /// Of the first noise.
    pub seed: u64,
    /// Index among the seed's pictures, from 0; None: a sheet of several.
    pub number: Option<u32>,
    /// Pixels.
    pub size: (usize, usize),
    /// The model's name, without its place.
    pub model_name: &'a str,
    /// Of its files.
    pub model_hash: ContentHash,
    /// Tokens and their files' hashes.
    pub embeddings: &'a [(String, ContentHash)],
    /// LoRAs.
    pub loras: &'a [KnownLora],
}

impl Infotext<'_> {
    /// The text of the chunk.
    pub fn text(&self) -> String {
        let mut text = self.prompt.trim().to_owned();
        let negative = self.negative_prompt.trim();
        // Writing to a String cannot fail.
        if !negative.is_empty() {
            let _ = write!(text, "\nNegative prompt: {negative}");
        }
        let (width, height) = self.size;
        let mut entries = vec![
            ("Steps", self.steps.to_string()),
            ("Sampler", sampler_name(self.sampler).to_owned()),
            ("CFG scale", self.guidance.to_string()),
            ("Seed", self.seed.to_string()),
            ("Size", format!("{width}x{height}")),
            ("Model hash", shortened(self.model_hash, MODEL_DIGITS)),
            ("Model", self.model_name.to_owned()),
        ];
        if let Some(number) = self.number {
            entries.push(("Picture", number.to_string()));
        }
        if !self.embeddings.is_empty() {
            let hashes = self.embeddings.iter();
            let hashes =
                hashes.map(|(token, hash)| format!("{token}: {}", shortened(*hash, EMBEDDING_DIGITS)));
            entries.push(("TI hashes", hashes.collect::<Vec<_>>().join(", ")));
        }
        if !self.loras.is_empty() {
            let of_all = |text: fn(&KnownLora) -> String| {
                let texts = self.loras.iter().map(|lora| format!("{}: {}", lora.name, text(lora)));
                texts.collect::<Vec<_>>().join(", ")
            };
            entries.push(("Lora hashes", of_all(|lora| shortened(lora.tensors, EMBEDDING_DIGITS))));
            entries.push(("Lora weights", of_all(|lora| lora.weight.to_string())));
        }
        entries.push(("Version", format!("ringtune {VERSION}")));
        let entries: Vec<String> =
            entries.into_iter().map(|(key, value)| format!("{key}: {}", quoted(value))).collect();
        let _ = write!(text, "\n{}", entries.join(", "));
        text
    }
}

fn shortened(hash: ContentHash, digits: usize) -> String {
    hash.to_string().chars().take(digits).collect()
}

fn quoted(value: String) -> String {
    if value.contains([',', '\n', ':']) { serde_json::Value::from(value).to_string() } else { value }
}

/// AUTOMATIC1111's names; its PLMS is PNDM without Runge-Kutta steps.
fn sampler_name(sampler: SamplerKind) -> &'static str {
    match sampler {
        SamplerKind::Ddim => "DDIM",
        SamplerKind::Pndm => "PLMS",
        SamplerKind::Euler => "Euler",
        SamplerKind::EulerAncestral => "Euler a",
        SamplerKind::DpmSolver2M => "DPM++ 2M",
        SamplerKind::DpmSolver2MKarras => "DPM++ 2M Karras",
        SamplerKind::Lms => "LMS",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Infotext<'static> {
        Infotext {
            prompt: "a photo of a star",
            negative_prompt: "",
            steps: 20,
            sampler: SamplerKind::Ddim,
            guidance: 4.0,
            seed: 1,
            number: None,
            size: (64, 48),
            model_name: "toy-sd",
            model_hash: ContentHash([0xab; 32]),
            embeddings: &[],
            loras: &[],
        }
    }

    #[test]
    fn the_form_is_that_of_automatic1111() {
        let version = format!("Version: ringtune {VERSION}");
        let settings = "Steps: 20, Sampler: DDIM, CFG scale: 4, Seed: 1, Size: 64x48, Model hash: ababababab, \
            Model: toy-sd";
        assert_eq!(example().text(), format!("a photo of a star\n{settings}, {version}"));
        let embeddings = [("<a>".to_owned(), ContentHash([1; 32])), ("b".to_owned(), ContentHash([2; 32]))];
        let lora = KnownLora {
            name: "toy".to_owned(),
            weight: 0.5,
            hash: ContentHash([3; 32]),
            tensors: ContentHash([4; 32]),
        };
        let loras = [lora];
        let more = Infotext {
            negative_prompt: "mud",
            guidance: 7.5,
            number: Some(3),
            model_name: "toy: \"mine\"",
            embeddings: &embeddings,
            loras: &loras,
            ..example()
        };
        let settings = settings.replace("scale: 4", "scale: 7.5").replace("toy-sd", r#""toy: \"mine\"""#);
        let hashes = r#"TI hashes: "<a>: 010101010101, b: 020202020202""#;
        let loras = r#"Lora hashes: "toy: 040404040404", Lora weights: "toy: 0.5""#;
        let expected = format!(
            "a photo of a star\nNegative prompt: mud\n{settings}, Picture: 3, {hashes}, {loras}, {version}"
        );
        assert_eq!(more.text(), expected);
    }
}
