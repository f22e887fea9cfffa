//! The LoRA that a job goes on from.

use std::collections::BTreeMap;

use ringtune_shared::lora::{Factor, LoraFile, ModelLayers, Pair};

use crate::{
    engine::{Adapter, EngineError, EngineHandle},
    fault::Refusal,
};

/// The job's option that names it.
pub(super) const FIELD: &str = "lora.initializer_lora";

/// Values of parameters by their names, little-endian fp32.
pub(super) type Values = BTreeMap<String, Vec<u8>>;

/// The values that adapters take from a file.
///
/// # Errors
/// No LoRA, or one of another model; an adapter that the job does not have, or of another rank; lengths of DoRA that only one of
/// both has.
pub(super) fn values(bytes: &[u8], model: &ModelLayers, adapters: &[Adapter]) -> Result<Values, Refusal> {
    let refuse = |problem: String| Refusal::of(FIELD, problem);
    let mut file = LoraFile::for_model(bytes, model).map_err(|error| refuse(error.to_string()))?;
    let mut values = Values::new();
    for adapter in adapters {
        let (name, rank) = (&adapter.layer, adapter.rank);
        // A layer that the file says nothing of begins anew.
        let Some(Pair { rank: found, alpha, down, up, dora_scale, .. }) = file.modules.remove(name) else {
            continue;
        };
        if found != rank {
            let problem = format!(
                "its rank is {found} in {name}, and the job's is {rank}: set lora.rank (or conv_rank, rank_pattern)"
            );
            return Err(refuse(problem));
        }
        if dora_scale.is_some() != adapter.dora {
            let problem =
                format!("{name}: only one of file and job has DoRA: set lora.use_dora = {}", !adapter.dora);
            return Err(refuse(problem));
        }
        // The product stays, whatever it is multiplied by here.
        let ratio = alpha / adapter.alpha;
        values.insert(adapter.down(), fp32(&down, 1.0));
        values.insert(adapter.up(), fp32(&up, ratio));
        if let Some(lengths) = dora_scale {
            values.insert(adapter.magnitude(), fp32(&lengths, 1.0));
        }
    }
    match file.modules.keys().next() {
        None => Ok(values),
        Some(other) => {
            let count = file.modules.len();
            let problem = format!(
                "{count} of its adapters are beside layers that the job does not adapt, such as {other}: set lora.targets \
                 (or conv_rank, train.train_text_encoder) so that it does"
            );
            Err(refuse(problem))
        }
    }
}

/// Puts them in the place of what was drawn. Blocks.
///
/// # Errors
/// The engine's.
pub(super) fn write(engine: &EngineHandle, values: Values, has_average: bool) -> Result<(), EngineError> {
    for (name, mut bytes) in values {
        for kind in ["model", "average"].into_iter().take(1 + usize::from(has_average)) {
            bytes = engine.write_state(&format!("{kind}.{name}"), 0, bytes)?;
        }
    }
    Ok(())
}

/// A factor's numbers times `ratio`.
fn fp32(factor: &Factor<'_>, ratio: f64) -> Vec<u8> {
    let numbers = factor.kind.widened(&factor.bytes).into_iter();
    numbers.flat_map(|number| ((f64::from(number) * ratio) as f32).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use ringtune_shared::{
        floats::FloatKind,
        lora::{Base, Format, Layer, LayerKind},
    };

    use super::*;

    const NAME: &str = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q";

    fn layers() -> ModelLayers {
        let layer = Layer { kind: LayerKind::Linear, inputs: 2, outputs: 3 };
        let other = NAME.replace("to_q", "to_k");
        ModelLayers::new(Base::Sd1, "the model".to_owned(), [(NAME.to_owned(), layer), (other, layer)])
    }

    fn file(name: &str) -> Vec<u8> {
        let factor =
            |numbers: &[f32]| Factor { kind: FloatKind::F32, bytes: FloatKind::F32.narrowed(numbers).into() };
        let pair = Pair {
            kind: LayerKind::Linear,
            rank: 1,
            alpha: 3.0,
            down: factor(&[1.0, 2.0]),
            up: factor(&[4.0, 5.0, 6.0]),
            dora_scale: None,
        };
        let modules = [(name.to_owned(), pair)].into();
        let file = LoraFile { base: Base::Sd1, format: Format::Kohya, modules, metadata: BTreeMap::new() };
        let mut bytes = Vec::new();
        file.write(Format::Kohya, &mut bytes).unwrap();
        bytes
    }

    fn adapter(rank: usize, dora: bool) -> Adapter {
        Adapter { layer: NAME.to_owned(), rank, alpha: 1.5, dora, rate: 0 }
    }

    #[test]
    fn the_product_is_the_files_whatever_alpha_the_job_has() {
        let values = values(&file(NAME), &layers(), &[adapter(1, false)]).unwrap();
        let of = |name: String| FloatKind::F32.widened(&values[&name]);
        assert_eq!(of(adapter(1, false).down()), [1.0, 2.0]);
        assert_eq!(of(adapter(1, false).up()), [8.0, 10.0, 12.0]);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_to_set() {
        let refused = |name: &str, adapter: Adapter| {
            values(&file(name), &layers(), &[adapter]).unwrap_err().to_string()
        };
        for (refused, word) in [
            (refused(NAME, adapter(2, false)), "lora.rank"),
            (refused(NAME, adapter(1, true)), "lora.use_dora = false"),
            (refused(&NAME.replace("to_q", "to_k"), adapter(1, false)), "lora.targets"),
        ] {
            assert!(refused.starts_with(FIELD) && refused.contains(word), "{refused}");
        }
        assert!(values(b"x", &layers(), &[]).is_err());
    }
}
