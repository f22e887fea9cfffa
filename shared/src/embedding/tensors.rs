//! diffusers' and kohya's safetensors files.

use safetensors::SafeTensors;

use super::{EmbeddingError, PLACEHOLDER_ENTRY, WORDLESS_KEYS, numbers::StoredTensor};
use crate::floats::FloatKind;

/// The token and the only tensor: its key is the token, or one of those that say nothing; then the metadata may
/// have one.
///
/// # Errors
/// Not a whole safetensors file, or one of something else.
pub(super) fn read(bytes: &[u8]) -> Result<(Option<String>, StoredTensor<'_>), EmbeddingError> {
    let broken = |error: safetensors::SafeTensorError| EmbeddingError::Safetensors(error.to_string());
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(broken)?;
    let tensors = SafeTensors::deserialize(bytes).map_err(broken)?;
    let mut names: Vec<&str> = tensors.names();
    names.sort_unstable();
    let [name] = names[..] else { return Err(not_one(&names)) };
    let tensor = tensors.tensor(name).map_err(broken)?;
    let other = tensor.dtype();
    let kind = FloatKind::of(other).ok_or_else(|| {
        let problem = format!("{name:?} is stored as {other:?}; allowed: F32, F16, BF16");
        EmbeddingError::NotAnEmbedding(problem)
    })?;
    let entry = |key: &str| {
        let text = header.metadata().as_ref().and_then(|entries| entries.get(key));
        text.filter(|text| !text.is_empty()).cloned()
    };
    let token = match name {
        key if WORDLESS_KEYS.contains(&key) => entry(PLACEHOLDER_ENTRY).or_else(|| entry("name")),
        token => Some(token.to_owned()),
    };
    let (name, shape) = (name.to_owned(), tensor.shape().to_vec());
    Ok((token, StoredTensor { name, kind, shape, data: tensor.data() }))
}

/// The error of a file that has no tensor, or several. `names`: in order.
pub(super) fn not_one(names: &[&str]) -> EmbeddingError {
    let shown: Vec<String> = names.iter().take(5).map(|name| format!("{name:.60?}")).collect();
    let more = if names.len() > shown.len() { ", …" } else { "" };
    EmbeddingError::NotAnEmbedding(match names {
        [] => "it holds no tensor".to_owned(),
        _ => format!("it holds {} tensors, one is allowed: {}{more}", names.len(), shown.join(", ")),
    })
}
