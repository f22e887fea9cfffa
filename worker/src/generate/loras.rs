//! LoRAs from files, beside the layers of a loaded model.

use std::path::Path;

use ringtune_shared::{
    files,
    ids::ContentHash,
    lora::{
        Factor, LARGEST_FILE, LayerKind, LoraFile, ModelLayers, Pair, WeightError, WeightedFile,
        hash_of_tensors,
    },
};

use super::Error;
use crate::{access::ConfinedPath, engine::FixedAdapter};

/// A LoRA's file, and how strongly it counts.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraChoice {
    /// Its path.
    pub place: ConfinedPath,
    /// Its name for people: that of the path, unless it was fetched by content.
    pub name: String,
    /// Its product is multiplied by it.
    pub weight: f64,
}

/// LoRAs that a model's pictures are drawn with.
#[derive(Debug, Default)]
pub struct Loras {
    /// What stands beside the model's layers.
    pub adapters: Vec<FixedAdapter>,
    /// The files, in the order in which they were given.
    pub known: Vec<KnownLora>,
}

/// What pictures say of a LoRA.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownLora {
    /// Its file's, without the ending.
    pub name: String,
    /// How strongly it counts.
    pub weight: f64,
    /// Of its file.
    pub hash: ContentHash,
    /// Of its tensors alone, by which AUTOMATIC1111 knows it.
    pub tensors: ContentHash,
}

impl LoraChoice {
    /// Those of `--lora FILE[:WEIGHT]`. A file's name may have a colon in it.
    ///
    /// # Errors
    /// A weight that is no number.
    pub fn given(loras: &[String]) -> Result<Vec<Self>, Error> {
        loras.iter().map(|given| Self::parse(given)).collect()
    }

    fn parse(given: &str) -> Result<Self, Error> {
        let wrong = |problem: WeightError| Error::Option { option: "--lora", problem: problem.to_string() };
        let WeightedFile { path, weight } = given.parse::<WeightedFile>().map_err(wrong)?;
        Ok(Self { name: path.display().to_string(), place: ConfinedPath::at(path), weight })
    }
}

impl Loras {
    /// Reads files, each of which has to fit the model. Blocks.
    ///
    /// # Errors
    /// One that is no LoRA, or one for another model.
    pub fn open(choices: &[LoraChoice], model: &ModelLayers) -> Result<Self, Error> {
        let mut all = Self::default();
        for LoraChoice { place, name, weight } in choices {
            let wrong = |problem: String| Error::Lora { file: name.clone(), problem };
            let bytes =
                files::read_opened(place.open(), LARGEST_FILE).map_err(|error| wrong(error.to_string()))?;
            let file = LoraFile::for_model(&bytes, model).map_err(|error| wrong(error.to_string()))?;
            for (module, pair) in &file.modules {
                all.adapters.push(fixed(module, pair, *weight).map_err(&wrong)?);
            }
            let stem = Path::new(name).file_stem().map(|stem| stem.to_string_lossy().into_owned());
            all.known.push(KnownLora {
                name: stem.unwrap_or_else(|| name.clone()),
                weight: *weight,
                hash: ContentHash::of(&bytes),
                tensors: hash_of_tensors(&bytes),
            });
        }
        Ok(all)
    }
}

/// A file's pair as the engine has it.
fn fixed(module: &str, pair: &Pair<'_>, weight: f64) -> Result<FixedAdapter, String> {
    if pair.dora_scale.is_some() && pair.kind == LayerKind::Conv3x3 {
        return Err(format!(
            "{module}: pictures are drawn with DoRA of linear layers and 1x1 convolutions alone"
        ));
    }
    let numbers = |factor: &Factor<'_>| factor.kind.widened(&factor.bytes);
    let scale = pair.alpha / pair.rank as f64 * weight;
    let up = numbers(&pair.up).into_iter().map(|number| (f64::from(number) * scale) as f32).collect();
    let magnitude = pair.dora_scale.as_ref().map(numbers).unwrap_or_default();
    Ok(FixedAdapter { layer: module.to_owned(), down: numbers(&pair.down), up, rank: pair.rank, magnitude })
}
