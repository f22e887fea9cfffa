//! The samplers by name.

/// A sampler, as `ringtune generate --scheduler` names it. Each is diffusers' class, arithmetic and defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SamplerKind {
    /// DDIMScheduler with eta 0 (Song et al. 2021).
    Ddim,
    /// PNDMScheduler (Liu et al. 2022); with `skip_prk_steps` it is what others call PLMS.
    Pndm,
    /// EulerDiscreteScheduler (Karras et al. 2022, algorithm 2 without churn).
    Euler,
    /// EulerAncestralDiscreteScheduler: Euler's steps with fresh noise after each (k-diffusion).
    EulerAncestral,
    /// DPMSolverMultistepScheduler, algorithm dpmsolver++ (Lu et al. 2022).
    DpmSolver2M,
    /// The same with the noise levels of Karras et al. 2022.
    DpmSolver2MKarras,
    /// LMSDiscreteScheduler: a linear multistep method of order 4 (k-diffusion).
    Lms,
}

impl SamplerKind {
    /// All of them.
    pub const ALL: [SamplerKind; 7] = [
        SamplerKind::Ddim,
        SamplerKind::Pndm,
        SamplerKind::Euler,
        SamplerKind::EulerAncestral,
        SamplerKind::DpmSolver2M,
        SamplerKind::DpmSolver2MKarras,
        SamplerKind::Lms,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            SamplerKind::Ddim => "ddim",
            SamplerKind::Pndm => "pndm",
            SamplerKind::Euler => "euler",
            SamplerKind::EulerAncestral => "euler_a",
            SamplerKind::DpmSolver2M => "dpm++_2m",
            SamplerKind::DpmSolver2MKarras => "dpm++_2m_karras",
            SamplerKind::Lms => "lms",
        }
    }

    /// The sampler of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        SamplerKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The sampler that a model's `_class_name` stands for; `karras`: its `use_karras_sigmas`.
    pub fn of_class(class: &str, karras: bool) -> Option<Self> {
        match class {
            "DDIMScheduler" => Some(SamplerKind::Ddim),
            "PNDMScheduler" => Some(SamplerKind::Pndm),
            "EulerDiscreteScheduler" => Some(SamplerKind::Euler),
            "EulerAncestralDiscreteScheduler" => Some(SamplerKind::EulerAncestral),
            "DPMSolverMultistepScheduler" if karras => Some(SamplerKind::DpmSolver2MKarras),
            "DPMSolverMultistepScheduler" => Some(SamplerKind::DpmSolver2M),
            "LMSDiscreteScheduler" => Some(SamplerKind::Lms),
            _ => None,
        }
    }

    /// How many draws of standard normals, each of the latents' size, `steps` steps take beside the first noise.
    pub fn step_noises(self, steps: usize) -> usize {
        if self == SamplerKind::EulerAncestral { steps } else { 0 }
    }
}

impl std::fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
