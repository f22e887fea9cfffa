//! What the facts mean for a worker.

use crate::node::Node;

/// Stable Diffusion 1.5 at 512 px in bf16 takes about 5 GB; less than this and even that will not fit.
const LEAST_MEMORY: u64 = 6_000_000_000;
/// Below this, one worker with a full-size checkpoint fits, but little else.
const SOUND_MEMORY: u64 = 12_000_000_000;

/// What `doctor` found.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The machine.
    pub node: Node,
    /// libtorch, or why it does not work.
    pub libtorch: Result<Libtorch, String>,
    /// The coordinator's URL and its answer, if one was to be called.
    pub coordinator: Option<(String, Result<String, String>)>,
}

/// A libtorch that computed its probe step.
#[derive(Clone, Debug)]
pub struct Libtorch {
    /// As in "2.13.0".
    pub version: String,
    /// What its kernels use here.
    pub instruction_set: String,
    /// The probe's hash.
    pub probe: String,
    /// Where it was loaded from.
    pub file: String,
}

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// A worker runs, but less well than it could.
    Warn,
    /// A worker does not run.
    Fail,
}

impl Verdict {
    /// "ok", "warn" or "FAIL".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// A word.
    pub name: &'static str,
    /// How good it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What could be done; empty where nothing need be.
    pub advice: String,
}

impl Check {
    fn new(name: &'static str, verdict: Verdict, found: impl Into<String>, advice: &str) -> Self {
        Self { name, verdict, found: found.into(), advice: advice.to_owned() }
    }
}

/// Judges all findings, in the order they are printed.
pub fn checks(facts: &Facts) -> Vec<Check> {
    let mut all = vec![processor(facts), matrix(facts), cores(facts), memory(facts), libtorch(facts)];
    all.extend(facts.coordinator.as_ref().map(|(url, answer)| match answer {
        Ok(found) => Check::new("coordinator", Verdict::Ok, format!("{url}: {found}"), ""),
        Err(problem) => Check::new(
            "coordinator",
            Verdict::Fail,
            format!("{url}: {problem}"),
            "is it running, does it listen on that address (--listen, --insecure), does a firewall stand between?",
        ),
    }));
    all
}

fn processor(facts: &Facts) -> Check {
    let cpu = &facts.node.cpu;
    let found = format!("{} ({})", cpu.model, cpu.flags.join(" "));
    if cpu.has("avx2") {
        Check::new("processor", Verdict::Ok, found, "")
    } else {
        Check::new("processor", Verdict::Warn, found, "without AVX2 every step is several times slower")
    }
}

fn matrix(facts: &Facts) -> Check {
    let cpu = &facts.node.cpu;
    if cpu.has("amx_bf16") {
        Check::new("bf16", Verdict::Ok, "AMX tiles", "")
    } else if cpu.has_bf16() {
        let advice = "Xeons from the 4th generation on have AMX, which is faster still";
        Check::new("bf16", Verdict::Ok, "AVX-512 bf16, no AMX", advice)
    } else {
        let advice =
            "jobs with mixed_precision = \"bf16\" run in fp32 here: the same quality, slower, more memory";
        Check::new("bf16", Verdict::Warn, "not in this processor", advice)
    }
}

fn cores(facts: &Facts) -> Check {
    let (cpu, nodes) = (&facts.node.cpu, facts.node.numa_nodes);
    let found = format!("{} cores, {} NUMA node(s)", cpu.physical_cores, nodes);
    if nodes > 1 {
        let advice = "run one worker per NUMA node, each bound to it: numactl -N I -m I ringtune-worker …";
        return Check::new("cores", Verdict::Warn, found, advice);
    }
    Check::new("cores", Verdict::Ok, found, "")
}

fn memory(facts: &Facts) -> Check {
    let bytes = facts.node.memory_bytes;
    let found = format!("{:.1} GB", bytes as f64 / 1e9);
    match bytes {
        ..LEAST_MEMORY => Check::new(
            "memory",
            Verdict::Warn,
            found,
            "too little for a full-size Stable Diffusion at 512 px, which takes about 5 GB",
        ),
        LEAST_MEMORY..SOUND_MEMORY => Check::new("memory", Verdict::Ok, found, "enough for one worker"),
        _ => Check::new("memory", Verdict::Ok, found, ""),
    }
}

fn libtorch(facts: &Facts) -> Check {
    match &facts.libtorch {
        Ok(torch) => {
            let found = format!(
                "{} ({}), probe {}, {}",
                torch.version, torch.instruction_set, torch.probe, torch.file
            );
            Check::new("libtorch", Verdict::Ok, found, "")
        }
        Err(problem) => Check::new(
            "libtorch",
            Verdict::Fail,
            problem.clone(),
            "run deploy/install-libtorch.sh and build again, or correct LIBTORCH",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Cpu;

    fn facts(flags: &[&str], memory_bytes: u64) -> Facts {
        let cpu = Cpu {
            model: "Xeon".to_owned(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            allowed: 4,
            physical_cores: 4,
        };
        let node = Node { host_name: "n".to_owned(), cpu, memory_bytes, numa_nodes: 1 };
        let libtorch = Libtorch {
            version: "2.13.0".to_owned(),
            instruction_set: "AVX512".to_owned(),
            probe: "00".to_owned(),
            file: "libtorch_cpu.so".to_owned(),
        };
        Facts { node, libtorch: Ok(libtorch), coordinator: None }
    }

    fn verdict(facts: &Facts, name: &str) -> Verdict {
        checks(facts).into_iter().find(|check| check.name == name).unwrap().verdict
    }

    #[test]
    fn a_good_node_has_nothing_but_ok() {
        let good = facts(&["avx2", "avx512f", "avx512_bf16", "amx_bf16"], 64_000_000_000);
        assert!(checks(&good).iter().all(|check| check.verdict == Verdict::Ok && check.advice.is_empty()));
    }

    #[test]
    fn what_is_missing_is_said() {
        let old = facts(&["avx2"], 4_000_000_000);
        assert_eq!(verdict(&old, "bf16"), Verdict::Warn);
        assert_eq!(verdict(&old, "memory"), Verdict::Warn);
        let mut broken = facts(&["avx2"], 64_000_000_000);
        broken.libtorch = Err("no libtorch".to_owned());
        broken.coordinator = Some(("http://x:1".to_owned(), Err("refused".to_owned())));
        assert_eq!(verdict(&broken, "libtorch"), Verdict::Fail);
        assert_eq!(verdict(&broken, "coordinator"), Verdict::Fail);
    }
}
