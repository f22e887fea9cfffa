//! The checks, each with what was found and what would help.

use ringtune_sources::hub_endpoint;
use serde::Serialize;

use crate::{
    access::{Buckets, Hubs, Roots},
    capabilities::default_threads,
    engine::{EngineError, EngineIdentity, InstructionSet, StartEngine, Threads},
    node::Node,
    settings::{ComputeSettings, Settings},
};

/// Stable Diffusion 1.5 at 512 pixels in bf16 takes less than this.
const COMFORTABLE_MEMORY: u64 = 8 << 30;
/// With less not even that is possible.
const LEAST_MEMORY: u64 = 4 << 30;

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// It works, but slowly or not for every job.
    Warn,
    /// It does not work.
    Bad,
}

impl Verdict {
    /// As the table shows it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Warn => "warn",
            Self::Bad => "FAIL",
        }
    }
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// At which other worker, if at one: HOST:PORT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub neighbour: Option<String>,
    /// How it went.
    pub verdict: Verdict,
    /// What is there.
    pub found: String,
    /// What would help; empty when nothing is wrong.
    pub advice: String,
}

impl Check {
    pub(super) fn new(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, neighbour: None, verdict: Verdict::Good, found: found.into(), advice: String::new() }
    }

    pub(super) fn unless(self, good: bool, verdict: Verdict, advice: &str) -> Self {
        if good { self } else { Self { verdict, advice: advice.to_owned(), ..self } }
    }

    pub(super) fn at(self, neighbour: &str) -> Self {
        Self { neighbour: Some(neighbour.to_owned()), ..self }
    }

    /// What this system does not say, as in containers: that is no fault.
    pub(super) fn unknown(name: &'static str, why: &str) -> Self {
        Self::new(name, format!("not known here: {why}"))
    }
}

/// Processor and memory.
pub(super) fn of_node() -> Vec<Check> {
    node_checks(&Node::detect())
}

fn node_checks(node: &Node) -> Vec<Check> {
    let cpu = &node.cpu;
    let yes_no = |flag: &str| if cpu.has(flag) { "yes" } else { "no" };
    let amx = format!("amx_bf16 {}, amx_tile {}", yes_no("amx_bf16"), yes_no("amx_tile"));
    let bf16 = format!("avx512_bf16 {}, amx_bf16 {}", yes_no("avx512_bf16"), yes_no("amx_bf16"));
    let gibibytes = format!("{:.1} GiB", node.memory_bytes as f64 / f64::from(1u32 << 30));
    vec![
        Check::new("host", &node.host_name),
        Check::new("processor", &cpu.model).unless(
            cpu.has("avx2") || InstructionSet::limit() == InstructionSet::Portable,
            Verdict::Bad,
            "it has no avx2, which libtorch's kernels need",
        ),
        Check::new("AMX", amx).unless(
            cpu.has("amx_bf16") && cpu.has("amx_tile"),
            Verdict::Warn,
            "without AMX (4th generation Xeon and later) steps are several times slower",
        ),
        Check::new("bf16", bf16).unless(
            cpu.has_bf16(),
            Verdict::Warn,
            "mixed_precision = \"bf16\" falls back to fp32 for jobs that include this machine",
        ),
        Check::new("cores", format!("{} physical, {} logical may be used", cpu.physical_cores, cpu.allowed)),
        Check::new(
            "threads",
            format!(
                "{} a rank, unless --threads says otherwise",
                default_threads(node, &ComputeSettings::default())
            ),
        ),
        memory(node.memory_bytes, gibibytes),
    ]
}

fn memory(bytes: u64, shown: String) -> Check {
    let check = Check::new("memory", shown);
    if bytes < LEAST_MEMORY {
        return check.unless(false, Verdict::Bad, "Stable Diffusion 1.5 at 512 pixels needs about 6 GiB");
    }
    check.unless(
        bytes >= COMFORTABLE_MEMORY,
        Verdict::Warn,
        "Stable Diffusion 1.5 at 512 pixels needs about 6 GiB: smaller models fit",
    )
}

/// Starts libtorch, and asks what it is.
pub(super) async fn identity(start: StartEngine) -> Result<EngineIdentity, EngineError> {
    let threads = Threads::anywhere(default_threads(&Node::detect(), &ComputeSettings::default()));
    let started = tokio::task::spawn_blocking(move || start(threads)).await.unwrap_or(Err(EngineError::Gone));
    started?.identity().await
}

/// libtorch: that it starts, which it is, where it is.
pub(super) fn of_engine(identity: &Result<EngineIdentity, EngineError>) -> Vec<Check> {
    match identity {
        Ok(identity) => vec![
            Check::new("libtorch", format!("{}, {}", identity.library_version, identity.instruction_set)),
            Check::new("libtorch folder", libtorch_folder()),
            Check::new("probe", &identity.probe),
        ],
        Err(error) => {
            let advice = "run deploy/install-libtorch.sh and build again";
            vec![Check::new("libtorch", error.to_string()).unless(false, Verdict::Bad, advice)]
        }
    }
}

/// Where the loader found it, from this process's own memory map.
fn libtorch_folder() -> String {
    std::fs::read_to_string("/proc/self/maps")
        .ok()
        .and_then(|maps| {
            let line = maps.lines().find(|line| line.contains("/libtorch_cpu.so"))?;
            let path = &line[line.find('/')?..];
            Some(path.rsplit_once('/')?.0.to_owned())
        })
        .unwrap_or_else(|| "linked into this program".to_owned())
}

/// What jobs may reach on a worker with these settings.
pub(super) fn of_access(settings: &Settings) -> Vec<Check> {
    let environment = settings.cloud.environment();
    let rules = settings.access_rules(&environment);
    let hub = hub_endpoint(&environment).unwrap_or_else(|error| error.to_string());
    let exposed = settings.is_exposed();
    let check = |name, found: String, is_all: bool| {
        Check::new(name, found).unless(
            !(exposed && is_all),
            Verdict::Warn,
            "the worker listens beyond loopback: whoever may submit a job reaches all that its user does; name what they need",
        )
    };
    let roots = |name, roots: &Roots| {
        let found = match roots {
            Roots::Below(some) if !some.is_empty() => format!("below {roots}"),
            _ => roots.to_string(),
        };
        check(name, found, *roots == Roots::Everything)
    };
    let traces = match settings.debug.allow_trace_dir {
        true => roots("jobs write traces", &rules.traces),
        false => Check::new("jobs write traces", "nowhere: debug.allow_trace_dir is false"),
    };
    vec![
        roots("jobs read models", &rules.models),
        roots("jobs read pictures", &rules.data),
        roots("jobs read embeddings", &rules.embeddings),
        traces,
        check("jobs use hubs", format!("{} (hf:// is {hub})", rules.hubs), rules.hubs == Hubs::Everything),
        check("jobs use buckets", rules.buckets.to_string(), rules.buckets == Buckets::Everything),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Cores, Cpu};

    fn node(flags: &[&str], gibibytes: u64) -> Node {
        Node {
            host_name: "n".to_owned(),
            cpu: Cpu {
                model: "m".to_owned(),
                flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
                allowed: 2,
                physical_cores: 2,
            },
            cores: Cores::default(),
            quota: None,
            memory_bytes: gibibytes << 30,
            numa_nodes: 1,
        }
    }

    fn worst(node: &Node) -> Vec<(&'static str, Verdict)> {
        node_checks(node)
            .into_iter()
            .filter(|check| check.verdict != Verdict::Good)
            .map(|check| (check.name, check.verdict))
            .collect()
    }

    #[test]
    fn a_modern_node_is_fit() {
        assert!(worst(&node(&["avx2", "avx512_bf16", "amx_tile", "amx_bf16"], 64)).is_empty());
    }

    #[test]
    fn what_is_missing_is_named() {
        let warnings = [("AMX", Verdict::Warn), ("bf16", Verdict::Warn)];
        assert_eq!(worst(&node(&["avx2"], 64)), warnings);
        assert_eq!(worst(&node(&["avx2", "avx512_bf16"], 64)), warnings[..1]);
        assert!(worst(&node(&[], 64)).contains(&("processor", Verdict::Bad)));
        assert!(worst(&node(&["avx2"], 2)).contains(&("memory", Verdict::Bad)));
        assert!(worst(&node(&["avx2"], 6)).contains(&("memory", Verdict::Warn)));
    }

    #[test]
    fn what_jobs_may_reach_is_said_and_everything_on_a_network_is_warned_of() {
        let mut settings = Settings::default();
        let of = |settings: &Settings| of_access(settings);
        let verdicts = |checks: &[Check]| checks.iter().map(|check| check.verdict).collect::<Vec<_>>();
        let here = of(&settings);
        assert!(here.iter().all(|check| check.verdict == Verdict::Good), "{here:?}");
        assert_eq!(here[0].found, "everything");
        settings.grpc.listen.set_ip([10, 0, 0, 1].into());
        let there = of(&settings);
        assert!(there[0].found.starts_with("below /srv/ringtune/models, "), "{there:?}");
        assert_eq!((there[1].found.as_str(), there[5].found.as_str()), ("nothing", "nothing"));
        assert_eq!(verdicts(&there), [Verdict::Good; 6]);
        settings.access.data_roots = vec!["/".to_owned()];
        settings.access.buckets = vec!["*".to_owned()];
        let [good, warn] = [Verdict::Good, Verdict::Warn];
        assert_eq!(verdicts(&of(&settings)), [good, warn, good, good, good, warn]);
    }
}
