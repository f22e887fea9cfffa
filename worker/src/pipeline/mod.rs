//! `pipeline`: a model with learned words, or a trained UNet, in it, as diffusers' scripts leave it: a folder that
//! `StableDiffusionPipeline.from_pretrained` loads.
//!
//! Of words only they are new: the tokenizer has the learned tokens, and the text encoder's table their rows. The text
//! encoder is written in fp32, as the script writes it, so that the rows lose nothing. Of a UNet its weights are new. Everything else is linked, or
//! copied where it lies on another file system. The folder is made under another name, read back, and renamed.

mod arguments;
mod error;
mod table;
mod unet;
mod words;

use std::{fs, io::Write as _, os::unix::fs::PermissionsExt as _, path::Path};

pub use arguments::PipelineArguments;
pub use error::Error;
use ringtune_shared::{
    files::parent_of,
    model_folder::{self, How, MODEL_INDEX},
};

use crate::{
    data::ClipTokenizer,
    engine::{Library, ModelInfo, ModelOptions},
    generate::{
        EmbeddingFile, Embeddings,
        base_model::{self, ModelChoice},
    },
};
use error::{failed_at, unusable};
use unet::TrainedUnet;

/// Parts that are written anew.
const REWRITTEN: [&str; 2] = ["text_encoder", "tokenizer"];
/// Longest prompt of any CLIP; only for reading the tokenizer.
const PROMPT_LENGTH: usize = 77;

/// Makes the folder; says on stderr what it is. The loader of `library` has to take it.
///
/// # Errors
/// See [`Error`]. On an error the output is as it was.
pub async fn run(arguments: PipelineArguments, library: Library) -> Result<(), Error> {
    check_output(&arguments.output)?;
    let PipelineArguments { model, revision, .. } = &arguments;
    // Its cache keeps what it holds as long as this value lives.
    let local = base_model::fetch(ModelChoice { model, revision, variant: "" }).await?;
    let folder = local.folder.clone();
    tokio::task::spawn_blocking(move || make(&folder, &arguments, library)).await?
}

/// Makes the pipeline of the model in the folder `model`. Blocks.
fn make(model: &Path, arguments: &PipelineArguments, library: Library) -> Result<(), Error> {
    let output = &arguments.output;
    // 1. Everything that can be wrong.
    let index = model_folder::read_index(model)?;
    let words = if arguments.embeds.is_empty() { None } else { Some(Words::open(model, arguments)?) };
    let unet = arguments.unet.as_deref().map(|file| TrainedUnet::open(file, model)).transpose()?;
    // 2. Space.
    let parent = parent_of(output);
    fs::create_dir_all(parent).map_err(failed_at(parent))?;
    let how = if arguments.copy { How::Copy } else { How::Link };
    let is_rewritten = |part: &str, name: &str| {
        words.is_some() && REWRITTEN.contains(&part) || unet.is_some() && unet::is_weights(part, name)
    };
    let others = model_folder::others(model, &index, is_rewritten)?;
    let bytes = words.as_ref().map_or(0, Words::bytes) + unet.as_ref().map_or(0, TrainedUnet::bytes);
    model_folder::check_space(parent, &others, how, bytes)?;
    // 3. The folder, under another name.
    let folder =
        tempfile::Builder::new().prefix(".pipeline-").tempdir_in(parent).map_err(failed_at(parent))?;
    model_folder::write_index(folder.path(), index, model)?;
    model_folder::place(&others, model, folder.path(), how)?;
    if let Some(words) = &words {
        words.write(model, folder.path())?;
    }
    if let Some(unet) = &unet {
        unet.write(folder.path(), arguments.max_shard_size)?;
    }
    // 4. What was written is read again.
    let info = (library.check_folder)(folder.path(), &ModelOptions::default())?;
    if let Some(words) = &words {
        words.check(folder.path(), &info)?;
    }
    // 5. Its own name.
    let readable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), readable).map_err(failed_at(folder.path()))?;
    let old =
        tempfile::Builder::new().prefix(".old-pipeline-").tempdir_in(parent).map_err(failed_at(parent))?;
    if output.exists() {
        fs::rename(output, old.path().join("pipeline")).map_err(failed_at(output))?;
    }
    fs::rename(folder.path(), output).map_err(failed_at(output))?;
    fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed_at(parent))?;
    let knows = words.map(|words| format!(" that knows {}", words.tokens.join(" "))).unwrap_or_default();
    // A closed stderr is nobody's loss.
    let _ = writeln!(std::io::stderr(), "wrote {}, a diffusers pipeline{knows}", output.display());
    Ok(())
}

/// Learned words, and what of the model they go into.
struct Words {
    table: table::TokenTable,
    /// Tokens of the model itself.
    vocabulary: usize,
    tokens: Vec<String>,
    rows: Vec<f32>,
}

impl Words {
    fn open(model: &Path, arguments: &PipelineArguments) -> Result<Self, Error> {
        let mut table = table::TokenTable::open(&model.join("text_encoder"))?;
        let mut tokenizer = ClipTokenizer::open(&model.join("tokenizer"), PROMPT_LENGTH)?;
        let vocabulary = tokenizer.vocabulary_size();
        // diffusers' own script does not keep them either.
        table.cut(vocabulary);
        if vocabulary != table.rows() {
            let problem = format!("has {} rows for a tokenizer of {vocabulary} tokens", table.rows());
            return Err(unusable(&model.join("text_encoder"), problem));
        }
        let files = EmbeddingFile::given(&arguments.embeds, &arguments.token)?;
        let Embeddings { tokens, rows, .. } = Embeddings::open(&files, table.width(), &mut tokenizer)?;
        Ok(Self { table, vocabulary, tokens, rows })
    }

    fn bytes(&self) -> u64 {
        self.table.bytes_with(self.tokens.len())
    }

    fn write(&self, model: &Path, folder: &Path) -> Result<(), Error> {
        words::write(&model.join("tokenizer"), &folder.join("tokenizer"), self.vocabulary, &self.tokens)?;
        self.table.write(&folder.join("text_encoder"), &self.rows)
    }

    /// The folder that the model loader takes as `info` has to have as many tokens, its tokenizer to give the learned ids,
    /// and its table to hold the learned rows.
    fn check(&self, folder: &Path, info: &ModelInfo) -> Result<(), Error> {
        let Self { vocabulary, tokens, rows, .. } = self;
        if info.vocab_size != vocabulary + tokens.len() {
            return Err(unusable(folder, format!("reads back with {} tokens", info.vocab_size)));
        }
        let tokenizer = ClipTokenizer::open(&folder.join("tokenizer"), info.max_text_length)?;
        for (token, id) in tokens.iter().zip(*vocabulary as i64..) {
            if tokenizer.encode(token)?.get(1) != Some(&id) {
                let problem = format!("its tokenizer does not read {token:?} as the token {id}");
                return Err(unusable(folder, problem));
            }
        }
        let read =
            table::TokenTable::open(&folder.join("text_encoder"))?.read_rows(*vocabulary, tokens.len())?;
        let differs = |(one, other): (&f32, &f32)| one.to_bits() != other.to_bits();
        if read.len() != rows.len() || read.iter().zip(rows).any(differs) {
            return Err(unusable(folder, "its table does not hold the learned rows".to_owned()));
        }
        Ok(())
    }
}

/// An earlier pipeline is replaced; nothing else is.
fn check_output(output: &Path) -> Result<(), Error> {
    let nothing = |folder: &Path| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
    if !output.exists() || output.join(MODEL_INDEX).is_file() || nothing(output) {
        return Ok(());
    }
    Err(unusable(
        output,
        format!("is there already and is no pipeline (it has no {MODEL_INDEX}): give another"),
    ))
}
