//! A GPT-2 in a folder, as transformers loads it. The files of jobs: worker/src/output/language_model.rs.

use std::collections::BTreeMap;
use std::path::Path;

use ringtune_model::Gpt2;
use safetensors::serialize;
use safetensors::tensor::{Dtype, TensorView};

/// Names, shapes and bytes.
pub(crate) type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

/// Writes config.json and model.safetensors. transformers has biases in every GPT-2: of a model without, they are zeros.
pub(crate) fn save(model: &Gpt2, folder: &Path) {
    let info = model.info();
    let mut tensors = Tensors::new();
    for parameter in &info.parameters.list {
        let layer = parameter.name.strip_suffix(".weight");
        if let Some(layer) = layer.filter(|layer| !layer.ends_with("wte") && !layer.ends_with("wpe")) {
            let width = *parameter.shape.last().unwrap();
            tensors.entry(format!("{layer}.bias")).or_insert((vec![width], vec![0; 4 * width]));
        }
        let mut bytes = vec![0; 4 * parameter.elements()];
        model.parameters.read_state(&format!("model.{}", parameter.name), 0, &mut bytes).unwrap();
        tensors.insert(parameter.name.clone(), (parameter.shape.clone(), bytes));
    }
    write(folder, &tensors);
    std::fs::write(folder.join("config.json"), info.config).unwrap();
}

/// Writes model.safetensors.
pub(crate) fn write(folder: &Path, tensors: &Tensors) {
    let views = tensors
        .iter()
        .map(|(name, (shape, bytes))| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    let metadata = [("format".to_owned(), "pt".to_owned())].into();
    std::fs::write(folder.join("model.safetensors"), serialize(views, Some(metadata)).unwrap()).unwrap();
}
