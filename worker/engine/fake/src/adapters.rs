//! Adapters of a few lines: every number of theirs is pulled to where the microbatch wants it.

use std::time::Instant;

use ringtune_engine::{
    AdaptableLayer, Adapter, Buckets, EngineError, FirstValues, LEARNED_ROWS, LayerShape, OpenAdapters,
    OpenUnet, Parameter, PassSummary, ROWS_RATE, Shows, UnetTensor,
};
use ringtune_random::philox4x32;

use crate::parameters::{FakeParameters, wrong};

/// What is open.
#[derive(Debug)]
pub(crate) struct FakeAdapters {
    pub(crate) held: FakeParameters,
    count: usize,
}

/// The layers of the fake's models: Stable Diffusion 1's names, with few features, or with as many as the script has a text encoder's
/// width.
pub(crate) fn layers(width: Option<usize>) -> Vec<AdaptableLayer> {
    let (inputs, outputs) = width.map_or((8, 12), |width| (width, width));
    let layer = |name: String| AdaptableLayer { name, inputs, outputs, shape: LayerShape::Matrix };
    let text = ["q_proj", "k_proj", "v_proj", "out_proj"]
        .map(|name| layer(format!("text_encoder.text_model.encoder.layers.0.self_attn.{name}")));
    let unet = ["attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0", "ff.net.0.proj"]
        .map(|name| layer(format!("unet.mid_block.attentions.0.transformer_blocks.0.{name}")));
    text.into_iter().chain(unet).collect()
}

/// The tensors of the fake's UNets: one of each sort, some larger than others.
pub(crate) fn unet_tensors() -> Vec<UnetTensor> {
    let tensor = |name: &str, shape: &[usize]| UnetTensor { name: name.to_owned(), shape: shape.to_vec() };
    let attention = "mid_block.attentions.0.transformer_blocks.0.attn2";
    vec![
        tensor("conv_in.weight", &[8, 4, 3, 3]),
        tensor("conv_in.bias", &[8]),
        tensor("mid_block.resnets.0.norm1.weight", &[8]),
        tensor("mid_block.resnets.0.norm1.bias", &[8]),
        tensor("mid_block.resnets.0.conv1.weight", &[8, 8, 3, 3]),
        tensor(&format!("{attention}.to_k.weight"), &[8, 16]),
        tensor(&format!("{attention}.to_v.weight"), &[8, 16]),
        tensor("conv_out.weight", &[4, 8, 3, 3]),
    ]
}

impl FakeAdapters {
    pub(crate) fn open_unet(request: &OpenUnet) -> Result<Self, EngineError> {
        let all = unet_tensors();
        let find = |name: &String| {
            let found = all.iter().find(|tensor| tensor.name == *name);
            let found = found.ok_or_else(|| wrong(format!("trained: the UNet has no {name}")))?;
            Ok(Parameter::new(found.name.clone(), found.shape.clone()))
        };
        let list = request.trained.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let seed = match request.first {
            FirstValues::Stored => 0,
            FirstValues::Drawn { seed } => seed,
        };
        let initial = |_: &Parameter, number: usize| {
            let [word, ..] = philox4x32([seed as u32, 1], [number as u32, 0, 0, 0]);
            word as f32 / u32::MAX as f32 - 0.5
        };
        let count = list.len();
        Ok(Self {
            held: FakeParameters::new(list, 0, request.buckets, [request.average, request.rounds], initial),
            count,
        })
    }

    pub(crate) fn open(request: &OpenAdapters, width: Option<usize>) -> Result<Self, EngineError> {
        let all = layers(width);
        let mut list = Vec::new();
        for adapter in &request.adapters {
            let known = all.iter().find(|layer| layer.name == adapter.layer);
            let layer = known.ok_or_else(|| wrong(format!("adapters: no layer {}", adapter.layer)))?;
            let Adapter { rank, rate, dora, .. } = *adapter;
            let mut put = |name, shape| list.push(Parameter { rate, ..Parameter::new(name, shape) });
            put(adapter.down(), vec![rank, layer.inputs]);
            put(adapter.up(), vec![layer.outputs, rank]);
            if dora {
                put(adapter.magnitude(), vec![layer.outputs]);
            }
        }
        let width = width.unwrap_or(crate::FakeEngine::TEXT_WIDTH);
        if !request.rows.is_empty() {
            let rows = Parameter::new(LEARNED_ROWS.to_owned(), vec![request.rows.len() / width, width]);
            list.push(Parameter { rate: ROWS_RATE, ..rows });
        }
        let count = list.len();
        let key = [request.seed as u32, (request.seed >> 32) as u32];
        let initial = |parameter: &Parameter, number: usize| {
            let [word, ..] = philox4x32(key, [number as u32, 0, 0, 0]);
            if parameter.name == LEARNED_ROWS {
                return request.rows[number];
            }
            let first = parameter.name.ends_with(".lora_A.weight");
            if first { word as f32 / u32::MAX as f32 - 0.5 } else { 0.0 }
        };
        Ok(Self {
            held: FakeParameters::new(list, 0, request.buckets, [request.average, false], initial),
            count,
        })
    }

    /// How far every number is from `wanted`.
    fn distances(&self, wanted: f32) -> Vec<Vec<f32>> {
        let of = |number| self.held.parameter(number).iter().map(|value| value - wanted).collect();
        (0..self.count).map(of).collect()
    }

    pub(crate) fn loss(&self, wanted: f32) -> f32 {
        let far = self.distances(wanted);
        let count: usize = far.iter().map(Vec::len).sum();
        far.iter().flatten().map(|far| far * far / 2.0).sum::<f32>() / count.max(1) as f32
    }

    pub(crate) fn gradient(
        &mut self,
        wanted: f32,
        finite: bool,
        add: bool,
        buckets: &mut dyn Buckets,
    ) -> Result<PassSummary, EngineError> {
        let started = Instant::now();
        self.held.show(Shows::Parameters)?;
        let (loss, mut far) = (self.loss(wanted), self.distances(wanted));
        if !finite {
            far.iter_mut().flatten().for_each(|far| *far = f32::NAN);
        }
        let forward_seconds = started.elapsed().as_secs_f64();
        self.held.put(&far, &[], add, buckets)?;
        let backward_seconds = started.elapsed().as_secs_f64() - forward_seconds;
        let loss = if finite { loss } else { f32::NAN };
        Ok(PassSummary { loss, finite, forward_seconds, backward_seconds })
    }
}
