//! `ringtune lora merge`: LoRAs into a whole model. Weights pass row by row: a model need not fit into memory.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf, absolute},
    sync::Weak,
};

use ringtune_layout::{self as layout, Shapes, Sizes, TensorPlace};
use ringtune_shared::{
    files::{parent_of, rename_durably},
    lora::{Component, LoraFile, ModelLayers, Place},
    model_folder::{self, How},
    state::{Header, TensorInfo},
};

use super::{
    super::model_weights::{Loras, Progress, Weights, failed},
    read, unusable,
};
use crate::{error::Error, lora_arguments::LoraMergeArguments, output::remark};

/// The parts of a folder that LoRAs are for, and the stems of their weights' names.
const PARTS: [(Component, &str, &str); 2] =
    [(Component::Unet, "unet", "diffusion_pytorch_model"), (Component::TextEncoder, "text_encoder", "model")];

/// Makes the model, unless nobody holds any more what `wanted` points to. Blocks.
pub(super) fn merge(arguments: &LoraMergeArguments, wanted: Weak<()>) -> Result<(), Error> {
    let LoraMergeArguments { files, model, output, .. } = arguments;
    // 1. Everything that can be wrong.
    check_output(model, output)?;
    let mut weights = opened(model)?;
    let layers =
        ModelLayers::of_places(model.display().to_string(), weights.iter().flat_map(Weights::places));
    let bytes: Vec<Vec<u8>> = files.iter().map(|file| read(&file.path)).collect::<Result<_, _>>()?;
    let parsed = files.iter().zip(&bytes).map(|(file, bytes)| {
        let lora = LoraFile::for_model(bytes, &layers).map_err(|error| unusable(&file.path, error))?;
        Ok::<_, Error>((lora, file.weight))
    });
    let loras: Vec<(LoraFile<'_>, f64)> = parsed.collect::<Result<_, _>>()?;
    let changed: BTreeSet<&str> =
        loras.iter().flat_map(|(lora, _)| lora.modules.keys()).map(String::as_str).collect();
    weights.retain(|file| file.places().any(|place| changed.contains(place.module.as_str())));
    // 2. The model.
    let mut progress = Progress::new(2 * weights.iter().map(Weights::bytes).sum::<u64>(), wanted);
    match &weights[..] {
        [file] if file.name == *model => {
            let parent = parent_of(output);
            fs::create_dir_all(parent).map_err(failed("cannot make", parent))?;
            model_folder::check_space(parent, &[], How::Copy, file.bytes())?;
            file.write_merged(&loras, output, &mut progress)?;
        }
        _ => make_folder(arguments, &weights, &loras, progress)?,
    }
    let in_unet = changed.iter().filter(|module| module.starts_with("unet.")).count();
    let (in_text, made) = (changed.len() - in_unet, output.display());
    remark(&format!(
        "wrote {made}: {in_unet} layers of the UNet and {in_text} of the text encoder are changed"
    ));
    Ok(())
}

/// Nothing is replaced, and nothing is made within the model.
fn check_output(model: &Path, output: &Path) -> Result<(), Error> {
    let wrong = |problem: &str| Error::Usage(format!("{}: {problem}", output.display()));
    if fs::symlink_metadata(output).is_ok() {
        return Err(wrong("it is there already; give another -o"));
    }
    let output = absolute(output).map_err(failed("cannot use", output))?;
    let there = output.ancestors().find_map(|folder| fs::canonicalize(folder).ok());
    let within = |model: PathBuf| there.is_some_and(|there| there.starts_with(model));
    if fs::canonicalize(model).is_ok_and(within) {
        return Err(wrong("it is within the model's folder; give another -o"));
    }
    if model.is_file() && output.extension().is_none_or(|ending| ending != "safetensors") {
        return Err(wrong("of a model in one file another is made; give an -o that ends in .safetensors"));
    }
    Ok(())
}

/// The weights of a model: of a single file that file, whose name is the whole path.
fn opened(model: &Path) -> Result<Vec<Weights>, Error> {
    if model.is_file() {
        return Ok(vec![Weights::open(Path::new(""), model, single_file_places)?]);
    }
    if !model.is_dir() {
        let problem = "it is not there; allowed: a folder in diffusers' layout, or a .safetensors file in the original one, on \
                       this machine";
        return Err(Error::Usage(format!("--model {}: {problem}", model.display())));
    }
    let open = |(component, part, stem): (Component, &str, &str)| {
        let name = Path::new(part).join(format!("{stem}.safetensors"));
        if !model.join(&name).is_file() {
            return Err(missing(model, &name, stem));
        }
        Weights::open(model, &name, |header| {
            let place = |tensor: &TensorInfo| Place::of(component, tensor.name(), &shape_of(tensor), 0);
            let tensors = header.tensors.tensors().iter();
            Ok(tensors.map(|tensor| place(tensor).into_iter().collect()).collect())
        })
    };
    PARTS.into_iter().map(open).collect()
}

/// Of each tensor of a file in the original layout, the layers that it is the weight of.
fn single_file_places(header: &Header) -> Result<Vec<Vec<Place>>, String> {
    let tensors = header.tensors.tensors();
    let shapes: Shapes = tensors.iter().map(|tensor| (tensor.name().to_owned(), shape_of(tensor))).collect();
    let sizes = Sizes::of(&shapes).map_err(|problem| format!("it {problem}"))?;
    let networks =
        [(layout::Component::UNet, Component::Unet), (layout::Component::Text, Component::TextEncoder)];
    let places = |tensor: &TensorInfo| {
        let shape = shape_of(tensor);
        let of = |(network, component)| {
            let place = |TensorPlace { name, part }: TensorPlace| {
                let (shape, first_row) = part.of(&shape);
                Place::of(component, &name, &shape, first_row)
            };
            sizes.places(network, tensor.name(), &shape).into_iter().filter_map(place).collect::<Vec<_>>()
        };
        networks.into_iter().flat_map(of).collect()
    };
    Ok(tensors.iter().map(places).collect())
}

fn shape_of(tensor: &TensorInfo) -> Vec<usize> {
    tensor.shape().iter().map(|side| *side as usize).collect()
}

/// What is there instead of a part's weights.
fn missing(model: &Path, name: &Path, stem: &str) -> Error {
    let file = model.join(name);
    let entries = fs::read_dir(parent_of(&file)).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut others: Vec<String> = names.filter(|other| other.contains(stem)).collect();
    others.sort();
    let there = if others.is_empty() { String::new() } else { format!("; there are {}", others.join(", ")) };
    let problem = "it is not there; weights are read from one file in the default variant: no shards, no variants such as \
                   .fp16., no pickles (.bin)";
    Error::Usage(format!("{}: {problem}{there}", file.display()))
}

/// Makes the folder, under another name until it is whole.
fn make_folder(
    arguments: &LoraMergeArguments,
    weights: &[Weights],
    loras: &Loras<'_>,
    mut progress: Progress,
) -> Result<(), Error> {
    let LoraMergeArguments { model, output, copy, .. } = arguments;
    let (parent, how) = (parent_of(output), if *copy { How::Copy } else { How::Link });
    let index = model_folder::read_index(model)?;
    let is_rewritten =
        |part: &str, name: &str| weights.iter().any(|file| file.name == Path::new(part).join(name));
    let others = model_folder::others(model, &index, is_rewritten)?;
    fs::create_dir_all(parent).map_err(failed("cannot make", parent))?;
    model_folder::check_space(parent, &others, how, weights.iter().map(Weights::bytes).sum())?;
    let folder = tempfile::Builder::new()
        .prefix(".merge-")
        .tempdir_in(parent)
        .map_err(failed("cannot write in", parent))?;
    model_folder::write_index(folder.path(), index, model)?;
    model_folder::place(&others, model, folder.path(), how)?;
    for file in weights {
        let to = folder.path().join(&file.name);
        fs::create_dir_all(parent_of(&to)).map_err(failed("cannot make", parent_of(&to)))?;
        file.write_merged(loras, &to, &mut progress)?;
    }
    let unnamed = failed("cannot write", output);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).map_err(&unnamed)?;
    rename_durably(folder.path(), output).map_err(|error| unnamed(error.cause))
}
