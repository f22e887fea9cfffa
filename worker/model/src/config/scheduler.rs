//! The part of scheduler/scheduler_config.json that training and every sampler share, read as diffusers does.

use ringtune_engine::PredictionType;

use crate::config::Keys;
use crate::error::Result;

/// Schedule of the variances.
#[derive(Debug, Clone, PartialEq)]
pub enum BetaSchedule {
    /// Evenly from start to end.
    Linear {
        /// First variance.
        start: f64,
        /// Last variance.
        end: f64,
    },
    /// Evenly between the square roots (SD).
    ScaledLinear {
        /// First variance.
        start: f64,
        /// Last variance.
        end: f64,
    },
    /// Nichol & Dhariwal 2021's cosine schedule.
    SquaredCosine,
    /// Written out.
    Trained(Vec<f64>),
}

/// Timesteps of a sampler with fewer steps (Lin et al. 2023, table 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestepSpacing {
    /// 0, r, 2r, …, plus the offset.
    Leading,
    /// T, T - r, …, minus 1.
    Trailing,
    /// Evenly from 0 to T - 1.
    Linspace,
}

/// The noise schedule and what the network predicts.
#[derive(Debug, Clone, PartialEq)]
pub struct SchedulerConfig {
    /// Length of the schedule.
    pub num_train_timesteps: usize,
    /// Its variances.
    pub betas: BetaSchedule,
    /// Shift the schedule so that the last step is pure noise (Lin et al. 2023).
    pub rescale_zero_snr: bool,
    /// Prediction type of the network.
    pub prediction: PredictionType,
}

impl SchedulerConfig {
    /// Reads the keys; absent ones take the defaults that all of diffusers' classes have.
    pub fn from_keys(keys: &Keys) -> Result<Self> {
        let num_train_timesteps = keys.count("num_train_timesteps", Some(1000))?;
        let (start, end) = (keys.positive("beta_start", 0.0001)?, keys.positive("beta_end", 0.02)?);
        let schedules = ["linear", "scaled_linear", "squaredcos_cap_v2"];
        let betas = match (keys.numbers("trained_betas")?, keys.word("beta_schedule", "linear", &schedules)?)
        {
            (Some(betas), _) if betas.len() as i64 != num_train_timesteps => {
                return Err(keys.invalid(
                    "trained_betas",
                    format!("a list of num_train_timesteps = {num_train_timesteps}"),
                ));
            }
            (Some(betas), _) => BetaSchedule::Trained(betas),
            (None, "scaled_linear") => BetaSchedule::ScaledLinear { start, end },
            (None, "squaredcos_cap_v2") => BetaSchedule::SquaredCosine,
            (None, _) => BetaSchedule::Linear { start, end },
        };
        for (key, value) in [("beta_start", start), ("beta_end", end)] {
            if value >= 1.0 {
                return Err(keys.invalid(key, "a number between 0 and 1"));
            }
        }
        Ok(SchedulerConfig {
            num_train_timesteps: num_train_timesteps as usize,
            betas,
            rescale_zero_snr: keys.flag("rescale_betas_zero_snr", false)?,
            prediction: match keys.word("prediction_type", "epsilon", &["epsilon", "v_prediction"])? {
                "v_prediction" => PredictionType::VPrediction,
                _ => PredictionType::Epsilon,
            },
        })
    }
}
