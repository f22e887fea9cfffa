//! scheduler/scheduler_config.json, read for one sampler as diffusers' `from_config` of its class reads it: a key that
//! is absent takes that class's default, and keys of other classes are ignored.

use ringtune_engine::SamplerKind;
use serde_json::json;

use crate::config::{Keys, SchedulerConfig, TimestepSpacing};
use crate::error::Result;

/// Everything that decides a walk from noise to latents but the number of steps.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplerConfig {
    /// The sampler.
    pub kind: SamplerKind,
    /// The noise schedule, as this class has it: PNDM and LMS know no rescaling to zero terminal SNR.
    pub schedule: SchedulerConfig,
    /// Spacing of the timesteps.
    pub spacing: TimestepSpacing,
    /// Added to leading timesteps.
    pub steps_offset: i64,
    /// DDIM and PNDM: the last step ends at alpha 1 instead of the schedule's first.
    pub set_alpha_to_one: bool,
    /// DDIM: clamp the predicted picture to +- this.
    pub clip_sample: Option<f64>,
    /// PNDM: begin without Runge-Kutta steps.
    pub skip_prk_steps: bool,
    /// Euler, LMS, DPM-Solver: the noise levels of Karras et al. 2022.
    pub karras_sigmas: bool,
    /// Euler, DPM-Solver: the last step ends without noise instead of at the schedule's lowest level.
    pub ends_at_zero_sigma: bool,
    /// DPM-Solver.
    pub solver: DpmSolverConfig,
}

/// Options of DPM-Solver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DpmSolverConfig {
    /// 1 or 2.
    pub order: usize,
    /// Heun's second order instead of the midpoint's.
    pub heun: bool,
    /// The last of few steps is of first order.
    pub lower_order_final: bool,
    /// The last step always is.
    pub euler_at_final: bool,
    /// Timesteps whose lambda is below this are left out; minus infinity for none.
    pub lambda_min_clipped: f64,
}

impl SamplerConfig {
    /// Reads the keys of `kind`'s class.
    ///
    /// Errors name the key: a value that is not allowed, or one that asks for what the sampler here does not do.
    pub fn from_keys(keys: &Keys, kind: SamplerKind) -> Result<Self> {
        use SamplerKind::{Ddim, DpmSolver2M, DpmSolver2MKarras, Euler, EulerAncestral, Lms, Pndm};
        let is_dpm = matches!(kind, DpmSolver2M | DpmSolver2MKarras);
        let nothing = [json!(false)];
        // 1. What the sampler here does not do.
        if kind == Ddim || is_dpm {
            keys.only("thresholding", &nothing)?;
        }
        if matches!(kind, Euler | Lms) || is_dpm {
            keys.only("use_exponential_sigmas", &nothing)?;
            keys.only("use_beta_sigmas", &nothing)?;
        }
        if kind == Euler {
            keys.only("interpolation_type", &[json!("linear")])?;
            keys.only("timestep_type", &[json!("discrete")])?;
            keys.only("sigma_min", &[])?;
            keys.only("sigma_max", &[])?;
        }
        // 2. What it shares with training.
        let mut schedule = SchedulerConfig::from_keys(keys)?;
        schedule.rescale_zero_snr &= !matches!(kind, Pndm | Lms);
        // 3. What several classes have, with their own defaults.
        let spacing = if matches!(kind, Ddim | Pndm) { "leading" } else { "linspace" };
        let clip_range = if kind == Ddim { keys.positive("clip_sample_range", 1.0)? } else { 1.0 };
        Ok(SamplerConfig {
            kind,
            schedule,
            spacing: match keys.word("timestep_spacing", spacing, &["leading", "trailing", "linspace"])? {
                "trailing" => TimestepSpacing::Trailing,
                "linspace" => TimestepSpacing::Linspace,
                _ => TimestepSpacing::Leading,
            },
            steps_offset: keys.count_or_zero("steps_offset", 0)?,
            set_alpha_to_one: matches!(kind, Ddim | Pndm) && keys.flag("set_alpha_to_one", kind == Ddim)?,
            clip_sample: (kind == Ddim && keys.flag("clip_sample", true)?).then_some(clip_range),
            skip_prk_steps: kind == Pndm && keys.flag("skip_prk_steps", false)?,
            karras_sigmas: match kind {
                Euler | Lms => keys.flag("use_karras_sigmas", false)?,
                Ddim | Pndm | EulerAncestral | DpmSolver2M => false,
                DpmSolver2MKarras => true,
            },
            ends_at_zero_sigma: !(kind == Euler || is_dpm)
                || keys.word("final_sigmas_type", "zero", &["zero", "sigma_min"])? == "zero",
            solver: if is_dpm { DpmSolverConfig::from_keys(keys)? } else { DpmSolverConfig::default() },
        })
    }
}

impl DpmSolverConfig {
    fn from_keys(keys: &Keys) -> Result<Self> {
        for key in ["use_lu_lambdas", "use_flow_sigmas", "use_dynamic_shifting"] {
            keys.only(key, &[json!(false)])?;
        }
        keys.only("variance_type", &[])?;
        // The other words are those of classes whose files diffusers reads with this one, and what it makes of them.
        keys.only("algorithm_type", &[json!("dpmsolver++"), json!("deis")])?;
        let solvers = ["midpoint", "heun", "logrho", "bh1", "bh2"];
        keys.only("solver_order", &[json!(1), json!(2)])?;
        let clips = keys.get("lambda_min_clipped").is_some_and(|value| *value != json!("-Infinity"));
        Ok(DpmSolverConfig {
            order: keys.count("solver_order", Some(2))? as usize,
            heun: keys.word("solver_type", "midpoint", &solvers)? == "heun",
            lower_order_final: keys.flag("lower_order_final", true)?,
            euler_at_final: keys.flag("euler_at_final", false)?,
            lambda_min_clipped: if clips {
                keys.number("lambda_min_clipped", f64::NEG_INFINITY)?
            } else {
                f64::NEG_INFINITY
            },
        })
    }
}

impl Default for DpmSolverConfig {
    /// The class's defaults.
    fn default() -> Self {
        DpmSolverConfig {
            order: 2,
            heun: false,
            lower_order_final: true,
            euler_at_final: false,
            lambda_min_clipped: f64::NEG_INFINITY,
        }
    }
}
