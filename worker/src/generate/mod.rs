//! `generate`: pictures from a checkpoint and learned embeddings.
//!
//! The picture of prompt p and number n starts from noise that depends on the seed and n alone, so that prompts
//! can be compared, and a run can be extended by raising the count. A sampler that takes noise in its steps gets what
//! comes next in the same stream, so that its pictures too are the same for the same seed and number of steps.

mod arguments;
mod embeddings;
mod error;
pub mod sheet;

use std::{
    io::{Cursor, Write as _},
    path::Path,
    time::Instant,
};

use image::{ImageFormat, RgbImage};

pub use arguments::GenerateArguments;
pub use error::Error;

use crate::{
    data::{ClipTokenizer, images},
    engine::{EngineHandle, ImageRequest, LoadModel, ModelInfo, Precision, SamplerKind},
    train::Draws,
};
use embeddings::Embeddings;

/// Draws and writes all pictures that were asked for; says on stderr how far it is.
///
/// `default_threads` and `default_precision`: what to use where the arguments leave it open.
///
/// # Errors
/// See [`Error`]. No file is left half-written.
pub async fn run(
    arguments: &GenerateArguments,
    engine: &EngineHandle,
    default_threads: usize,
    default_precision: Precision,
) -> Result<(), Error> {
    check_output(arguments)?;
    let training = arguments.training_images.as_deref().map(training_row).transpose()?;
    let precision = match arguments.mixed_precision.as_deref() {
        Some("bf16") => Precision::Bf16,
        Some(_) => Precision::Fp32,
        None => default_precision,
    };
    let threads = arguments.threads.map_or(default_threads, |threads| threads as usize);
    say(&format!("loading {} ({threads} threads, {precision})", arguments.model.display()));
    let info = engine
        .load(LoadModel { folder: arguments.model.clone(), precision, threads, training: None })
        .await?;
    let sampler = sampler(arguments, &info);
    let requests = requests(arguments, &info, sampler)?;
    let total = requests.len();
    let mut pictures = Vec::with_capacity(total);
    let draws = Draws::new(arguments.seed);
    for (number, mut request) in requests.into_iter().enumerate() {
        let start = Instant::now();
        draw_noise(&mut request, &draws, number as u32 % arguments.count, &info);
        pictures.push(to_image(engine.generate(request).await?, &arguments.output)?);
        say(&format!("picture {} of {total} in {:.1} s", number + 1, start.elapsed().as_secs_f64()));
    }
    write_all(arguments, training, pictures)
}

/// A sheet and a single picture are files; several pictures need a folder.
fn check_output(arguments: &GenerateArguments) -> Result<(), Error> {
    let is_png = arguments.output.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("png"));
    let several = arguments.prompt.len() * arguments.count as usize > 1;
    let refuse = |problem: &str| {
        let problem = format!("'{}' {problem}", arguments.output.display());
        Err(Error::Option { option: "--output", problem })
    };
    match (arguments.sheet, is_png, several) {
        (true, false, _) => refuse("is not a .png file, which a sheet is written to"),
        (false, true, true) => refuse("is one file for several pictures: give a folder, or --sheet"),
        _ if !arguments.guidance.is_finite() || arguments.guidance > 100.0 => Err(Error::Option {
            option: "--guidance",
            problem: format!("is {}, allowed is a number up to 100", arguments.guidance),
        }),
        _ => Ok(()),
    }
}

fn training_row(folder: &Path) -> Result<sheet::Row, Error> {
    let set = images::scan(folder)?;
    let pictures = set.images.iter().map(images::ImageFile::decode).collect::<Result<_, _>>()?;
    Ok(sheet::Row { label: format!("training images ({})", set.images.len()), pictures })
}

/// What was asked for, or the checkpoint's own. Says which, for pictures of two samplers differ.
fn sampler(arguments: &GenerateArguments, info: &ModelInfo) -> SamplerKind {
    let sampler = arguments.scheduler.unwrap_or(info.sampler);
    match (&info.unknown_scheduler, arguments.scheduler) {
        (Some(class), None) => say(&format!(
            "the checkpoint's scheduler, {class}, is not known here: {sampler} is used instead (see --scheduler)"
        )),
        _ => say(&format!("scheduler {sampler}, {} steps", arguments.steps)),
    }
    sampler
}

/// Puts the noise of picture number `number` in. Only when its turn comes: that of many pictures is large.
fn draw_noise(request: &mut ImageRequest, draws: &Draws, number: u32, info: &ModelInfo) {
    let latent =
        info.latent_channels * (request.height / info.vae_factor) * (request.width / info.vae_factor);
    let all = latent * (1 + request.sampler.step_noises(request.steps));
    request.noise = draws.picture_noise(number, all);
    request.step_noise = request.noise.split_off(latent);
}

/// One request a picture, still without noise: all of the first prompt, then all of the second …
fn requests(
    arguments: &GenerateArguments,
    info: &ModelInfo,
    sampler: SamplerKind,
) -> Result<Vec<ImageRequest>, Error> {
    let mut tokenizer = ClipTokenizer::open(&arguments.model.join("tokenizer"), info.max_text_length)?;
    let embeddings = Embeddings::open(&arguments.embeds, info.text_width, &mut tokenizer)?;
    let side = arguments.size.map_or(info.native_resolution.unwrap_or(512), |size| size as usize);
    if !side.is_multiple_of(info.vae_factor) {
        let allowed = format!("is {side}, allowed are multiples of the VAE's factor {}", info.vae_factor);
        return Err(Error::Option { option: "--size", problem: allowed });
    }
    let negative_ids = tokenizer.encode(&embeddings.expand(&arguments.negative_prompt))?;
    let mut requests = Vec::new();
    for prompt in &arguments.prompt {
        let prompt_ids = tokenizer.encode(&embeddings.expand(prompt))?;
        requests.extend((0..arguments.count).map(|_| ImageRequest {
            height: side,
            width: side,
            prompt_ids: prompt_ids.clone(),
            negative_ids: negative_ids.clone(),
            rows: embeddings.rows.clone(),
            sampler,
            steps: arguments.steps as usize,
            guidance: arguments.guidance,
            noise: Vec::new(),
            step_noise: Vec::new(),
        }));
    }
    Ok(requests)
}

fn to_image(picture: crate::engine::RgbImage, file: &Path) -> Result<RgbImage, Error> {
    let (width, height) = (picture.width as u32, picture.height as u32);
    RgbImage::from_raw(width, height, picture.data).ok_or_else(|| Error::Option {
        option: "--output",
        problem: format!("{}: the picture has fewer than {width} x {height} pixels", file.display()),
    })
}

fn write_all(
    arguments: &GenerateArguments,
    training: Option<sheet::Row>,
    pictures: Vec<RgbImage>,
) -> Result<(), Error> {
    if arguments.sheet {
        let mut pictures = pictures.into_iter();
        let mut rows: Vec<sheet::Row> = training.into_iter().collect();
        rows.extend(arguments.prompt.iter().map(|prompt| sheet::Row {
            label: prompt.clone(),
            pictures: pictures.by_ref().take(arguments.count as usize).collect(),
        }));
        return write_png(&arguments.output, &sheet::compose(&rows));
    }
    if let ([picture], true) = (pictures.as_slice(), arguments.output.extension().is_some()) {
        return write_png(&arguments.output, picture);
    }
    let failed = |source| Error::Write { file: arguments.output.clone(), source };
    std::fs::create_dir_all(&arguments.output).map_err(failed)?;
    for (number, picture) in pictures.iter().enumerate() {
        let (prompt, number) = (number / arguments.count as usize, number % arguments.count as usize);
        write_png(&arguments.output.join(format!("prompt-{prompt:02}-{number:03}.png")), picture)?;
    }
    Ok(())
}

fn write_png(file: &Path, picture: &RgbImage) -> Result<(), Error> {
    let mut bytes = Cursor::new(Vec::new());
    picture
        .write_to(&mut bytes, ImageFormat::Png)
        .map_err(|source| Error::Encode { file: file.to_path_buf(), source })?;
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .map_err(|source| Error::Write { file: folder.to_path_buf(), source })?;
    }
    ringtune_shared::files::write_atomically(file, bytes.get_ref())?;
    say(&format!("wrote {}", file.display()));
    Ok(())
}

/// Progress goes to stderr; a closed stderr is nobody's loss.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
