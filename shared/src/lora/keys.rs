//! What each family calls the tensors of a module.

use std::{collections::BTreeMap, fmt, sync::LazyLock};

use clap::ValueEnum;

use super::modules::{Base, Layer, layers};

/// A family of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Format {
    /// diffusers: `unet.….to_q.lora.down.weight`
    Diffusers,
    /// PEFT's names, as newer diffusers has them: `unet.….to_q.lora_A.weight`
    Peft,
    /// kohya's scripts, A1111, ComfyUI: `lora_unet_…_to_q.lora_down.weight`
    Kohya,
    /// older diffusers, attention only: `unet.….processor.to_q_lora.down.weight`
    AttentionProcessors,
}

impl Format {
    /// As the command line calls it.
    pub fn word(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// A tensor of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Down,
    Up,
    Alpha,
    DoraScale,
}

impl Part {
    pub(super) const ALL: [Self; 4] = [Self::Down, Self::Up, Self::Alpha, Self::DoraScale];
}

/// The key of a module's tensor. None where the family has no place for the module.
pub(super) fn key(format: Format, module: &str, part: Part) -> Option<String> {
    let (component, name) = module.split_once('.')?;
    let is_text = component == "text_encoder";
    if format == Format::Kohya {
        let prefix = if is_text { "lora_te" } else { "lora_unet" };
        let suffix = match part {
            Part::Down => "lora_down.weight",
            Part::Up => "lora_up.weight",
            Part::Alpha => "alpha",
            Part::DoraScale => "dora_scale",
        };
        return Some(format!("{prefix}_{}.{suffix}", name.replace('.', "_")));
    }
    let (side, letter) = match part {
        Part::Down => ("down", 'A'),
        Part::Up => ("up", 'B'),
        // Not written: the adapter's metadata has it. But other programs do.
        Part::Alpha => return Some(format!("{module}.alpha")),
        Part::DoraScale => return Some(format!("{module}.lora_magnitude_vector")),
    };
    Some(match format {
        Format::Peft => format!("{module}.lora_{letter}.weight"),
        _ if is_text => format!("{module}.lora_linear_layer.{side}.weight"),
        Format::AttentionProcessors => {
            let (attention, layer) = module.rsplit_once(".to_")?;
            format!("{attention}.processor.to_{}_lora.{side}.weight", layer.trim_end_matches(".0"))
        }
        _ => format!("{module}.lora.{side}.weight"),
    })
}

/// What a key stands for.
#[derive(Debug, Clone)]
pub(super) struct Meaning {
    /// None of a key that several families have.
    pub(super) format: Option<Format>,
    pub(super) module: String,
    pub(super) layer: Layer,
    pub(super) part: Part,
}

/// The layers of a model that a LoRA can be for, and every key that its files can have.
pub struct ModelLayers {
    pub(super) base: Base,
    pub(super) title: String,
    /// In the spelling of [`key`].
    pub(super) meanings: BTreeMap<String, Meaning>,
}

impl fmt::Debug for ModelLayers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelLayers").field("title", &self.title).finish_non_exhaustive()
    }
}

impl ModelLayers {
    /// Those of a model that messages call `title`, by names as [`super::LoraFile::modules`] has them.
    pub fn new(base: Base, title: String, layers: impl IntoIterator<Item = (String, Layer)>) -> Self {
        let mut all: BTreeMap<String, Meaning> = BTreeMap::new();
        for (module, layer) in layers {
            for &format in Format::value_variants() {
                for part in Part::ALL {
                    let Some(key) = key(format, &module, part) else { continue };
                    let meaning = Meaning { format: Some(format), module: module.clone(), layer, part };
                    all.entry(key).and_modify(|known| known.format = None).or_insert(meaning);
                }
            }
        }
        Self { base, title, meanings: all }
    }

    /// Those of Stable Diffusion as it was published.
    pub fn of(base: Base) -> &'static Self {
        static ALL: LazyLock<[ModelLayers; 2]> = LazyLock::new(|| {
            [Base::Sd1, Base::Sd2].map(|base| ModelLayers::new(base, base.title().to_owned(), layers(base)))
        });
        &ALL[base as usize]
    }
}

/// A key in the spelling of [`key`]: others write the same with SDXL's name of the text encoder, without the UNet's name, with
/// the UNet's suffixes in the text encoder (older diffusers), or without its inner name (newer transformers).
pub(super) fn in_our_spelling(key: &str) -> String {
    if let Some(rest) = key.strip_prefix("lora_te1_") {
        return format!("lora_te_{rest}");
    }
    let is_scale = key.ends_with(".lora_magnitude_vector.weight");
    let mut key = key.strip_suffix(".weight").filter(|_| is_scale).unwrap_or(key).to_owned();
    if let Some(rest) = key.strip_prefix("text_encoder.") {
        if rest.starts_with("encoder.") {
            key = format!("text_encoder.text_model.{rest}");
        }
        for name in ["q", "k", "v", "out"] {
            key = key.replace(&format!(".to_{name}_lora."), &format!(".{name}_proj.lora_linear_layer."));
        }
    } else if !key.starts_with("lora_") && !key.starts_with("unet.") {
        key.insert_str(0, "unet.");
    }
    key
}
