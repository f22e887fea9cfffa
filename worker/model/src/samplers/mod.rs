//! Samplers: from noise to latents, given what the network predicts at each timestep.
//!
//! Plain fp32 arithmetic on slices, in the order of operations of diffusers' classes; coefficients are computed in
//! the width that numpy or torch has there. No sampler draws noise: it says how much it takes
//! ([`SamplerKind::step_noises`]), and the caller brings it.

mod ddim;
mod dpm_solver;
mod euler;
mod lms;
mod pndm;
mod sigmas;
mod spacing;

use ringtune_engine::SamplerKind;

use crate::config::SamplerConfig;
use crate::error::{Error, Result};

/// A sampler's walk; `at` counts the network's predictions from 0.
trait Solver: std::fmt::Debug + Send {
    /// Timesteps of the network's predictions, from the noisiest.
    fn timesteps(&self) -> &[f32];

    /// The standard deviation of the first sample (diffusers init_noise_sigma).
    fn initial_scale(&self) -> f32 {
        1.0
    }

    /// Divisor of the network's input (diffusers scale_model_input).
    fn input_divisor(&self, _at: usize) -> f32 {
        1.0
    }

    /// Replaces `sample` with the next one. `noise` is as long as the sample, or empty for a sampler without.
    fn step(&mut self, at: usize, predicted: &[f32], noise: &[f32], sample: &mut [f32]);
}

/// A walk from noise to latents.
#[derive(Debug)]
pub struct Sampler {
    solver: Box<dyn Solver>,
    takes_noise: bool,
    /// Predictions used so far.
    done: usize,
}

impl Sampler {
    /// A walk of `steps` steps, 1 ..= num_train_timesteps.
    ///
    /// Errors: [`Error::Argument`] for a number of steps that the sampler cannot take.
    pub fn new(config: &SamplerConfig, steps: usize) -> Result<Self> {
        let train = config.schedule.num_train_timesteps;
        if steps == 0 || steps > train {
            return Err(Error::argument("steps", steps, format!("1 to {train}")));
        }
        let solver: Box<dyn Solver> = match config.kind {
            SamplerKind::Ddim => Box::new(ddim::Ddim::new(config, steps)),
            SamplerKind::Pndm => Box::new(pndm::Pndm::new(config, steps)?),
            SamplerKind::Euler | SamplerKind::EulerAncestral => Box::new(euler::Euler::new(config, steps)?),
            SamplerKind::DpmSolver2M | SamplerKind::DpmSolver2MKarras => {
                Box::new(dpm_solver::DpmSolver::new(config, steps)?)
            }
            SamplerKind::Lms => Box::new(lms::Lms::new(config, steps)?),
        };
        Ok(Sampler { solver, takes_noise: config.kind.step_noises(1) > 0, done: 0 })
    }

    /// Timesteps of the network's predictions, from the noisiest. Some samplers look more than once in a
    /// step, so that there can be more than `steps` of them; some have fractions.
    pub fn timesteps(&self) -> &[f32] {
        self.solver.timesteps()
    }

    /// The first sample, from standard normals.
    pub fn start(&self, noise: &[f32]) -> Vec<f32> {
        let scale = self.solver.initial_scale();
        noise.iter().map(|value| value * scale).collect()
    }

    /// The network's input for `sample`.
    pub fn model_input(&self, sample: &[f32]) -> Vec<f32> {
        let divisor = self.solver.input_divisor(self.done);
        sample.iter().map(|value| value / divisor).collect()
    }

    /// Replaces `sample` with the next one, given what the network predicted for [`Sampler::model_input`].
    ///
    /// `noise`: as many standard normals as the sample has values for a sampler that takes noise, else unused.
    /// Errors: [`Error::Argument`] after the last step, and for lengths that differ.
    pub fn step(&mut self, predicted: &[f32], noise: &[f32], sample: &mut [f32]) -> Result<()> {
        if self.done >= self.timesteps().len() {
            return Err(Error::argument("step", self.done + 1, format!("1 to {}", self.timesteps().len())));
        }
        let noise = if self.takes_noise { noise } else { &[] };
        for (field, given, wanted) in
            [("predicted", predicted.len(), true), ("step_noise", noise.len(), self.takes_noise)]
        {
            if wanted && given != sample.len() {
                return Err(Error::argument(field, format!("{given} floats"), sample.len()));
            }
        }
        self.solver.step(self.done, predicted, noise, sample);
        self.done += 1;
        Ok(())
    }
}
