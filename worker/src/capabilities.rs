//! What this worker tells the coordinator about itself.

use ringtune_proto::v1;
use ringtune_shared::version::VERSION;

use crate::{engine::EngineIdentity, node::Node};

/// The numerics class: workers of one class compute the same bits when they use the same number of threads (which
/// is not part of it: the coordinator fixes one number for all ranks of a job).
///
/// libtorch's version, the processor's model, the instruction set in use, and, as proof, the hash of a small fixed
/// computation on one thread.
pub fn numerics_class(node: &Node, engine: &EngineIdentity) -> String {
    let model: String = node
        .cpu
        .model
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .filter(|letter| *letter != '/')
        .collect();
    format!("libtorch-{}/{model}/{}/{}", engine.library_version, engine.instruction_set, engine.probe)
}

/// Threads that a rank gets here when its job leaves it open: as configured, or one a physical core.
pub fn default_threads(node: &Node, configured: usize) -> usize {
    if configured == 0 { node.cpu.physical_cores } else { configured }
}

/// As the hello carries it.
pub fn capabilities(node: &Node, engine: &EngineIdentity, threads: usize) -> v1::Capabilities {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    v1::Capabilities {
        version: VERSION.to_owned(),
        libtorch_version: engine.library_version.clone(),
        cpu_model: node.cpu.model.clone(),
        cpu_flags: node.cpu.flags.clone(),
        cores: number(node.cpu.physical_cores),
        numa_nodes: number(node.numa_nodes),
        memory_bytes: i64::try_from(node.memory_bytes).unwrap_or(i64::MAX),
        numerics_class: numerics_class(node, engine),
        bf16: node.cpu.has_bf16(),
        threads: number(threads),
    }
}
