//! What the engine of a worker has to do.

use crate::{DrawPictures, EncodeImages, GenerateText, TextualInversion, TrainLanguageModel, TrainPictures};

/// Everything that any kind of work needs: a worker takes jobs of all kinds. A kind that needs more of the engine adds
/// its trait here, and every engine that a worker may start then has to implement it.
pub trait WorkerEngine:
    EncodeImages + TextualInversion + DrawPictures + TrainPictures + TrainLanguageModel + GenerateText
{
}

impl<E: EncodeImages + TextualInversion + DrawPictures + TrainPictures + TrainLanguageModel + GenerateText>
    WorkerEngine for E
{
}
