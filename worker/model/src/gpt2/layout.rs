//! Which parameters a GPT-2 has, and in which order the backward pass ends their gradients.

use ringtune_engine::Parameter;

use super::config::Gpt2Config;

/// The numbers of a layer's two parameters in the list of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) weight: usize,
    pub(crate) bias: Option<usize>,
}

/// The parameters of one layer. Weights of products are [inputs, outputs], as transformers' Conv1D has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) ln_1: Pair,
    /// Queries, keys and values, one behind the other.
    pub(crate) c_attn: Pair,
    pub(crate) attn_proj: Pair,
    pub(crate) ln_2: Pair,
    pub(crate) c_fc: Pair,
    pub(crate) mlp_proj: Pair,
}

/// All parameters, by transformers' names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) parameters: Vec<Parameter>,
    /// The token table, which is the head too.
    pub(crate) wte: usize,
    /// The position table.
    pub(crate) wpe: usize,
    pub(crate) blocks: Vec<Block>,
    pub(crate) ln_f: Pair,
}

impl Layout {
    pub(crate) fn new(config: &Gpt2Config) -> Self {
        let mut list = List { parameters: Vec::new(), bias: config.bias };
        let width = config.n_embd;
        let wte = list.add("transformer.wte.weight".to_owned(), &[config.vocab_size, width]);
        let wpe = list.add("transformer.wpe.weight".to_owned(), &[config.n_positions, width]);
        let blocks = (0..config.n_layer)
            .map(|number| {
                let mut pair = |name: &str, sides: &[i64]| list.pair(&format!("h.{number}.{name}"), sides);
                Block {
                    ln_1: pair("ln_1", &[width]),
                    c_attn: pair("attn.c_attn", &[width, 3 * width]),
                    attn_proj: pair("attn.c_proj", &[width, width]),
                    ln_2: pair("ln_2", &[width]),
                    c_fc: pair("mlp.c_fc", &[width, config.n_inner]),
                    mlp_proj: pair("mlp.c_proj", &[config.n_inner, width]),
                }
            })
            .collect();
        let ln_f = list.pair("ln_f", &[width]);
        Layout { parameters: list.parameters, wte, wpe, blocks, ln_f }
    }

    /// The numbers of all parameters, as the backward pass ends their gradients: of the token table the head's part, as what is
    /// looked up has a bucket of its own.
    pub(crate) fn backward_order(&self) -> Vec<usize> {
        let mut pairs = vec![self.ln_f];
        for block in self.blocks.iter().rev() {
            pairs.extend([block.mlp_proj, block.c_fc, block.ln_2, block.attn_proj, block.c_attn, block.ln_1]);
        }
        let layers = pairs.into_iter().flat_map(|pair| pair.bias.into_iter().chain([pair.weight]));
        [self.wte].into_iter().chain(layers).chain([self.wpe]).collect()
    }

    /// Whether a parameter is multiplied by, or added to a product: in bf16, by a rounded copy of it.
    pub(crate) fn in_products(&self, number: usize) -> bool {
        let of = |pair: &Pair| pair.weight == number || pair.bias == Some(number);
        let in_block =
            |block: &Block| [block.c_attn, block.attn_proj, block.c_fc, block.mlp_proj].iter().any(of);
        number == self.wte || self.blocks.iter().any(in_block)
    }
}

struct List {
    parameters: Vec<Parameter>,
    bias: bool,
}

impl List {
    fn add(&mut self, name: String, sides: &[i64]) -> usize {
        let shape = sides.iter().map(|side| *side as usize).collect();
        self.parameters.push(Parameter::new(name, shape));
        self.parameters.len() - 1
    }

    /// A weight of these sides, and a bias of the last.
    fn pair(&mut self, name: &str, sides: &[i64]) -> Pair {
        let weight = self.add(format!("transformer.{name}.weight"), sides);
        let last = &sides[sides.len().saturating_sub(1)..];
        let bias = self.bias.then(|| self.add(format!("transformer.{name}.bias"), last));
        Pair { weight, bias }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use ringtune_engine::NewLanguageModel;

    use super::*;

    fn layout(bias: bool) -> Layout {
        let (vocab_size, n_positions, n_layer, n_head, n_embd) = (50_257, 1024, 12, 12, 768);
        let new = NewLanguageModel { vocab_size, n_positions, n_layer, n_head, n_embd, bias, seed: 0 };
        Layout::new(&Gpt2Config::of_new(&new).unwrap())
    }

    #[test]
    fn the_smallest_gpt2_has_124_million_parameters_and_each_ends_once() {
        // transformers' count; and nanoGPT's without biases.
        for (bias, elements) in [(true, 124_439_808), (false, 124_337_664)] {
            let layout = layout(bias);
            assert_eq!(layout.parameters.iter().map(Parameter::elements).sum::<usize>(), elements);
            let mut order = layout.backward_order();
            assert_eq!((order.first(), order.last()), (Some(&layout.wte), Some(&layout.wpe)));
            order.sort_unstable();
            assert_eq!(order, (0..layout.parameters.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn matrices_are_decayed_and_products_have_copies() {
        let layout = layout(true);
        let named = |name: &str| {
            layout.parameters.iter().position(|one| one.name == format!("transformer.{name}")).unwrap()
        };
        for (name, decayed, in_products) in [
            ("wte.weight", true, true),
            ("wpe.weight", true, false),
            ("h.3.ln_1.weight", false, false),
            ("h.11.mlp.c_proj.weight", true, true),
            ("h.0.attn.c_attn.bias", false, true),
            ("ln_f.bias", false, false),
        ] {
            let number = named(name);
            assert_eq!(layout.parameters[number].decayed, decayed, "{name}");
            assert_eq!(layout.in_products(number), in_products, "{name}");
        }
    }
}
