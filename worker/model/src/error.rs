//! Errors from a model folder to a gradient.

use std::path::PathBuf;

use ringtune_engine::EngineError;

/// Short for a result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Every failure names the file, key or tensor, what was found, and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder is not a model in diffusers' layout.
    #[error("{}: {reason}", folder.display())]
    NotAModel {
        /// The folder that was given.
        folder: PathBuf,
        /// The missing part.
        reason: String,
    },
    /// A file could not be read.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A state that is to change is held by somebody who reads it.
    #[error("the state is held: whoever reads it has to let it go before it may change")]
    Held,
    /// Parameters are asked for, and none is trained.
    #[error("nothing is trained: adapters have to be opened before")]
    NothingTrained,
    /// A JSON file does not parse or has the wrong shape.
    #[error("{}: {reason}", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A key of a config.json asks for something this crate does not do, or makes no sense.
    #[error("{}: key '{key}' is {value}, allowed is {allowed}", file.display())]
    Config {
        /// The config.json or scheduler_config.json.
        file: PathBuf,
        /// The key.
        key: String,
        /// Its value, as JSON.
        value: String,
        /// Allowed values.
        allowed: String,
    },
    /// Weights are present only as Python pickles, which can run code and are not read.
    #[error(
        "{}: holds only pickled weights ({found}), which are refused because a pickle can run any code; convert \
         them once with {converter}.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER, safe_serialization=True)",
        folder.display()
    )]
    PickleOnly {
        /// The component's folder.
        folder: PathBuf,
        /// The pickles found there.
        found: String,
        /// The class that converts them.
        converter: &'static str,
    },
    /// A safetensors file is cut short, or its header makes no sense.
    #[error("{}: not a readable safetensors file: {reason}", file.display())]
    BadSafetensors {
        /// The file.
        file: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A tensor that config.json promises is not there.
    #[error("{}: tensor '{tensor}' of shape {expected:?} is missing", file.display())]
    MissingTensor {
        /// The weights file or index.
        file: PathBuf,
        /// The tensor's name in the model.
        tensor: String,
        /// The shape config.json calls for.
        expected: Vec<i64>,
    },
    /// Tensors that nothing in config.json calls for.
    #[error("{}: {count} tensor(s) that {by} does not call for: {names}", file.display())]
    ExtraTensors {
        /// The weights file or index.
        file: PathBuf,
        /// Their number.
        count: usize,
        /// The first few names with their shapes.
        names: String,
        /// Source of the expected tensors.
        by: &'static str,
    },
    /// A tensor's shape contradicts config.json.
    #[error("{}: tensor '{tensor}' has shape {found:?}, {by} calls for {expected:?}", file.display())]
    WrongShape {
        /// The weights file.
        file: PathBuf,
        /// The tensor's name in the file.
        tensor: String,
        /// The shape in the file.
        found: Vec<i64>,
        /// The shape that is called for.
        expected: Vec<i64>,
        /// Source of the expected shape.
        by: &'static str,
    },
    /// A tensor's element type is not F32, F16 or BF16.
    #[error("{}: tensor '{tensor}' is stored as {found}, allowed is F32, F16 or BF16", file.display())]
    WrongType {
        /// The weights file.
        file: PathBuf,
        /// The tensor's name in the file.
        tensor: String,
        /// Its element type.
        found: String,
    },
    /// A result is not finite.
    #[error("{what} is not finite (NaN or infinite): {cause}")]
    NotFinite {
        /// The result.
        what: String,
        /// Its cause, as far as known.
        cause: String,
    },
    /// A value passed to this crate does not fit the model.
    #[error("{field} is {given}, allowed is {allowed}")]
    Argument {
        /// The field of the request.
        field: &'static str,
        /// The given value.
        given: String,
        /// Allowed values.
        allowed: String,
    },
    /// The receiver of the gradients failed.
    #[error(transparent)]
    Buckets(EngineError),
    /// libtorch refused an operation.
    #[error("libtorch: {0}")]
    Torch(#[from] tch::TchError),
}

impl Error {
    pub(crate) fn argument(field: &'static str, given: impl ToString, allowed: impl ToString) -> Self {
        Error::Argument { field, given: given.to_string(), allowed: allowed.to_string() }
    }
}
