//! `pipeline`: a model with learned words in it, as diffusers' textual_inversion.py leaves with
//! `--save_as_full_pipeline`: a folder that `StableDiffusionPipeline.from_pretrained` loads.
//!
//! Only the words are new: the tokenizer has the learned tokens, and the text encoder's table their rows. The text
//! encoder is written in fp32, as the script writes it, so that the rows lose nothing. Everything else is linked, or
//! copied where it lies on another file system. The folder is made under another name, read back, and renamed.

mod arguments;
mod error;
mod table;
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
    engine::{Library, ModelInfo},
    generate::{
        EmbeddingFile, Embeddings,
        base_model::{self, ModelChoice},
    },
};
use error::{failed_at, unusable};

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
    let embeddings = Embeddings::open(&files, table.width(), &mut tokenizer)?;
    let tokens = embeddings.tokens;
    // 2. Space.
    let parent = parent_of(output);
    fs::create_dir_all(parent).map_err(failed_at(parent))?;
    let how = if arguments.copy { How::Copy } else { How::Link };
    let others = model_folder::others(model, &index, |part, _| REWRITTEN.contains(&part))?;
    model_folder::check_space(parent, &others, how, table.bytes_with(tokens.len()))?;
    // 3. The folder, under another name.
    let folder =
        tempfile::Builder::new().prefix(".pipeline-").tempdir_in(parent).map_err(failed_at(parent))?;
    model_folder::write_index(folder.path(), index, model)?;
    model_folder::place(&others, model, folder.path(), how)?;
    words::write(&model.join("tokenizer"), &folder.path().join("tokenizer"), vocabulary, &tokens)?;
    table.write(&folder.path().join("text_encoder"), &embeddings.rows)?;
    // 4. What was written is read again.
    let info = (library.check_folder)(folder.path())?;
    check(folder.path(), &info, vocabulary, &tokens, &embeddings.rows)?;
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
    let words = tokens.join(" ");
    // A closed stderr is nobody's loss.
    let _ =
        writeln!(std::io::stderr(), "wrote {}, a diffusers pipeline that knows {words}", output.display());
    Ok(())
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

/// The folder that the model loader takes as `info` has to have as many tokens, its tokenizer to give the learned ids,
/// and its table to hold the learned rows.
fn check(
    folder: &Path,
    info: &ModelInfo,
    vocabulary: usize,
    tokens: &[String],
    rows: &[f32],
) -> Result<(), Error> {
    if info.vocab_size != vocabulary + tokens.len() {
        return Err(unusable(folder, format!("reads back with {} tokens", info.vocab_size)));
    }
    let tokenizer = ClipTokenizer::open(&folder.join("tokenizer"), info.max_text_length)?;
    for (token, id) in tokens.iter().zip(vocabulary as i64..) {
        if tokenizer.encode(token)?.get(1) != Some(&id) {
            return Err(unusable(folder, format!("its tokenizer does not read {token:?} as the token {id}")));
        }
    }
    let read = table::TokenTable::open(&folder.join("text_encoder"))?.read_rows(vocabulary, tokens.len())?;
    if read.len() != rows.len() || read.iter().zip(rows).any(|(one, other)| one.to_bits() != other.to_bits())
    {
        return Err(unusable(folder, "its table does not hold the learned rows".to_owned()));
    }
    Ok(())
}
