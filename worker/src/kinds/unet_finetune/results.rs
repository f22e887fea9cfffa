//! The files of what was learned: the UNet's weights as diffusers loads them, and the model card.

use std::{path::Path, sync::Arc};

use ringtune_shared::{
    job::{OrdersSpec, kinds::unet_finetune::UnetFinetuneSpec},
    state::TensorInfo,
};
use serde_json::{Value, json};

use crate::{
    kinds::pictures::{NetworkResults, Ready},
    output::{
        self, canonical_json, model_card,
        unet_card::{self, Chosen},
        weights_file,
    },
    parameters::{LearnedParameters, Which},
    training::{StepJudged, say_orders},
};

/// What diffusers looks for in a UNet's folder, without its end.
const STEM: &str = "diffusion_pytorch_model";

/// Writes the files of one job.
#[derive(Clone, Debug)]
pub(crate) struct Results {
    /// Where the bits come from: no time, path or ring size.
    facts: Arc<Value>,
    /// Numbers of all that is trained.
    numbers: usize,
    /// All of the UNet's weights are trained.
    is_whole: bool,
    /// The result is the state with the lowest validation loss.
    select_best: bool,
    /// The result is the average of what is learned.
    keeps_average: bool,
}

impl Results {
    pub(super) fn new(job: &UnetFinetuneSpec, ready: &Ready, facts: Value) -> Self {
        let list = &ready.prepared.parameters.list;
        Self {
            facts: Arc::new(facts),
            numbers: list.iter().map(|parameter| parameter.elements()).sum(),
            is_whole: job.unet.trainable == ["all"],
            select_best: job.train.validation.select_best,
            keeps_average: job.denoiser.use_ema,
        }
    }

    fn write(
        &self,
        file: &Path,
        (which, judged): (Which, &StepJudged),
        learned: &LearnedParameters,
    ) -> Result<(), output::Error> {
        let (numbers, parameters): (Vec<usize>, Vec<TensorInfo>) =
            learned.parameters(which).into_iter().unzip();
        let mut facts = (*self.facts).clone();
        if let Value::Object(facts) = &mut facts {
            facts.insert("step".to_owned(), json!(judged.step));
            let loss = judged.validation_loss.map(|loss| loss.to_string());
            facts.insert("validation_loss".to_owned(), json!(loss));
        }
        let read = |number: usize, offset: u64, into: &mut [u8]| {
            learned.read(numbers.get(number).copied().unwrap_or(usize::MAX), offset, into)
        };
        weights_file::write(file, &parameters, &[], &canonical_json(&facts), &read)
    }
}

impl NetworkResults for Results {
    /// All weights a second time would be too many.
    const DRAWS_BEST: bool = false;

    fn amend(&mut self, orders: &OrdersSpec) {
        say_orders(&mut Arc::make_mut(&mut self.facts)["job"], orders);
    }

    fn write_step(
        &self,
        folder: &Path,
        judged: &StepJudged,
        learned: &LearnedParameters,
    ) -> Result<Vec<String>, output::Error> {
        let name = format!("{STEM}-steps-{}.safetensors", judged.step);
        self.write(&folder.join(&name), (Which::Last, judged), learned)?;
        Ok(vec![name])
    }

    fn write_all(
        &self,
        folder: &Path,
        last: StepJudged,
        learned: &LearnedParameters,
        names: &mut Vec<String>,
    ) -> Result<(), output::Error> {
        let (of_last, best) = learned.judged(last);
        let chosen = best.map_or((Which::Last, of_last), |best| (Which::Best, best));
        let mut files = vec![(format!("{STEM}.safetensors"), chosen)];
        if self.select_best {
            files.push((format!("{STEM}-last.safetensors"), (Which::Last, of_last)));
        }
        if self.keeps_average {
            files.push((format!("{STEM}-without-ema.safetensors"), (Which::Plain, of_last)));
        }
        for (name, (which, judged)) in files {
            self.write(&folder.join(&name), (which, &judged), learned)?;
            names.push(name);
        }
        let (_, StepJudged { step, validation_loss, .. }) = chosen;
        let (numbers, is_whole) = (self.numbers, self.is_whole);
        let card = Chosen { step, validation_loss, numbers, is_whole };
        unet_card::write(&folder.join(model_card::FILE_NAME), &self.facts, card)?;
        names.push(model_card::FILE_NAME.to_owned());
        Ok(())
    }
}
