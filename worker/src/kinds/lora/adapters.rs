//! Which layers get an adapter: a pure function of the job and the model.

use std::collections::BTreeMap;

use ringtune_shared::job::kinds::lora::{AdapterSpec, LoraSpec};

use crate::{
    engine::{AdaptableLayer, Adapter, LayerShape},
    fault::Refusal,
};

/// Where the layers are that a job can name.
const UNET: &str = "unet.";
const TEXT_ENCODER: &str = "text_encoder.";
/// The layers of an attention. Source: diffusers, train_text_to_image_lora.py and train_dreambooth_lora.py, `target_modules`.
const ATTENTION: [&str; 4] = ["to_q", "to_k", "to_v", "to_out.0"];
const TEXT_ATTENTION: [&str; 4] = ["q_proj", "k_proj", "v_proj", "out_proj"];
/// The blocks whose 3x3 convolutions, and with them all other layers, kohya's scripts adapt with a conv_dim.
const CONVOLUTIONS: [&str; 3] = [".resnets.", ".downsamplers.", ".upsamplers."];
/// Which of a step's rates the text encoder's adapters move by.
const TEXT_RATE: usize = 1;

/// The adapters of a model with these layers, in their order.
///
/// # Errors
/// A target or a pattern that no layer's name has; a rank above what one of them can use.
pub(super) fn adapters(job: &LoraSpec, layers: &[AdaptableLayer]) -> Result<Vec<Adapter>, Refusal> {
    let (spec, trains_text) = (&job.lora, job.text_encoder.train_text_encoder);
    // 1. Which layers.
    let all = layers.iter().filter(|layer| trains_text || layer.name.starts_with(UNET));
    let all: Vec<&AdaptableLayer> = all.collect();
    let targets: Vec<&str> = spec.targets.iter().map(String::as_str).collect();
    if let Some(end) = targets.iter().find(|end| matches_none(end, &all)) {
        let example = all.last().map_or("", |layer| within(layer));
        let problem = format!(
            "{end:?} is the end of no layer's name; the model's layers have names such as {example:?}"
        );
        return Err(Refusal::of("lora.targets", problem));
    }
    let is_chosen = |layer: &AdaptableLayer| {
        let is_target = match targets[..] {
            ["attention"] if is_text(layer) => ends_with(layer, &TEXT_ATTENTION),
            ["attention"] => ends_with(layer, &ATTENTION),
            ["all"] => is_text(layer) || layer.name.contains(".attentions."),
            ref ends => ends_with(layer, ends),
        };
        let is_convolution =
            spec.conv_rank > 0 && CONVOLUTIONS.iter().any(|block| layer.name.contains(block));
        is_target || is_convolution
    };
    let chosen: Vec<&AdaptableLayer> = all.into_iter().filter(|layer| is_chosen(layer)).collect();
    // 2. How large.
    for (field, pattern) in
        [("lora.rank_pattern", &spec.rank_pattern), ("lora.alpha_pattern", &spec.alpha_pattern)]
    {
        let fits_none = |part: &&String| !chosen.iter().any(|layer| has_part(layer, part));
        if let Some(part) = pattern.keys().find(fits_none) {
            let example = chosen.last().map_or("", |layer| within(layer));
            let problem =
                format!("{part:?} is a part of no adapted layer's name; they have names such as {example:?}");
            return Err(Refusal::of(field, problem));
        }
    }
    let adapters: Vec<Adapter> = chosen.iter().map(|layer| adapter(spec, layer)).collect();
    for (layer, adapter) in chosen.iter().zip(&adapters) {
        let (rank, name, area) = (adapter.rank, &layer.name, layer.shape.area());
        let most = layer.outputs.min(layer.inputs * area);
        if rank > most {
            let field = if area > 1 { "lora.conv_rank" } else { "lora.rank" };
            let problem = format!("{rank} is more than {most}, the width of {name}: allowed is up to it");
            return Err(Refusal::of(field, problem));
        }
        if spec.use_dora && area > 1 {
            let problem = format!("true is for linear layers and 1x1 convolutions, and {name} is neither");
            return Err(Refusal::of("lora.use_dora", problem));
        }
    }
    Ok(adapters)
}

/// That of one layer.
fn adapter(spec: &AdapterSpec, layer: &AdaptableLayer) -> Adapter {
    let (rank, alpha) = match layer.shape {
        LayerShape::Convolution { side } if side > 1 => {
            let rank = spec.conv_rank.max(1);
            (rank, spec.conv_alpha.unwrap_or(f64::from(rank)))
        }
        _ => (spec.rank, spec.alpha),
    };
    // An alpha that is the rank is so in each layer.
    let follows = alpha == f64::from(rank);
    let rank = number(&spec.rank_pattern, layer).map_or(rank as usize, |rank| rank as usize);
    let alpha = number(&spec.alpha_pattern, layer).unwrap_or(if follows { rank as f64 } else { alpha });
    let rate = if is_text(layer) { TEXT_RATE } else { 0 };
    Adapter { layer: layer.name.clone(), rank, alpha, dora: spec.use_dora, rate }
}

/// What a pattern says of a layer: the longest part of its name counts.
fn number(pattern: &BTreeMap<String, f64>, layer: &AdaptableLayer) -> Option<f64> {
    let fitting = pattern.iter().filter(|(part, _)| has_part(layer, part));
    fitting.max_by_key(|(part, _)| part.len()).map(|(_, number)| *number)
}

/// Whether a target that is no word is the end of no layer's name.
fn matches_none(end: &str, layers: &[&AdaptableLayer]) -> bool {
    !["attention", "all"].contains(&end) && !layers.iter().any(|layer| ends_with(layer, &[end]))
}

fn is_text(layer: &AdaptableLayer) -> bool {
    layer.name.starts_with(TEXT_ENCODER)
}

/// Its name within its network.
fn within(layer: &AdaptableLayer) -> &str {
    layer.name.split_once('.').map_or(&layer.name, |(_, name)| name)
}

/// Whether a layer's name ends with one of these, at a point.
fn ends_with(layer: &AdaptableLayer, ends: &[&str]) -> bool {
    let fits = |end: &str| layer.name.strip_suffix(end).is_some_and(|rest| rest.ends_with('.'));
    ends.iter().any(|end| fits(end))
}

/// Whether this is a part of a layer's name, from point to point.
fn has_part(layer: &AdaptableLayer, part: &str) -> bool {
    format!(".{}.", layer.name).contains(&format!(".{part}."))
}

#[cfg(test)]
mod tests {
    use ringtune_shared::job::{Work, parse_job_toml};

    use super::*;

    fn layers() -> Vec<AdaptableLayer> {
        let of = |name: &str| AdaptableLayer {
            name: name.to_owned(),
            inputs: 8,
            outputs: 16,
            shape: match name.rsplit('.').next() {
                Some("proj_in") => LayerShape::Convolution { side: 1 },
                Some("conv1") => LayerShape::Convolution { side: 3 },
                _ => LayerShape::Matrix,
            },
        };
        let block = "unet.mid_block.attentions.0";
        let unet = ["proj_in", "transformer_blocks.0.attn1.to_q", "transformer_blocks.0.attn2.to_v"]
            .map(|name| of(&format!("{block}.{name}")));
        let others =
            ["text_encoder.text_model.encoder.layers.0.self_attn.q_proj", "unet.time_embedding.linear_1"];
        let resnet = ["conv1", "time_emb_proj"].map(|name| of(&format!("unet.mid_block.resnets.0.{name}")));
        unet.into_iter().chain(others.map(of)).chain(resnet).collect()
    }

    /// `more`: further lines of [lora], or other sections behind them.
    fn job(targets: &[&str], rank: u32, more: &str) -> LoraSpec {
        let text = format!(
            "kind = \"lora\"\n[model]\nbase = \"/m\"\n[data]\nimages = \"/i\"\n[lora]\nrank = {rank}\nalpha = 2\n\
             targets = {targets:?}\n{more}"
        );
        match parse_job_toml(&text).unwrap().work {
            Work::Lora(job) => job,
            other => panic!("{other:?}"),
        }
    }

    fn chosen(targets: &[&str], rank: u32) -> Result<Vec<String>, String> {
        let adapters = adapters(&job(targets, rank, ""), &layers());
        let end = |adapter: Adapter| adapter.layer.rsplit('.').next().unwrap_or_default().to_owned();
        adapters.map(|all| all.into_iter().map(end).collect()).map_err(|refused| refused.to_string())
    }

    #[test]
    fn targets_are_words_or_ends_of_names() {
        assert_eq!(chosen(&["attention"], 4).unwrap(), ["to_q", "to_v"]);
        assert_eq!(chosen(&["all"], 4).unwrap(), ["proj_in", "to_q", "to_v"]);
        assert_eq!(chosen(&["attn2.to_v", "proj_in"], 8).unwrap(), ["proj_in", "to_v"]);
        let refused = chosen(&["to_v", "o_q"], 4).unwrap_err();
        assert!(refused.starts_with("lora.targets: \"o_q\" is the end of no layer's name"), "{refused}");
        assert!(chosen(&["q_proj"], 4).is_err());
        let refused = chosen(&["attention"], 9).unwrap_err();
        assert!(refused.starts_with("lora.rank: 9 is more than 8, the width of unet."), "{refused}");
    }
    #[test]
    fn the_text_encoder_convolutions_and_patterns_are_options() {
        let more = "conv_rank = 3\nrank_pattern = { \"attn1\" = 2, \"attn1.to_q\" = 5 }\nalpha_pattern = { conv1 = 0.5 }\n\
                    [train]\ntrain_text_encoder = true\n";
        let found = adapters(&job(&["attention"], 4, more), &layers()).unwrap();
        let of = |end: &str| found.iter().find(|adapter| adapter.layer.ends_with(end)).unwrap();
        let seen = |end: &str| (of(end).rank, of(end).alpha, of(end).rate);
        assert_eq!(found.len(), 5);
        assert_eq!([seen("to_q"), seen("to_v")], [(5, 2.0, 0), (4, 2.0, 0)]);
        assert_eq!([seen("conv1"), seen("time_emb_proj")], [(3, 0.5, 0), (4, 2.0, 0)]);
        assert_eq!(seen("q_proj"), (4, 2.0, 1));
        // An alpha that is the rank follows it.
        let follows = job(&["attention"], 2, "rank_pattern = { attn1 = 8 }");
        let alpha = adapters(&follows, &layers()).unwrap()[0].alpha;
        assert_eq!(alpha, 8.0);
        let refused = adapters(&job(&["all"], 2, "rank_pattern = { attn3 = 1 }"), &layers()).unwrap_err();
        assert!(refused.to_string().starts_with("lora.rank_pattern: \"attn3\""), "{refused}");
        let refused = adapters(&job(&["conv1"], 2, "use_dora = true"), &layers()).unwrap_err();
        assert!(refused.to_string().starts_with("lora.use_dora"), "{refused}");
    }
}
