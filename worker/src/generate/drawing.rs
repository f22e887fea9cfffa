//! A drawing, resolved against a model: its pictures, batches and noise.
//!
//! Picture n of a prompt starts from noise that depends on the seed and n alone. Batches are cut by the number of
//! pictures and the batch size alone, so that any division of them among workers gives the same pictures.

use std::{ops::Range, path::Path};

use image::RgbImage;
use ringtune_shared::ids::ContentHash;

use super::{Error, Infotext, KnownLora, embeddings::EmbeddingFile, embeddings::Embeddings, sheet};
use crate::{
    data::ClipTokenizer,
    engine::{self, ImageRequest, MOST_CHUNKS, MOST_PICTURES, ModelInfo, SamplerKind},
    train::Draws,
};

/// Normal numbers that one batch may need: 1 GiB.
const MOST_NOISE: usize = 1 << 28;
/// Side of pictures of a model whose size is unknown.
const USUAL_SIDE: usize = 512;

/// Requested pictures; names and meanings are those of the command line and of `[generate]`.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureOptions {
    /// At least one.
    pub prompts: Vec<String>,
    /// May be empty.
    pub negative_prompt: String,
    /// None: the model's scheduler.
    pub scheduler: Option<SamplerKind>,
    /// Denoising steps.
    pub steps: u32,
    /// 1 or less: none.
    pub guidance: f64,
    /// Of the first noise.
    pub seed: u64,
    /// Pictures of each prompt.
    pub count: u32,
    /// Pictures in one pass through the UNet.
    pub batch: u32,
    /// Pixels; none: what the model was made for.
    pub width: Option<u32>,
    /// Pixels; none: what the model was made for.
    pub height: Option<u32>,
}

/// Pictures of one prompt that go through the UNet together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Index of the prompt.
    pub prompt: usize,
    /// The first picture's number, from 0.
    pub first: u32,
    /// Pictures.
    pub count: u32,
}

/// The model's name in the pictures' metadata.
#[derive(Clone, Debug)]
pub struct ModelName {
    /// Without its place.
    pub name: String,
    /// Of its files.
    pub hash: ContentHash,
}

/// Everything that decides the pictures.
#[derive(Debug)]
pub struct Drawing {
    options: PictureOptions,
    sampler: SamplerKind,
    width: usize,
    height: usize,
    info: ModelInfo,
    /// For each prompt its ids and the negative prompt's, in as many chunks.
    ids: Vec<(Vec<i64>, Vec<i64>)>,
    /// Each prompt as the text encoder gets it, and in how many chunks.
    read_back: Vec<(String, usize)>,
    embeddings: Embeddings,
    loras: Vec<KnownLora>,
}

impl Drawing {
    /// Resolves `options` for the model that is `info`'s and its `tokenizer` folder, with the tokens of
    /// `embeddings`. Blocks.
    ///
    /// # Errors
    /// Sizes that the model cannot draw, prompts that are too long, embeddings that do not fit.
    pub fn new(
        options: PictureOptions,
        tokenizer: &Path,
        info: ModelInfo,
        embeddings: &[EmbeddingFile],
    ) -> Result<Self, Error> {
        let mut tokenizer = ClipTokenizer::open(tokenizer, info.max_text_length)?;
        if !tokenizer.fit(info.vocab_size, info.max_text_length) {
            return Err(Error::Vocabulary {
                tokenizer: (tokenizer.vocabulary_size(), tokenizer.length()),
                text_encoder: (info.vocab_size, info.max_text_length),
            });
        }
        let embeddings = Embeddings::open(embeddings, info.text_width, &mut tokenizer)?;
        let native = info.native_resolution.unwrap_or(USUAL_SIDE);
        let side = |given: Option<u32>| given.map_or(native, |side| side as usize);
        let (width, height) = (side(options.width), side(options.height));
        for (option, side) in [("--width", width), ("--height", height)] {
            if !side.is_multiple_of(info.vae_factor) {
                let problem =
                    format!("is {side}, allowed are multiples of the VAE's factor {}", info.vae_factor);
                return Err(Error::Option { option, problem });
            }
        }
        if !(1..=MOST_PICTURES).contains(&(options.batch as usize)) {
            let problem = format!("is {}, allowed are 1 to {MOST_PICTURES}", options.batch);
            return Err(Error::Option { option: "--batch", problem });
        }
        if options.steps as usize > info.num_train_timesteps {
            let problem = format!("is {}, this model has {}", options.steps, info.num_train_timesteps);
            return Err(Error::Option { option: "--steps", problem });
        }
        let ids = options
            .prompts
            .iter()
            .map(|prompt| chunks_of_both(&tokenizer, prompt, &options.negative_prompt))
            .collect::<Result<Vec<_>, _>>()?;
        let read_back = ids.iter().map(|(ids, _)| read_back(&tokenizer, ids, &info, &embeddings)).collect();
        let sampler = options.scheduler.unwrap_or(info.sampler);
        let drawing =
            Self { sampler, width, height, info, ids, read_back, embeddings, loras: Vec::new(), options };
        let noise = drawing.noise_of_a_picture().saturating_mul(drawing.options.batch as usize);
        if noise > MOST_NOISE {
            let problem = format!(
                "pictures of {width} x {height} with all their noise need {noise} random numbers at \
                once, allowed are {MOST_NOISE}"
            );
            return Err(Error::Option { option: "--batch", problem });
        }
        Ok(drawing)
    }

    /// With LoRAs that stand beside the model's layers.
    pub fn with_loras(self, loras: Vec<KnownLora>) -> Self {
        Self { loras, ..self }
    }

    /// Those, in the order in which they were given.
    pub fn loras(&self) -> &[KnownLora] {
        &self.loras
    }

    /// The requested options.
    pub fn options(&self) -> &PictureOptions {
        &self.options
    }

    /// Of the embeddings' files, in the order in which they were given.
    pub fn embedding_hashes(&self) -> impl Iterator<Item = ContentHash> {
        self.embeddings.known.iter().map(|(_, hash)| *hash)
    }

    /// The model.
    pub fn model(&self) -> &ModelInfo {
        &self.info
    }

    /// The token of each embedding, how many vectors it has, and the hash of its file.
    pub fn learned(&self) -> Vec<(String, usize, ContentHash)> {
        let Embeddings { known, tokens, .. } = &self.embeddings;
        let begins = known.iter().map(|(token, _)| tokens.iter().position(|own| own == token).unwrap_or(0));
        let begins: Vec<usize> = begins.chain([tokens.len()]).collect();
        let vectors = begins.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        known.iter().zip(vectors).map(|((token, hash), vectors)| (token.clone(), vectors, *hash)).collect()
    }

    /// Embeddings that no prompt names, and prompts that name none, the negative one included, in words.
    pub fn warnings(&self) -> Vec<String> {
        let names = |(prompt, negative): &(Vec<i64>, Vec<i64>), own: &Range<i64>| {
            prompt.iter().chain(negative).any(|id| own.contains(id))
        };
        let mut learned = self.info.vocab_size as i64..self.info.vocab_size as i64;
        let mut warnings = Vec::new();
        for (token, vectors, _) in self.learned() {
            let own = learned.end..learned.end + vectors as i64;
            learned.end = own.end;
            if !self.ids.iter().any(|ids| names(ids, &own)) {
                let why = "its embedding changes no picture (--token or generate.tokens names its word)";
                warnings.push(format!("none has the word {token}: {why}"));
            }
        }
        let prompts = self.options.prompts.iter().zip(&self.ids);
        let plain = prompts.filter(|(_, ids)| !learned.is_empty() && !names(ids, &learned));
        warnings.extend(plain.map(|(prompt, _)| format!("{prompt:?} has no word that an embedding teaches")));
        warnings
    }

    /// Each prompt read back from the ids that the model gets, learned tokens in brackets, and in how many chunks.
    pub fn prompts_read_back(&self) -> &[(String, usize)] {
        &self.read_back
    }

    /// The sampler.
    pub fn sampler(&self) -> SamplerKind {
        self.sampler
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// All batches, prompt by prompt.
    pub fn batches(&self) -> Vec<Batch> {
        batches(self.options.prompts.len(), self.options.count, self.options.batch)
    }

    /// The engine's request. Made just before it is sent: the noise of many pictures is large.
    pub fn request(&self, batch: Batch) -> ImageRequest {
        self.request_of(batch, self.options.steps)
    }

    /// As above with another number of steps.
    pub fn request_of(&self, batch: Batch, of_steps: u32) -> ImageRequest {
        let latent = self.latent();
        let steps = self.sampler.step_noises(of_steps as usize);
        let count = batch.count as usize;
        let draws = Draws::new(self.options.seed);
        let mut noise = Vec::with_capacity(count * latent);
        // [steps, pictures, latent]: each picture brings its own stream.
        let mut step_noise = vec![0.0; steps * count * latent];
        for place in 0..count {
            let all = draws.picture_noise(batch.first + place as u32, latent * (1 + steps));
            let (first, rest) = all.split_at(latent);
            noise.extend_from_slice(first);
            for (step, of_step) in rest.chunks_exact(latent).enumerate() {
                let start = (step * count + place) * latent;
                step_noise[start..start + latent].copy_from_slice(of_step);
            }
        }
        let (prompt_ids, negative_ids) = self.ids[batch.prompt].clone();
        ImageRequest {
            batch: count,
            height: self.height,
            width: self.width,
            prompt_ids,
            negative_ids,
            rows: self.embeddings.rows.clone(),
            sampler: self.sampler,
            steps: of_steps as usize,
            guidance: self.options.guidance,
            noise,
            step_noise,
        }
    }

    /// Infotext of a picture of prompt `prompt`; without a number, of a sheet of all prompts.
    pub fn infotext(&self, place: Option<(usize, u32)>, model: &ModelName) -> String {
        let all = self.options.prompts.join("\n");
        Infotext {
            prompt: place.map_or(all.as_str(), |(prompt, _)| &self.options.prompts[prompt]),
            negative_prompt: &self.options.negative_prompt,
            steps: self.options.steps,
            sampler: self.sampler,
            guidance: self.options.guidance,
            seed: self.options.seed,
            number: place.map(|(_, number)| number),
            size: self.size(),
            model_name: &model.name,
            model_hash: model.hash,
            embeddings: &self.embeddings.known,
            loras: &self.loras,
        }
        .text()
    }

    /// The rows of a sheet, from all pictures in the order of [`Drawing::batches`].
    pub fn sheet_rows(&self, pictures: Vec<RgbImage>) -> Vec<sheet::Row> {
        let mut pictures = pictures.into_iter();
        let row = |prompt: &String| sheet::Row {
            label: prompt.clone(),
            pictures: pictures.by_ref().take(self.options.count as usize).collect(),
        };
        self.options.prompts.iter().map(row).collect()
    }

    fn latent(&self) -> usize {
        let factor = self.info.vae_factor;
        self.info.latent_channels * (self.height / factor) * (self.width / factor)
    }

    fn noise_of_a_picture(&self) -> usize {
        self.latent().saturating_mul(1 + self.sampler.step_noises(self.options.steps as usize))
    }
}

/// Batches of `count` pictures of each prompt, at most `most` in each.
fn batches(prompts: usize, count: u32, most: u32) -> Vec<Batch> {
    let most = most.max(1);
    let of_prompt = |prompt| {
        let firsts = (0..count).step_by(most as usize);
        firsts.map(move |first| Batch { prompt, first, count: most.min(count - first) })
    };
    (0..prompts).flat_map(of_prompt).collect()
}

/// The ids of a prompt and of the negative prompt; the shorter one is filled up with empty chunks, as compel does.
fn chunks_of_both(
    tokenizer: &ClipTokenizer,
    prompt: &str,
    negative: &str,
) -> Result<(Vec<i64>, Vec<i64>), Error> {
    let of = |text: &str| tokenizer.encode_chunks(&tokenizer.write_out(text)?);
    let (mut prompt, mut negative) = (of(prompt)?, of(negative)?);
    let length = prompt.len().max(negative.len()).min(MOST_CHUNKS);
    let empty = tokenizer.encode("")?;
    prompt.resize(length, empty.clone());
    negative.resize(length, empty);
    Ok((prompt.concat(), negative.concat()))
}

/// A prompt's ids as text, without the chunks that only fill it up.
fn read_back(
    tokenizer: &ClipTokenizer,
    ids: &[i64],
    info: &ModelInfo,
    embeddings: &Embeddings,
) -> (String, usize) {
    let name = |id: i64| {
        let number = usize::try_from(id).ok()?.checked_sub(info.vocab_size)?;
        embeddings.tokens.get(number).map(|token| format!("[{token}]"))
    };
    let chunks = ids.chunks(info.max_text_length.max(1)).map(|chunk| tokenizer.text_of(chunk, name));
    let texts: Vec<String> = chunks.filter(|text| !text.is_empty()).collect();
    (texts.join(" "), texts.len().max(1))
}

/// The engine's picture as the image library has it.
///
/// # Errors
/// It has fewer bytes than its sides say.
pub fn to_image(picture: engine::RgbImage) -> Result<RgbImage, Error> {
    let (width, height) = (picture.width, picture.height);
    RgbImage::from_raw(width as u32, height as u32, picture.data).ok_or(Error::Short { width, height })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine as _, FakeEngine, FakeScript};

    fn toy() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/toy-sd")
    }

    fn options() -> PictureOptions {
        PictureOptions {
            prompts: vec!["a star".to_owned(), "a heart".to_owned()],
            negative_prompt: String::new(),
            scheduler: Some(SamplerKind::EulerAncestral),
            steps: 3,
            guidance: 4.0,
            seed: 5,
            count: 5,
            batch: 2,
            width: Some(16),
            height: Some(8),
        }
    }

    fn drawing(options: PictureOptions) -> Result<Drawing, Error> {
        let info = FakeEngine::new(FakeScript::default()).load(&FakeEngine::any_model())?;
        Drawing::new(options, &toy().join("tokenizer"), info, &[])
    }

    #[test]
    fn every_picture_is_in_one_batch_and_no_batch_has_two_prompts() {
        let one = |prompt, first, count| Batch { prompt, first, count };
        let expected = [one(0, 0, 2), one(0, 2, 2), one(0, 4, 1), one(1, 0, 2), one(1, 2, 2), one(1, 4, 1)];
        assert_eq!(batches(2, 5, 2), expected);
    }

    #[test]
    fn a_pictures_noise_is_the_same_in_every_batch() {
        let together = drawing(options()).unwrap().request(Batch { prompt: 0, first: 2, count: 2 });
        let alone = drawing(options()).unwrap().request(Batch { prompt: 1, first: 3, count: 1 });
        let latent = 4 * 2 * 4;
        assert_eq!((together.noise.len(), together.step_noise.len()), (2 * latent, 3 * 2 * latent));
        assert_eq!(together.noise[latent..], alone.noise);
        for step in 0..3 {
            let place = (step * 2 + 1) * latent;
            let of_step = &alone.step_noise[step * latent..(step + 1) * latent];
            assert_eq!(&together.step_noise[place..place + latent], of_step);
        }
        assert_ne!(together.noise[..latent], alone.noise);
    }

    #[test]
    fn the_shorter_prompt_is_filled_up_with_empty_chunks() {
        let tokenizer = ClipTokenizer::open(&toy().join("tokenizer"), 77).unwrap();
        let empty = tokenizer.encode("").unwrap();
        let (long, short) = chunks_of_both(&tokenizer, &"star ".repeat(160), "mud").unwrap();
        assert_eq!((long.len(), short.len()), (3 * 77, 3 * 77));
        assert_eq!(short, [tokenizer.encode("mud").unwrap(), empty.clone(), empty.clone()].concat());
        let (short, long) = chunks_of_both(&tokenizer, "mud", &"star ".repeat(76)).unwrap();
        assert_eq!(short[77..], empty);
        assert_ne!(long[77..], empty);
    }

    #[test]
    fn embeddings_that_no_prompt_names_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let info = FakeEngine::new(FakeScript::default()).load(&FakeEngine::any_model()).unwrap();
        let files = ["cat", "dog", "mud"].map(|word| {
            let file = folder.path().join(format!("my-{word}.safetensors"));
            let rows = vec![0.5; 2 * info.text_width];
            let tensors = crate::output::TensorFile::new();
            tensors.with_f32("emp_params", &[2, info.text_width], &rows).unwrap().write(&file).unwrap();
            EmbeddingFile::at(&file)
        });
        let warnings = |prompt: &str, negative: &str| {
            let options = PictureOptions {
                prompts: vec!["a star".to_owned(), prompt.to_owned()],
                negative_prompt: negative.to_owned(),
                ..options()
            };
            Drawing::new(options, &toy().join("tokenizer"), info.clone(), &files).unwrap().warnings()
        };
        assert_eq!(warnings("a star", "").len(), 3 + 2);
        // In any case, and in the negative prompt too.
        let cat = warnings("a photo of My-Dog", "my-mud");
        assert!(cat.len() == 1 && cat[0].starts_with("none has the word my-cat:"), "{cat:?}");
        assert_eq!(warnings("my-dog, my-cat", "my-mud"), [""; 0]);
        let plain = "\"a star\" has no word that an embedding teaches";
        assert_eq!(warnings("my-dog, my-cat, my-mud", ""), [plain]);
    }

    #[test]
    fn what_cannot_be_drawn_is_refused_by_its_option() {
        let cases = [
            ("--width", PictureOptions { width: Some(18), ..options() }),
            ("--height", PictureOptions { height: Some(9), ..options() }),
            ("--steps", PictureOptions { steps: 1001, ..options() }),
            ("--batch", PictureOptions { batch: 65, ..options() }),
            (
                "--batch",
                PictureOptions { steps: 1000, batch: 4, width: Some(4096), height: Some(4096), ..options() },
            ),
        ];
        for (option, options) in cases {
            let error = drawing(options).unwrap_err().to_string();
            assert!(error.starts_with(option), "{error}");
        }
    }
}
