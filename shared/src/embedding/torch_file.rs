//! Embeddings in zip files of torch.save: AUTOMATIC1111's, and diffusers' before safetensors.
//!
//! Source: AUTOMATIC1111/stable-diffusion-webui, modules/textual_inversion/textual_inversion.py; diffusers,
//! loaders/textual_inversion.py; for the file PyTorch, torch/serialization.py.

use super::{
    EmbeddingError, WORDLESS_KEYS,
    archive::Archive,
    numbers::{StoredTensor, rows_and_width},
    pickle::{Heap, Id, StorageKind, Tensor, Value, run},
    tensors::not_one,
};

/// The token and the only tensor.
///
/// # Errors
/// The file is damaged, would run code, or holds something else.
pub(super) fn read(bytes: &[u8]) -> Result<(Option<String>, StoredTensor<'_>), EmbeddingError> {
    // 1. The container.
    let archive = Archive::open(bytes)?;
    let folder = archive.folder()?;
    let entry = |name: &str| {
        let found = archive.get(&format!("{folder}{name}"));
        found.ok_or_else(|| EmbeddingError::Archive(format!("it has no {name:.60?}")))
    };
    // Files of PyTorch before 2.1 do not say: they are little-endian.
    if entry("byteorder").is_ok_and(|order| order != b"little") {
        return Err(EmbeddingError::Archive("its numbers are big-endian".to_owned()));
    }
    // 2. The pickle.
    let (heap, top) = run(entry("data.pkl")?)?;
    let (token, name, tensor) = only_tensor(&heap, top)?;
    // 3. The tensor's bytes.
    let StorageKind::Float(kind) = tensor.storage.kind else {
        let problem = format!("{name:?} is stored as {}; allowed: {ALLOWED}", tensor.storage.kind.name());
        return Err(EmbeddingError::NotAnEmbedding(problem));
    };
    let (vectors, width) = rows_and_width(&name, &tensor.shape)?;
    let one_after_the_other = match tensor.stride[..] {
        [column] => column == 1 || width == 1,
        [row, column] => (row == width || vectors == 1) && (column == 1 || width == 1),
        _ => false,
    };
    if !one_after_the_other {
        return Err(EmbeddingError::NotAnEmbedding(format!(
            "{name:?} of shape {:?} has strides {:?}: save it with .contiguous()",
            tensor.shape, tensor.stride
        )));
    }
    let data = entry(&format!("data/{}", tensor.storage.key))?;
    if tensor.storage.numbers.checked_mul(kind.bytes()) != Some(data.len()) {
        let (numbers, bytes) = (tensor.storage.numbers, data.len());
        return Err(EmbeddingError::Archive(format!(
            "{numbers} numbers of {name:?} are said to be {bytes} bytes"
        )));
    }
    let start = tensor.offset.checked_mul(kind.bytes());
    let end = start.and_then(|start| start.checked_add(vectors * width * kind.bytes()));
    let data = start.zip(end).and_then(|(start, end)| data.get(start..end));
    let data =
        data.ok_or_else(|| EmbeddingError::Archive(format!("{name:?} lies beyond its storage's end")))?;
    Ok((token, StoredTensor { name, kind, shape: tensor.shape.clone(), data }))
}

const ALLOWED: &str = "FloatStorage, HalfStorage, BFloat16Storage";

/// The token, what the tensor is called in messages, and the tensor.
fn only_tensor<'h, 'a>(
    heap: &'h Heap<'a>,
    top: Id,
) -> Result<(Option<String>, String, &'h Tensor<'a>), EmbeddingError> {
    let other = |problem: &str| EmbeddingError::NotAnEmbedding(problem.to_owned());
    let Value::Dict(top) = heap.get(top) else {
        return Err(other(
            "it holds no dictionary; an embedding is {token: tensor}, or has a \"string_to_param\"",
        ));
    };
    let named = |key: &str| {
        // A key that comes again replaces what was there.
        let found =
            top.iter().rev().find(|(name, _)| matches!(heap.get(*name), Value::Text(text) if *text == key));
        found.map(|(_, value)| heap.get(*value))
    };
    let (is_a1111, items) = match named("string_to_param") {
        None => (false, &top[..]),
        Some(value) => match heap.parameters(value) {
            Some(items) => (true, items),
            None => return Err(other("its \"string_to_param\" is not a dictionary")),
        },
    };
    let mut names = Vec::with_capacity(items.len());
    for (name, _) in items {
        let Value::Text(name) = heap.get(*name) else { return Err(other("one of its names is not text")) };
        names.push(*name);
    }
    let ([name], [(_, value)]) = (&names[..], items) else { return Err(not_one(&names)) };
    let Value::Tensor(tensor) = heap.get(*value) else {
        return Err(other(&format!("its {name:.60?} is not a tensor")));
    };
    let token = match (is_a1111, named("name")) {
        (false, _) => Some((*name).to_owned()).filter(|name| !WORDLESS_KEYS.contains(&name.as_str())),
        (true, Some(Value::Text(name))) if !name.is_empty() => Some((*name).to_owned()),
        (true, _) => None,
    };
    Ok((token, (*name).to_owned(), tensor))
}
