//! A job's model and its tokenizer, opened before anything loads them.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{Access, ConfinedPath, views::View};

/// The index of a model in diffusers' layout.
const INDEX: &str = "model_index.json";
/// Its tokenizer's folder, and that of a model in one file, beside it.
const TOKENIZER: &str = "tokenizer";
/// The parts that are loaded.
const PARTS: [&str; 5] = ["scheduler", "text_encoder", TOKENIZER, "unet", "vae"];
/// Extensions of files that are loaded, and of pickles, which are refused by name.
const ENDINGS: [&str; 7] = [".json", ".safetensors", ".txt", ".bin", ".ckpt", ".pt", ".pth"];
/// Files of a model that are open at a time: Stable Diffusion has about 20, in several variants.
const MOST_FILES: usize = 256;

/// A file of a model that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct OpenError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// The opened files of a model or a tokenizer.
#[derive(Clone, Debug)]
pub struct OpenModel {
    /// The folder or file to load.
    pub path: PathBuf,
    /// Removes the links at that path when it is dropped.
    _view: Option<Arc<View>>,
}

impl Access {
    /// Opens a model: a folder in diffusers' layout, or one file, with the tokenizer beside it. Blocks.
    ///
    /// # Errors
    /// A file that cannot be opened, or leads out of the reach of jobs.
    pub fn model(&self, place: &ConfinedPath) -> Result<OpenModel, OpenError> {
        self.opened(place, |place| {
            let mut opened = Opened::default();
            if place.is_file() {
                opened.add(place)?;
                opened.add_all(&place.beside(TOKENIZER))?;
            } else {
                opened.add_all_named(place, &[INDEX.into()])?;
                PARTS.iter().try_for_each(|part| opened.add_all(&place.join(part)))?;
            }
            Ok(opened)
        })
    }

    /// Opens a tokenizer's folder. Blocks.
    ///
    /// # Errors
    /// As for a model.
    pub fn tokenizer(&self, place: &ConfinedPath) -> Result<OpenModel, OpenError> {
        self.files(place)
    }

    /// Opens a language model in transformers' layout: the files of the folder, and of none within. Blocks.
    ///
    /// # Errors
    /// As for a model.
    pub fn language_model(&self, place: &ConfinedPath) -> Result<OpenModel, OpenError> {
        self.files(place)
    }

    fn files(&self, place: &ConfinedPath) -> Result<OpenModel, OpenError> {
        self.opened(place, |place| {
            let mut opened = Opened::default();
            opened.add_all(place)?;
            Ok(opened)
        })
    }

    /// A view of what is opened; of what may lead anywhere, the path as it is.
    fn opened(
        &self,
        place: &ConfinedPath,
        open: impl FnOnce(&ConfinedPath) -> Result<Opened, OpenError>,
    ) -> Result<OpenModel, OpenError> {
        let shown = place.shown();
        if !place.is_bound() {
            return Ok(OpenModel { path: shown.to_owned(), _view: None });
        }
        let Opened { files } = open(place)?;
        let failed = |source| OpenError { path: shown.to_owned(), source };
        if files.is_empty() {
            return Err(failed(missing(place)));
        }
        let view = self.views.of(files).map_err(failed)?;
        Ok(OpenModel { path: view.path(shown), _view: Some(view) })
    }
}

/// Why a place has no file that could be loaded.
fn missing(place: &ConfinedPath) -> io::Error {
    let why = |kind, text| io::Error::new(kind, text);
    match place.names() {
        Ok(_) => why(io::ErrorKind::InvalidData, "it holds no file of a model"),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            why(io::ErrorKind::InvalidInput, "it is no folder")
        }
        Err(error) => error,
    }
}

/// Files with the paths that they are shown at.
#[derive(Default)]
struct Opened {
    files: Vec<(PathBuf, File)>,
}

impl Opened {
    fn add(&mut self, place: &ConfinedPath) -> Result<(), OpenError> {
        let failed = |source| OpenError { path: place.shown().to_owned(), source };
        if self.files.len() >= MOST_FILES {
            return Err(failed(io::Error::other(format!("the model has more than {MOST_FILES} files"))));
        }
        self.files.push((place.shown().to_owned(), place.open().map_err(failed)?));
        Ok(())
    }

    /// Adds all loadable files of a folder, if it exists.
    fn add_all(&mut self, folder: &ConfinedPath) -> Result<(), OpenError> {
        let mut names: Vec<PathBuf> = match folder.names() {
            Ok(names) => names.into_iter().map(PathBuf::from).collect(),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(());
            }
            Err(source) => return Err(OpenError { path: folder.shown().to_owned(), source }),
        };
        names.retain(|name| is_asked_for(name));
        names.sort();
        self.add_all_named(folder, &names)
    }

    fn add_all_named(&mut self, folder: &ConfinedPath, names: &[PathBuf]) -> Result<(), OpenError> {
        for name in names {
            let file = folder.join(name);
            match self.add(&file) {
                // The loader reports the missing file by name.
                Err(error) if error.source.kind() == io::ErrorKind::NotFound || file.is_dir() => (),
                added => added?,
            }
        }
        Ok(())
    }
}

fn is_asked_for(name: &Path) -> bool {
    name.to_str().is_some_and(|name| ENDINGS.iter().any(|ending| name.ends_with(ending)))
}
