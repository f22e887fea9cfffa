//! A GPT-2's parameters to make text with: each once, in the type that it is computed with.

use ringtune_engine::Precision;
use tch::{Device, Kind, Tensor};

use super::super::config::Gpt2Config;
use super::super::layout::{Layout, Pair};
use crate::error::Result;

/// One parameter.
#[derive(Debug)]
struct Values {
    /// fp32 where it is looked up, or of a norm; else as the products take it.
    kept: Tensor,
    /// Of the token table, which is looked up and multiplied by too, what the head takes; none: the same.
    of_head: Option<Tensor>,
}

/// All parameters of a model.
#[derive(Debug)]
pub(crate) struct TextParameters {
    pub(crate) config: Gpt2Config,
    pub(crate) layout: Layout,
    precision: Precision,
    values: Vec<Values>,
}

/// Takes the parameters of a model in, one after the other.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) config: Gpt2Config,
    pub(crate) layout: Layout,
    precision: Precision,
    values: Vec<Values>,
}

impl Intake {
    pub(crate) fn new(config: Gpt2Config, precision: Precision) -> Self {
        let layout = Layout::new(&config);
        Intake { config, layout, precision, values: Vec::new() }
    }

    /// The next parameter, fp32. It is copied, so that its file is let go of, and may change afterwards.
    pub(crate) fn take(&mut self, parameter: &Tensor) -> Result<()> {
        let number = self.values.len();
        let kind = kind_of(self.precision);
        let values = if number == self.layout.wte {
            match self.precision {
                Precision::Fp32 => Values { kept: copy(parameter, kind)?, of_head: None },
                Precision::Bf16 => {
                    let of_head = Some(copy(parameter, kind)?);
                    Values { kept: copy(parameter, Kind::Float)?, of_head }
                }
            }
        } else if !self.layout.in_products(number) {
            Values { kept: copy(parameter, Kind::Float)?, of_head: None }
        } else if parameter.dim() == 2 {
            // Transformers' Conv1D has [inputs, outputs]: turned, each result is the product with one row.
            Values { kept: copy(&parameter.f_tr()?, kind)?, of_head: None }
        } else {
            Values { kept: copy(parameter, kind)?, of_head: None }
        };
        self.values.push(values);
        Ok(())
    }

    /// All of them were taken in.
    pub(crate) fn finish(self) -> TextParameters {
        let Intake { config, layout, precision, values } = self;
        TextParameters { config, layout, precision, values }
    }
}

/// A contiguous copy.
fn copy(tensor: &Tensor, kind: Kind) -> Result<Tensor> {
    let mut copy = Tensor::f_empty(tensor.size(), (kind, Device::Cpu))?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}

fn kind_of(precision: Precision) -> Kind {
    match precision {
        Precision::Fp32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
    }
}

impl TextParameters {
    /// Of activations.
    pub(crate) fn kind(&self) -> Kind {
        kind_of(self.precision)
    }

    /// Whether activations are bf16.
    pub(crate) fn is_low(&self) -> bool {
        self.precision == Precision::Bf16
    }

    /// A parameter that is looked up or of a norm, fp32; one of products in their type, matrices as [outputs, inputs].
    pub(crate) fn get(&self, number: usize) -> &Tensor {
        &self.values[number].kept
    }

    /// The same of a layer's two parameters.
    pub(crate) fn pair(&self, pair: Pair) -> (&Tensor, Option<&Tensor>) {
        (self.get(pair.weight), pair.bias.map(|bias| self.get(bias)))
    }

    /// The token table as the head takes it, [vocabulary, width].
    pub(crate) fn head(&self) -> &Tensor {
        let table = &self.values[self.layout.wte];
        table.of_head.as_ref().unwrap_or(&table.kept)
    }
}
