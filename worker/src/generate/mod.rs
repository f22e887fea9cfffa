//! `generate`: pictures from a model and learned embeddings.
//!
//! The picture of prompt p and number n starts from noise that depends on the seed and n alone, so that prompts
//! can be compared, and a run can be extended by raising the count. A sampler that takes noise in its steps gets what
//! comes next in the same stream, so that its pictures too are the same for the same seed and number of steps.

mod arguments;
pub(crate) mod base_model;
mod drawing;
mod embeddings;
mod error;
mod infotext;
mod loras;
pub mod picture_file;
pub mod sheet;

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    time::Instant,
};

use image::RgbImage;

pub use arguments::GenerateArguments;
pub use drawing::{Batch, Drawing, ModelName, PictureOptions, to_image};
pub use embeddings::{EmbeddingFile, Embeddings};
pub use error::Error;
pub use infotext::Infotext;
pub use loras::{KnownLora, LoraChoice, Loras};
pub(crate) use ringtune_shared::lora::LARGEST_OF_A_JOB as LARGEST_LORA;

use base_model::ModelChoice;

use ringtune_shared::files::NewFile;

use crate::{
    access::ConfinedPath,
    base_model::{Fingerprints, base_model_name},
    data::{images, tokenizer_folder},
    engine::{EngineHandle, LoadModel, ModelInfo, ModelOptions, Precision},
    lora_layers::model_layers,
    while_wanted,
};

/// Endings of pictures that are not written here.
const OTHER_FORMATS: [&str; 7] = ["jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff"];

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
    // 1. What can be refused without the model.
    check_output(arguments)?;
    let files = EmbeddingFile::given(&arguments.embeds, &arguments.token)?;
    let loras = LoraChoice::given(&arguments.lora)?;
    let training = arguments.training_images.as_deref().map(training_row).transpose()?;
    let precision = match arguments.mixed_precision.as_deref() {
        Some("bf16") => Precision::Bf16,
        Some(_) => Precision::Fp32,
        None => default_precision,
    };
    let threads = arguments.threads.map_or(default_threads, |threads| threads as usize);
    // 2. The model; its hash is taken beside.
    let GenerateArguments { model, revision, variant, .. } = arguments;
    let local = base_model::fetch(ModelChoice { model, revision, variant }).await?;
    let folder = local.folder.clone();
    say(&format!("loading {} ({threads} threads, {precision})", arguments.model));
    let tokenizer = tokenizer_folder(&folder, arguments.tokenizer.as_deref())
        .map_err(|problem| Error::Option { option: "--tokenizer", problem })?;
    let variant = arguments.variant.clone();
    let options = ModelOptions {
        variant: variant.clone(),
        prediction_type: arguments.prediction_type,
        rescale_zero_snr: false,
        draws_unet: false,
    };
    let load = LoadModel { folder: folder.clone(), options, precision, threads, training: None };
    let info = engine.load(load).await?;
    let hashed = tokenizer.clone();
    let hashing = while_wanted::spawn_blocking(move |still| {
        Fingerprints::default().of_model(&folder, &variant, &hashed, still)
    });
    let known = put_loras(engine, info.text_width, loras).await?;
    say_scheduler(arguments, &info);
    let drawing = Drawing::new(arguments.pictures(), &tokenizer, info, &files)
        .map_err(|error| error.blaming_size(arguments.size.is_some()))?
        .with_loras(known);
    for warning in drawing.warnings() {
        say(&format!("warning: --prompt: {warning}"));
    }
    let columns = (arguments.count as usize).max(training.as_ref().map_or(0, |row| row.pictures.len()));
    if arguments.sheet && !sheet::fits(arguments.prompt.len() + 1, columns, drawing.size()) {
        let problem = "so many pictures of this size make too large a sheet".to_owned();
        return Err(Error::Option { option: "--sheet", problem });
    }
    let name = match &local.origin {
        Some(origin) => origin.repository.clone(),
        None => base_model_name(&arguments.model),
    };
    let model = ModelName { name, hash: hashing.await?? };
    // 3. The pictures. What is no part of a sheet is written at once.
    let total = arguments.prompt.len() * arguments.count as usize;
    let mut kept = Vec::new();
    let mut done = 0;
    for batch in drawing.batches() {
        let start = Instant::now();
        let first = done + 1;
        let tell =
            move |step, all| steps_on_screen(&format!("picture {first} of {total}: step {step} of {all}"));
        let pictures = match shows_steps() {
            true => engine.generate_telling(drawing.request(batch), tell).await,
            false => engine.generate(drawing.request(batch)).await,
        };
        if shows_steps() {
            steps_on_screen("");
        }
        let pictures = pictures?;
        done += pictures.len();
        say(&format!("picture {done} of {total} in {:.1} s", start.elapsed().as_secs_f64()));
        for (number, picture) in (batch.first..).zip(pictures) {
            let picture = to_image(picture)?;
            if arguments.sheet {
                kept.push(picture);
            } else {
                let text = drawing.infotext(Some((batch.prompt, number)), &model);
                write_png(&picture_path(arguments, batch.prompt, number), &picture, &text)?;
            }
        }
    }
    if !arguments.sheet {
        return Ok(());
    }
    let rows: Vec<sheet::Row> = training.into_iter().chain(drawing.sheet_rows(kept)).collect();
    write_png(&arguments.output, &sheet::compose(&rows), &drawing.infotext(None, &model))
}

/// Reads LoRAs and puts them beside the loaded model's layers.
///
/// # Errors
/// A file that does not fit the model; the engine's.
pub(crate) async fn put_loras(
    engine: &EngineHandle,
    text_width: usize,
    choices: Vec<LoraChoice>,
) -> Result<Vec<KnownLora>, Error> {
    if choices.is_empty() {
        return Ok(Vec::new());
    }
    let layers = engine.adaptable_layers().await?;
    let open = move || Loras::open(&choices, &model_layers(text_width, &layers));
    let Loras { adapters, known } = ringtune_shared::tasks::spawn_blocking(open).await??;
    engine.put_adapters(adapters).await?;
    Ok(known)
}

fn is_png(output: &Path) -> bool {
    output.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("png"))
}

/// Whether it looks like a picture's file of another format than PNG.
fn is_other_file(output: &Path, several: bool) -> bool {
    let Some(ending) = output.extension().filter(|_| !is_png(output) && !output.is_dir()) else {
        return false;
    };
    // Folders for several pictures may have a dot in their names.
    !several || OTHER_FORMATS.iter().any(|format| ending.eq_ignore_ascii_case(format))
}

/// Refuses a place where the pictures could not be written once they are drawn. Leaves nothing there: what a file system
/// allows is only known by trying, as rights say nothing of a full disk, of a name that is too long or of /proc.
fn check_place(output: &Path) -> Result<(), Error> {
    let refuse = |file: &Path, source: io::Error| Err(Error::Write { file: file.to_path_buf(), source });
    match output.symlink_metadata() {
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return refuse(output, error);
        }
        _ if is_png(output) && output.is_dir() => return refuse(output, io::ErrorKind::IsADirectory.into()),
        _ => {}
    }
    let folder = if is_png(output) { output.parent().unwrap_or(output) } else { output };
    let there = folder.ancestors().filter(|path| !path.as_os_str().is_empty()).find(|path| path.exists());
    let there = there.unwrap_or(Path::new(if folder.is_absolute() { "/" } else { "." }));
    if !there.is_dir() {
        return refuse(there, io::ErrorKind::NotADirectory.into());
    }
    let tried = NewFile::create(&there.join("picture.png")).map_err(|error| error.cause);
    tried.and_then(|mut file| file.write_all(&[0; 4096])).or_else(|error| refuse(there, error))
}

/// A sheet and a single picture are files; several pictures need a folder.
fn check_output(arguments: &GenerateArguments) -> Result<(), Error> {
    let is_png = is_png(&arguments.output);
    let several = arguments.prompt.len() * arguments.count as usize > 1;
    let refuse = |problem: &str| {
        let problem = format!("'{}' {problem}", arguments.output.display());
        Err(Error::Option { option: "--output", problem })
    };
    match (arguments.sheet, is_png, several) {
        (true, false, _) => refuse("is not a .png file, which a sheet is written to"),
        (false, true, true) => refuse("is one file for several pictures: give a folder, or --sheet"),
        (false, false, several) if is_other_file(&arguments.output, several) => {
            refuse("does not end in .png, and pictures are written as PNG")
        }
        _ if !arguments.guidance.is_finite() || arguments.guidance > 100.0 => Err(Error::Option {
            option: "--guidance",
            problem: format!("is {}, allowed is a number up to 100", arguments.guidance),
        }),
        _ => check_place(&arguments.output),
    }
}

fn training_row(folder: &Path) -> Result<sheet::Row, Error> {
    let set = images::scan(&ConfinedPath::at(folder))?;
    let pictures = set.images.iter().map(images::ImageFile::decode).collect::<Result<_, _>>()?;
    Ok(sheet::Row { label: format!("training images ({})", set.images.len()), pictures })
}

/// Says what draws, for pictures of two samplers differ.
fn say_scheduler(arguments: &GenerateArguments, info: &ModelInfo) {
    let sampler = arguments.scheduler.unwrap_or(info.sampler);
    match (&info.unknown_scheduler, arguments.scheduler) {
        (Some(class), None) => say(&format!(
            "the model's scheduler, {class}, is not known here: {sampler} is used instead (see --scheduler)"
        )),
        _ => say(&format!("scheduler {sampler}, {} steps", arguments.steps)),
    }
}

/// Path of a picture: one may be a file itself, several are in a folder.
fn picture_path(arguments: &GenerateArguments, prompt: usize, number: u32) -> PathBuf {
    let one = arguments.prompt.len() * arguments.count as usize == 1;
    if one && is_png(&arguments.output) {
        return arguments.output.clone();
    }
    arguments.output.join(format!("prompt-{prompt:02}-{number:03}.png"))
}

fn write_png(file: &Path, picture: &RgbImage, text: &str) -> Result<(), Error> {
    let bytes = picture_file::encode(picture, text)
        .map_err(|source| Error::Encode { file: file.to_path_buf(), source })?;
    if let Some(folder) = file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .map_err(|source| Error::Write { file: folder.to_path_buf(), source })?;
    }
    ringtune_shared::files::write_atomically(file, &bytes)?;
    say(&format!("wrote {}", file.display()));
    Ok(())
}

/// Whether stderr is a screen whose last line can be written anew.
fn shows_steps() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// In place of the line before; an empty one leaves nothing.
fn steps_on_screen(line: &str) {
    let mut stderr = io::stderr();
    let _ = write!(stderr, "\r{line}\x1b[K").and_then(|()| stderr.flush());
}

/// Progress goes to stderr; a closed stderr is nobody's loss.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn check(output: &str, more: &[&str]) -> Result<(), String> {
        let line = ["ringtune-worker", "generate", "--model", "m", "--prompt", "a", "-o", output];
        match Arguments::try_parse_from(line.iter().chain(more)).unwrap().command {
            Some(Command::Generate(arguments)) => check_output(&arguments).map_err(|error| error.to_string()),
            _ => panic!("not generate"),
        }
    }

    #[test]
    fn where_no_picture_can_be_written_nothing_is_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        std::fs::create_dir(folder.path().join("v1.5")).unwrap();
        std::fs::create_dir(folder.path().join("folder.png")).unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        for (output, more) in [
            ("x.png", &[][..]),
            ("x.PNG", &["--sheet", "--count", "4"]),
            ("new/deep/x.png", &[]),
            ("new", &[]),
            ("v1.5", &[]),
            ("v1.6", &["--count", "2"]),
        ] {
            assert_eq!(check(&at(output), more), Ok(()), "{output}");
        }
        assert_eq!(check("x.png", &[]), Ok(()));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "something was left");
        for (output, more, says) in [
            ("x.jpg", &[][..], "x.jpg' does not end in .png"),
            ("x.jpg", &["--count", "2"], "does not end in .png"),
            ("x.jpg", &["--sheet"], "is not a .png file"),
            ("v1.6", &[], "does not end in .png"),
            ("x.png", &["--count", "2"], "give a folder, or --sheet"),
            ("file/x.png", &[], "not a directory"),
            ("file/new", &[], "not a directory"),
            ("folder.png", &[], "is a directory"),
            (&format!("{}.png", "x".repeat(300)), &[], "too long"),
            // Nobody can create a file there, whatever the permissions.
            ("/proc/x.png", &[], "/proc"),
        ] {
            let output = folder.path().join(output).display().to_string();
            let problem = check(&output, more).expect_err(&output);
            assert!(problem.contains(says), "{output}: {problem}");
        }
    }
}
