//! Which parameters are trained: a pure function of the job and the model.

use crate::{engine::UnetTensor, fault::Refusal};

/// The layers that see the prompt.
const CROSS_ATTENTION: &str = "attn2";

/// The names of those that are trained, in their order.
///
/// # Errors
/// A part that no parameter's name has.
pub(super) fn trainable(parts: &[String], tensors: &[UnetTensor]) -> Result<Vec<String>, Refusal> {
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let is_chosen: Box<dyn Fn(&str) -> bool> = match parts[..] {
        ["all"] => Box::new(|_| true),
        ["cross_attention"] => Box::new(|name| has_part(name, CROSS_ATTENTION)),
        _ => {
            let fits_none = |part: &&&str| !tensors.iter().any(|tensor| has_part(&tensor.name, part));
            if let Some(part) = parts.iter().find(fits_none) {
                let example = tensors.get(tensors.len() / 2).map_or("", |tensor| &tensor.name);
                let problem = format!(
                    "{part:?} is a part of no parameter's name; the UNet's parameters have names such as {example:?}"
                );
                return Err(Refusal::of("train.trainable", problem));
            }
            Box::new(|name| parts.iter().any(|part| has_part(name, part)))
        }
    };
    let chosen: Vec<String> =
        tensors.iter().map(|tensor| &tensor.name).filter(|name| is_chosen(name)).cloned().collect();
    if chosen.is_empty() {
        return Err(Refusal::of("train.trainable", "no parameter of this UNet is chosen".to_owned()));
    }
    Ok(chosen)
}

/// Whether this is a part of a parameter's name, from point to point.
fn has_part(name: &str, part: &str) -> bool {
    format!(".{name}.").contains(&format!(".{part}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_chosen_by_words_or_parts_of_names() {
        let names = [
            "conv_in.weight",
            "mid_block.attentions.0.attn2.to_k.weight",
            "up_blocks.1.resnets.0.norm1.bias",
        ];
        let tensors = names.map(|name| UnetTensor { name: name.to_owned(), shape: vec![2] });
        let chosen = |parts: &[&str]| {
            let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
            trainable(&parts, &tensors).map_err(|refused| refused.to_string())
        };
        assert_eq!(chosen(&["all"]).unwrap(), names);
        assert_eq!(chosen(&["cross_attention"]).unwrap(), [names[1]]);
        assert_eq!(chosen(&["up_blocks.1", "conv_in"]).unwrap(), [names[0], names[2]]);
        assert_eq!(chosen(&["attn2.to_k"]).unwrap(), [names[1]]);
        let refused = chosen(&["conv_in", "up_blocks.11"]).unwrap_err();
        assert!(
            refused.starts_with("train.trainable: \"up_blocks.11\" is a part of no parameter's name"),
            "{refused}"
        );
        assert!(trainable(&["cross_attention".to_owned()], &tensors[..1]).is_err());
    }
}
