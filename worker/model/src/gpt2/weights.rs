//! A GPT-2's parameters from the files that transformers writes.

use std::path::Path;

use tch::{Kind, Tensor};

use super::layout::Layout;
use crate::error::{Error, Result};
use crate::weights::Weights;

const PREFIX: &str = "transformer.";
/// The head, where a file has it apart. It is the token table.
const HEAD: &str = "lm_head.weight";
const TABLE: &str = "wte.weight";

/// Names without their prefix; causal masks, which are no parameters, are dropped.
fn rename(name: &str) -> Option<String> {
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    let of_layer = name.strip_prefix("h.").and_then(|rest| rest.split_once('.'));
    let is_mask = of_layer.is_some_and(|(number, rest)| {
        number.bytes().all(|digit| digit.is_ascii_digit())
            && ["attn.bias", "attn.masked_bias"].contains(&rest)
    });
    (!is_mask).then(|| name.to_owned())
}

/// The files of a folder.
///
/// # Errors
/// None that can be read.
pub(crate) fn open(folder: &Path) -> Result<Weights> {
    Weights::open(folder, "model", "", rename).map_err(|error| match error {
        Error::PickleOnly { folder, found, .. } => {
            Error::PickleOnly { folder, found, converter: "transformers: GPT2LMHeadModel" }
        }
        other => other,
    })
}

/// All parameters in the layout's order, fp32, some of them on the mapped file: never write to them.
///
/// # Errors
/// A tensor that is missing, misshapen or not called for, by its name; a head that is not the token table.
pub(crate) fn read(weights: &Weights, layout: &Layout) -> Result<Vec<Tensor>> {
    read_each(weights, layout, |_, tensor| Ok(tensor))
}

/// The same, but each goes through `keep` with its number, before the next one is read.
pub(crate) fn read_each<T>(
    weights: &Weights,
    layout: &Layout,
    mut keep: impl FnMut(usize, Tensor) -> Result<T>,
) -> Result<Vec<T>> {
    let root = weights.root();
    let shape_of = |number: usize| -> Vec<i64> {
        layout.parameters[number].shape.iter().map(|side| *side as i64).collect()
    };
    let kept = layout
        .parameters
        .iter()
        .enumerate()
        .map(|(number, parameter)| {
            let name = parameter.name.strip_prefix(PREFIX).unwrap_or(&parameter.name);
            keep(number, root.tensor(name, &shape_of(number), Kind::Float)?)
        })
        .collect::<Result<Vec<T>>>()?;
    if weights.has(HEAD) {
        let head = root.stored_tensor(HEAD, &shape_of(layout.wte))?;
        let table = root.stored_tensor(TABLE, &shape_of(layout.wte))?;
        if !head.f_to_kind(Kind::Float)?.f_equal(&table.f_to_kind(Kind::Float)?)? {
            return Err(Error::argument(
                HEAD,
                "another tensor than wte.weight",
                "the same: this model's head is its token table",
            ));
        }
    }
    weights.finish()?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_masks_are_no_names() {
        for (name, expected) in [
            ("transformer.h.0.attn.c_attn.weight", Some("h.0.attn.c_attn.weight")),
            ("h.10.attn.c_attn.bias", Some("h.10.attn.c_attn.bias")),
            ("transformer.h.3.attn.bias", None),
            ("h.11.attn.masked_bias", None),
            ("h.x.attn.bias", Some("h.x.attn.bias")),
            ("lm_head.weight", Some("lm_head.weight")),
        ] {
            assert_eq!(rename(name).as_deref(), expected, "{name}");
        }
    }
}
