//! `ringtune lora merge`: LoRAs into a whole model. Weights pass row by row: a model need not fit into memory.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf, absolute},
    sync::Weak,
};

use ringtune_shared::{
    files::{parent_of, rename_durably},
    lora::{Component, LoraFile, ModelLayers, Place},
    model_folder::{self, How},
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
    let progress = Progress::new(2 * weights.iter().map(Weights::bytes).sum::<u64>(), wanted);
    make_folder(arguments, &weights, &loras, progress)?;
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
    Ok(())
}

/// The weights of a model.
fn opened(model: &Path) -> Result<Vec<Weights>, Error> {
    if !model.is_dir() {
        let problem = "it is not there, or no folder; allowed: a folder in diffusers' layout on this machine";
        return Err(Error::Usage(format!("--model {}: {problem}", model.display())));
    }
    let open = |(component, part, stem): (Component, &str, &str)| {
        let name = Path::new(part).join(format!("{stem}.safetensors"));
        if !model.join(&name).is_file() {
            return Err(missing(model, &name, stem));
        }
        Weights::open(model, &name, |header| {
            let place = |tensor| Place::in_folder(component, tensor).into_iter().collect();
            Ok(header.tensors.tensors().iter().map(place).collect())
        })
    };
    PARTS.into_iter().map(open).collect()
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
